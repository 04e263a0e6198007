"""Where the choices come from that make a random graph: Hypothesis, or a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

T = TypeVar("T")


class Choice(Protocol):
    """A source of choices; the first or smallest choice is the simplest one."""

    def number(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``, which is not empty."""

    def flag(self) -> bool:
        """Return true or false; false is the simpler choice."""

    def repeat(self, body: Callable[[], None], most: int) -> None:
        """Call ``body`` between 0 and ``most`` times."""


class SeededChoice:
    """Choices from a seed: the same seed makes the same graph in every process."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""
        return self._random.randint(low, high)

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``."""
        return items[self._random.randrange(len(items))]

    def flag(self) -> bool:
        """Return true or false."""
        return self._random.random() < 0.5

    def repeat(self, body: Callable[[], None], most: int) -> None:
        """Call ``body`` between half of ``most`` and ``most`` times."""
        for _ in range(self.number((most + 1) // 2, most)):
            body()


class DrawnChoice:
    """Choices drawn from Hypothesis, which can then shrink what was made of them."""

    def __init__(self, draw: DrawFn) -> None:
        from hypothesis import strategies

        self._draw = draw
        self._strategies = strategies

    def number(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""
        return self._draw(self._strategies.integers(low, high))

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``."""
        return items[self._draw(self._strategies.integers(0, len(items) - 1))]

    def flag(self) -> bool:
        """Return true or false."""
        return self._draw(self._strategies.booleans())

    def repeat(self, body: Callable[[], None], most: int) -> None:
        """Call ``body`` a drawn number of times, at most ``most``.

        The calls are the elements of a list strategy, so that Hypothesis can take any one of them
        out with everything that was drawn in it: that is what makes graphs shrink node by node.
        The least length is drawn first, since lists of any length are short ones nearly always.
        """
        elements = self._strategies.builds(body)
        least = self.number(0, most * 3 // 4)
        self._draw(self._strategies.lists(elements, min_size=least, max_size=most))
