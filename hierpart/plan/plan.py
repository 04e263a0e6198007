"""The plan as users have it: its data, its text, and its difference from another."""

from __future__ import annotations

from dataclasses import dataclass

from hierpart.plan.diff import PlanDiff, diff
from hierpart.plan.records import PlanData
from hierpart.plan.tables import plan_text


@dataclass(frozen=True, slots=True)
class Plan(PlanData):
    """The ordered blocks, the owner and the verdicts of every node, and how they came about.

    Its fields are those of :class:`hierpart.plan.PlanData`; ``str(plan)`` is its report.
    """

    def __str__(self) -> str:
        return plan_text(self)

    def diff(self, other: Plan) -> PlanDiff:
        """Return what moved from this plan to another of the same graph, and why."""
        return diff(self, other)
