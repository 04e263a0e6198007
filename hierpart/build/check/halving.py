"""Which items spoil the whole, found by setting halves of them aside.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 2002;
here the items set aside stay aside while the rest still fails, so each run halves the suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class SearchEndedError(RuntimeError):
    """More runs, or more guilty items, than were allowed."""


def guilty_items(
    items: Sequence[T], works_without: Callable[[tuple[T, ...]], bool], most: int | None = None
) -> tuple[T, ...]:
    """Return items without which all works, in their order.

    For one guilty item among n it takes at most ``ceil(log2 n) + 1`` runs.

    Args:
        items: The suspects; with all of them in place it does not work.
        works_without: Whether it works with these items set aside; one run.
        most: Most items to look for; ``None`` for no limit.

    Raises:
        SearchEndedError: It does not work without ``most`` items that were found.
    """
    found: list[T] = []
    while True:
        left = [item for item in items if item not in found]
        if not left:
            return tuple(items)
        item, works = _one(left, lambda aside: works_without(_in_order(items, [*found, *aside])))
        found.append(item)
        if works or works_without(_in_order(items, found)):
            return _in_order(items, found)
        if most is not None and len(found) >= most:
            raise SearchEndedError(f"more than {most} items are guilty")


def _one(items: Sequence[T], works_without: Callable[[Sequence[T]], bool]) -> tuple[T, bool]:
    """Return a guilty item and whether all is known to work without it alone."""
    suspects, aside, works = list(items), list[T](), False
    while len(suspects) > 1:
        half = suspects[: (len(suspects) + 1) // 2]
        works = works_without([*aside, *half])
        if works:
            suspects = half
        else:
            aside += half
            suspects = suspects[len(half) :]
    # ``works`` tells of the last half, which was this item and what has been set aside.
    return suspects[0], works and not aside


def _in_order(items: Sequence[T], chosen: Sequence[T]) -> tuple[T, ...]:
    return tuple(item for item in items if item in chosen)
