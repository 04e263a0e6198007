"""Autocast regions: which one a block runs in, so that it is compiled as it is run.

In an autocast region a graph says ``mm(x, y)`` on float32 and records a bfloat16 value: the casts
are made by the mode. A compiler has to see the block in that mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.graph import op_of
from hierpart.plan import Plan

DEVICES = ("cpu", "cuda", "xpu", "mps")
"""Device types that have an autocast mode of their own here."""


@dataclass(frozen=True, slots=True)
class Autocast:
    """The arguments of ``torch.autocast``."""

    device: str
    dtype: torch.dtype | None
    enabled: bool
    cache: bool | None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be in the region."""
        with torch.autocast(self.device, self.dtype, self.enabled, self.cache):
            yield

    def is_on(self) -> bool:
        """Whether the thread is in such a region now."""
        if torch.is_autocast_enabled(self.device) != self.enabled:
            return False
        wanted = self.dtype or torch.get_autocast_dtype(self.device)
        return not self.enabled or torch.get_autocast_dtype(self.device) == wanted


def fits(region: Autocast | None) -> bool:
    """Whether code that was compiled for ``region`` may run now."""
    if region is not None:
        return region.is_on()
    return not any(torch.is_autocast_enabled(device) for device in DEVICES)


def regions_of(
    parent: GraphModule, plan: Plan, around: Autocast | None
) -> dict[str, Autocast | None]:
    """Return the region of each block, by its name, and of the branches of each node, by its name.

    Args:
        parent: The split module.
        plan: Its plan.
        around: The region in which the module itself runs.
    """
    found: dict[str, Autocast | None] = {}
    stack = [around]
    for block in plan.blocks:
        found[block.name] = stack[-1]
        child: Any = parent.get_submodule(block.name)
        for node in child.graph.nodes:
            name = getattr(node.target, "__name__", "")
            if name == "_enter_autocast":
                stack.append(_region(node.args))
            elif name == "_exit_autocast" and len(stack) > 1:
                stack.pop()
            own = op_of(node) == "wrap_with_autocast"
            found[node.name] = _region(node.args) if own else stack[-1]
    return found


def _region(args: Any) -> Autocast:
    device, dtype, enabled, cache = (*args, *((None, None, True, None)[len(args) :]))[:4]
    return Autocast(str(device), dtype, bool(enabled), cache)
