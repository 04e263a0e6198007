"""A block by itself, with inputs that are made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hierpart.graph import SYMBOLIC, hint, restrider


@dataclass(frozen=True)
class Bench:
    """All that is needed to run a block by itself.

    Attributes:
        graph: The block, run eagerly as the reference: weights are inputs, no ``get_attr``.
        values: The example values of its inputs.
        outputs: The example values of its outputs.
        known: Real tensors for some of the inputs, by position: the weights.
        exact_aliases: Whether outputs have to share memory just as in eager; else they may share
            less, never more.
        tolerance: Largest distance of floats; ``None`` for what is usual for the dtype.
    """

    graph: GraphModule
    values: Sequence[Any]
    outputs: Sequence[Any]
    known: Mapping[int, Tensor] = field(default_factory=dict)
    exact_aliases: bool = False
    tolerance: float | None = None

    def inputs(self, seed: int, whole: bool) -> list[Any]:
        """Return inputs, the same for the same arguments, in the layout of the example values.

        Args:
            seed: Seed of the numbers; odd ones make floats positive, so that logarithms, roots and
                divisions have something to work on.
            whole: Whether integers on the CPU are 0 or 1; else 0, legal wherever an index is.
        """
        generator = torch.Generator().manual_seed(seed)
        return [
            self.known[i].detach().clone() if i in self.known else _made(v, generator, seed, whole)
            for i, v in enumerate(self.values)
        ]


def _made(value: Any, generator: torch.Generator, seed: int, whole: bool) -> Any:
    """Return a real value like a recorded one."""
    if not isinstance(value, Tensor):
        return hint(value) if isinstance(value, torch.SymInt) else _plain(value)
    sizes = [hint(s) for s in value.shape]
    if value.is_floating_point() or value.is_complex():
        kind = torch.complex64 if value.is_complex() else torch.float32
        drawn = torch.randn(sizes, dtype=kind, generator=generator)
        if seed % 2 and not value.is_complex():
            drawn = drawn.abs() + 0.1
    elif value.dtype is torch.bool:
        drawn = torch.rand(sizes, generator=generator) < 0.5
    elif whole and value.device.type == "cpu":  # an index out of range ends a GPU's context
        drawn = torch.randint(0, 2, sizes, generator=generator)
    else:
        drawn = torch.zeros(sizes)
    made = drawn.to(value.device, value.dtype)
    restride = restrider(value)
    laid_out: Tensor = made if restride is None else restride(made)
    return laid_out


def _plain(value: Any) -> Any:
    if isinstance(value, SYMBOLIC):
        known = value.node.hint
        return known if known is not None else 1
    return value


def gpus_of(values: Sequence[Any]) -> list[int]:
    """Return the indices of the GPUs that example values are on."""
    found = {v.device for v in values if isinstance(v, Tensor) and v.device.type == "cuda"}
    return sorted({d.index or 0 for d in found})
