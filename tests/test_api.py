"""The public call: its signature, its results, its refusals, and what it leaves alone.

What the result computes and how it is called is held by ``tests/cases``; here is what the caller
of ``hierarchical_adjacency_partition`` can rely on besides.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import operator
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

import hierpart
from hierpart import BackendOpSupportTester, hierarchical_adjacency_partition, make_plan
from hierpart.errors import FullCompilationError, HierpartError, InputTypeError, OptionError
from hierpart.plan import EAGER, Plan, Reason
from hierpart.testing.reading.snapshot import difference, snapshot
from tests.cases.harness import agree, export, record, same, split, trace, vector

aten = torch.ops.aten
ATEN = "torch.ops.aten."


class Model(nn.Module):
    """Ops for two backends, one that no backend takes, a weight, a buffer update."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        h = torch.relu(self.linear(x))
        self.count.add_(1)
        h = torch.cumsum(h, 0)
        return torch.sin(h) * self.count


@functools.cache
def graph() -> GraphModule:
    return export(Model(), (vector(2, 4),), decompose=False)


SUPPORT = {
    "tensorrt": {aten.linear, aten.relu, aten.mul}, "inductor": {aten.sin, aten.relu},
}  # fmt: skip


# ------------------------------------------------------------------ the signature


def test_the_signature_is_the_one_that_people_know():
    """Names, order and defaults of the peer's call; everything else by keyword only."""
    parameters = inspect.signature(hierarchical_adjacency_partition).parameters
    known = {n: p.default for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    more = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}

    assert list(known.items()) == [
        ("gm", inspect.Parameter.empty), ("min_block_size", 5), ("torch_executed_ops", ()),
        ("backend_support_map", None), ("backend_priority", None),
        ("require_full_compilation", False), ("skip_fusion", False),
    ]  # fmt: skip
    assert {
        "allowed_single_node_partition_ops",
        "demote",
        "exclude_nodes",
        "exclude_modules",
        "exclude",
    } <= set(more)
    assert len(known) + len(more) == len(parameters)


def test_the_positional_arguments_of_the_peer():
    """All seven by position: the split, and who answered."""
    parent, tester = hierarchical_adjacency_partition(
        graph(), 1, {ATEN + "mul.Tensor"}, SUPPORT, ["tensorrt", "inductor"], False, True
    )
    assert isinstance(parent, GraphModule)
    assert isinstance(tester, BackendOpSupportTester)
    assert isinstance(parent.meta["hierpart"], Plan)
    assert parent.meta["hierpart"].owner["mul"] == EAGER
    assert tester.backend_priority == ("tensorrt", "inductor")


def test_the_plan_alone_is_the_plan_of_the_split():
    """C9: ``make_plan`` takes the same options and splits nothing."""
    options = {"backend_support_map": SUPPORT, "min_block_size": 1}
    parent, _ = hierarchical_adjacency_partition(graph(), **options)
    assert make_plan(graph(), **options) == parent.meta["hierpart"]


def test_public_names():
    for name in (
        "hierarchical_adjacency_partition",
        "HierarchicalAdjacencyPartitioner",
        "BackendOpSupportTester",
        "make_plan",
        "compile",
        "explain",
        "Plan",
        "Options",
        "errors",
    ):
        assert getattr(hierpart, name) is not None, name
    assert set(hierpart.__all__) <= set(dir(hierpart))
    with pytest.raises(AttributeError, match="no_such_name"):
        hierpart.no_such_name


# ------------------------------------------------------------------ defaults


def test_without_a_map_the_backends_answer_for_themselves():
    """Inductor takes an exported graph; TensorRT is not there and says so for every node."""
    parent, _ = hierarchical_adjacency_partition(export(Small(), (vector(3),)), 1)
    plan = parent.meta["hierpart"]
    assert plan.priority == ("tensorrt", "inductor", EAGER)
    assert set(plan.owner.values()) == {"inductor"}
    assert {vs[0].reason for vs in plan.verdicts.values()} == {Reason.BACKEND_UNAVAILABLE}


class Small(nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x) * torch.cos(x)).neg()


