"""The split itself: blocks, parent, names and what is shared (``split.py``, ``blocks.py``)."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Interpreter, Tracer

import hierpart
from hierpart.partition.splitting.parent_module import block_names
from hierpart.plan import EAGER
from tests.cases.harness import agree, export, same, split, trace, vector

aten = torch.ops.aten


class Model(nn.Module):
    """Weights, a buffer that is no state, an op of two results, a size, an op that nobody takes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x):
        h = torch.relu(self.first(x)) * self.scale
        values, order = torch.sort(h)
        h = torch.cumsum(values, 0)
        return self.second(torch.sin(h)), order


@functools.cache
def graph() -> GraphModule:
    return export(Model(), (vector(2, 4),))


def support() -> dict[str, set[Any]]:
    return {
        "tensorrt": {aten.permute, aten.addmm, aten.relu, aten.mul},
        "inductor": {aten.sort, aten.sin},
    }


# ------------------------------------------------------------------ names


def test_blocks_are_numbered_in_the_order_in_which_they_run():
    """``_run_on_acc_<backend>_<i>`` and ``_run_on_gpu_<i>``, ``i`` over all blocks."""
    result = split(graph(), support())
    assert [b.name for b in result.blocks] == [
        "_run_on_acc_tensorrt_0", "_run_on_acc_inductor_1", "_run_on_gpu_2",
        "_run_on_acc_inductor_3", "_run_on_acc_tensorrt_4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("backends", "taken", "names"),
    [
        (["a", EAGER], [], ("_run_on_acc_a_0", "_run_on_gpu_1")),
        (["a"], ["_run_on_acc_a_0"], ("_run_on_acc_a_1",)),
        (["a", "a"], ["_run_on_acc_a_1"], ("_run_on_acc_a_0", "_run_on_acc_a_2")),
        ([EAGER, "a"], ["_run_on_gpu_0", "_run_on_acc_a_2"], ("_run_on_gpu_1", "_run_on_acc_a_3")),
        ([], ["_run_on_gpu_0"], ()),
    ],
)  # fmt: skip
def test_names_step_over_taken_ones(backends, taken, names):
    """C7: no block replaces an attribute of the module."""
    gm = trace(nn.ReLU())
    for name in taken:
        setattr(gm, name, "mine")
    assert block_names(backends, gm) == names


def test_names_never_collide_with_attributes_or_nodes():
    """C7: a parameter, a child, a plain attribute and an input with the names of blocks."""

    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self._run_on_gpu_0 = nn.Parameter(torch.full((2,), 3.0))
            self._run_on_acc_a_1 = nn.Tanh()

        def forward(self, _run_on_acc_a_0):
            h = torch.cumsum(_run_on_acc_a_0 * self._run_on_gpu_0, 0)
            return self._run_on_acc_a_1(torch.sin(h))

    gm = trace(Clash())
    result = split(gm, {"a": {torch.sin, nn.Tanh}})
    names = [b.name for b in result.blocks]
    assert len(set(names)) == len(names) == 2
    assert not {"_run_on_gpu_0", "_run_on_acc_a_1", "_run_on_acc_a_0"} & set(names)
    agree(result, (vector(2),))


def test_plain_attributes_that_look_like_blocks_are_kept():
    """C7: an attribute of the module that no node reads is not overwritten by a block."""
    gm = trace(nn.Sequential(nn.ReLU(), nn.Tanh()))
    gm._run_on_acc_a_0 = "mine"
    result = split(gm, {"a": {nn.ReLU}})
    assert "_run_on_acc_a_0" not in [b.name for b in result.blocks]
    assert result.parent._run_on_acc_a_0 == "mine"
    assert gm._run_on_acc_a_0 == "mine"
    agree(result, (vector(2),))


# ------------------------------------------------------------------ blocks and parent


