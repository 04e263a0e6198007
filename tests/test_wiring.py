"""What enters and leaves each block, and which sizes it works out for itself (``wiring.py``; C6)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

import hierpart
from hierpart.backends.eager import EagerBackend
from hierpart.graph.node.values import Kind
from hierpart.options import Options
from hierpart.partition.pipeline import Result, run_line
from hierpart.partition.splitting.ports import Port, kind_of_port, ports_of
from tests.cases.harness import agree, export, record, split, vector

aten = torch.ops.aten
exported = functools.partial(export, decompose=False)
DIM = torch.export.Dim
DYNAMIC = {0: DIM("n", min=2, max=64)}


def wired(gm: GraphModule, support: dict[str, Any]) -> Result:
    """Return everything that the line finds out, with a minimum of 1."""
    return run_line(
        gm,
        Options(
            backend_priority=tuple(support), backend_support_map=support, min_block_size=1
        ),
    )  # fmt: skip


def names(ports: Collection[Port]) -> list[str]:
    return [p.name for p in ports]


def ends(result: Result) -> list[tuple[str, list[str], list[str]]]:
    """Owner, inputs and outputs of each block."""
    return [(w.backend, names(w.inputs), names(w.outputs)) for w in result.wiring]


def made(build: Any, *inputs: torch.Tensor, **attributes: Any) -> GraphModule:
    graph, root = Graph(), nn.Module()
    for name, value in attributes.items():
        root.register_buffer(name, value)
    graph.output(build(graph, *(graph.placeholder(n) for n, _ in zip("xyz", inputs, strict=False))))
    gm = GraphModule(root, graph)
    record(gm, inputs)
    return gm


# ------------------------------------------------------------------ tensors


def test_each_value_enters_once_in_order_of_use_and_leaves_only_if_read():
    """C6: no value twice, none that nobody reads, outputs in the order of the graph."""

    def build(g, x, y):
        a = g.call_function(torch.sin, (y,))
        b = g.call_function(torch.sin, (x,))
        unread = g.call_function(torch.sin, (b,))
        c = g.call_function(torch.add, (b, a))
        d = g.call_function(torch.add, (a, c))
        g.call_function(torch.neg, (unread,))
        return d, b

    gm = made(build, vector(2), vector(2))
    assert ends(wired(gm, {"a": {torch.sin}})) == [
        ("a", ["y", "x"], ["sin", "sin_1", "sin_2"]),
        ("eager", ["sin_1", "sin", "sin_2"], ["add_1"]),
    ]


def test_weights_are_held_by_the_block_and_written_buffers_are_passed_in():
    """C3, C7: what the graph writes has one home, the parent; weights need no crossing."""

    def build(g, x):
        h = g.call_function(torch.add, (x, g.get_attr("weight")))
        h = g.call_function(torch.sub, (h, g.get_attr("count")))
        g.call_method("add_", (g.get_attr("count"), 1))
        return h

    gm = made(build, vector(2), weight=torch.ones(2), count=torch.zeros(2))
    assert ends(wired(gm, {"a": {torch.add}})) == [
        ("a", ["x"], ["add"]), ("eager", ["add", "count", "count_1"], ["sub"]),
    ]  # fmt: skip


# ------------------------------------------------------------------ tuples, lists, None


def test_a_list_crosses_item_by_item_and_is_a_list_again():
    """C6: no tuple or list crosses; the reader gets the sequence that it was given before."""

    def build(g, x):
        parts = g.call_function(torch.split, (x, 2))
        return g.call_function(torch.cat, (parts, 0)), parts

    gm = made(build, vector(6))
    result = split(gm, {"a": {torch.split}})
    assert ends(wired(gm, {"a": {torch.split}})) == [
        ("a", ["x"], ["split_item_0", "split_item_1", "split_item_2"]),
        ("eager", ["split_item_0", "split_item_1", "split_item_2"], ["cat"]),
    ]
    cat = next(n for n in result.blocks[1].calls() if n.target is torch.cat)
    kind = type(gm.graph.find_nodes(op="call_function", target=torch.split)[0].meta["val"])
    assert type(cat.args[0]) in (kind, torch.fx.immutable_collections.immutable_list)
    agree(result, (vector(6),))


def test_sizes_cross_item_by_item():
    """C6: a ``torch.Size`` that is a result of its own leaves as numbers."""

    def build(g, x):
        size = g.call_method("size", (g.call_function(torch.sin, (x,)),))
        return g.call_function(torch.cos, (x,)), size

    gm = made(build, vector(2, 3))
    result = split(gm, {"a": {torch.cos}})
    agree(result, (vector(2, 3),))
    assert not [p for b in wired(gm, {"a": {torch.cos}}).wiring for p in b.inputs if p.item]
    assert names(ports_of(gm.graph.find_nodes(op="call_method", target="size")[0]) or ()) == [
        "size_item_0", "size_item_1",
    ]  # fmt: skip


def nothing(x: Any) -> None:
    """A function without a result."""


def test_none_never_crosses():
    """C6: where a value is None the reader gets the literal."""

    def build(g, x):
        missing = g.call_function(nothing, (x,))
        return g.call_function(torch.clamp, (x, missing, 1.0)), missing

    gm = made(build, vector(2))
    result = split(gm, {"a": {torch.clamp}})
    assert result.backends == ["eager", "a"]
    (clamp,) = result.blocks[1].calls()
    assert clamp.args[1] is None
    assert ends(wired(gm, {"a": {torch.clamp}})) == [("eager", ["x"], []), ("a", ["x"], ["clamp"])]
    agree(result, (vector(2),))


# ------------------------------------------------------------------ sizes


class Flatten(nn.Module):
    """A size of the input that an op far from the input needs."""

    def forward(self, x):
        h = torch.sin(x)
        h = torch.cumsum(h, 1)
        return torch.cos(h.view(x.shape[0] * 2, -1)), torch.cumsum(h, 0)


def flatten() -> GraphModule:
    return exported(Flatten(), (vector(4, 6),), dynamic=(DYNAMIC,))


def test_a_size_is_read_from_a_tensor_that_the_block_receives_anyway():
    """C6: neither baked in nor handed in; the size is read where it is needed."""
    gm = flatten()
    support = {"a": {aten.sin, aten.view, aten.cos}}
    last = wired(gm, support).wiring[2]
    assert names(last.inputs) == ["cumsum"]
    (node, (port, dim)), *rest = last.sizes.items()
    assert (node.target, port.name, dim, rest) == (aten.sym_size.int, "cumsum", 0, [])
    result = split(gm, support)
    for n in (4, 9):
        agree(result, (vector(n, 6),))


class OnlySizes(nn.Module):
    """A block that needs a size, which another one has read before, and no tensor that has it."""

    def forward(self, x, y):
        n = x.shape[0]
        y = torch.cumsum(torch.sin(x).reshape(n * 3), 0)[:1] + y
        return torch.cos(y).expand(n, 3)


class TensorsOnly(EagerBackend):
    """Takes the ops named, and tensors only at its boundary."""

    takes_scalars = False

    def __init__(self, *ops: Any) -> None:
        self.name, self.ops = "mine", ops

    def verdict(self, node):
        verdict = super().verdict(node)
        yes = any(node.target in (op, getattr(op, "default", None)) for op in self.ops)
        return type(verdict)(self.name, yes)


def test_a_size_that_no_tensor_of_the_block_has_is_handed_in_where_scalars_may_enter():
    """C6: as one symbolic scalar, read by the parent from the graph's input."""
    gm = exported(OnlySizes(), (vector(4, 3), vector(1, 3)), dynamic=(DYNAMIC, None))
    result = split(gm, {"inductor": {aten.cos, aten.expand}})
    (block,) = [b for b in result.blocks if b.backend == "inductor"]
    kinds = [n.meta["val"] for n in block.module.graph.find_nodes(op="placeholder")]
    assert [type(v) for v in kinds if not isinstance(v, torch.Tensor)] == [torch.SymInt]
    for n in (4, 7):
        agree(result, (vector(n, 3), vector(1, 3)))


