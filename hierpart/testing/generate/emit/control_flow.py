"""Emitters of control flow: ops with branches, nested, and branch modules that ops share."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from hierpart.testing.generate.graph_builder import GraphBuilder, Refused, Test
from hierpart.testing.generate.maker import Body, Maker, emitter
from hierpart.testing.reading.blocks import attribute
from hierpart.testing.reading.flow import runs

aten = torch.ops.aten

BRANCH_FEATURES = frozenset({"arithmetic", "control_flow", "python", "dtypes"})
"""What any branch may contain."""

BRANCH_EFFECTS = (
    frozenset({"random"}),
    frozenset({"mutation", "views"}),
    frozenset({"buffers"}),
    frozenset({"buffers", "mutation"}),
    frozenset({"prints"}),
    frozenset({"asserts"}),
)
"""What one branch may contain besides; capture makes none but the first. One kind at a time, so
that no effect stands in for another."""

ENDING = ("test", "step")
"""Branches of a loop: a write to its counter could keep it from ending."""

MOST_BODIES = 8
"""Most branch modules of a graph; ops may share them."""

Values = Sequence[Sequence[Tensor]]
"""What a branch is called with: one list of tensors for each world."""
Finish = Callable[[Maker], Any]


def plain(test: Test = lambda value: True) -> Test:
    """Return a test for tensors that control flow takes anywhere."""
    return lambda v: v.is_floating_point() and not v.requires_grad and v.is_contiguous() and test(v)


def operand_values(m: Maker, nodes: Sequence[Node]) -> list[list[Any]]:
    """Return the values of ``nodes`` in each world, to make a branch for."""
    return [[world.values[node] for node in nodes] for world in m.builder.worlds]


def _first_rows(m: Maker, rows: Node, nodes: Sequence[Node]) -> list[list[Any]]:
    """Return the values of ``nodes``, and one row of ``rows`` before them."""
    first = [world.values[rows].select(0, 0) for world in m.builder.worlds]
    return [[row, *rest] for row, rest in zip(first, operand_values(m, nodes), strict=True)]


# ---------------------------------------------------------------------- branches


def branch_of(m: Maker, kind: str, values: Values, finish: Finish) -> GraphModule:
    """Return a branch for ``values``: a new one, or one that another op has already."""
    made_for = (kind, *((*_described(world),) for world in values))
    fit = [b for b in m.bodies if b.made_for == made_for and b.levels <= m.depth]
    if fit and m.flag():
        return m.pick(fit).module
    if len(m.bodies) >= MOST_BODIES:
        raise Refused("branches enough")
    calls = [(world.batch, world.call) for world in m.builder.worlds]
    builder = GraphBuilder(calls, outer=m.builder.root)
    for position in range(len(values[0])):
        node = builder.placeholder(f"arg{position}", lambda world: None)
        for world, given in zip(builder.worlds, values, strict=True):
            world.values[node] = given[position]
    effects = m.features & _branch_effects(m, kind)
    features = m.features & BRANCH_FEATURES | effects
    inside = replace(m.deeper(builder), features=features, favoured=effects)
    inside.steps(3)
    module = builder.finish(finish(inside))
    m.bodies.append(Body(made_for, module, 1 + _levels(m, module)))
    return module


def _branch_effects(m: Maker, kind: str) -> frozenset[str]:
    by_hand = "branch_effects" in m.features and kind not in ENDING
    chosen = m.pick(BRANCH_EFFECTS) if by_hand else BRANCH_EFFECTS[0]
    return (chosen | {"branch_effects"}) if by_hand else chosen


def _levels(m: Maker, module: GraphModule) -> int:
    """Return how many levels of branches there are in a branch."""
    inner = [body.levels for body in m.bodies if body.module in module.children()]
    return max(inner, default=0)


def _described(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def _like_input(position: int) -> Finish:
    """Return what gives a new tensor like an input of the branch, made of anything in it."""

    def finish(inside: Maker) -> Node:
        wanted = inside.builder.scope[position]
        worlds = inside.builder.worlds

        def fits(node: Node) -> bool:
            return all(world.values[node].shape == world.values[wanted].shape for world in worlds)

        kind = inside.value(wanted).dtype
        found = [n for n in inside.builder.tensors(lambda v: v.dtype == kind) if fits(n)]
        last = next(iter(found), wanted)
        if inside.flag():
            last = inside.call(aten.neg.default, last)
        # The result of a branch is contiguous and is no operand.
        return inside.call(aten.clone.default, last, memory_format=torch.contiguous_format)

    return finish


def _one(m: Maker, values: Values) -> GraphModule:
    """Return a branch that gives a tuple of one tensor like its first input.

    One made by hand may give an input itself, which capture never lets through.
    """

    def finish(inside: Maker) -> tuple[Node]:
        first = inside.builder.scope[0]
        by_hand = "branch_effects" in inside.features
        plain = all(
            w.values[first].is_contiguous() and not w.values[first].storage_offset()
            for w in inside.builder.worlds
        )
        if by_hand and plain and inside.number(0, 3) == 3:
            return (first,)
        return (_like_input(0)(inside),)

    return branch_of(m, "one", values, finish)


def attach(m: Maker, names: Sequence[str], modules: Sequence[GraphModule]) -> list[Node]:
    """Return a ``get_attr`` for each branch; a shared one at times under the name it has."""
    number = sum(
        isinstance(n.target, torch._ops.HigherOrderOperator) for n in m.builder.graph.nodes
    )
    nodes = []
    for name, module in zip(names, modules, strict=True):
        held = [k for k, v in m.builder.root.named_children() if v is module]
        target = held[0] if held and m.flag() else _free(m.builder, f"{name}_graph", number, module)
        nodes.append(m.builder.attribute(target, _given(module)))
        m.builder.scope.remove(nodes[-1])  # a branch is no operand
    return nodes


def _free(builder: GraphBuilder, name: str, number: int, module: GraphModule) -> str:
    """Return ``name`` with the first number from ``number`` that stands for no other branch.

    A name that the graph around has means the same there and here.
    """
    holders = [holder for holder in (builder.root, builder.outer) if holder is not None]
    numbered = (f"{name}_{i}" for i in itertools.count(number))
    return next(t for t in numbered if all(getattr(h, t, module) is module for h in holders))


def _given(branch: GraphModule) -> Callable[[nn.Module], GraphModule]:
    return lambda holder: branch


def flow_call(m: Maker, name: str, branches: Sequence[Node], *args: Any) -> Node:
    """Add the op or refuse the step; then the branches go again."""
    try:
        return m.call(getattr(torch.ops.higher_order, name), *args)
    except Refused:
        for node in branches:
            m.builder.drop(node)
        raise


def _written(m: Maker, result: Node) -> None:
    """Write to the result at times: that reaches the operand where a branch gives it back."""
    if {"branch_effects", "mutation"} <= m.features and m.flag():
        m.call(aten.add_.Scalar, result, 1.0)


def ready(name: str) -> None:
    """Refuse the step where this torch does not run the op."""
    if not runs(name):
        raise Refused(f"this torch does not run {name}")


# ---------------------------------------------------------------------- ops


@emitter("control_flow")
def conditional(m: Maker) -> None:
    """``cond(any(x > 0), true_branch, false_branch, (x, y))``."""
    ready("cond")
    x = m.tensor(lambda v: v.is_floating_point() and not v.requires_grad)
    operands = [x, m.like(x)][: m.number(1, 2)]
    test = m.call(aten.any.default, m.call(aten.gt.Scalar, x, 0.0))
    branches = [_one(m, operand_values(m, operands)) for _ in range(2)]
    nodes = attach(m, ("true", "false"), branches)
    both = flow_call(m, "cond", nodes, test, *nodes, tuple(operands))
    _written(m, m.call(operator.getitem, both, 0))


@emitter("control_flow")
def switch(m: Maker) -> None:
    """``switch(index, [first, second, third], (x,))``."""
    ready("switch")
    x = m.tensor(plain())
    test = m.call(aten.any.default, m.call(aten.gt.Scalar, x, 0.0))
    index = m.call(aten._to_copy.default, test, dtype=torch.int64)
    branches = [_one(m, operand_values(m, [x])) for _ in range(m.number(2, 3))]
    nodes = attach(m, ("first", "second", "third")[: len(branches)], branches)
    result = flow_call(m, "switch", nodes, index, nodes, (x,))
    m.call(operator.getitem, result, 0)


@emitter("control_flow")
def loop(m: Maker) -> None:
    """``while_loop(i < 2, body, (i, x), (y,))``, of no, one or more trips."""
    ready("while_loop")
    x = m.tensor(plain())
    more = [m.tensor(plain())] if m.flag() else []
    start = m.call(aten.full.default, [], m.number(0, 3), dtype=torch.int64)
    values = operand_values(m, [start, x, *more])

    def body(inside: Maker) -> Any:
        return inside.call(aten.add.Scalar, inside.builder.scope[0], 1), _like_input(1)(inside)

    def test(inside: Maker) -> Node:
        return inside.call(aten.lt.Scalar, inside.builder.scope[0], 2)

    branches = [branch_of(m, "test", values, test), branch_of(m, "step", values, body)]
    nodes = attach(m, ("cond", "body"), branches)
    result = flow_call(m, "while_loop", nodes, *nodes, (start, x), tuple(more))
    m.call(operator.getitem, result, 1)
    if m.flag():
        m.call(operator.getitem, result, 0)


@emitter("control_flow")
def mapped(m: Maker) -> None:
    """``map_impl(body, [rows], [x])``."""
    ready("map_impl")
    rows = m.tensor(plain(lambda v: v.dim() > 0 and v.shape[0] > 0))
    more = [m.tensor(plain())] if m.flag() else []
    nodes = attach(m, ("map",), [_one(m, _first_rows(m, rows, more))])
    result = flow_call(m, "map_impl", nodes, *nodes, [rows], more)
    m.call(operator.getitem, result, 0)


@emitter("control_flow")
def scanned(m: Maker) -> None:
    """``scan(combine, [carry], [rows], [])``."""
    ready("scan")
    rows = m.tensor(plain(lambda v: v.dim() > 0 and v.shape[0] > 0))
    carry = m.tensor(plain())
    values = [[b, a] for a, b in _first_rows(m, rows, [carry])]

    def combine(inside: Maker) -> Any:
        return [_like_input(0)(inside), _like_input(1)(inside)]

    nodes = attach(m, ("scan_combine",), [branch_of(m, "combine", values, combine)])
    result = flow_call(m, "scan", nodes, *nodes, [carry], [rows], [])
    for position in range(m.number(1, 2)):
        m.call(operator.getitem, result, position)


@emitter("control_flow")
def region(m: Maker) -> None:
    """``invoke_subgraph(body, "region_0", x)``, what ``nested_compile_region`` makes."""
    ready("invoke_subgraph")
    x = m.tensor(plain())
    module = _one(m, operand_values(m, [x]))
    number = next(i for i, body in enumerate(m.bodies) if body.module is module)
    nodes = attach(m, ("repeated",), [module])
    result = flow_call(m, "invoke_subgraph", nodes, *nodes, f"region_{number}", x)
    _written(m, m.call(operator.getitem, result, 0))


@emitter("branch_effects")
def write_what_a_branch_reads(m: Maker) -> None:
    """``state.add_(1.0)``, where some branch reads or writes the same buffer."""
    names = dict.fromkeys(
        str(node.target)
        for body in m.bodies
        for node in body.module.graph.find_nodes(op="get_attr")
        if isinstance(attribute(m.builder.root, str(node.target)), Tensor)
    )
    if not names or "mutation" not in m.features:
        raise Refused("no branch reads a buffer that this graph reads")
    state = m.builder.attribute(m.pick(list(names)), lambda holder: None)
    m.call(aten.add_.Scalar, state, 1.0)
