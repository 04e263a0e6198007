"""What values options may have; every error names the value and what is legal."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hierpart.errors import OptionError, nearest


def one_of(name: str, value: str, legal: Sequence[str]) -> None:
    """Check that a value is one of the legal ones."""
    if value not in legal:
        raise OptionError(f"{name}={value!r} is not legal" + nearest(str(value), legal))


def sizes(value: int | Mapping[str, int], priority: Sequence[str]) -> int | Mapping[str, int]:
    """Return one size, or sizes by backend, checked."""
    if not isinstance(value, Mapping):
        return size("min_block_size", value)
    for name in value:
        if name not in priority:
            raise OptionError(
                f"min_block_size names {name!r}, which is not in backend_priority"
                + nearest(str(name), priority)
            )
    return {name: size(f"min_block_size[{name!r}]", number) for name, number in value.items()}


def size(name: str, value: Any) -> int:
    """Return a whole number from 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise OptionError(f"{name} takes a whole number from 0, not {value!r}")
    return number


def positive(name: str, value: Any) -> None:
    """Check that a value is a number above 0, or nothing."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < float("inf")):
        raise OptionError(f"{name} takes a number above 0, not {value!r}")


def path(name: str, value: Any) -> str | None:
    """Return a path as text, or nothing."""
    try:
        return None if value is None else os.fsdecode(value)
    except TypeError:
        raise OptionError(f"{name} takes a path, not {value!r}") from None


def ordered(name: str, value: Collection[Any]) -> tuple[Any, ...]:
    """Return ops in an order that does not depend on the run."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise OptionError(f"{name} takes a collection of ops, not {value!r}")
    return tuple(sorted(value, key=str))


def strings(name: str, value: Collection[str]) -> tuple[str, ...]:
    """Return names as a tuple."""
    if isinstance(value, str) or not all(isinstance(v, str) for v in value):
        raise OptionError(f"{name} takes a collection of names, not {value!r}")
    return tuple(value)