@pytest.mark.parametrize(
    ("names", "priority"),
    [
        (["inductor"], ("tensorrt", "inductor", EAGER)),
        (["inductor", "tensorrt"], ("tensorrt", "inductor", EAGER)),
        ([], ("tensorrt", "inductor", EAGER)),
    ],
)  # fmt: skip
def test_the_priority_when_none_is_given(names, priority):
    """TensorRT before Inductor, whichever of them the map names and in whatever order."""
    gm = trace(Small())
    plan = make_plan_of(gm, backend_support_map={n: {torch.sin} for n in names})
    assert plan.priority == priority


def make_plan_of(gm: GraphModule, **options: Any) -> Plan:
    return hierarchical_adjacency_partition(gm, **options)[0].meta["hierpart"]


def test_the_environment_gives_the_default_priority(monkeypatch):
    monkeypatch.setenv("HIERPART_PRIORITY", "inductor")
    assert make_plan_of(trace(Small())).priority == ("inductor", EAGER)


def test_eager_may_be_named_last():
    plan = make_plan_of(trace(Small()), backend_priority=["eager"])
    assert plan.priority == (EAGER,)
    assert len(plan) == 1


@pytest.mark.parametrize("skip_fusion", [False, True])
def test_skip_fusion_has_no_effect(skip_fusion):
    plan = make_plan_of(
        graph(), backend_support_map=SUPPORT, min_block_size=1, skip_fusion=skip_fusion
    )
    assert plan == make_plan_of(graph(), backend_support_map=SUPPORT, min_block_size=1)


# ------------------------------------------------------------------ full compilation


def test_full_compilation_with_any_number_of_backends():
    """No compute op runs eagerly, however small the blocks are."""

    class Three(nn.Module):
        def forward(self, x):
            return torch.cos(torch.sin(torch.exp(x))) + torch.exp(x)

    gm = trace(Three())
    tables = {"a": {torch.exp}, "b": {torch.sin}, "c": {torch.cos}, "d": {"operator.add", "add"}}
    result = split(gm, tables, require_full_compilation=True, min_block_size=5)
    assert set(result.backends) == {"a", "b", "c", "d"}
    agree(result, (vector(3),))


def test_the_error_lists_each_op_that_stops_it_and_why():
    """Node, op, and every backend's reason; the user's exclusions are named as such."""
    tables = {"a": {torch.sin}, "b": {torch.cos, torch.neg}}

    class Stopped(nn.Module):
        def forward(self, x):
            h = torch.exp(torch.sin(x))
            return torch.cumsum(h, 0), torch.neg(h)

    with pytest.raises(FullCompilationError) as caught:
        split(
            trace(Stopped()), tables, require_full_compilation=True, torch_executed_ops=[torch.neg]
        )
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("require_full_compilation=True, but 3 ops have to run eagerly")
    assert lines[1:] == [
        "  exp (torch.exp): a: not listed (torch.exp); b: not listed (torch.exp)",
        "  cumsum (torch.cumsum): a: not listed (torch.cumsum); b: not listed (torch.cumsum)",
        "  neg (torch.neg): a: excluded by the user (torch_executed_ops); "
        "b: excluded by the user (torch_executed_ops)",
    ]  # fmt: skip
    assert isinstance(caught.value, HierpartError)


def test_a_long_list_of_ops_is_cut():
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(80):
        x = graph.call_function(torch.sin, (x,))
    graph.output(x)
    with pytest.raises(FullCompilationError, match="but 80 ops") as caught:
        split(GraphModule(nn.Module(), graph), {"a": {torch.cos}}, require_full_compilation=True)
    assert len(str(caught.value).splitlines()) == 52


