"""What a compiled module was made from, without its tensors: what saving needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from hierpart.options import Options

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Saved = Mapping[str, tuple[str, bytes]]
"""Compiled code from a file: the backend and its bytes, by name of the block."""


@dataclass(frozen=True)
class Kept:
    """What a backend made of a block, as it returned it.

    Attributes:
        backend: The backend.
        made: What its ``compile`` returned.
    """

    backend: str
    made: Any


@dataclass(frozen=True)
class Frame:
    """An exported program without its tensors, so that it keeps none alive."""

    graph_module: GraphModule
    signature: Any
    range_constraints: Mapping[Any, Any]
    module_call_graph: Sequence[Any]
    verifiers: Sequence[Any]

    @classmethod
    def of(cls, program: ExportedProgram) -> Frame:
        """Return the frame of a program."""
        return cls(
            program.graph_module, program.graph_signature, dict(program.range_constraints),
            tuple(program.module_call_graph), tuple(program.verifiers),
        )  # fmt: skip

    def filled(self, state: dict[str, Any], constants: dict[str, Any]) -> ExportedProgram:
        """Return the program with these tensors."""
        return torch.export.ExportedProgram(
            root=self.graph_module, graph=self.graph_module.graph, graph_signature=self.signature,
            state_dict=state, range_constraints=dict(self.range_constraints),
            module_call_graph=list(self.module_call_graph), example_inputs=None,
            constants=constants, verifiers=list(self.verifiers),
        )  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """What a compiled module was made from, without its tensors.

    Attributes:
        frame: The exported program; the module itself holds the tensors.
        options: The options of the compile.
        kept: What backends made, by the name of the block.
        guards: Conditions on sizes that the captured graph relies on.
        conditions: Conditions that compiled code puts on sizes besides.
    """

    frame: Frame
    options: Options
    kept: Mapping[str, Kept]
    guards: Sequence[Any]
    conditions: Sequence[Any]
