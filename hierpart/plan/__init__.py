"""The plan: who owns each node, in which block it runs and why, and what became of the blocks.

Takes nothing but names, numbers and text: a plan outlives its graph, pickles, and is read back from
JSON in another process. Gives :class:`Plan` and its records, :class:`Outcome`, the tables that a
report is made of, and the difference of two plans.
"""

from __future__ import annotations

from hierpart.plan.outcomes import Attempt, Outcome
from hierpart.plan.plan import Plan
from hierpart.plan.records import (
    EAGER,
    Attribute,
    Block,
    Move,
    Nested,
    PlanData,
    Reason,
    Step,
    Verdict,
)
from hierpart.plan.tables import (
    GETITEM,
    LIMIT,
    block_count,
    blocks_by_backend,
    compute_ops,
    headline,
    outcomes_table,
    plan_lines,
    plan_page,
    plan_tables,
    plan_text,
    short_name,
    tree,
)

__all__ = [
    "Attempt",
    "Attribute",
    "Block",
    "EAGER",
    "GETITEM",
    "LIMIT",
    "Move",
    "Nested",
    "Outcome",
    "Plan",
    "PlanData",
    "Reason",
    "Step",
    "Verdict",
    "block_count",
    "blocks_by_backend",
    "compute_ops",
    "headline",
    "outcomes_table",
    "plan_lines",
    "plan_page",
    "plan_tables",
    "plan_text",
    "short_name",
    "tree",
]
