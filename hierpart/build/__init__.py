"""From a plan to running code: each distinct block is compiled once and checked.

Takes a captured graph and options. Gives a :class:`hierpart.runtime.CompiledModule` with a report
of each block: compiled, shared, divided, or given to the next backend of the priority.
"""

from __future__ import annotations

from hierpart.build.check.halving import guilty_items
from hierpart.build.check.tolerance import distance, tolerance_of
from hierpart.build.compiling import build_graph, check_backend_options, compile_model
from hierpart.build.loading import load_module

__all__ = [
    "build_graph",
    "check_backend_options",
    "compile_model",
    "distance",
    "guilty_items",
    "load_module",
    "tolerance_of",
]
