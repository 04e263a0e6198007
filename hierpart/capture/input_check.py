"""What a compiled module was compiled for, checked against what it is called with.

Compiled code trusts sizes, dtypes and devices blindly (Inductor asserts sizes and strides, but
reads any dtype as the one that it was compiled for), so whoever calls it has to check them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierpart.errors import HierpartError
from hierpart.graph import (
    SYMBOLIC,
    Evaluate,
    Restride,
    evaluator,
    expression_of,
    is_symbolic,
    places,
    restrider,
    shape_env_of,
)


class InputMismatchError(HierpartError, ValueError):
    """A compiled module was called with, or now holds, something that it was not compiled for.

    The message names the value, what it is and what it has to be. Call with inputs like the ones
    that the module was compiled with, or compile again (with ``dynamic_shapes`` for sizes).
    """


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor looks like, without its memory."""

    dtype: torch.dtype
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    device: torch.device
    layout: torch.layout

    @classmethod
    def of(cls, value: Tensor) -> TensorSpec:
        """Return the description of a real or fake tensor."""
        strides = tuple(value.stride()) if value.layout is torch.strided else ()
        return cls(value.dtype, tuple(value.shape), strides, value.device, value.layout)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"a {dtype} tensor of shape {list(self.shape)} on {self.device}"


@dataclass(frozen=True)
class Expected:
    """What one input has to be.

    Attributes:
        name: How messages call it.
        value: Its example value: a fake tensor, a symbolic scalar or a constant.
        spec: What a tensor has to look like; ``None`` for other values.
        shape: Its sizes where none is symbolic, else ``None``.
        fixed: Dimension and size of each fixed one where some are symbolic.
        restride: Brings a tensor into the layout of ``value``; ``None`` where that cannot be told.
    """

    name: str
    value: Any
    spec: TensorSpec | None = None
    shape: tuple[int, ...] | None = None
    fixed: tuple[tuple[int, int], ...] = ()
    restride: Restride | None = None


@dataclass(frozen=True)
class InputCheck:
    """Checks a flat list of inputs and brings them into the layout that they were captured with."""

    expected: tuple[Expected, ...]
    sizes: tuple[tuple[int, int | None], ...]
    size_values: Evaluate | None
    symbols: tuple[tuple[str, int | float, int | float], ...]
    symbol_values: Evaluate | None
    guards: tuple[str, ...]
    guard_values: Evaluate | None

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        values: Sequence[Any],
        ranges: Mapping[Any, Any] | None = None,
        *,
        restride: bool = True,
    ) -> InputCheck:
        """Return the check for inputs like ``values``.

        Args:
            names: How messages call each input.
            values: Example values.
            ranges: Least and greatest value by symbol (``ExportedProgram.range_constraints``).
            restride: Whether inputs are to be brought into the layout of ``values``.
        """
        known = places(values)
        sizes = [(i, d, e) for i, d, e in _symbolic_sizes(values) if e.free_symbols <= set(known)]
        bounds = [
            (s, r) for s, r in (ranges or {}).items() if getattr(s, "is_Symbol", 0) and s in known
        ]
        env = shape_env_of(values)
        guards = [g.expr for g in env.guards] if env is not None else []
        guards = [g for g in guards if g.free_symbols and g.free_symbols <= set(known)]
        return cls(
            expected=tuple(_expected(n, v, restride) for n, v in zip(names, values, strict=True)),
            sizes=tuple((i, d) for i, d, _ in sizes),
            size_values=evaluator([e for _, _, e in sizes], values),
            symbols=tuple((known[s], _number(r.lower), _number(r.upper)) for s, r in bounds),
            symbol_values=evaluator([s for s, _ in bounds], values),
            guards=tuple(str(g) for g in guards),
            guard_values=evaluator(guards, values),
        )  # fmt: skip

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """Return the inputs in the layout that they were captured with.

        Raises:
            InputMismatchError: An input is not what the module was compiled for.
        """
        checked = [self._one(e, value) for e, value in zip(self.expected, given, strict=True)]
        if self.sizes and self.size_values:
            self._check_sizes(given, self.size_values(given))
        if self.symbols and self.symbol_values:
            self._check_ranges(self.symbol_values(given))
        if self.guards and self.guard_values:
            for text, holds in zip(self.guards, self.guard_values(given), strict=True):
                if not holds:
                    raise InputMismatchError(
                        f"these sizes break a condition of the captured graph: {self._named(text)}"
                    )
        return checked

    def _one(self, expected: Expected, given: Any) -> Any:
        if expected.spec is None:
            _check_scalar(expected, given)
            return given
        fits = (
            isinstance(given, Tensor)
            and given.dtype is expected.spec.dtype
            and given.device == expected.spec.device
            and given.layout is expected.spec.layout
            and (
                given.shape == expected.shape
                if expected.shape
                else given.ndim == len(expected.spec.shape)
            )
            and all(given.shape[d] == size for d, size in expected.fixed)
        )
        if not fits:
            raise InputMismatchError("input " + mismatch(expected.name, expected.spec, given))
        return expected.restride(given) if expected.restride else given

    def _check_sizes(self, given: Sequence[Any], wanted: Sequence[int]) -> None:
        for (i, d), size in zip(self.sizes, wanted, strict=True):
            found = given[i] if d is None else given[i].shape[d]
            if found != size:
                what = "" if d is None else f" has size {found} in dimension {d} and"
                raise InputMismatchError(
                    f"input {self.expected[i].name}{what} has to be {size} to go with the others"
                )

    def _check_ranges(self, values: Sequence[int]) -> None:
        for (place, low, high), value in zip(self.symbols, values, strict=True):
            if not low <= value <= high:
                raise InputMismatchError(
                    f"{self._place(place)} is {value}, outside the range {low} to {high} that the "
                    "module was compiled for; compile with other dynamic_shapes"
                )

    def _place(self, code: str) -> str:
        """Return ``a[2].shape[0]`` as the input's name and dimension."""
        for i, expected in enumerate(self.expected):
            code = code.replace(f"a[{i}]", expected.name)
        return code

    def _named(self, guard: str) -> str:
        values = [e.value for e in self.expected]
        for symbol, code in places(values).items():
            guard = guard.replace(str(symbol), self._place(code))
        return guard


