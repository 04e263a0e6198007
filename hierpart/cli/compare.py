"""A compiled module beside eager: how far apart their results are and how long a call takes."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from hierpart.page import seconds

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

    def __str__(self) -> str:
        verdict = "equal within" if self.passed() else "DIFFERENT, tolerance"
        return (
            f"largest difference {self.difference:.1e}, {verdict} {TOLERANCE:g}; "
            f"eager {seconds(self.eager)}, compiled {seconds(self.compiled)} a call "
            f"(medians of {CALLS})"
        )


def compare(
    model: nn.Module,
    compiled: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Check:
    """Run both modules on the same inputs, compare all that they write or return, then time them.

    Three calls each, so that a buffer update that is lost or made twice shows. Inputs are cloned
    for each call, and buffers, which the two modules may share, are put back between the two calls
    and at the end.
    """
    kwargs = kwargs or {}
    first = _buffers(model)
    pairs: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for _ in range(3):
            before = _buffers(model)
            ours, buffers = _call(compiled, args, kwargs), _buffers(compiled)
            _put_back(model, before)
            pairs += zip(ours, _call(model, args, kwargs), strict=True)
            pairs += [(buffers[n], b) for n, b in _buffers(model).items() if n in buffers]
        worst = max((_distance(a, b) for a, b in pairs), default=0.0)
        fast, eager = median_seconds(
            [functools.partial(module, *args, **kwargs) for module in (compiled, model)]
        )
        _put_back(model, first)
    return Check(worst, eager, fast)


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _put_back(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(values[name])


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
