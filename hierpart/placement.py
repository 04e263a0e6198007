"""Which block each unit runs in, once the sequence of block owners is chosen.

A unit may run in any block of its owner between the first one after its inputs and the last one
before its users. Among the placements that are tried, one that keeps the estimated peak of live
bytes within 10 % of the graph's own order comes first, then the fewest boundary bytes, then the
earliest place in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierpart.bounds import topological
from hierpart.cluster import Word
from hierpart.graph import Facts
from hierpart.values import Kind

PEAK_TOLERANCE = 1.1
ELSEWHERE = -1
"""Memory of inputs and weights, which is there all the time."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Values that units hand to each other.

    Attributes:
        source: Unit that makes each value.
        size: Bytes of each value.
        readers: Units besides the source that read each value.
        made: Values of each unit.
        read: Values that each unit reads.
        memory: Value whose memory each value lies in: its own, that of what it is a view of, or
            ``ELSEWHERE``.
    """

    source: tuple[int, ...]
    size: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Block of each unit, with its cost."""

    block_of: tuple[int, ...]
    boundary_bytes: int
    peak_bytes: int


def traffic_of(facts: Facts) -> Traffic:
    """Return the values that leave their unit, with sizes and readers."""
    source: list[int] = []
    size: list[int] = []
    readers: list[tuple[int, ...]] = []
    made: list[list[int]] = [[] for _ in facts.units]
    read: list[list[int]] = [[] for _ in facts.units]
    memory: list[int] = []
    lies_in: dict[int, int | None] = {}
    for i in range(len(facts.nodes)):
        lies_in[i] = _viewed(facts, i, lies_in)
        if facts.recomputable[i] or facts.kinds[i] in (Kind.TUPLE, Kind.NONE):
            continue
        unit = facts.unit_of[i]
        users = sorted({u for u in _reading_units(facts, i) if u != unit})
        value = len(source)
        memory.append(value if (viewed := lies_in[i]) is None else viewed)
        lies_in[i] = memory[-1]
        source.append(unit)
        size.append(facts.bytes_of(i))
        readers.append(tuple(users))
        made[unit].append(value)
        for u in users:
            read[u].append(value)
    return Traffic(
        tuple(source), tuple(size), tuple(readers), tuple(map(tuple, made)),
        tuple(map(tuple, read)), tuple(memory),
    )  # fmt: skip


def _viewed(facts: Facts, i: int, lies_in: Mapping[int, int | None]) -> int | None:
    """Return the memory of what a node's value is a view of; ``None`` if it is none."""
    for source in facts.effects[i].aliases[:1]:
        j = facts.index.get(source)
        return ELSEWHERE if j is None else lies_in[j]
    return None


def _reading_units(facts: Facts, i: int) -> list[int]:
    found: list[int] = []
    for user in facts.nodes[i].users:
        j = facts.index.get(user)
        if j is None:
            continue
        found += _reading_units(facts, j) if facts.recomputable[j] else (facts.unit_of[j],)
    return found


def place(
    preds: Sequence[Sequence[int]],
    owner: Sequence[int],
    words: Sequence[Word],
    traffic: Traffic,
    original_peak: int,
) -> Placement:
    """Return the best of the placements tried for ``words``."""
    order = topological(preds)
    tried: dict[tuple[int, ...], None] = {}
    for word in words:
        early = _earliest(order, preds, owner, word)
        late = _latest(order, preds, owner, word)
        tried[early] = None
        if early != late:
            tried[_sink(order, preds, owner, word, early, traffic)] = None
            tried[late] = None
    limit = PEAK_TOLERANCE * original_peak
    costs = [
        Placement(p, boundary_bytes(p, traffic), peak_bytes(by_block(order, p), traffic))
        for p in dict.fromkeys(_squeeze(t, owner) for t in tried)
    ]
    return min(costs, key=lambda c: (c.peak_bytes > limit, c.boundary_bytes, c.block_of))


def by_block(order: Sequence[int], block_of: Sequence[int]) -> list[int]:
    """Return the units block by block, within a block in the order given."""
    return sorted(order, key=lambda u: block_of[u])


def boundary_bytes(block_of: Sequence[int], traffic: Traffic) -> int:
    """Return the bytes that cross between blocks, once for each block that reads a value."""
    total = 0
    for unit, size, readers in zip(traffic.source, traffic.size, traffic.readers, strict=True):
        if readers:
            total += size * len({block_of[r] for r in readers} - {block_of[unit]})
    return total


