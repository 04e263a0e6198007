"""How values may cross between blocks: kinds, sizes that are read again, what stays together."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from hierpart.graph.hazards import AliasClasses
from hierpart.graph.node.op_effects import Effect
from hierpart.graph.node.values import (
    Kind,
    binds_symbols,
    has_value,
    is_getitem,
    is_scalar_function,
    kind_of,
    kind_of_value,
    reads_sizes,
    value_of,
)

CROSSING = (Kind.TENSOR, Kind.SCALAR, Kind.SIZES, Kind.NONE)


def kinds_of(
    nodes: Sequence[Node],
    index: dict[Node, int],
    effects: Sequence[Effect],
    classes: AliasClasses,
) -> tuple[list[Kind], list[bool]]:
    """Return the kind of each value and whether it is a pure function of sizes and scalars."""
    kinds: list[Kind] = []
    recomputable: list[bool] = []
    for node, effect in zip(nodes, effects, strict=True):
        kind, pure = kind_of(node), not effect.is_effect and not binds_symbols(node)
        inputs = node.all_input_nodes
        if reads_sizes(node):
            again = pure and not classes.changes_shape(inputs)
        elif pure and (is_getitem(node) or is_scalar_function(node)):
            scalars = bool(inputs) and all(_is_scalar(n, index, kinds) for n in inputs)
            again = scalars and not any(_stays(n, index, kinds, recomputable) for n in inputs)
            if scalars and kind is Kind.UNKNOWN:
                kind = Kind.SCALAR
        else:
            again = False
        kinds.append(kind)
        recomputable.append(again and kind in (Kind.SCALAR, Kind.SIZES, Kind.OBJECT))
    return kinds, recomputable


def _is_scalar(node: Node, index: dict[Node, int], kinds: Sequence[Kind]) -> bool:
    kind = kinds[index[node]] if node in index else kind_of(node)
    return kind in (Kind.SCALAR, Kind.SIZES)


def _stays(
    node: Node, index: dict[Node, int], kinds: Sequence[Kind], recomputable: Sequence[bool]
) -> bool:
    """Whether sizes can neither be read again elsewhere nor cross item by item."""
    i = index.get(node)
    if i is None or kinds[i] is not Kind.SIZES:
        return False
    return not recomputable[i] and not can_flatten(node)


def can_flatten(node: Node) -> bool:
    """Whether a tuple value is known to hold only what can cross item by item, and ``None``."""
    value = value_of(node)
    if not has_value(node) or not isinstance(value, (tuple, list)):
        return False
    return all(kind_of_value(v) in (Kind.TENSOR, Kind.SCALAR, Kind.NONE) for v in value)


def data_edges(
    inputs: Sequence[tuple[int, ...]], recomputable: Sequence[bool]
) -> list[tuple[int, ...]]:
    """Return the callable inputs of each node, recomputable ones replaced by what they need."""
    edges: list[tuple[int, ...]] = []
    for mine in inputs:
        if any(recomputable[i] for i in mine):
            found = [j for i in mine for j in (edges[i] if recomputable[i] else (i,))]
            mine = tuple(dict.fromkeys(found))
        edges.append(mine)
    return edges


def ties_of(
    nodes: Sequence[Node],
    index: dict[Node, int],
    kinds: Sequence[Kind],
    recomputable: Sequence[bool],
    floating: Sequence[bool],
) -> list[tuple[int, int]]:
    """Return pairs of nodes that must not be parted: unpacking, and values that cannot cross."""
    pairs = []
    for i, kind in enumerate(kinds):
        crosses = kind in CROSSING and not _stays(nodes[i], index, kinds, recomputable)
        if crosses or recomputable[i]:
            continue
        for user in nodes[i].users:
            j = index.get(user)
            if j is None or floating[j]:
                continue
            unpacks = kind is Kind.TUPLE and is_unpacking(user)
            if unpacks or (kind is not Kind.UNKNOWN and not can_flatten(nodes[i])):
                pairs.append((i, j))
    return pairs


def is_unpacking(node: Node, kind: Kind = Kind.TUPLE) -> bool:
    """Whether ``node`` takes one element out of a tuple-valued producer."""
    if is_getitem(node):
        return kind is Kind.TUPLE
    return node.target is getattr and kind is Kind.TUPLE


def unpacks(node: Node, index: dict[Node, int], kinds: Sequence[Kind]) -> bool:
    """Whether ``node`` takes one element out of what a node of the graph gives."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or source not in index:
        return False
    return is_unpacking(node, kinds[index[source]])


def is_symbolic(node: Node, kind: Kind) -> bool:
    """Whether the node is arithmetic on sizes, even where it cannot be moved."""
    computes = is_scalar_function(node) or is_getitem(node)
    return reads_sizes(node) or (kind is Kind.SCALAR and computes)
