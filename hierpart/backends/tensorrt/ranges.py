"""The range of every size of a block's inputs: what an engine's profile is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hierpart.graph import expression_of, hint, is_symbolic


@dataclass(frozen=True)
class Range:
    """Least, likeliest and greatest shape of one input."""

    least: tuple[int, ...]
    likeliest: tuple[int, ...]
    greatest: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether there is one shape only."""
        return self.least == self.greatest

    def holds(self, shape: Sequence[int]) -> bool:
        """Whether a shape is in the range."""
        pairs = zip(self.least, shape, self.greatest, strict=True)
        return all(low <= size <= high for low, size, high in pairs)


def range_of(value: torch.Tensor, max_size: int | None) -> Range:
    """Return the range of the shapes that a tensor like ``value`` can have.

    Args:
        value: A tensor, fake and with symbolic sizes as a rule.
        max_size: The bound for sizes that have no upper one of their own.

    Raises:
        ValueError: A size has no upper bound.
    """
    least, likeliest, greatest = [], [], []
    for size in value.shape:
        low, high = _bounds(size, max_size)
        if high is None:
            raise ValueError(unbounded(size))
        least.append(low)
        likeliest.append(min(max(hint(size), low), high))
        greatest.append(high)
    return Range(tuple(least), tuple(likeliest), tuple(greatest))


def unbounded(size: Any) -> str:
    """Return what to do about a size without an upper bound."""
    return (
        f"the size {expression_of(size)} has no upper bound; give it one with "
        "torch.export.Dim(..., max=...) or with the option max_size"
    )


def open_sizes(value: Any) -> Iterator[Any]:
    """Yield the sizes of a tensor that have no upper bound."""
    if isinstance(value, torch.Tensor):
        yield from (s for s in value.shape if _bounds(s, None)[1] is None)


def is_data_dependent(value: Any) -> bool:
    """Whether a size of the tensor is only known when its values are."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(value, torch.Tensor) and bool(free_unbacked_symbols(value.shape))


def _bounds(size: Any, max_size: int | None) -> tuple[int, int | None]:
    """Return the least and the greatest value of a size, ``None`` for no greatest.

    The bounds of a derived size (``17*s``) are those of its expression over the bounds of its
    symbols. Tracing takes no size to be 0 or 1 unless it is, so a least value of 2 stands for 1;
    engines hold no empty tensors, so no range begins below 1.
    """
    if not is_symbolic(size):
        return int(size), int(size)
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    expression, known = expression_of(size), size.node.shape_env.var_to_range
    ranges = {}
    for symbol in expression.free_symbols:
        found = known.get(symbol)
        low = _number(found.lower) if found is not None else 0
        high = _number(found.upper) if found is not None else None
        high = max_size if high is None else high
        if high is None:
            return max(low or 0, 1), None
        low = 1 if low is None or low == 2 else low
        ranges[symbol] = ValueRanges(min(low, high), high)
    found = bound_sympy(expression, ranges)
    low, high = _number(found.lower), _number(found.upper)
    return max(low or 1, 1), high


def _number(bound: Any) -> int | None:
    """Return the end of a range, ``None`` where it is open."""
    try:
        value = int(bound)
    except (TypeError, OverflowError, AttributeError, ValueError):
        return None
    return value if abs(value) < 2**62 else None
