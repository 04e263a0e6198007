"""Eager as a backend object: takes every node and runs the block as generated code.

The planner needs no such object (eager is the owner of last resort); it is the simplest complete
example of the protocol and the base of test doubles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends.protocol import CompiledBlock
from hierpart.plan import EAGER, Verdict


class EagerBackend:
    """Runs blocks with PyTorch's own kernels; results are bit-identical to the graph's."""

    name = EAGER
    takes_scalars = True
    keeps_aliases = True
    follows_modes = True
    max_rank = None
    keep_ops: frozenset[str] = frozenset()

    def available(self) -> str | None:
        """Return ``None``: eager runs everywhere."""
        return None

    def verdict(self, node: Node) -> Verdict:
        """Return yes, whatever the node."""
        return Verdict(self.name, True)

    def compile(
        self, block: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> CompiledBlock:
        """Return the block's generated ``forward``."""
        forward: CompiledBlock = block.forward
        return forward

    def fingerprint(self) -> str:
        """Return the version of PyTorch."""
        return f"{self.name} torch={torch.__version__}"
