"""Blocks under the minimum size go to the next backend that takes them (C5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hierpart.graph import Facts, OpSet, names_of
from hierpart.options import Options
from hierpart.partition.clustering.bounds import topological
from hierpart.partition.clustering.placement import Placement, peak_bytes, place
from hierpart.partition.clustering.search import Clustering, cluster
from hierpart.partition.clustering.traffic import Traffic
from hierpart.partition.owners.assignment import Assignment, constants_to_consumers
from hierpart.plan import EAGER, Move, Reason

SINGLE_ROUNDS = 32
"""Rounds that move one block each; later rounds move 2, 4, 8, ... so that the number of rounds
stays logarithmic in the number of undersized blocks (C12)."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Owners and blocks of all units.

    Attributes:
        owner: Backend of each unit.
        placement: Block of each unit, with its cost.
        clustering: The owner sequences behind it, with the bound.
        original_peak: Estimated peak of live bytes in the graph's own order.
        moves: Units that changed owner, in order.
    """

    owner: tuple[str, ...]
    placement: Placement
    clustering: Clustering
    original_peak: int
    moves: tuple[Move, ...] = ()


def solve(
    facts: Facts, owner: Sequence[str], traffic: Traffic, *, thorough: bool = True
) -> Solution:
    """Return the fewest blocks found for these owners."""
    names = sorted(set(owner))
    numbers = {name: i for i, name in enumerate(names)}
    colours = [numbers[o] for o in owner]
    found = cluster(facts.preds, colours, thorough=thorough)
    original = peak_bytes(topological(facts.preds), traffic)
    placement = place(facts.preds, colours, found.words, traffic, original)
    return Solution(tuple(owner), placement, found, original)


def merge(
    facts: Facts, assignment: Assignment, options: Options, first: Solution, traffic: Traffic
) -> Solution:
    """Move undersized blocks of ``first`` down the priority list until none is left.

    Blocks that another accelerated backend takes move before those that would go to eager, since
    they may make a neighbour large enough; among these the smallest moves first. After each move
    everything is solved again. Nodes only ever move down their candidates, so this ends.
    """
    owner, solution = list(assignment.owner), first
    if options.require_full_compilation or _is_exempt(facts, owner, options):
        return first
    allowed = OpSet.of(options.allowed_single_node_partition_ops)
    moves: list[Move] = []
    thorough, rounds = True, 0
    while True:
        small = _undersized(facts, assignment, solution, options, allowed)
        if not small and thorough:
            return replace(solution, moves=tuple(moves))
        batch = small[: 1 << max(0, rounds - SINGLE_ROUNDS)]
        for units in batch:
            moves += _demote(facts, assignment, owner, units, options)
        moves += constants_to_consumers(facts, owner, assignment.candidates)
        rounds += 1
        thorough = not small
        solution = solve(facts, owner, traffic, thorough=thorough)


def _is_exempt(facts: Facts, owner: Sequence[str], options: Options) -> bool:
    """Whether the whole graph is accelerated and, as a whole, large enough to be worth it."""
    sizes = [sum(facts.compute[i] for i in unit) for unit in facts.units]
    if any(size and o == EAGER for size, o in zip(sizes, owner, strict=True)):
        return False
    needed = max((options.size_of(o) for o in set(owner) - {EAGER}), default=0)
    return sum(sizes) >= needed


def _undersized(
    facts: Facts, assignment: Assignment, solution: Solution, options: Options, allowed: OpSet
) -> list[list[int]]:
    """Return the units of each undersized block, in the order in which blocks move."""
    blocks: dict[int, list[int]] = {}
    for u, b in enumerate(solution.placement.block_of):
        blocks.setdefault(b, []).append(u)
    found = []
    for b in sorted(blocks):
        units = blocks[b]
        backend = solution.owner[units[0]]
        nodes = [i for u in units for i in facts.units[u]]
        size = sum(facts.compute[i] for i in nodes)
        constant = all(facts.constant[i] for i in nodes)  # never a block of its own
        if backend == EAGER or (size >= options.size_of(backend) and not constant):
            continue
        if allowed.names and any(_is_allowed(facts, i, allowed) for i in nodes):
            continue
        nexts = (_next_owner(assignment, u, backend, options) for u in units)
        to_eager = all(n == EAGER for n in nexts)
        found.append((to_eager, size, b, units))
    return [units for *_, units in sorted(found, key=lambda entry: entry[:3])]


def _is_allowed(facts: Facts, i: int, allowed: OpSet) -> bool:
    return allowed.matches(names_of(facts.nodes[i], facts.resolve))


def _next_owner(assignment: Assignment, unit: int, source: str, options: Options) -> str:
    """Return the next backend after ``source`` that takes the unit, or eager."""
    names = assignment.candidates[unit]
    rest = names[names.index(source) + 1 :] if options.demote == "cascade" else ()
    return rest[0] if rest else EAGER


def _demote(
    facts: Facts,
    assignment: Assignment,
    owner: list[str],
    units: Sequence[int],
    options: Options,
) -> list[Move]:
    """Give the units of one block to their next candidates; return the moves, one a target."""
    size = sum(facts.compute[i] for u in units for i in facts.units[u])
    source = owner[units[0]]
    moved: dict[str, list[str]] = {}
    for u in units:
        target = owner[u] = _next_owner(assignment, u, source, options)
        moved.setdefault(target, []).extend(facts.nodes[i].name for i in facts.units[u])
    detail = f"{size} compute ops, minimum {options.size_of(source)}"
    return [
        Move(tuple(nodes), source, target, Reason.TOO_SMALL, detail)
        for target, nodes in moved.items()
    ]
