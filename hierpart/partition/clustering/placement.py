"""Which block each unit runs in, once the sequence of block owners is chosen.

A unit may run in any block of its owner between the first one after its inputs and the last one
before its users. Among the placements that are tried, one that keeps the estimated peak of live
bytes within 10 % of the graph's own order comes first, then the fewest boundary bytes, then the
fewest distinct blocks (equal ones are compiled once), then the earliest place in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierpart.partition.clustering.bounds import topological
from hierpart.partition.clustering.search import Word
from hierpart.partition.clustering.traffic import ELSEWHERE, Traffic

PEAK_TOLERANCE = 1.1


@dataclass(frozen=True, slots=True)
class Placement:
    """Block of each unit, with its cost."""

    block_of: tuple[int, ...]
    boundary_bytes: int
    peak_bytes: int


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
    least = min((c.peak_bytes > limit, c.boundary_bytes) for c in costs)
    best = [c for c in costs if (c.peak_bytes > limit, c.boundary_bytes) == least]
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda c: (distinct_blocks(c.block_of, traffic), c.block_of))


def distinct_blocks(block_of: Sequence[int], traffic: Traffic) -> int:
    """Return how many blocks differ in their ops: those that do not are compiled once."""
    blocks: dict[int, list[int]] = {}
    for block, form in zip(block_of, traffic.forms(), strict=True):
        blocks.setdefault(block, []).append(form)
    return len(set(map(tuple, blocks.values())))


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
