"""Fewest blocks from owned units.

Exact for two owners; for more, a greedy schedule and a beam search in both directions, then an
exact layered search within a fixed number of steps (not seconds, so that the result does not depend
on the machine). A result is proved when it meets the lower bound or the search was completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hierpart.partition.clustering.bounds import (
    Groups,
    chains_below,
    contract,
    lower_bound,
    reverse,
)

BEAM_WIDTH = 8
BEAM_GROUPS = 2000
"""Beyond this many groups the beam, whose states hold one bit a group, is not tried."""
EXACT_STEPS = 400_000
"""Group visits that the exact search may spend before it gives up."""

Word = tuple[int, ...]
"""Owners of the blocks in order."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """The owner sequences with the fewest blocks that were found.

    Attributes:
        words: Distinct sequences of block owners, all of one length, best known first.
        lower_bound: No order has fewer blocks.
        proved: Whether the length is the least possible.
    """

    words: tuple[Word, ...]
    lower_bound: int
    proved: bool


@dataclass(frozen=True, slots=True)
class _State:
    """A set of finished groups, reached by ``depth`` blocks of which the last is ``owner``'s."""

    done: int
    count: int
    ready: tuple[tuple[int, ...], ...]
    left: dict[int, int]
    depth: int
    bound: int
    before: _State | None
    owner: int


def cluster(
    preds: Sequence[Sequence[int]], owner: Sequence[int], *, thorough: bool = True
) -> Clustering:
    """Return owner sequences with as few blocks as found.

    Args:
        preds: Units before each unit, acyclic.
        owner: Owner of each unit, counted from 0.
        thorough: Search on when the greedy schedule misses the lower bound.
    """
    groups = contract(preds, owner)
    if not len(groups):
        return Clustering(((),), 0, True)
    both = (groups, reverse(groups))
    words = [*_greedy(both[0]), *(w[::-1] for w in _greedy(both[1]))]
    best = min(map(len, words))
    bound = lower_bound(groups, enough=best)
    proved = best == bound or len(set(groups.owner)) <= 2
    if not proved and thorough and len(groups) <= BEAM_GROUPS:
        words += [w for w in (_beam(both[0], best), _beam(both[1], best)[::-1]) if w]
        best = min(map(len, words))
        proved = best == bound
        if not proved:
            better, proved = _exact(groups, best, bound)
            words += [better] if better else []
            best = min(map(len, words))
    shortest = tuple(dict.fromkeys(w for w in words if len(w) == best))
    return Clustering(shortest, best if proved else bound, proved)


def _greedy(groups: Groups) -> Iterator[Word]:
    """Yield a schedule for each possible first owner.

    The next owner is the one below whose ready groups the longest chain of owner changes remains;
    everything of it that is ready runs. With two owners the shortest of these is optimal.
    """
    tails = chains_below(groups)
    sources = [g for g, ps in enumerate(groups.preds) if not ps]
    for first in sorted({groups.owner[g] for g in sources}):
        yield _greedy_from(groups, tails, sources, first)


def _greedy_from(groups: Groups, tails: Sequence[int], sources: Sequence[int], first: int) -> Word:
    owner, succs = groups.owner, groups.succs
    left = [len(ps) for ps in groups.preds]
    ready: list[list[int]] = [[] for _ in range(max(owner) + 1)]
    urgency = [(0, 0)] * len(ready)  # longest chain below, weight of what is ready

    def add(g: int) -> None:
        c = owner[g]
        ready[c].append(g)
        longest, weight = urgency[c]
        urgency[c] = (max(longest, tails[g]), weight + groups.weight[g])

    for g in sources:
        add(g)
    word: list[int] = []
    current = first
    while True:
        word.append(current)
        stack = ready[current]
        while stack:
            for s in succs[stack.pop()]:
                left[s] -= 1
                if not left[s]:
                    add(s)
        urgency[current] = (0, 0)
        current = max(range(len(ready)), key=lambda c: (urgency[c], -c))
        if not ready[current]:
            return tuple(word)


def _start(groups: Groups, tails: Sequence[int]) -> _State:
    sources = [g for g, ps in enumerate(groups.preds) if not ps]
    ready = tuple(
        tuple(g for g in sources if groups.owner[g] == c) for c in range(max(groups.owner) + 1)
    )
    return _State(0, 0, ready, {}, 0, max(tails[g] for g in sources), None, -1)


def _run(groups: Groups, tails: Sequence[int], state: _State, owner: int) -> _State:
    """Return the state after a block of everything of ``owner`` that is ready."""
    done, count, left = state.done, state.count, dict(state.left)
    fresh: list[list[int]] = [[] for _ in state.ready]
    stack = list(state.ready[owner])
    while stack:
        g = stack.pop()
        done |= 1 << g
        count += 1
        for s in groups.succs[g]:
            n = left.get(s, len(groups.preds[s])) - 1
            if n:
                left[s] = n
                continue
            left.pop(s, None)
            (stack if groups.owner[s] == owner else fresh[groups.owner[s]]).append(s)
    ready = tuple(
        () if c == owner else old + tuple(new) if new else old
        for c, (old, new) in enumerate(zip(state.ready, fresh, strict=True))
    )
    bound = max((tails[g] for row in ready for g in row), default=0)
    return _State(done, count, ready, left, state.depth + 1, bound, state, owner)


def _next(groups: Groups, tails: Sequence[int], layer: Sequence[_State]) -> list[_State]:
    """Return the distinct states one block after those of ``layer``."""
    found: dict[int, _State] = {}
    for state in layer:
        for c, row in enumerate(state.ready):
            if row:
                after = _run(groups, tails, state, c)
                found.setdefault(after.done, after)
    return list(found.values())


def _unroll(state: _State) -> Word:
    word = []
    at = state
    while at.before is not None:
        word.append(at.owner)
        at = at.before
    return tuple(reversed(word))


def _beam(groups: Groups, best: int) -> Word:
    """Return a word shorter than ``best`` blocks or as long, found with a bounded beam, or ()."""
    tails = chains_below(groups)
    layer = [_start(groups, tails)]
    while layer:
        layer = _next(groups, tails, layer)
        finished = [s for s in layer if s.count == len(groups)]
        if finished:
            return _unroll(finished[0])
        layer = [s for s in layer if s.depth + s.bound <= best]
        layer.sort(key=lambda s: (s.bound, -s.count, s.done))
        layer = layer[:BEAM_WIDTH]
    return ()


def _exact(groups: Groups, best: int, bound: int) -> tuple[Word, bool]:
    """Return (a word shorter than ``best`` if there is one, whether the search was completed).

    Layer d holds every set of groups that d blocks can finish, without those that another one
    contains (a larger set is never worse) and those that cannot end before ``best``.
    """
    tails = chains_below(groups)
    layer, steps = [_start(groups, tails)], 0
    while layer:
        layer = _next(groups, tails, layer)
        finished = [s for s in layer if s.count == len(groups)]
        if finished:
            return _unroll(finished[0]), True
        steps += sum(s.count for s in layer)
        if steps > EXACT_STEPS:
            return (), False
        layer = [s for s in layer if max(s.depth + s.bound, bound) < best]
        layer = _undominated(layer)
        steps += len(layer) ** 2
    return (), True


def _undominated(layer: Sequence[_State]) -> list[_State]:
    kept: list[_State] = []
    for state in sorted(layer, key=lambda s: (-s.count, s.done)):
        if not any(state.done & ~other.done == 0 for other in kept):
            kept.append(state)
    return kept