def mismatch(name: str, wanted: TensorSpec, given: Any) -> str:
    """Return the message for a value that is not a tensor like ``wanted``."""
    found: object = f"a {type(given).__name__}"
    if isinstance(given, Tensor):
        found = TensorSpec.of(given)
    elif given is None or isinstance(given, (bool, int, float)):
        found = f"the {type(given).__name__} {given}" if given is not None else given
    return f"{name} has to be {wanted}, not {found}"


def _expected(name: str, value: Any, restride: bool) -> Expected:
    if not isinstance(value, Tensor):
        return Expected(name, value)
    fixed = tuple((d, int(s)) for d, s in enumerate(value.shape) if not is_symbolic(s))
    spec, layout = TensorSpec.of(value), restrider(value) if restride else None
    if len(fixed) == value.ndim:
        return Expected(name, value, spec, tuple(s for _, s in fixed), (), layout)
    return Expected(name, value, spec, None, fixed, layout)


def _check_scalar(expected: Expected, given: Any) -> None:
    value = expected.value
    if isinstance(value, torch.SymBool):
        fits = isinstance(given, bool)
    elif isinstance(value, SYMBOLIC):
        fits = isinstance(given, (int, float)) and not isinstance(given, bool)
    elif isinstance(value, (bool, int, float, complex, str, type(None))):
        fits = type(given) is type(value) and (given == value or value != value)
    else:
        fits = True
    if not fits:
        raise InputMismatchError(
            f"{expected.name} was {value!r} when the module was compiled and is now {given!r}; "
            "compile again for another value"
        )


def _symbolic_sizes(values: Sequence[Any]) -> Iterable[tuple[int, int | None, Any]]:
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            for d, size in enumerate(value.shape):
                if is_symbolic(size):
                    yield i, d, expression_of(size)
        elif is_symbolic(value):
            yield i, None, expression_of(value)


def _number(bound: Any) -> int | float:
    """Return the end of a range as a plain number."""
    import sympy

    if isinstance(bound, (int, sympy.Integer)):
        return int(bound)
    return float("-inf") if bound < 0 else float("inf")
