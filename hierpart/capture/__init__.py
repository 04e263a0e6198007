"""From whatever the user has to one graph, and from a call's arguments to that graph's inputs.

Takes an ``nn.Module``, an ``ExportedProgram`` or a ``GraphModule`` with example inputs. Gives
:class:`Captured`, calls of what is compiled by the original's signature (:class:`ExportCall`,
:class:`GraphCall`), and checks of inputs against what was captured.
"""

from __future__ import annotations

from hierpart.capture.captured import Captured, capture, fixed_weights
from hierpart.capture.decompositions import aot_decompositions
from hierpart.capture.exported_call import ExportCall
from hierpart.capture.graph_call import GraphCall
from hierpart.capture.input_check import InputCheck, InputMismatchError, TensorSpec, mismatch

__all__ = [
    "Captured",
    "ExportCall",
    "GraphCall",
    "InputCheck",
    "InputMismatchError",
    "TensorSpec",
    "aot_decompositions",
    "capture",
    "fixed_weights",
    "mismatch",
]
