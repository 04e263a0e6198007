"""Hierarchical multi-backend splitter for PyTorch graphs.

Public names load on first use; importing the package pulls in neither Dynamo nor a compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hierpart.version import __version__ as __version__

_HOMES = {
    "hierarchical_adjacency_partition": "hierpart.api",
    "make_plan": "hierpart.api",
    "compile": "hierpart.api",
    "explain": "hierpart.api",
    "load": "hierpart.api",
    "bisect": "hierpart.debug",
    "HierarchicalAdjacencyPartitioner": "hierpart.partition.splitter",
    "BackendOpSupportTester": "hierpart.partition",
    "Options": "hierpart.options",
    "Plan": "hierpart.plan",
    "Reason": "hierpart.plan",
    "Verdict": "hierpart.plan",
    "Backend": "hierpart.dynamo",
    "HierpartError": "hierpart.errors",
    "OptionError": "hierpart.errors",
    "FullCompilationError": "hierpart.errors",
    "BackendCompileError": "hierpart.errors",
    "ArtefactError": "hierpart.artefact",
}
__all__ = list(_HOMES)

if TYPE_CHECKING:
    from hierpart.api import compile as compile  # noqa: A004
    from hierpart.api import explain as explain
    from hierpart.api import hierarchical_adjacency_partition as hierarchical_adjacency_partition
    from hierpart.api import load as load
    from hierpart.api import make_plan as make_plan
    from hierpart.artefact import ArtefactError as ArtefactError
    from hierpart.debug import bisect as bisect
    from hierpart.dynamo import Backend as Backend
    from hierpart.errors import BackendCompileError as BackendCompileError
    from hierpart.errors import FullCompilationError as FullCompilationError
    from hierpart.errors import HierpartError as HierpartError
    from hierpart.errors import OptionError as OptionError
    from hierpart.options import Options as Options
    from hierpart.partition import BackendOpSupportTester as BackendOpSupportTester
    from hierpart.partition.splitter import (
        HierarchicalAdjacencyPartitioner as HierarchicalAdjacencyPartitioner,
    )
    from hierpart.plan import Plan as Plan
    from hierpart.plan import Reason as Reason
    from hierpart.plan import Verdict as Verdict


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hierpart' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
