"""Tensors for random graphs: small, exact in every dtype, of any layout, from a seed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SPECS = "example_specs"
"""Key in a module's ``meta`` of how its inputs are made: a spec or a plain value each."""
BATCH = -1
"""Stands in a shape for the size that differs from call to call."""
OTHER = -2
"""Stands in a shape for another such size: that of ``BATCH`` and four."""

SHAPES: tuple[tuple[int, ...], ...] = (
    (2, 3),
    (3,),
    (),
    (3, 3),
    (3, 2),
    (1, 3),
    (2, 1),
    (4,),
    (2, 3, 4),
    (1,),
)
BATCHED_SHAPES: tuple[tuple[int, ...], ...] = (
    (BATCH, 3),
    (3, BATCH),
    (BATCH,),
    (OTHER, BATCH),
    (BATCH, BATCH),
    (2, BATCH),
)
EMPTY_SHAPES: tuple[tuple[int, ...], ...] = ((0,), (0, 3), (2, 0))
PLAIN_DTYPES: tuple[torch.dtype, ...] = (torch.float32,)
DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.bfloat16,
    torch.int32,
    torch.complex64,
)
LAYOUTS: tuple[str, ...] = ("contiguous", "transposed", "strided", "offset", "expanded")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """How to make a tensor.

    Attributes:
        shape: Sizes; ``BATCH`` and ``OTHER`` where the size is given with :meth:`make`.
        dtype: Its dtype.
        layout: One of ``LAYOUTS``; where the shape has no such layout it stays contiguous.
        seed: Chooses the values.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    seed: int = 0

    @property
    def varies(self) -> bool:
        """Whether a size differs from call to call."""
        return BATCH in self.shape or OTHER in self.shape

    def fixed(self, batch: int = 5) -> TensorSpec:
        """Return the same with ``batch`` in place of ``BATCH``."""
        return replace(self, shape=self._sizes(batch))

    def make(self, batch: int = 5, call: int = 0) -> Tensor:
        """Return the tensor for one call: the same arguments give the same tensor."""
        values = _values(self._sizes(batch), self.dtype, 1000 * self.seed + call)
        return _laid_out(values, self.layout)

    def _sizes(self, batch: int) -> tuple[int, ...]:
        return tuple({BATCH: batch, OTHER: batch + 4}.get(size, size) for size in self.shape)


@dataclass(frozen=True, slots=True)
class SharedSpec:
    """An input that shares its storage with an earlier one.

    Attributes:
        of: Position of the earlier input.
        view: ``"same"`` tensor, or a view of it: ``"whole"``, ``"transposed"`` or ``"first"``.
    """

    of: int
    view: str = "same"

    def make(self, other: Tensor) -> Tensor:
        """Return this input, given the earlier one."""
        if self.view == "transposed":
            return other.transpose(0, -1) if other.dim() else other.view(())
        if self.view == "first":
            return other[:1] if other.dim() else other.view(())
        return other if self.view == "same" else other.view_as(other)


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A number or truth value that is given as an input.

    Attributes:
        values: What is given in the first call, the second, and so on, over and over.
    """

    values: tuple[float | bool, ...]

    def make(self, call: int = 0) -> float | bool:
        """Return the value for one call."""
        return self.values[call % len(self.values)]


def values_of(specs: Sequence[Any], batch: int = 5, call: int = 0) -> list[Any]:
    """Return what each spec makes for one call; what is no spec stands for itself."""
    made: list[Any] = []
    for spec in specs:
        if isinstance(spec, TensorSpec):
            made.append(spec.make(batch, call))
        elif isinstance(spec, SharedSpec):
            made.append(spec.make(made[spec.of]))
        else:
            made.append(spec.make(call) if isinstance(spec, ScalarSpec) else copy.copy(spec))
    return made


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Quarters between -2 and 2: sums and products of a few of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    quarters = torch.randint(-8, 9, shape, generator=generator)
    if dtype == torch.bool:
        return quarters > 0
    if dtype.is_complex:
        other = torch.randint(-8, 9, shape, generator=generator)
        return torch.complex(quarters / 4, other / 4).to(dtype)
    return (quarters / 4).to(dtype) if dtype.is_floating_point else (quarters // 2).to(dtype)


def _laid_out(values: Tensor, layout: str) -> Tensor:
    if layout == "transposed" and values.dim() >= 2:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "strided" and values.dim() >= 1:
        room = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype)
        room[..., ::2] = values
        return room[..., ::2]
    if layout == "offset" and values.dim() >= 1:
        room = torch.cat([torch.zeros_like(values[:1]), values])
        return room[1:] if values.shape[0] else values
    if layout == "expanded" and values.dim() >= 1 and values.shape[0] > 0:
        return values[:1].clone().expand_as(values)
    return values
