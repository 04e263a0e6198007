"""How far a long compile has come: a line on a terminal, else a log line now and then."""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from typing import Any

_log = logging.getLogger("hierpart")

SOON, OFTEN = 1.0, 10.0
"""Seconds before anything is shown, and between two log lines."""


class Progress:
    """Tells how many of some blocks are done, once that takes longer than a moment.

    On a terminal, and where rich is installed, by a line that is gone at the end; else by INFO
    lines of the ``hierpart`` logger. Nothing runs beside the caller: no thread, no redirected
    stream.

    Args:
        total: How many blocks there are.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.started = self.told = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, name: str, backend: str) -> None:
        """Tell that a block is about to be compiled; those before it are done."""
        now = time.monotonic()
        text = f"compiling {name} with {backend}"
        if self._bar is None and now - self.started >= SOON and _on_terminal():
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task(text, total=self.total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, description=text)
            self._bar.refresh()
        elif now - self.told >= OFTEN:
            self.told = now
            _log.info("%s, %d of %d blocks done", text, self.done, self.total)
        self.done += 1


def _on_terminal() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    # No thread that draws and no stream of its own: children are forked while it is shown.
    return Progress(
        TextColumn("hierpart: {task.description}"), BarColumn(), MofNCompleteColumn(),
        console=Console(stderr=True), transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