def test_where_scalars_may_not_enter_the_tensor_itself_does():
    """C6: a tensors-only backend gets the tensor and reads the size inside."""
    gm = exported(OnlySizes(), (vector(4, 3), vector(1, 3)), dynamic=(DYNAMIC, None))
    mine = TensorsOnly(aten.cos, aten.expand)
    result = split(gm, {"mine": mine})
    (block,) = [b for b in result.blocks if b.backend == "mine"]
    inputs = block.module.graph.find_nodes(op="placeholder")
    assert {n.name.split("_")[0] for n in inputs} == {"x", "add"}
    assert [n.target for n in block.calls()].count(aten.sym_size.int) == 1
    for n in (4, 7):
        agree(result, (vector(n, 3), vector(1, 3)))


def test_arithmetic_on_sizes_is_done_again_in_each_block_that_needs_it():
    """C6: it belongs to its first reader's block and is no value of the boundary."""

    class Model(nn.Module):
        def forward(self, x):
            half = x.shape[0] * 3 + 1
            a = torch.sin(x).new_zeros(half)
            b = torch.cumsum(a, 0)
            return b + torch.cos(b.new_ones(half))

    gm = exported(Model(), (vector(4),), dynamic=(DYNAMIC,))
    result = split(gm, {"a": {aten.cumsum}})
    homes = [b.name for b in result.blocks for n in b.calls() if n.target is operator.mul]
    owned = [b.name for b in result.plan.blocks if {"mul", "add"} <= set(b.nodes)]
    assert len(owned) == 1
    assert owned[0] in homes
    for block in result.plan.blocks:
        assert not {"mul", "add"} & {*block.inputs, *block.outputs}
    for n in (4, 5):
        agree(result, (vector(n),))


