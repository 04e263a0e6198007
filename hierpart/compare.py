"""A compiled module beside eager: how far apart their results are and how long a call takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

TOLERANCE = 1e-4
CALLS = 30


@dataclass(frozen=True, slots=True)
class Check:
    """How far a compiled module is from eager, and how fast both are.

    Attributes:
        difference: Largest absolute difference over all outputs and buffers.
        eager: Median seconds of an eager call.
        compiled: Median seconds of a compiled call.
    """

    difference: float
    eager: float
    compiled: float

    def passed(self, tolerance: float = TOLERANCE) -> bool:
        """Return whether the difference is within ``tolerance``."""
        return self.difference <= tolerance


def compare(
    model: nn.Module,
    compiled: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Check:
    """Run both modules on the same inputs, check results and buffers, then time them.

    Both are called three times before their buffers are compared, so that an update that is lost
    or made twice shows. The inputs are cloned for each call, so that neither sees the other's
    writes; parameters and buffers are not, so the two modules may not share buffers.
    """
    with torch.no_grad():
        pairs: list[tuple[Tensor, Tensor]] = []
        for _ in range(3):
            ours, theirs = (_call(module, args, kwargs or {}) for module in (compiled, model))
            pairs += zip(ours, theirs, strict=True)
        buffers = dict(compiled.named_buffers())
        pairs += [(buffers[n], value) for n, value in model.named_buffers() if n in buffers]
        worst = max((_distance(a, b) for a, b in pairs), default=0.0)
        fast, eager = median_seconds(
            [lambda module=module: module(*args, **(kwargs or {})) for module in (compiled, model)]
        )
    return Check(worst, eager, fast)


def _call(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the result's tensors and, after them, the inputs as the call left them."""
    inputs = tree_map_only(Tensor, torch.clone, (args, dict(kwargs)))
    result = module(*inputs[0], **inputs[1])
    return [leaf for leaf in tree_leaves((result, inputs)) if isinstance(leaf, Tensor)]


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int = CALLS) -> list[float]:
    """Return the median wall-clock seconds of each call, the calls taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for spent, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in times]


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinite where dtypes, shapes or NaNs differ."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return math.inf
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(wide) - b.to(wide)).abs().masked_fill(same, 0).max().item()
    return math.inf if math.isnan(gap) else gap
