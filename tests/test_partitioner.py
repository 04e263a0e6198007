"""The splitter class for code written against torch's splitters (``partitioner.py``)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.fx.passes.operator_support import create_op_support
from torch.fx.passes.splitter_base import Subgraph, _SplitterBase

import hierpart
from hierpart import BackendOpSupportTester, HierarchicalAdjacencyPartitioner
from hierpart.errors import FullCompilationError, HierpartError, InputTypeError, OptionError
from hierpart.plan import EAGER
from hierpart.testing.reading.snapshot import difference, snapshot
from tests.cases.harness import record, same, trace, vector


class Model(nn.Module):
    """Seven ops for two backends and eager; one block is too small."""

    def forward(self, x):
        h = torch.sin(torch.sin(torch.sin(x)))
        h = torch.cumsum(h, 0)
        h = torch.cos(h)
        return torch.sin(torch.sin(torch.neg(h)))


SUPPORT = {"a": {torch.cos}, "b": {torch.sin, torch.cos, torch.neg}}
OPTIONS: dict[str, Any] = {
    "backend_support_map": SUPPORT, "backend_priority": ["a", "b"], "min_block_size": 3,
}  # fmt: skip
WANTED = ["b", EAGER, "b"]


def made(**options: Any) -> tuple[GraphModule, HierarchicalAdjacencyPartitioner]:
    gm = trace(Model())
    return gm, HierarchicalAdjacencyPartitioner(gm, **{**OPTIONS, **options})


def children(gm: GraphModule) -> list[str]:
    return [n for n, _ in gm.named_children()]


def test_it_is_a_splitter_of_torchs_and_makes_what_the_function_makes():
    """``isinstance`` holds, and the class and the function give one result (C9)."""
    gm, splitter = made()
    parent, _ = hierpart.hierarchical_adjacency_partition(gm, **OPTIONS)

    assert isinstance(splitter, _SplitterBase)
    assert str(splitter.partition_graph().graph) == str(parent.graph)
    assert str(splitter().graph) == str(parent.graph)
    assert splitter.plan == parent.meta["hierpart"]
    same(splitter()(vector(3)), gm(vector(3)), "run")


def test_step_by_step_as_torchs_splitters_are_driven():
    """put_nodes_into_subgraphs, remove_small_acc_subgraphs, tag, split."""
    gm, splitter = made()

    before = splitter.put_nodes_into_subgraphs()
    assert [(s.is_acc, len(s.nodes)) for s in before] == [
        (True, 3),
        (False, 1),
        (True, 1),
        (True, 3),
    ]
    assert [s.backend for s in before] == ["b", EAGER, "a", "b"]
    assert all(isinstance(s, Subgraph) for s in before)
    assert all(n.graph is gm.graph for s in before for n in s.nodes)

    after = splitter.remove_small_acc_subgraphs(before)
    assert [(s.is_acc, len(s.nodes)) for s in after] == [(True, 3), (False, 1), (True, 4)]
    assert splitter.num_accelerated_subgraphs == 2

    splitter.tag(after)
    assert splitter.tags == ["_run_on_acc_b_0", "_run_on_gpu_1", "_run_on_acc_b_2"]
    assert splitter.get_node_submodule_map()["cumsum"] == "_run_on_gpu_1"
    assert len(splitter.get_node_submodule_map()) == 8

    parent = splitter.split()
    assert children(parent) == splitter.tags
    same(parent(vector(3)), gm(vector(3)), "run")


def test_no_node_is_touched():
    """C10: no tags or backends hung on nodes; a second splitter on the same module works."""
    gm = trace(Model())
    before = snapshot(gm)
    for _ in range(2):
        HierarchicalAdjacencyPartitioner(gm, **OPTIONS).partition_graph()
    assert not difference(before, snapshot(gm))
    assert not any(hasattr(n, "tag") or hasattr(n, "backend") for n in gm.graph.nodes)


def test_subgraphs_of_ones_own_are_refused_with_what_to_do():
    """The steps do not pretend to follow a grouping that they did not make."""
    _, splitter = made()
    subgraphs = splitter.put_nodes_into_subgraphs()
    with pytest.raises(HierpartError, match="exclude_nodes="):
        splitter.remove_small_acc_subgraphs(subgraphs[:-1])
    with pytest.raises(HierpartError, match="remove_small_acc_subgraphs"):
        splitter.tag(subgraphs)


def test_the_model_is_not_run_and_nothing_is_printed_or_read(monkeypatch, capfd):
    """Torch's own splitters run the graph, print and parse ``sys.argv``."""
    argv = ["program", "-h", "--min-acc-module-size", "9"]
    monkeypatch.setattr(sys, "argv", list(argv))
    gm = trace(nn.Sequential(nn.Tanh(), nn.ReLU()))
    gm.register_forward_pre_hook(lambda m, args: pytest.fail("the module was run"))
    splitter = HierarchicalAdjacencyPartitioner(
        gm, backend_support_map={"a": {nn.Tanh}}, backend_priority=["a"], min_block_size=1
    )
    splitter.partition_graph()
    assert splitter.settings.min_acc_module_size == 1
    assert sys.argv == argv
    assert capfd.readouterr() == ("", "")


