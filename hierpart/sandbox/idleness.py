"""Whether a group of processes is at work: not if it has used no processor time for long."""

from __future__ import annotations

import time
from pathlib import Path

_PROC = Path("/proc")


class Idle:
    """Watches a process group; on systems without ``/proc`` it seems to be at work all the time.

    Args:
        group: Its number.
        every: Seconds between two looks.
    """

    def __init__(self, group: int, every: float) -> None:
        self.group, self.every = group, every
        self.used: int | None = 0
        self.since = self.looked = time.monotonic()

    def seconds(self) -> float:
        """Return for how long the group has used no processor time, as far as the looks tell."""
        now = time.monotonic()
        if now - self.looked >= self.every:
            self.looked, used = now, _used(self.group)
            if used is None or used != self.used:
                self.used, self.since = used, now
        return now - self.since


def _used(group: int) -> int | None:
    """Return the clock ticks that a group's processes, and those that ended in it, have used."""
    if not _PROC.is_dir():
        return None
    total = 0
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            total += sum(map(int, fields[11:15]))  # its own, and of children that it waited for
    return total
