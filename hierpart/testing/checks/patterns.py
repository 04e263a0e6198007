"""Further splits of one graph, with owners that differ from node to node, judged without a run.

What a node does is seen once, by running the original; a split of another pattern of owners then
costs little more than the split. A missing edge between two nodes shows only where their owners
give a planner a reason to change their order, which one pattern seldom does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from hierpart.testing.checks.owners import Asked, check_owners
from hierpart.testing.checks.plan import PLAN_RULES, check_plan
from hierpart.testing.checks.structure import check_order
from hierpart.testing.contract import ContractViolation
from hierpart.testing.generate.choose_options import scattered
from hierpart.testing.generate.reproduce import reproduction
from hierpart.testing.oracle.record import record


def check_patterns(
    partition: Callable[..., GraphModule],
    gm: GraphModule,
    *calls: Sequence[Any],
    options: Mapping[str, Any],
    judge: Collection[str] = PLAN_RULES,
    patterns: int = 8,
) -> None:
    """Split ``gm`` with several patterns of owners and check plans and orders (C1 to C7).

    Args:
        partition: The partitioner, as an adapter makes it; it has to know ``exclude_nodes`` and to
            leave its plan in ``meta["hierpart"]``.
        gm: The module to partition.
        calls: Arguments of calls; the first one is made, on a copy, to see what nodes do.
        options: Keyword arguments for ``partition``, of which owners and minimum are replaced.
        judge: The rules to judge, by number.
        patterns: How many patterns.

    Raises:
        ContractViolation: A rule is broken; the error holds a program that shows it.
    """
    accesses = record(gm, calls[0])
    for number in range(patterns):
        chosen = scattered(gm, options, number)
        result = partition(gm, **chosen)
        try:
            if "C3" in judge:
                check_order(gm, result, accesses)
            rules = set(judge) & set(PLAN_RULES)
            check_plan(result.meta["hierpart"], gm, rules=rules, accesses=accesses)
            asked = Asked.of(chosen)
            if asked is not None and "C4" in rules:
                check_owners(asked, result.meta["hierpart"], gm, accesses)
        except ContractViolation as error:
            program = reproduction(gm, calls, chosen)
            raise ContractViolation(error.contract, error.detail, program) from error
