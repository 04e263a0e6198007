"""Blocks compiled in child processes before it is their turn, so that the caches have them then.

Compiled code does not travel between processes, but a backend that caches on disk finds what a
child has compiled and does the short rest itself. The caller works from the front, the children
from the back, so which process compiles a block changes nothing but the time.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from hierpart.sandbox import Child, cannot_contain, signals_later

_WAITING, _AT_WORK, _DONE = range(3)
LEAST_PATIENCE = 30.0
"""Seconds that the caller waits for a child that is at work on a block, at the least."""
LONGEST = 300
"""Whole seconds for one block after which a child ends itself. It may wait for a lock whose owner,
a thread, has not come along, and hold one of a cache that the caller waits for."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


class Ahead:
    """Child processes at work on the last of some blocks.

    Args:
        works: What to do by key, in the order in which the caller will ask; whatever it raises is
            left for the caller to meet.
        workers: Most processes at work, the caller's own included.
    """

    def __init__(self, works: Mapping[Hashable, Callable[[], object]], workers: int) -> None:
        self.places = {key: i for i, key in enumerate(works)}
        helpers = min(workers, len(works)) - 1
        self.children: list[Child] = []
        self.patience = LEAST_PATIENCE
        if helpers < 1 or cannot_contain() is not None:
            return
        self.states = mmap.mmap(-1, len(works))  # shared with the children
        later = list(works.values())[::-1][:-1]  # the first one is the caller's in any case
        last = len(works) - 1
        try:
            with signals_later():
                for first in range(helpers):
                    share = [(last - j, later[j]) for j in range(first, len(later), helpers)]
                    self.children.append(Child(functools.partial(self._work, share), None))
        except BaseException:
            self.close()
            raise

    def wait(self, key: Hashable) -> None:
        """Return when no child is at work on this block; blocks not begun are not waited for."""
        i = self.places.get(key)
        if i is None or not self.children:
            return
        until = time.monotonic() + self.patience
        while self.states[i] == _AT_WORK and time.monotonic() < until:
            if not any(child.is_alive() for child in self.children):
                return
            time.sleep(0.01)

    def took(self, seconds: float) -> None:
        """Note how long the caller took for a block: children may take that long twice."""
        self.patience = max(self.patience, 2 * seconds)

    def close(self) -> None:
        """End the children."""
        for child in self.children:
            child.end()
        self.children.clear()

    def _work(self, share: Sequence[tuple[int, Callable[[], object]]]) -> None:
        for i, work in share:
            self.states[i] = _AT_WORK
            signal.alarm(LONGEST)
            with contextlib.suppress(Exception):  # the caller meets it when it compiles the block
                work()
            self.states[i] = _DONE
