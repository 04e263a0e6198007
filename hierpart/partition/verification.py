"""Checks of a plan against the graph it was made for: C1, C2, C3, C4 and the units of C6.

They use the facts that the plan was made from; ``hierpart.testing`` judges plans and results from
the graph alone.
"""

from __future__ import annotations

from hierpart.errors import PlanError
from hierpart.graph import Facts
from hierpart.plan import EAGER, Plan, Reason


def verify(plan: Plan, facts: Facts) -> None:
    """Check that ``plan`` keeps the contract on its graph.

    Raises:
        PlanError: It does not; the message names the contract's number and a node.
    """
    block_of = _cover(plan, facts)
    _order(facts, block_of)
    _owners(plan)
    listed = [a.name for a in plan.attributes]
    wanted = [n.name for n in facts.module.graph.nodes if n.op == "get_attr"]
    if listed != wanted:
        raise PlanError(f"C1: the get_attr nodes are {wanted[:5]}, the plan lists {listed[:5]}")


def _cover(plan: Plan, facts: Facts) -> list[int]:
    found: dict[str, int] = {}
    for position, block in enumerate(plan.blocks):
        if block.index != position:
            raise PlanError(f"C1: block {position} has the index {block.index}")
        for name in block.nodes:
            if name in found:
                raise PlanError(f"C1: node {name} is in the blocks {found[name]} and {position}")
            if plan.owner.get(name) != block.backend:
                raise PlanError(f"C4: node {name} of a {block.backend} block has another owner")
            found[name] = position
    missing = [n.name for n in facts.nodes if n.name not in found]
    if missing or len(found) != len(facts.nodes):
        raise PlanError(f"C1: not in any block, or not in the graph: {missing[:5]}")
    return [found[n.name] for n in facts.nodes]


def _order(facts: Facts, block_of: list[int]) -> None:
    """Check that every unit is whole and that no dependency points backwards (C2, C3)."""
    unit_block = [block_of[unit[0]] for unit in facts.units]
    for u, unit in enumerate(facts.units):
        for i in unit:
            if block_of[i] != unit_block[u]:
                raise PlanError(f"C6: {facts.nodes[i].name} is parted from its unit")
        for p in facts.preds[u]:
            if unit_block[p] > unit_block[u]:
                first, second = facts.nodes[facts.units[p][0]], facts.nodes[unit[0]]
                raise PlanError(f"C2: {second.name} runs before {first.name}, which it depends on")


def _owners(plan: Plan) -> None:
    """Check that each owner is the first backend that said yes, or that a move says why not."""
    expected = {
        name: next((v.backend for v in verdicts if v.supported), EAGER)
        for name, verdicts in plan.verdicts.items()
    }
    for move in plan.moves():
        for name in move.nodes:
            if expected[name] != move.source:
                raise PlanError(f"C4: {name} was moved from {move.source}, not its owner")
            expected[name] = move.target
            if move.reason is Reason.TOO_SMALL and move.target not in plan.priority:
                raise PlanError(f"C4: {name} was moved to {move.target}, which is no backend")
    for name, owner in plan.owner.items():
        if expected[name] != owner:
            raise PlanError(
                f"C4: {name} is owned by {owner}; verdicts and moves say {expected[name]}"
            )