@pytest.mark.parametrize("leftover", ["write", "draw", "compute"])
def test_an_effect_that_runs_eagerly_stops_it_too(leftover):
    """The peer accepts an eager block of writes; here what computes or changes data counts."""

    class Leftover(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            if leftover == "write":
                y.add_(1)
            elif leftover == "draw":
                y = y + torch.rand_like(x)
            else:
                y = y + torch.cumsum(y, 0)
            return torch.cos(y)

    with pytest.raises(FullCompilationError):
        split(
            trace(Leftover()), {"a": {torch.sin, torch.cos, "operator.add"}},
            require_full_compilation=True,
        )  # fmt: skip


def test_full_compilation_of_an_exported_module_as_it_is():
    """The input checks of ``torch.export`` are no compute op and may run eagerly."""
    gm = torch.export.export(Small(), (vector(3),), strict=False).module()
    assert gm.graph.find_nodes(op="call_module"), "torch.export no longer adds checks of inputs"
    everything = {aten.relu, aten.sin, aten.cos, aten.mul, aten.neg}
    parent, _ = hierarchical_adjacency_partition(
        gm,
        backend_support_map={"mine": everything},
        backend_priority=["mine"],
        require_full_compilation=True,
    )
    same(parent(vector(3)), Small()(vector(3)), "run")
    assert [b.compute_ops for b in parent.meta["hierpart"] if b.backend == EAGER] == [0]


# ------------------------------------------------------------------ what is not a graph

WRONG_INPUTS: dict[str, tuple[Callable[[], Any], str]] = {
    "module": (Small, r"symbolic_trace|torch\.export\.export"),
    "exported program": (
        lambda: torch.export.export(Small(), (vector(2),), strict=False), r"\.module\(\)",
    ),
    "function": (lambda: torch.relu, "builtin_function_or_method.*GraphModule"),
    "graph": (lambda: trace(Small()).graph, "Graph.*GraphModule"),
    "nothing": (lambda: None, "NoneType.*GraphModule"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
@pytest.mark.parametrize("call", [hierarchical_adjacency_partition, make_plan])
def test_what_is_not_a_graph_module_is_a_type_error_that_says_what_to_call(make, words, call):
    with pytest.raises(InputTypeError, match=words) as caught:
        call(make())
    assert isinstance(caught.value, TypeError)


# ------------------------------------------------------------------ wrong options

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown backend": ({"backend_priority": ["inductorr"]}, "'inductorr'.*'inductor'"),
    "a backend without a table": (
        {"backend_priority": ["a", "b"], "backend_support_map": {"a": set()}}, "'b' is not registered",
    ),
    "a table without a backend": (
        {"backend_priority": ["inductor"], "backend_support_map": {"inducto": set()}},
        "'inducto'.*'inductor'",
    ),
    "an overload that does not exist": (
        {"torch_executed_ops": {"torch.ops.aten.relu.defolt"}},
        r"torch_executed_ops.*'torch\.ops\.aten\.relu\.defolt'.*did you mean 'torch\.ops\.aten\.relu\.default'",
    ),
    "a method that does not exist": ({"torch_executed_ops": ["reluu"]}, "'reluu'.*did you mean 'relu'"),
    "a function that does not exist": ({"torch_executed_ops": ["torch.nn.functional.rellu"]}, "rellu"),
    "an op of the map that does not exist": (
        {"backend_support_map": {"tensorrt": {"aten.relu.defolt"}}}, "backend_support_map.*relu.defolt",
    ),
    "a size": ({"min_block_size": -3}, "min_block_size.*-3"),
    "a kind of size": ({"min_block_size": "5"}, "min_block_size.*'5'"),
    "a reserved name": ({"backend_priority": ["None"]}, "'None'"),
    "a name with a dot": ({"backend_priority": ["trt.rtx"]}, r"'trt\.rtx'"),
    "a name with a dash": ({"backend_priority": ["trt-rtx"]}, "'trt-rtx'"),
    "a way to demote": ({"demote": "cascad"}, "'cascad'.*'cascade'"),
    "an allowed op that does not exist": (
        {"allowed_single_node_partition_ops": ["torch.ops.aten.relu.defolt"]},
        "allowed_single_node_partition_ops.*relu.defolt",
    ),
    "no op at all": ({"torch_executed_ops": [5]}, "torch_executed_ops.*5"),
    "no op in the map": ({"backend_support_map": {"tensorrt": [None]}}, "backend_support_map.*None"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_value_errors_that_name_the_value(options, words):
    """Nothing wrong is ignored in silence, and the nearest legal value is named."""
    with pytest.raises(OptionError, match=words) as caught:
        hierarchical_adjacency_partition(graph(), **options)
    assert isinstance(caught.value, ValueError)


def test_misspelt_keywords_are_refused():
    with pytest.raises(TypeError, match="min_blok_size"):
        hierarchical_adjacency_partition(graph(), min_blok_size=1)
    with pytest.raises(OptionError, match="did you mean 'min_block_size'"):
        make_plan(graph(), min_blok_size=1)


def test_an_error_in_the_users_predicate_is_the_users():
    """It is not swallowed, and the traceback leads to it."""

    def broken(node):
        raise RuntimeError("of the user's own")

    with pytest.raises(RuntimeError, match="of the user's own"):
        hierarchical_adjacency_partition(graph(), exclude=broken)


# ------------------------------------------------------------------ hands off (C10)


def test_nothing_of_the_callers_changes():
    """C10: graph, nodes, metadata, hooks, attributes, tensors and their versions."""
    gm = graph()
    before = snapshot(gm)
    split(gm, SUPPORT)
    with pytest.raises(FullCompilationError):
        split(gm, SUPPORT, require_full_compilation=True)
    assert not difference(before, snapshot(gm))


def test_the_options_passed_in_are_not_changed_or_kept():
    """C10: the caller's sets, lists and mappings stay as they are."""
    tables = {"tensorrt": {aten.relu}, "inductor": [aten.sin]}
    ops, priority, sizes = [aten.mul], ["tensorrt", "inductor"], {"tensorrt": 1}
    _, tester = hierarchical_adjacency_partition(
        graph(), sizes, ops, tables, priority, exclude_nodes=(names := ["relu"])
    )
    assert tables == {"tensorrt": {aten.relu}, "inductor": [aten.sin]}
    assert (ops, priority, sizes, names) == (
        [aten.mul],
        ["tensorrt", "inductor"],
        {"tensorrt": 1},
        ["relu"],
    )
    tables["tensorrt"].clear()
    assert tester.backend_support_map.keys() == {"tensorrt", "inductor"}


def test_the_model_is_not_run_and_no_state_of_the_process_changes():
    """C10: no random number is drawn, no mode is left on, nothing is warned about or printed."""
    gm = trace(nn.Sequential(nn.Dropout(0.5), nn.ReLU()))
    gm.register_forward_pre_hook(lambda m, args: pytest.fail("the module was run"))
    stream, grad = torch.get_rng_state(), torch.is_grad_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hierarchical_adjacency_partition(
            gm, 1, backend_support_map={"a": {nn.ReLU}}, backend_priority=["a"]
        )
    assert torch.equal(stream, torch.get_rng_state())
    assert torch.is_grad_enabled() == grad
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_before(enabled):
    """C10: whether the split succeeds or raises, with the collector on or off."""
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        split(graph(), SUPPORT)
        assert gc.isenabled() == enabled
        with pytest.raises(FullCompilationError):
            split(graph(), SUPPORT, require_full_compilation=True)
        with pytest.raises(ZeroDivisionError):
            hierarchical_adjacency_partition(graph(), exclude=lambda node: 1 / 0)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("mode", ["no_grad", "inference", "autocast", "default dtype"])
def test_the_mode_around_the_call_does_not_matter(mode):
    """C9: a split made in some mode is the split made outside."""
    modes = {
        "no_grad": torch.no_grad, "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu"), "default dtype": lambda: torch.device("meta"),
    }  # fmt: skip
    wanted = split(graph(), SUPPORT)
    with modes[mode]():
        made, _ = hierarchical_adjacency_partition(graph(), 1, backend_support_map=SUPPORT)
    assert made.meta["hierpart"] == wanted.plan
    assert str(made.graph) == str(wanted.parent.graph)


def test_threads_may_split_one_module_at_once():
    """C9, C10: the module is only read, so four threads get four equal plans."""
    plans: list[Plan] = []

    def work():
        plans.append(make_plan_of(graph(), backend_support_map=SUPPORT, min_block_size=1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 4
    assert len({p.fingerprint() for p in plans}) == 1


def test_silence_where_nothing_ended_in_eager_and_one_line_otherwise(caplog):
    """At INFO: one line a split when some op runs eagerly, none when all is accelerated."""
    gm = trace(Small())
    everything = {torch.relu, torch.sin, torch.cos, "operator.mul", "neg"}
    with caplog.at_level(logging.INFO, "hierpart"):
        hierarchical_adjacency_partition(
            gm, 1, backend_support_map={"a": everything}, backend_priority=["a"]
        )
        assert not caplog.records
        hierarchical_adjacency_partition(
            gm, 1, backend_support_map={"a": everything - {"neg"}}, backend_priority=["a"]
        )
    (line,) = caplog.records
    assert "neg" in line.getMessage() or "eager" in line.getMessage()
    assert "\n" not in line.getMessage()


# ------------------------------------------------------------------ the checks of inputs


@pytest.mark.parametrize("check_guards", [True, False])
def test_an_exported_module_refuses_a_wrong_shape_after_the_split_too(check_guards):
    """C8: whether ``torch.export`` checks in a submodule or in a hook, the check comes along."""
    sizes = {0: torch.export.Dim("n", min=2, max=5)}
    program = torch.export.export(Small(), (vector(3, 2),), dynamic_shapes=(sizes,), strict=False)
    gm = program.module(check_guards=check_guards)
    parent, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"a": {aten.sin}}, backend_priority=["a"]
    )
    same(parent(vector(4, 2)), Small()(vector(4, 2)), "another legal size")
    for wrong in (vector(3, 7), vector(3)):
        for module in (gm, parent):
            with pytest.raises((AssertionError, RuntimeError, IndexError)):
                module(wrong)


# ------------------------------------------------------------------ unusual modules


def test_modules_on_the_meta_device_and_of_fake_tensors():
    """No tensor is read: a split needs neither memory nor a device."""
    gm = trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).to("meta")
    parent, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"a": {nn.Linear}}, backend_priority=["a"]
    )
    assert parent(torch.empty(2, 3, device="meta")).shape == (2, 3)
    with torch._subclasses.FakeTensorMode():
        fake = trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    hierarchical_adjacency_partition(
        fake, 1, backend_support_map={"a": {nn.Linear}}, backend_priority=["a"]
    )


