"""What runs: the flat function of a split module, and the module that users call.

Takes a split module and a callable for each compiled block. Gives :class:`CompiledModule`, which
owns the weights under their original names, checks inputs and writes back updates.
"""

from __future__ import annotations

from hierpart.runtime.autocast import Autocast, regions_of
from hierpart.runtime.branch_module import BranchModule
from hierpart.runtime.compiled_module import CompiledModule
from hierpart.runtime.flat_function import Call, Flat, Pieces, flatten

__all__ = [
    "Autocast",
    "BranchModule",
    "Call",
    "CompiledModule",
    "Flat",
    "Pieces",
    "flatten",
    "regions_of",
]
