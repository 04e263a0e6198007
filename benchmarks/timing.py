"""CPU seconds of calls that take turns, with their spread."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """CPU seconds of the repetitions of one call."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the repetitions."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        if len(self.seconds) == 1:
            return f"{self.median:.3g}"
        return f"{self.median:.3g} ({min(self.seconds):.3g} to {max(self.seconds):.3g})"


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of this process that one call takes; garbage is collected before."""
    gc.collect()
    start = time.process_time()
    result = call()
    seconds = time.process_time() - start
    del result  # freeing what the call made is not part of it
    return seconds


def interleaved(
    calls: Mapping[str, Callable[[], Callable[[], Any]]], rounds: int, *, warm_up: bool = True
) -> dict[str, Timing]:
    """Time calls in turn, so that a slow spell of the machine hits all of them alike.

    Args:
        calls: By name, a function that prepares one repetition (not timed) and returns the call.
        rounds: Repetitions of each call.
        warm_up: Whether one more is made first and thrown away, to fill caches.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + warm_up):
        for name, prepare in calls.items():
            seconds = cpu_seconds(prepare())
            if turn >= warm_up:
                taken[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return p of the power law ``seconds = c * size**p`` through the first and last point."""
    return math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0])
