"""From a graph to a plan and a split module: the line of steps.

Takes a graph and :class:`hierpart.options.Options`. Gives a :class:`Result` with the plan, whose
``split()`` makes the module of blocks. ``owners`` decides who takes a node, ``clustering`` which
nodes share a block, ``splitting`` writes the blocks; what is decided is verified before it is used.
"""

from __future__ import annotations

from hierpart.partition.owners.tester import BackendOpSupportTester, Verdicts, tester_of
from hierpart.partition.pipeline import Result, collector_paused, run_line
from hierpart.partition.plan_assembly import is_accelerated
from hierpart.partition.replaying import replay
from hierpart.partition.splitting.parent_module import check_module

__all__ = [
    "BackendOpSupportTester",
    "Result",
    "Verdicts",
    "check_module",
    "collector_paused",
    "is_accelerated",
    "replay",
    "run_line",
    "tester_of",
]