def test_a_block_is_inputs_then_attributes_then_ops_then_a_flat_tuple():
    """C6, C7: also for one result and for none."""

    class Prints(nn.Module):
        def forward(self, x):
            torch.ops.aten._print("hello")
            return torch.sin(x)

    for gm, taken in ((graph(), support()), (trace(Prints()), {"a": {torch.sin}})):
        for block in split(gm, taken).blocks:
            rank = {"placeholder": 0, "get_attr": 1, "output": 3}
            ranks = [rank.get(n.op, 2) for n in block.module.graph.nodes]
            assert ranks == sorted(ranks)
            assert isinstance(block.module.graph.output_node().args[0], tuple)
    lengths = [len(b.module.graph.output_node().args[0]) for b in split(graph(), support()).blocks]
    assert lengths == [1, 2, 1, 1, 1]


def test_the_parent_holds_inputs_calls_unpacking_and_what_it_returns():
    """Nothing is computed in the parent but sizes."""
    parent = split(graph(), support()).parent
    nodes = list(parent.graph.nodes)
    assert [n.target for n in nodes if n.op == "call_function"] == [operator.getitem] * 6
    assert {n.op for n in nodes} == {"placeholder", "call_module", "call_function", "output"}
    assert sorted(parent._modules) == sorted(n.target for n in nodes if n.op == "call_module")
    assert not parent._parameters
    assert not parent._buffers


def test_tensors_are_shared_by_identity_under_their_own_names():
    """C7: parameters and buffers of a block are the very objects, at the original path."""
    gm = graph()
    original = dict(gm.named_parameters()) | dict(gm.named_buffers())
    held: dict[str, Any] = {}
    for block in split(gm, support()).blocks:
        mine = dict(block.module.named_parameters()) | dict(block.module.named_buffers())
        assert all(mine[name] is original[name] for name in mine)
        held |= mine
    assert set(held) == set(original)


def test_buffers_that_are_no_state_stay_out_of_the_state_dict():
    """C7: ``persistent=False`` is kept; a plain tensor attribute is in no state dict either."""
    graph, root = Graph(), nn.Module()
    root.layer = nn.Module()
    root.layer.register_buffer("kept", torch.ones(2))
    root.layer.register_buffer("scale", torch.ones(2), persistent=False)
    root.constant = torch.ones(2)
    value = graph.placeholder("x")
    for name in ("layer.kept", "layer.scale", "constant"):
        value = graph.call_function(torch.add, (value, graph.get_attr(name)))
    graph.output(graph.call_function(torch.sin, (value,)))
    gm = GraphModule(nn.Module(), Graph())
    gm.layer, gm.constant, gm.graph = root.layer, root.constant, graph
    assert list(gm.state_dict()) == ["layer.kept"]
    parent = split(gm, {"a": {torch.add}}).parent
    assert [k.split(".", 1)[1] for k in parent.state_dict()] == ["layer.kept"]
    assert {k.split(".", 1)[1] for k, _ in parent.named_buffers()} >= {"layer.kept", "layer.scale"}


