"""What went where and why: as text, tables, JSON, HTML, pictures, advice and scripts.

Takes a plan, the outcomes of its blocks, and the graph where it is at hand. Gives :class:`Report`;
pictures, pages, advice and scripts are made when one of its methods is called.
"""

from __future__ import annotations

from hierpart.report.advice import Advice
from hierpart.report.block_program import strict_error
from hierpart.report.details import details_of
from hierpart.report.planned_graph import Planned
from hierpart.report.report import Report, explain, log_plan
from hierpart.report.structured_trace import trace_artefact

__all__ = [
    "Advice",
    "Planned",
    "Report",
    "details_of",
    "explain",
    "log_plan",
    "strict_error",
    "trace_artefact",
]
