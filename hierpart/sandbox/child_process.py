"""Work in a child process under caps of time and memory, so that no backend can harm this one.

The child is a fork: it has the block, the backend and all that they refer to without a copy, and
what it does to them is gone with it. It leads a process group of its own (compilers that it starts
are in it), which is ended when the time is up, when the caller is interrupted, and in any case
before :func:`contained` returns or raises. docs/containment.md says what that costs.

Private: ``torch._inductor.config.compile_threads`` and Dynamo's ``compile_lock``, since threads do
not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from hierpart.errors import BlockFaultError
from hierpart.sandbox.idleness import Idle
from hierpart.sandbox.signals import signals_later

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL, _GRACE = 0.2, 1.0
STILL = 300.0
"""Seconds without any processor time after which work without a cap on time counts as stuck."""
_LONGEST = 4000
"""Most characters of a failure's text that the child hands over."""


def cannot_contain() -> str | None:
    """Return why this process cannot contain work in a child, ``None`` where it can."""
    if not hasattr(os, "fork"):
        return "caps need a system that can fork a process"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "this process has used CUDA, which does not survive a fork"
    return None


def contained(work: Callable[[], object], seconds: float | None, size: int | None) -> None:
    """Run ``work`` in a child process and return when it has returned there.

    Args:
        work: What to do; nothing comes back but whether it raised.
        seconds: Wall-clock seconds after which the child is ended; ``None`` for no cap, then it is
            ended when it has used no processor time for ``STILL`` seconds.
        size: Bytes that the child, and each process that it starts, may map beyond what this
            process has mapped; ``None`` for no cap.

    Raises:
        BlockFaultError: ``work`` raised, did not end in time, or its process died.
    """
    child = None
    try:
        with signals_later():
            child = Child(work, size)
        told = child.answer(seconds)
    finally:
        if child is not None:
            child.end()
    _judge(told, child.status, seconds, size)


class Child:
    """A forked process that does one piece of work and tells in one line how it went.

    Made within :func:`signals_later`, so that Ctrl-C meets a caller that can end it.

    Args:
        work: What to do.
        size: Bytes that it may map besides.

    Attributes:
        pipe: Readable when it has told, or when it has died.
        status: Its exit status, once it has ended.
    """

    def __init__(self, work: Callable[[], object], size: int | None) -> None:
        self.status: int | None = None
        self.pipe, writing = os.pipe()
        self.pid = _fork()
        if self.pid == 0:
            try:
                os.close(self.pipe)
                _run(work, writing, size)
            finally:  # in no case does it go on as a second caller
                os._exit(1)
        os.close(writing)

    def answer(self, seconds: float | None) -> dict[str, Any] | None:
        """Return what it tells: empty where it died without a word, ``None`` if not in time.

        Without a cap on time, it is not in time when it stands still: nothing says that the threads
        that hold the locks it waits for have come along.
        """
        idle = Idle(self.pid, STILL / 10)
        until = None if seconds is None else time.monotonic() + seconds
        data, ready = b"", select.poll()
        ready.register(self.pipe, select.POLLIN)
        while not data.endswith(b"\n"):
            left = _POLL if until is None else min(_POLL, max(until - time.monotonic(), 0.0))
            if ready.poll(1000 * left):
                part = os.read(self.pipe, 65536)
                if not part:
                    return {}
                data += part
            elif idle.seconds() >= STILL if until is None else time.monotonic() >= until:
                return None
            elif self._has_ended():  # another process that it left behind holds the pipe open
                return {}
        told: dict[str, Any] = json.loads(data)
        return told

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return not self._has_ended()

    def end(self) -> None:
        """End it and all that it has started; asked politely first, compilers then tidy up."""
        os.close(self.pipe)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            until = time.monotonic() + _GRACE
            while not self._has_ended() and time.monotonic() < until:
                time.sleep(0.002)
        if not self._has_ended():  # it did not lead a group yet
            os.kill(self.pid, signal.SIGKILL)
            while not self._has_ended():
                time.sleep(0.002)

    def _has_ended(self) -> bool:
        if self.status is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the program ignores SIGCHLD: the kernel has waited for it
                done, status = self.pid, 0
            self.status = status if done else None
        return self.status is not None


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of locks that other threads may hold; the cap on time bounds that.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        return os.fork()


def _judge(
    told: dict[str, Any] | None, status: int | None, seconds: float | None, size: int | None
) -> None:
    """Raise what went wrong, if anything."""
    if told is None:
        text = (
            f"stood still for {STILL:g} s, maybe at a lock of another thread; with compile_timeout "
            "it is given as long as that says"
        )
        if seconds is not None:
            text = f"did not end within compile_timeout={seconds:g} s"
        raise BlockFaultError(text, is_costly=True)
    if not told:
        raise BlockFaultError(f"its process {_ending(status or 0)}")
    if told["error"] is None:
        return
    too_much = bool(told["memory"] and size)
    text = f"wanted more than compile_memory={size} bytes: " if too_much else ""
    raise BlockFaultError(text + told["error"], told["trace"], is_costly=too_much)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"died by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"


def _run(work: Callable[[], object], writing: int, size: int | None) -> NoReturn:
    """Do the work in this child process, tell, and exit without any of the parent's clean-up.

    Raises:
        BaseException: Nothing could be told, so the exit is left to the caller.
    """
    os.setsid()
    gc.freeze()  # what has come along is not looked through, which would copy its pages
    _die_with_parent()
    told: list[dict[str, Any]] = []

    def run() -> None:
        _use_no_pools()
        told.append(_tell(work))

    with _memory_cap(size):
        # OpenMP keeps its threads by the thread that first used them: those of the forking thread
        # are gone, a new thread gets new ones.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    os.write(writing, json.dumps(told[0]).encode() + b"\n")
    os._exit(0)


def _tell(work: Callable[[], object]) -> dict[str, Any]:
    try:
        work()
    except BaseException as error:  # all that it raises is the answer, exits included
        own = isinstance(error, BlockFaultError)
        text = (str(error) if own else f"{type(error).__name__}: {error}")[:_LONGEST]
        trace = "".join(traceback.format_exception(error))[-_LONGEST:]
        return {"error": text, "trace": trace, "memory": _wants_memory(error)}
    return {"error": None}


def _wants_memory(error: BaseException | None) -> bool:
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent dies; on Linux, else nothing is done."""
    for number in (signal.SIGTERM, signal.SIGALRM):  # the caller's handlers are not for the child
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _use_no_pools() -> None:
    """Make Inductor compile in this thread: the threads of its pools have not come along.

    Its settings are kept by thread, so the thread that compiles has to set this itself. Nor has the
    thread come along that may hold Dynamo's lock, in whose compile the fork was made.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1
    dynamo: Any = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is not None:
        dynamo.compile_lock = threading.RLock()


@contextlib.contextmanager
def _memory_cap(size: int | None) -> Iterator[None]:
    """Cap what this process and its children may map, in bytes beyond what is mapped now."""
    if size is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _mapped() + size
    hard = before[1]
    resource.setrlimit(
        resource.RLIMIT_AS,
        (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
    )
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _mapped() -> int:
    """Return the bytes of address space that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
