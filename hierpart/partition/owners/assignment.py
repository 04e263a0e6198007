"""The owner of each unit, from every backend's verdict on its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierpart.graph import Facts
from hierpart.partition.owners.boundary_rules import BoundaryRules
from hierpart.partition.owners.tester import BackendOpSupportTester, Verdicts
from hierpart.plan import EAGER, Move, Reason, Verdict


@dataclass(frozen=True, slots=True)
class Assignment:
    """Owners of the units and every verdict behind them.

    Attributes:
        owner: Backend of each unit.
        candidates: Backends that take every node of each unit, in order of priority.
        verdicts: Every backend's answer for each node, in graph order.
        moves: Units that do not go to the first backend that took them, and why.
    """

    owner: tuple[str, ...]
    candidates: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdicts, ...]
    moves: tuple[Move, ...]


def assign(facts: Facts, tester: BackendOpSupportTester) -> Assignment:
    """Give each unit to the first backend in priority that takes all of its nodes (C4)."""
    traits = {b: tester.traits(b) for b in tester.backend_priority}
    rules = BoundaryRules(facts, traits)
    verdicts = [_node_verdicts(facts, tester, rules, i) for i in range(len(facts.nodes))]
    candidates = []
    for unit in facts.units:
        if len(unit) > 1:
            for column in range(len(tester.backend_priority)):
                _agree(facts, verdicts, unit, column)
        first = verdicts[unit[0]]
        candidates.append(tuple(v.backend for v in first if v.supported))
    owner = [c[0] if c else EAGER for c in candidates]
    moves = constants_to_consumers(facts, owner, candidates)
    return Assignment(tuple(owner), tuple(candidates), tuple(verdicts), tuple(moves))


def _node_verdicts(
    facts: Facts, tester: BackendOpSupportTester, rules: BoundaryRules, i: int
) -> Verdicts:
    node = facts.nodes[i]
    if facts.floating[i]:
        return tuple(Verdict(b, True, None, "shape arithmetic") for b in tester.backend_priority)
    if facts.unpacking[i] and not facts.recomputable[i]:  # it goes with its producer
        return tuple(Verdict(b, True) for b in tester.backend_priority)
    found = tester.verdicts(node)
    if facts.effects[i].proved and not any(v.reason is Reason.EXCLUDED_BY_USER for v in found):
        return tuple(Verdict(b, True) for b in tester.backend_priority)  # no compiler sees it
    tester.count(node, any(v.supported for v in found))
    refused = rules.refusals(i)
    if not refused:
        return found
    return tuple(
        Verdict(v.backend, False, *refused[v.backend])
        if v.supported and v.backend in refused
        else v
        for v in found
    )


def _agree(facts: Facts, verdicts: list[Verdicts], unit: Sequence[int], column: int) -> None:
    """Turn the yes of every node of a unit into a no when one of them is refused."""
    refused = [i for i in unit if not verdicts[i][column].supported]
    if not refused:
        return
    cause = verdicts[refused[0]][column]
    for i in unit:
        verdict = verdicts[i][column]
        if verdict.supported:
            detail = f"{facts.nodes[refused[0]].name}: {cause.reason.value if cause.reason else ''}"
            no = Verdict(verdict.backend, False, Reason.UNIT, detail)
            verdicts[i] = (*verdicts[i][:column], no, *verdicts[i][column + 1 :])


def constants_to_consumers(
    facts: Facts, owner: list[str], candidates: Sequence[tuple[str, ...]]
) -> list[Move]:
    """Give work on constants alone to the owner that all of its readers have, else to eager.

    Assertions on inputs and attributes that metadata proves go to one of those who read these. Work
    only ever moves down its candidates.
    """
    moves = []
    readers = _readers(facts)
    for u in reversed(range(len(facts.units))):
        unit, here = facts.units[u], owner[u]
        proved = all(facts.effects[i].proved for i in unit)
        if here == EAGER or not (proved or all(facts.constant[i] for i in unit)):
            continue
        wanted = dict.fromkeys(owner[r] for r in readers[u])
        below = candidates[u][candidates[u].index(here) :]
        fits = [w for w in wanted if w in below]
        target = fits[0] if fits and (proved or len(wanted) == 1) else EAGER
        if target != here:
            names = tuple(facts.nodes[i].name for i in unit)
            reason = Reason.FOLLOWS_VALUE if proved else Reason.CONSTANT_ONLY
            moves.append(Move(names, here, target, reason))
            owner[u] = target
    return moves


def _readers(facts: Facts) -> list[list[int]]:
    """Return for each unit the units that read one of its values, or what it is an assertion on."""
    readers: list[list[int]] = [[] for _ in facts.units]
    for u, unit in enumerate(facts.units):
        for i in unit:
            if facts.effects[i].proved:
                asserted = facts.nodes[i].all_input_nodes[0].users
                found = [facts.index[n] for n in asserted if n in facts.index]
                others = [facts.unit_of[j] for j in found if not facts.effects[j].proved]
                readers[u] += [r for r in others if r not in (u, -1)]
            for p in facts.inputs[i]:
                if facts.unit_of[p] not in (u, -1):
                    readers[facts.unit_of[p]].append(u)
    return readers
