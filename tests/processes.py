"""Which processes this one has started and not yet waited for; signals in the midst of a fork."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_sent = []


def _send_in_the_hook():
    if _sent:
        os.kill(os.getpid(), _sent.pop())
        time.sleep(0)  # handlers run here


os.register_at_fork(after_in_parent=_send_in_the_hook)


@contextlib.contextmanager
def signal_in_the_next_fork(number):
    """Raise ``KeyboardInterrupt`` by a signal that comes in a hook of the next fork."""
    before = signal.signal(number, signal.default_int_handler)
    _sent.append(number)
    try:
        yield
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        _sent.clear()
        signal.signal(number, before)


def children():
    """Return the ids of the child processes, zombies included; empty where there is no ``/proc``."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}