def test_no_weight_outlives_both_modules():
    """C7: nothing in the library holds on to a graph that was split."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(vector(4))

        def forward(self, x):
            return torch.sin(torch.cumsum(x * self.weight, 0))

    gm = trace(Net())
    parent = split(gm, {"a": {torch.sin}}).parent
    watched = weakref.ref(gm.weight)
    del gm
    gc.collect()
    assert watched() is not None, "the blocks share it"
    del parent
    gc.collect()
    assert watched() is None


def test_blocks_run_alone_and_step_by_step():
    """C8: each block is a module of its own; ``fx.Interpreter`` runs the parent, too."""
    gm, args = graph(), (vector(2, 4),)
    parent = split(gm, support()).parent
    flat = torch.utils._pytree.tree_leaves(args)
    got = Interpreter(parent).run(*flat)
    same(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(gm(*args)), "run")
    block = parent.get_submodule("_run_on_acc_tensorrt_0")
    assert isinstance(block(*args), tuple)
    assert "def forward(self, x):" in block.code
    assert "torch.ops.aten.addmm.default" in block.code


def test_code_can_be_looked_at_before_and_after_a_run():
    """Blocks put code generation off; printing, ``code`` and ``recompile`` still work."""
    for how in ("code", "print", "recompile", "run"):
        block = split(graph(), support()).parent.get_submodule("_run_on_gpu_2")
        if how == "recompile":
            block.recompile()
        text = {
            "code": lambda b=block: b.code, "print": lambda b=block: b.print_readable(False),
            "recompile": lambda b=block: b.code,
            "run": lambda b=block: (b(vector(2, 4)), b.code)[1],
        }[how]()  # fmt: skip
        assert "cumsum" in text, how


def test_hooks_on_blocks_fire_once():
    """A block is called like any module: a forward hook sees each call once, also the first."""
    parent = split(graph(), support()).parent
    seen: list[str] = []
    for name, block in parent.named_children():
        block.register_forward_hook(lambda m, args, out, name=name: seen.append(name))
    for _ in range(2):
        parent(vector(2, 4))
    assert seen == [n for n, _ in parent.named_children()] * 2


def test_blocks_can_be_replaced():
    """The contract of everyone who compiles blocks: ``setattr`` of a callable with the same ends."""
    gm, args = graph(), (vector(2, 4),)
    parent = split(gm, support()).parent
    calls: list[str] = []

    class Compiled(nn.Module):
        def __init__(self, name, block):
            super().__init__()
            self.name, self.block = name, block

        def forward(self, *args):
            calls.append(self.name)
            return self.block(*args)

    for name, block in list(parent.named_children()):
        setattr(parent, name, Compiled(name, block))
    same(parent(*args), gm(*args), "replaced")
    assert calls == [b.name for b in parent.meta["hierpart"].blocks]


# ------------------------------------------------------------------ effects


def test_blocks_with_effects_are_marked_and_survive_dead_code_removal():
    """C3: a block that only writes has no result and is still called."""

    def build(effect: bool) -> GraphModule:
        graph, root = Graph(), nn.Module()
        root.register_buffer("count", torch.zeros(1))
        x = graph.placeholder("x")
        if effect:
            graph.call_method("add_", (graph.get_attr("count"), 1))
        graph.output(graph.call_function(torch.sin, (x,)))
        return GraphModule(root, graph)

    result = split(build(True), {"a": {torch.sin}})
    assert {b.name: b.module._is_impure for b in result.blocks} == {
        "_run_on_gpu_0": True, "_run_on_acc_a_1": False,
    }  # fmt: skip
    result.parent.graph.eliminate_dead_code()
    result.parent.recompile()
    result.parent(vector(2))
    assert result.source.count.item() == 1
    pure = split(build(False), {"a": {torch.sin}})
    assert [b.module._is_impure for b in pure.blocks] == [False]


def test_dead_nodes_of_the_input_are_run_and_not_removed():
    """C1, C10: dead code is the caller's business; a call that is no effect stays too."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.cos, (x,))
    graph.output(graph.call_function(torch.sin, (x,)))
    gm = GraphModule(nn.Module(), graph)
    result = split(gm, {"a": {torch.sin, torch.cos}})
    assert result.running_order() == ["cos", "sin"]
    assert len(gm.graph.nodes) == 4


# ------------------------------------------------------------------ what the parent inherits


def test_the_parent_keeps_what_the_module_carries():
    """C11: class name, meta, training flag, hooks, pytree specs, plain attributes."""
    gm = trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    gm.note, gm.meta["mine"] = {"any": "thing"}, 5
    parent = split(gm, {"a": {nn.Tanh}}).parent
    assert parent.note is gm.note
    assert parent.meta["mine"] == 5
    assert gm.meta == {"mine": 5}
    assert type(parent).__name__ == type(gm).__name__
    assert parent.graph._codegen is not gm.graph._codegen


def test_hooks_are_copied_and_not_shared():
    """C10: a hook put on the result is not on the caller's module."""
    gm = trace(nn.Sequential(nn.Tanh()))
    seen: list[str] = []
    gm.register_forward_pre_hook(lambda m, args: seen.append("mine"))
    parent = split(gm, {"a": {nn.Tanh}}).parent
    parent.register_forward_pre_hook(lambda m, args: seen.append("result's"))
    gm(vector(1))
    assert seen == ["mine"]
    parent(vector(1))
    assert seen == ["mine", "mine", "result's"]


