"""Signals that wait for a moment in which they would be lost, or leave a child process behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Let Ctrl-C and all else that a handler in Python takes wait until the end of the block.

    Python ignores what a handler raises in a hook of ``os.fork``, and the hook it breaks off may
    be the one that gives the lock of ``logging`` back. Handlers run in the main thread alone, so in
    other threads nothing has to be done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in known.items() if callable(handler)}
    came: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with contextlib.ExitStack() as each:  # all of them, though one may raise
            for arrived in reversed(came):
                each.callback(signal.raise_signal, arrived)
