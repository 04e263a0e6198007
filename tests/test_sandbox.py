"""Work in a child process: every way to end is told, and nothing is left running."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from hierpart.errors import BlockFaultError
from hierpart.sandbox import child_process as sandbox
from hierpart.sandbox import idleness as idle
from hierpart.sandbox.child_process import contained
from hierpart.sandbox.signals import signals_later
from tests.processes import children, signal_in_the_next_fork

HERE = os.getpid()


def in_child(work):
    def checked():
        assert os.getpid() != HERE
        work()

    return checked


def uses_threads():
    (torch.randn(400, 400) @ torch.randn(400, 400)).sum()
    torch.randn(2_000_000).sin().sum()
    assert torch.get_num_threads() > 1


def test_inductor_hands_no_work_to_threads_that_have_not_come_along():
    """Its pool of the parent looks usable in the child, and nobody would ever do the work."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.config import patch

    def work():
        made = AsyncCompile.submit(lambda: 42)
        assert made == 42, f"handed to a pool: {made}"

    with patch(compile_threads=2):
        assert AsyncCompile.submit(lambda: 42).result() == 42
        contained(work, 60, None)


def test_work_that_returns_and_threads_in_it():
    """Threads of the parent's pools have not come along; new ones are made."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        uses_threads()
        contained(in_child(uses_threads), 60, None)
    finally:
        torch.set_num_threads(before)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    faulthandler.disable()  # pytest turns it on; its trace would be noise
    ctypes.string_at(0)


def leave():
    os._exit(3)


def give_up():
    sys.exit("no more")


def fail():
    raise ValueError("no such\nkernel")


def allocate():
    kept = []
    while True:
        kept.append(torch.empty(2**26))


def loop():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    while True:
        time.sleep(0.01)


ENDS = {
    kill: r"^its process died by SIGKILL$",
    crash: r"^its process died by SIGSEGV$",
    leave: r"^its process exited with code 3$",
    give_up: r"^SystemExit: no more$",
    fail: r"^ValueError: no such\nkernel$",
    allocate: r"^wanted more than compile_memory=1073741824 bytes: RuntimeError: .*allocate",
    loop: r"^did not end within compile_timeout=0\.5 s$",
}


@pytest.mark.parametrize("work", ENDS, ids=lambda w: w.__name__)
def test_every_way_to_end_is_told(work):
    before = children()
    with pytest.raises(BlockFaultError, match=ENDS[work]) as caught:
        contained(in_child(work), 0.5 if work is loop else 60, 2**30)
    assert caught.value.is_costly == (work in (allocate, loop))
    assert ("in fail" in caught.value.remote) == (work is fail)
    assert children() <= before, "it has been waited for"


def wait_for_a_lock_that_nobody_gives_back():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def test_work_without_a_cap_on_time_ends_when_it_stands_still(monkeypatch):
    monkeypatch.setattr(sandbox, "STILL", 1.0)
    before = children()
    with pytest.raises(BlockFaultError, match=r"^stood still for 1 s") as caught:
        contained(wait_for_a_lock_that_nobody_gives_back, None, 2**30)
    assert caught.value.is_costly
    assert children() <= before


@pytest.mark.parametrize("through", ["itself", "a process that it starts", "nobody can tell"])
def test_work_that_takes_long_does_not_stand_still(monkeypatch, through):
    monkeypatch.setattr(sandbox, "STILL", 1.0)
    code = "import time; until = time.monotonic() + 4\nwhile time.monotonic() < until: pass"

    def work():
        if through == "itself":
            exec(code)
        elif through == "nobody can tell":
            time.sleep(4)
        else:
            subprocess.run([sys.executable, "-c", code], check=True)

    if through == "nobody can tell":
        monkeypatch.setattr(idle, "_PROC", Path("/no such folder"))
    contained(work, None, None)


def test_a_program_that_ignores_its_children_and_one_with_many_files(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        contained(in_child(lambda: None), 60, None)
        with pytest.raises(BlockFaultError, match="ValueError"):
            contained(in_child(fail), 60, None)
    finally:
        signal.signal(signal.SIGCHLD, before)
    low = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, low[1]), low[1]))
    files = []
    try:
        while not files or files[-1].fileno() < 1100:
            files.append((tmp_path / "file").open("w"))
        contained(in_child(lambda: None), 60, None)
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, low)


def test_what_the_child_starts_ends_with_it(tmp_path):
    file = tmp_path / "pid"

    def start(waits):
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        file.write_text(str(started.pid))
        if waits:
            started.wait()

    contained(lambda: start(False), 60, None)
    assert is_gone(int(file.read_text()))
    with pytest.raises(BlockFaultError, match="did not end"):
        contained(lambda: start(True), 1.5, None)
    assert is_gone(int(file.read_text()))


def is_gone(pid, seconds=5.0):
    """Whether a process is gone, or a zombie that only waits for its adopter, soon."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_an_interrupt_leaves_no_orphan(tmp_path):
    """Ctrl-C reaches the caller; the child, in a session of its own, is ended by it."""
    file = tmp_path / "pid"

    def hang():
        file.write_text(str(os.getpid()))
        time.sleep(600)

    def interrupt():
        while not (file.exists() and file.read_text()):
            time.sleep(0.01)
        os.kill(HERE, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # Workers that run tests side by side ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            contained(hang, 60, None)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert is_gone(int(file.read_text()), 0.5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_signal_in_the_midst_of_a_fork_is_not_lost(number):
    """Python ignores what a hook of the fork raises."""
    known = children()
    with signal_in_the_next_fork(number), pytest.raises(KeyboardInterrupt):
        contained(lambda: time.sleep(600), 20, None)
    assert children() <= known


def test_each_of_several_signals_that_waited_is_handled():
    came = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(n, lambda number, frame: came.append(number)) for n in numbers]
    try:
        with signals_later():
            for number in numbers:
                signal.raise_signal(number)
            assert came == []
        assert came == list(numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux only")
def test_a_caller_that_is_killed_leaves_no_orphan(tmp_path):
    """Not even SIGKILL of the caller leaves the child running."""
    file = tmp_path / "pid"

    def outer():
        def hang():
            file.write_text(str(os.getpid()))
            time.sleep(600)

        def end():
            while not (file.exists() and file.read_text()):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=end).start()
        contained(hang, 60, None)

    with pytest.raises(BlockFaultError, match="SIGKILL"):
        contained(outer, 60, None)
    assert is_gone(int(file.read_text()))


ESCAPE = """
from hierpart.sandbox import child_process as sandbox, idleness as idle

def broken():
    raise MemoryError

sandbox._use_no_pools = broken
try:
    sandbox.contained(lambda: None, 60, None)
except Exception as error:
    print(error)
"""


def test_a_child_that_cannot_tell_does_not_go_on_as_a_second_caller():
    done = subprocess.run(
        [sys.executable, "-c", ESCAPE], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "its process exited with code 1\n"


def test_a_process_that_has_used_cuda_says_that_it_cannot(monkeypatch):
    assert sandbox.cannot_contain() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "has used CUDA" in sandbox.cannot_contain()


def test_private_names_of_torch():
    """What a child process sets is where it was."""
    from torch._dynamo import convert_frame
    from torch._inductor import config

    assert type(convert_frame.compile_lock) is type(threading.RLock()), "Dynamo's lock is another"

    assert isinstance(config.compile_threads, int), "torch._inductor.config.compile_threads is gone"
    assert "compile_threads" in config._cache_config_ignore_prefix, (
        "compile_threads has become part of Inductor's cache key: what a child process compiles is "
        "compiled again"
    )
