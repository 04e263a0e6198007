"""The read-only facts of an FX graph that every step works from.

``analyse`` walks the graph a fixed number of times; time and memory grow linearly with nodes plus
edges (C12). Everything is indexed by position in the graph, so nothing depends on addresses or
hash seeds (C9).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.graph.crossing import data_edges, is_symbolic, kinds_of, ties_of, unpacks
from hierpart.graph.hazards import AliasClasses, ordering_edges
from hierpart.graph.node.effects import branches_of, effect_of, resolve_attribute
from hierpart.graph.node.op_effects import Effect
from hierpart.graph.node.values import Kind, bytes_of
from hierpart.graph.units import units_of

CALLABLE = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one graph; ``n`` callable nodes in graph order, ``m`` units in graph order.

    Attributes:
        module: The module that owns the graph; never changed.
        nodes: The ``n`` callable nodes.
        index: Position of each callable node.
        kinds: Kind of each node's value.
        effects: What each node does besides computing its value.
        recomputable: Nodes that are pure functions of sizes and scalars.
        floating: Recomputable nodes that only feed other nodes; they run where they are needed and
            belong to no unit.
        unit_of: Unit of each node, -1 for floating ones.
        units: Nodes of each unit, ascending.
        preds: Units that have to run before each unit (data, alias, mutation, effects), ascending.
        unpacking: Nodes that take one item out of a tuple-valued node.
        compute: What each node counts for the minimum size (C5).
        constant: Nodes that depend on nothing but attributes and literals.
        written: Nodes whose storage some node of the graph writes.
        written_attributes: Names of ``get_attr`` nodes whose storage is written, in graph order.
        branches: Branch ``get_attr`` nodes and their modules for each higher-order op.
    """

    module: GraphModule
    nodes: tuple[Node, ...]
    index: dict[Node, int]
    inputs: tuple[tuple[int, ...], ...]
    kinds: tuple[Kind, ...]
    effects: tuple[Effect, ...]
    recomputable: tuple[bool, ...]
    floating: tuple[bool, ...]
    unit_of: tuple[int, ...]
    units: tuple[tuple[int, ...], ...]
    preds: tuple[tuple[int, ...], ...]
    unpacking: tuple[bool, ...]
    compute: tuple[int, ...]
    constant: tuple[bool, ...]
    written: tuple[bool, ...]
    written_attributes: tuple[str, ...]
    branches: dict[int, tuple[tuple[Node, GraphModule], ...]]

    def resolve(self, target: str) -> Any:
        """Return the attribute of the module at a dotted path."""
        return resolve_attribute(self.module, target)

    def bytes_of(self, i: int) -> int:
        """Return the bytes of the value of node ``i``."""
        return bytes_of(self.nodes[i])


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of modules by ``id``, so that one that many nodes share is analysed once."""

    effects: dict[int, Effect] = field(default_factory=dict)
    facts: dict[int, Facts] = field(default_factory=dict)


def analyse(module: GraphModule, known: Known | None = None) -> Facts:
    """Return the facts of ``module``'s graph.

    Args:
        module: The module; not changed.
        known: What earlier calls found out; filled in. Valid as long as no module in it changes.

    Raises:
        AttributeError: A ``get_attr`` or ``call_module`` names an attribute that is not there.
    """
    known = Known() if known is None else known
    if id(module) not in known.facts:
        known.facts[id(module)] = _analyse(module, known)
    return known.facts[id(module)]


def _analyse(module: GraphModule, known: Known) -> Facts:
    resolve = functools.partial(resolve_attribute, module)
    nodes = tuple(n for n in module.graph.nodes if n.op in CALLABLE)
    index = {n: i for i, n in enumerate(nodes)}
    inputs = tuple(tuple(index[m] for m in n.all_input_nodes if m in index) for n in nodes)
    effects = tuple(effect_of(n, resolve, known.effects) for n in nodes)
    classes = AliasClasses.of(module, nodes, effects, resolve)
    kinds, recomputable = kinds_of(nodes, index, effects, classes)
    floating = tuple(recomputable[i] and _feeds_nodes_only(n) for i, n in enumerate(nodes))
    branches = {
        i: tuple(branches_of(n, resolve))
        for i, n in enumerate(nodes)
        if isinstance(n.target, torch._ops.HigherOrderOperator)
    }
    data = data_edges(inputs, recomputable)
    order = ordering_edges(nodes, index, effects, classes, recomputable)
    ties = ties_of(nodes, index, kinds, recomputable, floating) + _asserted(nodes, index, effects)
    unit_of, units, preds = units_of(floating, data, order, ties)
    unpacking = tuple(unpacks(n, index, kinds) for n in nodes)
    uncounted = [
        unpacking[i]
        or recomputable[i]
        or effects[i].guard
        or effects[i].proved
        or is_symbolic(n, kinds[i])
        for i, n in enumerate(nodes)
    ]
    return Facts(
        module=module, nodes=nodes, index=index, inputs=inputs, kinds=tuple(kinds), effects=effects,
        recomputable=tuple(recomputable), floating=floating, unit_of=unit_of, units=units,
        preds=preds, unpacking=unpacking,
        compute=_compute(nodes, uncounted, branches, resolve, known),
        constant=_constants(nodes, index, effects, branches),
        written=tuple(classes.is_written(n) for n in nodes),
        written_attributes=tuple(
            n.name for n in module.graph.nodes if n.op == "get_attr" and classes.is_written(n)
        ),
        branches=branches,
    )  # fmt: skip


def _feeds_nodes_only(node: Node) -> bool:
    return bool(node.users) and all(u.op != "output" for u in node.users)


def _asserted(
    nodes: Sequence[Node], index: dict[Node, int], effects: Sequence[Effect]
) -> list[tuple[int, int]]:
    """Return pairs of a node and an assertion on its value that needs no place of its own."""
    proved = [i for i, effect in enumerate(effects) if effect.proved]
    pairs = ((index.get(nodes[i].all_input_nodes[0]), i) for i in proved)
    return [(made, i) for made, i in pairs if made is not None]


def _compute(
    nodes: Sequence[Node],
    uncounted: Sequence[bool],
    branches: dict[int, tuple[tuple[Node, GraphModule], ...]],
    resolve: Callable[[str], Any],
    known: Known,
) -> tuple[int, ...]:
    counts = []
    for i, node in enumerate(nodes):
        if branches.get(i):
            counts.append(sum(count_compute(body, known) for _, body in branches[i]))
        elif node.op == "call_module" and isinstance(resolve(str(node.target)), GraphModule):
            counts.append(count_compute(resolve(str(node.target)), known))
        else:
            counts.append(0 if uncounted[i] else 1)
    return tuple(counts)


def count_compute(body: GraphModule, known: Known | None = None) -> int:
    """Return how many compute ops a module holds, nested modules included (C5)."""
    return sum(analyse(body, known).compute)


def _constants(
    nodes: Sequence[Node],
    index: dict[Node, int],
    effects: Sequence[Effect],
    branches: dict[int, tuple[tuple[Node, GraphModule], ...]],
) -> tuple[bool, ...]:
    constant: list[bool] = []
    for i, node in enumerate(nodes):
        fixed = not effects[i].is_effect and not branches.get(i) and node.op != "call_module"
        constant.append(
            fixed
            and all(
                constant[index[n]] if n in index else n.op == "get_attr"
                for n in node.all_input_nodes
            )
        )
    return tuple(constant)
