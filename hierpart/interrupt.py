"""Ctrl-C that waits for a moment in which it would be lost, or leave a child process behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Let SIGINT wait until the end of the block.

    Python ignores what a handler raises in a hook of ``os.fork``, and the hook it breaks off may
    be the one that gives the lock of ``logging`` back. Handlers run in the main thread alone, so in
    other threads, and where there is no handler, nothing has to be done.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])
