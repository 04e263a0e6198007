"""How far two values are apart, relative to what is usual for their dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-7, torch.complex128: 1e-7,
        torch.float32: 1e-3, torch.complex64: 1e-3,
        torch.float16: 2e-2, torch.complex32: 2e-2,
        torch.bfloat16: 6e-2,
    }
)  # fmt: skip
"""Largest distance that counts as equal; 0 for whole numbers and truth values.

They leave room for another order of summation and for the lower precision that a backend uses
inside (TF32), and are far below what a wrong kernel makes.
"""
COARSEST = 0.25
"""The same for floats of eight bits and less."""


def tolerance_of(dtype: torch.dtype, given: float | None = None) -> float:
    """Return the largest distance that counts as equal for a dtype.

    Args:
        dtype: The dtype.
        given: What the user wants for floats in place of the usual.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return TOLERANCES.get(dtype, COARSEST) if given is None else given


def distance(one: Any, other: Any) -> float:
    """Return how far ``one`` is from ``other``, which is taken to be right.

    For floats the largest ``|one - other| / (|other| + r)`` over the elements, where ``r`` is the
    root mean square of ``other``: an element that cancels to almost nothing is measured by its
    neighbours. NaN equals NaN, and infinity equals itself. Infinite where shapes differ or where
    only one is finite; for whole numbers the largest difference.
    """
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return 0.0 if one == other else math.inf
    if one.shape != other.shape:
        return math.inf
    if one.numel() == 0:
        return 0.0
    left, right = _wide(one), _wide(other)
    same = (left == right) | (left.isnan() & right.isnan())
    if bool(same.all()):
        return 0.0
    gap = (left - right).abs()
    if other.dtype.is_floating_point or other.dtype.is_complex:
        size = right.abs()
        finite = size[size.isfinite()]
        usual = finite.square().mean().sqrt() if finite.numel() else size.new_ones(())
        gap = gap / (size + usual)
    gap = gap.masked_fill(same, 0.0)
    return math.inf if bool(gap.isnan().any()) else float(gap.max())


def _wide(value: Tensor) -> Tensor:
    value = value.detach()
    if value.is_complex():
        return value.resolve_conj().to("cpu", torch.complex128)
    if value.device.type == "mps":
        value = value.cpu()  # it has no float64
    return value.to(torch.float64)
