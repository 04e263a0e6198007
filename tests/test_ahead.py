"""Distinct blocks compiled in child processes ahead of their turn, for backends that cache."""

from __future__ import annotations

import fcntl
import os
import signal
import time

import pytest
import torch
from torch import nn

from hierpart.build import parallel as ahead
from hierpart.build.compiling import compile_model
from tests.doubles import Double, options_for, same
from tests.processes import children, signal_in_the_next_fork

HERE = os.getpid()


class Six(nn.Module):
    """Six blocks, the last two of which are equal."""

    def forward(self, x):
        for i in (0, 1, 2, 3, 4, 4):
            x = torch.relu(x * (i + 2) - 1)
        return x


class Caching(Double):
    """Writes which process compiled a block; ``does`` is called with the block's constant."""

    caches = True

    def __init__(self, folder, does=lambda constant: None):
        super().__init__("first", ["relu"])
        self.folder, self.does = folder, does

    def compile(self, block, inputs, options):
        constant = next(a for n in block.graph.nodes for a in n.args if isinstance(a, int))
        file = self.folder / f"{constant}"
        if not file.exists():
            time.sleep(0.2)
            self.does(constant)
            file.write_text(str(os.getpid()))
        return super().compile(block, inputs, options)

    def processes(self):
        return {int(f.name): int(f.read_text()) for f in self.folder.iterdir()}


X = (torch.randn(5),)


@pytest.fixture(autouse=True)
def no_child_is_left():
    before = children()
    yield
    assert children() <= before


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_result_is_the_same_and_others_have_done_part_of_the_work(tmp_path, workers):
    backend = Caching(tmp_path)
    module = compile_model(Six(), X, options=options_for(backend, compile_workers=workers))
    same(module(*X), Six()(*X))
    told = [(o.status, o.shared_with) for o in module.report.outcomes if o.planned == "first"]
    assert told == [("compiled", None)] * 5 + [("shared", 8)]
    assert len(backend.compiled) == 5, "each distinct block once in this process"
    processes = backend.processes()
    assert set(processes) == {2, 3, 4, 5, 6}
    assert processes[2] == HERE
    assert (set(processes.values()) == {HERE}) == (workers == 1)


def test_backends_that_do_not_cache_compile_in_this_process(tmp_path):
    backend = Caching(tmp_path)
    backend.caches = False
    compile_model(Six(), X, options=options_for(backend, compile_workers=4))
    assert set(backend.processes().values()) == {HERE}


def test_what_fails_in_a_child_is_met_and_told_in_this_process(tmp_path):
    def fail(constant):
        if constant == 6:
            raise RuntimeError(f"no such kernel, process {os.getpid()}")

    backend, second = Caching(tmp_path, fail), Double("second", ["relu"])
    options = options_for(backend, second, compile_workers=3)
    module = compile_model(Six(), X, options=options)
    same(module(*X), Six()(*X))
    errors = {o.error for o in module.report.outcomes if o.error}
    assert errors == {f"RuntimeError: no such kernel, process {HERE}"}


def test_a_child_that_hangs_is_waited_for_so_long_and_no_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "LEAST_PATIENCE", 0.5)

    def hang(constant):
        if os.getpid() != HERE and constant == 6:
            time.sleep(600)

    started = time.monotonic()
    options = options_for(Caching(tmp_path, hang), compile_workers=2)
    module = compile_model(Six(), X, options=options)
    same(module(*X), Six()(*X))
    assert time.monotonic() - started < 60


def test_a_child_that_is_stuck_with_a_lock_ends_itself(tmp_path, monkeypatch):
    """Else the caller would wait for the lock as long as the child for what never comes."""
    monkeypatch.setattr(ahead, "LONGEST", 1)
    lock, folder = tmp_path / "lock", tmp_path / "made"
    folder.mkdir()

    def hold(constant):
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.getpid() != HERE:
                time.sleep(600)

    options = options_for(Caching(folder, hold), compile_workers=3)
    same(compile_model(Six(), X, options=options)(*X), Six()(*X))
    assert set(Caching(folder).processes().values()) == {HERE}


def test_an_error_or_an_interrupt_leaves_no_child(tmp_path):
    def stop(constant):
        if os.getpid() == HERE:
            raise KeyboardInterrupt
        time.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        compile_model(Six(), X, options=options_for(Caching(tmp_path, stop), compile_workers=3))


def test_an_interrupt_in_the_midst_of_a_fork_leaves_no_child(tmp_path):
    backend = Caching(tmp_path, lambda constant: time.sleep(600))
    with signal_in_the_next_fork(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        compile_model(Six(), X, options=options_for(backend, compile_workers=3))
