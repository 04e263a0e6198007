"""Units: nodes that can never be parted, and the order among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def units_of(
    floating: Sequence[bool],
    data: Sequence[tuple[int, ...]],
    order: Sequence[tuple[int, ...]],
    ties: Sequence[tuple[int, int]],
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Group tied nodes into units and return unit of node, nodes of unit, preds of unit."""
    count = len(floating)
    merged = _Merge(count)
    for i, j in ties:
        merged.join(i, j)
    while True:
        unit_of, units = _number(merged, floating)
        preds = tuple(
            tuple(sorted({unit_of[p] for i in unit for p in (*data[i], *order[i])} - {u}))
            for u, unit in enumerate(units)
        )
        cycle = _first_cycle(preds, units)
        if not cycle:
            return unit_of, units, preds
        for u in cycle[1:]:  # a tie across other nodes takes these nodes in
            merged.join(units[cycle[0]][0], units[u][0])


def _number(
    merged: _Merge, floating: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    unit_of = [-1] * len(floating)
    units: list[list[int]] = []
    numbers: dict[int, int] = {}
    for i, floats in enumerate(floating):
        if floats:
            continue
        root = merged.root(i)
        if root not in numbers:
            numbers[root] = len(units)
            units.append([])
        unit_of[i] = numbers[root]
        units[numbers[root]].append(i)
    return tuple(unit_of), tuple(tuple(u) for u in units)


def _first_cycle(preds: Sequence[tuple[int, ...]], units: Sequence[tuple[int, ...]]) -> list[int]:
    """Return units that depend on each other in a circle, or an empty list."""
    if all(p < u for u, ps in enumerate(preds) for p in ps):
        return []  # graph order sorts the units already, which is nearly always so
    import networkx

    graph: Any = networkx.DiGraph()
    graph.add_nodes_from(range(len(units)))
    graph.add_edges_from((p, u) for u, ps in enumerate(preds) for p in ps)
    circles = (sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1)
    return min(circles, default=[])


class _Merge:
    """Disjoint sets over 0..count-1; the root of a set is its smallest member."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, i: int) -> int:
        parent = self._parent
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    def join(self, i: int, j: int) -> None:
        a, b = sorted((self.root(i), self.root(j)))
        self._parent[b] = a