def peak_bytes(order: Sequence[int], traffic: Traffic) -> int:
    """Return the estimated peak of live bytes when units run in ``order``.

    A value is live from its unit to its last reader, or that of its views; values that nothing in
    the graph reads stay. Views take no memory. Inputs, weights and scratch memory do not count.
    """
    left = [0] * (len(traffic.source) + 1)  # the last one is for what lies ELSEWHERE
    for memory, readers in zip(traffic.memory, traffic.readers, strict=True):
        left[memory] += len(readers) or 1
    live = peak = 0
    for u in order:
        for v in traffic.made[u]:
            if traffic.memory[v] == v:
                live += traffic.size[v]
        if live > peak:
            peak = live
        for v in traffic.read[u]:
            memory = traffic.memory[v]
            left[memory] -= 1
            if not left[memory] and memory != ELSEWHERE:
                live -= traffic.size[memory]
    return peak


def _earliest(
    order: Sequence[int], preds: Sequence[Sequence[int]], owner: Sequence[int], word: Word
) -> tuple[int, ...]:
    following = _next_of_owner(word, max(owner, default=0) + 1)
    block_of = [0] * len(owner)
    for u in order:
        block_of[u] = following[max([block_of[p] for p in preds[u]], default=0)][owner[u]]
    return tuple(block_of)


def _latest(
    order: Sequence[int], preds: Sequence[Sequence[int]], owner: Sequence[int], word: Word
) -> tuple[int, ...]:
    last = len(word) - 1
    preceding = _next_of_owner(word[::-1], max(owner, default=0) + 1)
    limit = [last] * len(owner)
    block_of = [0] * len(owner)
    for u in reversed(order):
        block_of[u] = last - preceding[last - limit[u]][owner[u]]
        for p in preds[u]:
            limit[p] = min(limit[p], block_of[u])
    return tuple(block_of)


def _next_of_owner(word: Word, owners: int) -> list[list[int]]:
    """Return for each position the first position from there on of each owner (-1: none)."""
    rows = [[-1] * owners]
    for position in range(len(word) - 1, -1, -1):
        row = rows[-1].copy()
        row[word[position]] = position
        rows.append(row)
    rows.reverse()
    return rows


def _sink(
    order: Sequence[int],
    preds: Sequence[Sequence[int]],
    owner: Sequence[int],
    word: Word,
    early: tuple[int, ...],
    traffic: Traffic,
) -> tuple[int, ...]:
    """Move each unit to its last possible block where that lowers the boundary bytes."""
    last = len(word) - 1
    preceding = _next_of_owner(word[::-1], max(owner, default=0) + 1)
    block_of, limit = list(early), [last] * len(owner)
    readers = [_count(block_of, rs) for rs in traffic.readers]
    for u in reversed(order):
        here, there = block_of[u], last - preceding[last - limit[u]][owner[u]]
        if there != here and _gain(u, here, there, block_of, readers, traffic) > 0:
            block_of[u] = there
            for v in traffic.read[u]:
                readers[v][here] -= 1
                readers[v][there] = readers[v].get(there, 0) + 1
        for p in preds[u]:
            limit[p] = min(limit[p], block_of[u])
    return tuple(block_of)


def _count(block_of: Sequence[int], units: Sequence[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for u in units:
        counts[block_of[u]] = counts.get(block_of[u], 0) + 1
    return counts


def _gain(
    u: int,
    here: int,
    there: int,
    block_of: Sequence[int],
    readers: Sequence[dict[int, int]],
    traffic: Traffic,
) -> int:
    """Return the boundary bytes saved by moving unit ``u`` from block ``here`` to ``there``."""
    saved = 0
    for v in traffic.made[u]:
        if readers[v].get(there):
            saved += traffic.size[v]
        if readers[v].get(here):
            saved -= traffic.size[v]
    for v in traffic.read[u]:
        home = block_of[traffic.source[v]]
        if readers[v].get(here) == 1 and here != home:
            saved += traffic.size[v]
        if not readers[v].get(there) and there != home:
            saved -= traffic.size[v]
    return saved


def _squeeze(block_of: tuple[int, ...], owner: Sequence[int]) -> tuple[int, ...]:
    """Renumber the blocks without the empty ones; neighbours of one owner become one block."""
    owner_of = dict(zip(block_of, owner, strict=True))
    number: dict[int, int] = {}
    index, before = -1, -1
    for b in sorted(owner_of):
        index += owner_of[b] != before
        before = owner_of[b]
        number[b] = index
    return tuple(number[b] for b in block_of)