def test_a_tester_brings_its_backends_and_exclusions_along():
    gm = trace(Model())
    tester = BackendOpSupportTester(SUPPORT, ("a", "b"), torch_executed_ops=[torch.neg])
    splitter = HierarchicalAdjacencyPartitioner(gm, tester, min_block_size=1)
    assert splitter.plan.owner["neg"] == EAGER
    assert splitter.plan.priority == ("a", "b", EAGER)
    assert splitter.plan.owner["cos"] == "a"


def test_any_operator_support_speaks_for_the_first_backend():
    gm = trace(Model())
    only_sin = create_op_support(lambda submodules, node: node.target is torch.sin)
    splitter = HierarchicalAdjacencyPartitioner(
        gm, only_sin, backend_priority=["mine"], min_block_size=1
    )
    assert {n for n, o in splitter.plan.owner.items() if o == "mine"} == {
        n.name for n in gm.graph.find_nodes(op="call_function", target=torch.sin)
    }


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"min_block_size": 1}, ["b", EAGER, "a", "b"]),
        ({"min_block_size": {"a": 1, "b": 4}}, [EAGER, "a", EAGER]),
        ({"allowed_single_node_partition_ops": [torch.cos]}, ["b", EAGER, "a", "b"]),
        ({"demote": "eager"}, ["b", EAGER, "b"]),
        ({"exclude_nodes": ["cos"]}, ["b", EAGER, "b"]),
        ({"torch_executed_ops": {torch.sin}, "min_block_size": 1}, [EAGER, "a", "b", EAGER]),
    ],
)  # fmt: skip
def test_options_mean_what_they_mean_in_the_function(options, blocks):
    gm, splitter = made(**options)
    parent, _ = hierpart.hierarchical_adjacency_partition(gm, **{**OPTIONS, **options})
    assert splitter.plan == parent.meta["hierpart"]
    assert [b.backend for b in splitter.plan] == blocks


def test_full_compilation_is_required_here_too():
    with pytest.raises(FullCompilationError, match="cumsum"):
        made(require_full_compilation=True)


def test_other_arguments_of_the_peers_class_are_taken():
    """``return_tuple`` and ``skip_fusion``: accepted, without effect."""
    _, splitter = made(return_tuple=False, skip_fusion=True)
    assert [b.backend for b in splitter.plan] == WANTED
    assert splitter.settings.skip_fusion


def test_wrong_arguments_are_named():
    with pytest.raises(InputTypeError, match="symbolic_trace"):
        HierarchicalAdjacencyPartitioner(Model())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'bb'"):
        made(min_block_size={"bb": 1})
    with pytest.raises(TypeError, match="minimum"):
        made(minimum=1)


# ------------------------------------------------------------------ the rest of torch's class


def test_fields_that_code_written_against_the_base_reads():
    gm, splitter = made()
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert splitter.module is gm
    assert splitter.acc_nodes == {n for n in calls if n.target is not torch.cumsum}
    assert splitter.deps[calls[1]] == {calls[0]}
    assert set(splitter.deps) == set(calls[1:])
    assert splitter.fusions == {}
    assert splitter.operator_support.unsupported_operators == {"torch.cumsum": 1}
    assert splitter.non_acc_submodule_name == "_run_on_gpu_"
    assert splitter.find_reverse_deps()[calls[0]] == {calls[1]}


@pytest.mark.parametrize("preview", ["node_support_preview", "split_preview"])
def test_previews_are_returned_and_not_printed(preview, capfd):
    """No example inputs are needed: recorded values tell the sizes."""
    gm = trace(Model(), (vector(3),))
    splitter = HierarchicalAdjacencyPartitioner(gm, **OPTIONS)
    text = getattr(splitter, preview)()
    assert capfd.readouterr() == ("", "")
    wanted = {"node_support_preview": "cumsum", "split_preview": "blocks"}[preview]
    assert wanted in text


def test_previews_work_where_values_were_recorded_by_fake_tensors():
    gm = trace(Model())
    record(gm, (vector(3),))
    assert "cumsum" in HierarchicalAdjacencyPartitioner(gm, **OPTIONS).node_support_preview()


def test_compiling_by_the_base_says_what_to_call():
    _, splitter = made()
    with pytest.raises(OptionError, match=r"hierpart\.compile"):
        splitter._lower_model_to_backend(splitter.module, ())


def test_split_results_of_the_base():
    """``generate_split_results`` hands out the split with its submodules and their inputs."""
    _, splitter = made()
    splitter.sample_input = (vector(3),)
    result = splitter.generate_split_results()
    assert {k: len(v) for k, v in result.submodule_inputs.items()} == {
        "_run_on_acc_b_0": 1, "_run_on_gpu_1": 1, "_run_on_acc_b_2": 1,
    }  # fmt: skip
    assert children(result.split_module) == ["_run_on_acc_b_0", "_run_on_gpu_1", "_run_on_acc_b_2"]
    assert result.non_acc_submodule_prefix == "_run_on_gpu_"
