"""The colours of backends, the same in every picture: by position in the priority, eager grey."""

from __future__ import annotations

from collections.abc import Iterable

from hierpart.plan import EAGER, Plan

COLOURS = ("#3a9163", "#3f74c4", "#9a5fc0", "#c77a1c", "#1d9099", "#c2527e")
PALE = ("#bfe3cf", "#c3d7f5", "#e3cff1", "#f6d9b1", "#b7e3e6", "#f3cadb")
EAGER_COLOUR, EAGER_PALE = "#9aa1a8", "#e3e6e8"


def position(backend: str, priority: Iterable[str]) -> int | None:
    """Return which colour a backend has, ``None`` for eager's."""
    names = [name for name in priority if name != EAGER]
    return names.index(backend) % len(COLOURS) if backend in names else None


def colour(backend: str, plan: Plan, *, pale: bool = False) -> str:
    """Return the colour of a backend; a pale one is for the ground of black text."""
    at = position(backend, plan.priority)
    if at is None:
        return EAGER_PALE if pale else EAGER_COLOUR
    return (PALE if pale else COLOURS)[at]


def css_class(backend: str, plan: Plan) -> str:
    """Return the class of a backend in the page's style sheet."""
    at = position(backend, plan.priority)
    return "be" if at is None else f"b{at}"
