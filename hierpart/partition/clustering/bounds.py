"""Lower bounds on the number of blocks, and the contraction that both bounds and search work on.

The number of blocks of a graph whose nodes have fixed owners is the least number of owner runs over
all orders that respect the dependencies: precedence-constrained class sequencing (Tovey 2004;
Correa, Fiorini and Stier-Moses 2007), also unordered typed fusion (Kennedy and McKinley 1994).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Groups:
    """Units contracted as far as no fewest-block order is lost, with one owner a group.

    Attributes:
        of_unit: Group of each unit.
        owner: Owner of each group; groups are numbered in topological order.
        preds: Direct predecessors of each group.
        succs: Direct successors of each group.
        weight: Number of units in each group.
    """

    of_unit: tuple[int, ...]
    owner: tuple[int, ...]
    preds: tuple[tuple[int, ...], ...]
    succs: tuple[tuple[int, ...], ...]
    weight: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.owner)


def topological(preds: Sequence[Sequence[int]]) -> list[int]:
    """Return an order that respects ``preds``; ties break by number, so it is unique.

    Raises:
        ValueError: The dependencies form a circle.
    """
    if all(p < u for u, ps in enumerate(preds) for p in ps):
        return list(range(len(preds)))
    succs: list[list[int]] = [[] for _ in preds]
    for u, ps in enumerate(preds):
        for p in ps:
            succs[p].append(u)
    left = [len(ps) for ps in preds]
    ready = [u for u, n in enumerate(left) if n == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        u = heapq.heappop(ready)
        order.append(u)
        for s in succs[u]:
            left[s] -= 1
            if left[s] == 0:
                heapq.heappush(ready, s)
    if len(order) != len(preds):
        raise ValueError("the dependencies form a circle")
    return order


def contract(preds: Sequence[Sequence[int]], owner: Sequence[int]) -> Groups:
    """Contract units that some fewest-block order always runs together.

    When the next block has owner c, running everything of c that is ready is never worse. Under
    that rule a unit whose only predecessor has its owner runs with it, and two units of one owner
    with equal predecessors run together.
    """
    group_of = [-1] * len(preds)
    owners: list[int] = []
    group_preds: list[tuple[int, ...]] = []
    weight: list[int] = []
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    for u in topological(preds):
        before = _direct({group_of[p] for p in preds[u]}, group_preds)
        if len(before) == 1 and owners[before[0]] == owner[u]:
            group = before[0]
        else:
            group = known.setdefault((owner[u], before), len(owners))
            if group == len(owners):
                owners.append(owner[u])
                group_preds.append(before)
                weight.append(0)
        group_of[u] = group
        weight[group] += 1
    succs: list[list[int]] = [[] for _ in owners]
    for g, ps in enumerate(group_preds):
        for p in ps:
            succs[p].append(g)
    return Groups(
        tuple(group_of), tuple(owners), tuple(group_preds), tuple(map(tuple, succs)), tuple(weight)
    )


def _direct(groups: set[int], preds: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return ``groups`` ascending, without those that another one directly depends on."""
    if 1 < len(groups) <= 16:
        implied = {p for g in groups for p in preds[g]}
        groups = groups - implied
    return tuple(sorted(groups))


def chains_below(groups: Groups, pair: tuple[int, int] | None = None) -> list[int]:
    """Return for each group the most owner runs on any path that starts there.

    Args:
        groups: The contracted graph.
        pair: Owners that count; others are passed through, and their groups' entries are 0.
            Default: all count.
    """
    return _chains_of_all(groups) if pair is None else _chains_of_pair(groups, *pair)


def _chains_of_all(groups: Groups) -> list[int]:
    owner, succs = groups.owner, groups.succs
    counts = [1] * len(owner)
    for g in range(len(owner) - 1, -1, -1):
        mine, longest = owner[g], 1
        for s in succs[g]:
            n = counts[s] + (owner[s] != mine)
            if n > longest:
                longest = n
        counts[g] = longest
    return counts


def _chains_of_pair(groups: Groups, first: int, second: int) -> list[int]:
    owner, succs = groups.owner, groups.succs
    counts = [0] * len(owner)
    begin_first, begin_second = counts.copy(), counts.copy()  # by owner of the first counted run
    for g in range(len(owner) - 1, -1, -1):
        a = b = 0
        for s in succs[g]:
            if begin_first[s] > a:
                a = begin_first[s]
            if begin_second[s] > b:
                b = begin_second[s]
        if owner[g] == first:
            a, b = max(a, b + 1), 0
            counts[g] = a
        elif owner[g] == second:
            a, b = 0, max(b, a + 1)
            counts[g] = b
        begin_first[g], begin_second[g] = a, b
    return counts


def reverse(groups: Groups) -> Groups:
    """Return the groups with every dependency turned round, renumbered topologically."""
    last = len(groups) - 1

    def flip(rows: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(last - g for g in reversed(row)) for row in reversed(rows))

    return Groups(
        of_unit=tuple(last - g for g in groups.of_unit),
        owner=groups.owner[::-1],
        preds=flip(groups.succs),
        succs=flip(groups.preds),
        weight=groups.weight[::-1],
    )


def lower_bound(groups: Groups, enough: int | None = None) -> int:
    """Return a number of blocks that no order can beat.

    A bound of ``enough`` blocks, the length of a known schedule, is not improved further. The
    largest of: the most owner runs on a path (plus one when such paths start, or end, with
    different owners); the sum over owners of one plus the most re-entries on a path; and the same
    with what each pair of owners needs together.
    """
    if not len(groups):
        return 0
    owners = sorted(set(groups.owner))
    backwards = reverse(groups)
    chain = _least(groups, backwards, None)
    if chain == enough:
        return chain
    single = {c: _entries(groups, c) for c in owners}
    total = sum(single.values())
    pairs = {}
    if len(owners) > 2:
        for c, d in combinations(owners, 2):
            pairs[c, d] = _least(groups, backwards, (c, d))
            rest = total - single[c] - single[d]
            total_with_pair = pairs[c, d] + rest
            chain = max(chain, total_with_pair)
        # Each owner is in len(owners) - 1 of the pairs.
        chain = max(chain, -(-sum(pairs.values()) // (len(owners) - 1)))
    return max(chain, total)


def _least(groups: Groups, backwards: Groups, pair: tuple[int, int] | None) -> int:
    """Return the longest chain, plus one when longest chains start or end with several owners."""
    extra = longest = 0
    for way in (groups, backwards):
        counts = chains_below(way, pair)
        longest = max(counts)
        starts = {way.owner[g] for g, n in enumerate(counts) if n == longest}
        extra = max(extra, int(len(starts) > 1))
    return longest + extra


def _entries(groups: Groups, owner: int) -> int:
    """Return how many blocks of ``owner`` some path alone needs."""
    counts: list[int] = []
    for ps, mine in zip(groups.preds, groups.owner, strict=True):
        most = int(mine == owner and not ps)
        for p in ps:
            n = counts[p] + (mine == owner and groups.owner[p] != owner)
            if n > most:
                most = n
        counts.append(most)
    return max(counts, default=0)