def test_subclasses_of_graph_module():
    """A class of the user's own goes in; what comes out runs and names the class."""

    class Own(GraphModule):
        """With a method of its own."""

    tracer = torch.fx.Tracer()
    gm = Own(Small(), tracer.trace(Small()))
    parent, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"a": {torch.sin}}, backend_priority=["a"]
    )
    assert type(parent).__name__ == type(gm).__name__
    same(parent(vector(3)), gm(vector(3)), "run")


def test_a_deep_graph_needs_no_deep_stack():
    """C12: a chain of 1,500 ops, and sizes computed from sizes 1,500 times."""
    graph = Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x, 0))
    for _ in range(1500):
        size = graph.call_function(operator.add, (size, 1))
    h = graph.call_function(torch.full, ((size,), 1.0))
    for _ in range(1500):
        h = graph.call_function(torch.sin, (h,))
    graph.output(graph.call_function(torch.cos, (h,)))
    gm = GraphModule(nn.Module(), graph)
    plan = make_plan_of(
        gm,
        backend_support_map={"a": {torch.sin}, "b": {torch.cos}},
        backend_priority=["a", "b"],
        min_block_size=1,
    )
    assert [b.backend for b in plan] == [EAGER, "a", "b"]


def test_recorded_values_that_are_stale_do_not_change_results():
    """C8: a graph edited after its values were recorded still computes what it says."""
    gm = trace(Small())
    record(gm, (vector(5),))
    for node in gm.graph.find_nodes(op="call_function", target=torch.sin):
        node.target = torch.cumsum
        node.args = (*node.args, 0)
    gm.recompile()
    result = split(gm, {"a": {torch.cumsum, torch.relu}})
    agree(result, (vector(5),))