def test_hooks_that_take_keywords_keep_doing_so():
    """C11: ``with_kwargs=True`` and ``always_call=True`` come along."""
    gm = trace(nn.Sequential(nn.Tanh()))
    seen: list[Any] = []
    gm.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(sorted(kwargs)), with_kwargs=True
    )
    gm.register_forward_hook(lambda m, args, kwargs, out: seen.append(out.shape), with_kwargs=True)
    parent = split(gm, {"a": {nn.Tanh}}).parent
    parent(input=vector(3))
    assert seen == [["input"], torch.Size([3])]


class Own(Tracer):
    """A tracer that needs an argument, so no copy of a graph can make one."""

    def __init__(self, needed: str) -> None:
        super().__init__()
        self.needed = needed


class Plain(Tracer):
    """A tracer that can be made without arguments."""


@pytest.mark.parametrize(("tracer", "kept"), [(Own("it"), None), (Plain(), Plain)])
def test_the_tracer_class_is_kept_where_a_copy_can_use_it(tracer, kept):
    """Pickling and deep copies of a result call the class without arguments."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    gm = GraphModule(model, tracer.trace(model))
    parent = split(gm, {"a": {nn.Tanh}}).parent
    assert parent.graph._tracer_cls is kept
    same(copy.deepcopy(parent)(vector(1, 2)), gm(vector(1, 2)), "copy")


def test_a_graph_without_an_output_node_of_values():
    """A graph that returns nothing runs for its effects."""
    graph, root = Graph(), nn.Module()
    root.register_buffer("count", torch.zeros(1))
    graph.call_method("add_", (graph.get_attr("count"), 1))
    graph.output(None)
    gm = GraphModule(root, graph)
    result = split(gm, {"a": {torch.sin}})
    assert result.parent() is None
    assert root.count.item() == gm.count.item() == 1


def test_annotations_of_arguments_and_result_stay():
    """C11: the types of placeholders and of the output node."""

    class Typed(nn.Module):
        def forward(self, x: torch.Tensor, n: int = 3) -> torch.Tensor:
            return torch.sin(torch.cumsum(x, 0)) * n

    gm = torch.fx.symbolic_trace(Typed())
    parent = split(gm, {"a": {torch.sin}}).parent
    for mine, theirs in zip(
        (*parent.graph.find_nodes(op="placeholder"), parent.graph.output_node()),
        (*gm.graph.find_nodes(op="placeholder"), gm.graph.output_node()),
        strict=True,
    ):
        assert mine.type == theirs.type
    assert parent.graph.find_nodes(op="placeholder")[0].type in (torch.Tensor, "torch.Tensor")
    same(parent(vector(2)), gm(vector(2)), "default")


# ------------------------------------------------------------------ again and again


def test_the_result_can_be_split_again_and_again():
    """C10: by the same and by another map; a block can be split, too."""
    gm, args = graph(), (vector(2, 4),)
    parent = gm
    for _ in range(3):
        parent, _ = hierpart.hierarchical_adjacency_partition(
            parent, 1, backend_support_map=support(), backend_priority=["tensorrt", "inductor"]
        )
        same(parent(*args), gm(*args), "again")
    first = split(gm, support()).parent
    block = first.get_submodule("_run_on_acc_tensorrt_0")
    inner, _ = hierpart.hierarchical_adjacency_partition(
        block, 1, backend_support_map={"tensorrt": {aten.relu}}, backend_priority=["tensorrt"]
    )
    same(inner(*args), block(*args), "block")
    assert any(n.startswith("_run_on_acc_tensorrt") for n, _ in inner.named_children())


def test_a_module_that_has_been_split_before_is_as_good_as_new():
    """C9, C10: splitting with another map in between changes nothing."""
    gm = graph()
    first = split(gm, support())
    split(gm, {"inductor": {aten.sin}})
    again = split(gm, support())
    assert again.plan == first.plan
    assert str(again.parent.graph) == str(first.parent.graph)
    for mine, theirs in zip(again.blocks, first.blocks, strict=True):
        assert str(mine.module.graph) == str(theirs.module.graph)