def test_every_symbol_that_a_block_uses_is_bound_by_its_inputs():
    """C6: where only ``2*n`` is a dimension of what enters, ``n`` itself is handed in too."""

    class Model(nn.Module):
        def forward(self, x):
            doubled = torch.cumsum(torch.cat([x, x]), 0)
            return torch.sin(doubled)

    gm = exported(Model(), (vector(4, 2),), dynamic=(DYNAMIC,))
    result = split(gm, {"inductor": {aten.sin}})
    (block,) = [b for b in result.blocks if b.backend == "inductor"]
    values = [n.meta["val"] for n in block.module.graph.find_nodes(op="placeholder")]
    plain: set[Any] = set()
    for value in values:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        plain |= {
            s.node.expr for s in sizes if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol
        }
    used = {
        symbol
        for n in block.module.graph.nodes
        if isinstance(v := n.meta.get("val"), torch.Tensor)
        for s in v.shape
        if isinstance(s, torch.SymInt)
        for symbol in s.node.expr.free_symbols
    }
    assert used
    assert used <= plain
    for n in (4, 9):
        agree(result, (vector(n, 2),))


@pytest.mark.parametrize("read", ["size", "shape", "numel"])
def test_sizes_without_recorded_values(read):
    """C6: without metadata sizes are still worked out by the block that needs them."""
    graph = Graph()
    x = graph.placeholder("x")
    h = graph.call_function(torch.cumsum, (x, 0))
    if read == "size":
        n = graph.call_method("size", (h, 0))
    elif read == "numel":
        n = graph.call_method("numel", (h,))
    else:
        n = graph.call_function(operator.getitem, (graph.call_function(getattr, (h, "shape")), 0))
    double = graph.call_function(operator.mul, (n, 2))
    graph.output(graph.call_function(torch.full, ((double,), 1.0)))
    gm = GraphModule(nn.Module(), graph)
    result = split(gm, {"a": {torch.full}})
    assert result.backends == ["eager", "a"]
    assert list(result.plan.blocks[1].inputs) == ["cumsum"]
    for n in (2, 5):
        agree(result, (vector(n),))


# ------------------------------------------------------------------ ports


def test_names_and_kinds_of_what_crosses():
    """A value as it is, an item of a tuple, a size of a tensor."""
    gm = made(lambda g, x: g.call_function(torch.split, (x, 2)), vector(4, 3))
    x, parts = gm.graph.find_nodes(op="placeholder")[0], gm.graph.output_node().args[0]
    whole, item, size = Port(x), Port(parts, item=1), Port(x, dim=1)
    assert names((whole, item, size)) == ["x", "split_item_1", "x_size_1"]
    assert [p.is_whole for p in (whole, item, size)] == [True, False, False]
    assert [kind_of_port(p) for p in (whole, item, size)] == [
        Kind.TENSOR, Kind.TENSOR, Kind.SCALAR,
    ]  # fmt: skip
    assert (item.value.shape, size.value) == ((2, 3), 3)


def test_the_plan_names_the_values_that_cross():
    """The inputs and outputs of ``Plan.blocks`` are the placeholders and results of the blocks."""
    gm = flatten()
    result = split(gm, {"a": {aten.sin, aten.view, aten.cos}})
    for planned, block in zip(result.plan.blocks, result.blocks, strict=True):
        graph = block.module.graph
        assert planned.inputs == tuple(n.name for n in graph.find_nodes(op="placeholder"))
        assert planned.outputs == tuple(n.name for n in graph.output_node().args[0])


class Scaled(nn.Module):
    """Inductor computes the scale of the resize as a float from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x):
        return nn.functional.interpolate(self.conv(x).relu(), scale_factor=2.0)


@pytest.mark.inductor
def test_inductor_gets_each_size_symbol_as_an_input():
    model, sizes = Scaled().eval(), {2: DIM("h", min=9, max=64), 3: DIM("w", min=9, max=64)}
    compiled = hierpart.compile(
        model, (torch.randn(1, 3, 17, 19),), dynamic_shapes=(sizes,), min_block_size=1,
        backend_priority=["inductor"], torch_executed_ops=["torch.ops.aten.relu"],
    )  # fmt: skip
    assert [o.backend for o in compiled.report.outcomes] == ["inductor", "eager", "inductor"]
    for size in ((17, 19), (12, 30)):
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
