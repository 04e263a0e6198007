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


def chains_below(groups: Groups, opaque: Sequence[bool] | None = None) -> list[int]:
    """Return for each group the most owner runs on any path that starts there.

    Args:
        groups: The contracted graph.
        opaque: Per owner, whether it counts; others are passed through. Default: all count. For a
            group of an owner that does not count, the entry is 0.
    """
    if opaque is None:
        return _chains_of_all(groups)
    counts = [0] * len(groups)
    best: list[dict[int, int]] = [{} for _ in counts]  # by owner of the first counted group
    for g in reversed(range(len(groups))):
        merged: dict[int, int] = {}
        for s in groups.succs[g]:
            for c, n in best[s].items():
                if n > merged.get(c, 0):
                    merged[c] = n
        c = groups.owner[g]
        if opaque[c]:
            longest = max([n + (o != c) for o, n in merged.items()], default=1)
            best[g] = {c: max(longest, 1)}
            counts[g] = best[g][c]
        else:
            best[g] = merged
    return counts


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


def lower_bound(groups: Groups) -> int:
    """Return a number of blocks that no order can beat.

    The largest of: the most owner runs on a path (plus one when such paths start, or end, with
    different owners); the sum over owners of one plus the most re-entries on a path; and the same
    with what each pair of owners needs together.
    """
    if not len(groups):
        return 0
    owners = sorted(set(groups.owner))
    backwards = reverse(groups)
    chain = _least(groups, backwards, None)
    single = {c: _entries(groups, c) for c in owners}
    total = sum(single.values())
    pairs = {}
    if len(owners) > 2:
        for c, d in combinations(owners, 2):
            opaque = [o in (c, d) for o in range(max(owners) + 1)]
            pairs[c, d] = _least(groups, backwards, opaque)
            rest = total - single[c] - single[d]
            total_with_pair = pairs[c, d] + rest
            chain = max(chain, total_with_pair)
        # Each owner is in len(owners) - 1 of the pairs.
        chain = max(chain, -(-sum(pairs.values()) // (len(owners) - 1)))
    return max(chain, total)


def _least(groups: Groups, backwards: Groups, opaque: Sequence[bool] | None) -> int:
    """Return the longest chain, plus one when longest chains start or end with several owners."""
    extra = longest = 0
    for way in (groups, backwards):
        counts = chains_below(way, opaque)
        longest = max(counts)
        starts = {way.owner[g] for g, n in enumerate(counts) if n == longest}
        extra = max(extra, int(len(starts) > 1))
    return longest + extra


def _entries(groups: Groups, owner: int) -> int:
    """Return how many blocks of ``owner`` some path alone needs."""
    counts: list[int] = []
    for g, ps in enumerate(groups.preds):
        mine = groups.owner[g] == owner
        counts.append(
            max(
                [counts[p] + (mine and groups.owner[p] != owner) for p in ps],
                default=int(mine),
            )
        )
    return max(counts, default=0)
