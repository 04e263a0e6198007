"""Long compiles tell how far they are: a line on a terminal, else the log; short ones nothing."""

from __future__ import annotations

import io
import logging
import threading

import pytest
import torch

from hierpart.build import progress
from hierpart.build.compiling import compile_model
from tests.doubles import Double, options_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


def compile_three():
    def f(x):
        return ((x * 2).relu() * 3).relu() * 4

    model = torch.fx.symbolic_trace(f)
    options = options_for(Double("first", ["relu"]))
    return compile_model(model, (torch.randn(3),), options=options)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(progress, "SOON", -1)
    monkeypatch.setattr(progress, "OFTEN", -1)


def test_a_short_compile_says_nothing(caplog, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with caplog.at_level(logging.INFO, logger="hierpart"):
        compile_three()
    assert not [r for r in caplog.records if "compiling" in r.getMessage()]
    assert "compiling" not in progress.sys.stderr.getvalue()


def test_a_log_line_where_there_is_no_terminal(caplog, slow, monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with caplog.at_level(logging.INFO, logger="hierpart"):
        compile_three()
    told = [r.getMessage() for r in caplog.records if "compiling" in r.getMessage()]
    assert told == [
        f"compiling _run_on_acc_first_{i} with first, {n} of 3 blocks done"
        for n, i in enumerate((0, 2, 4))
    ]


def test_a_line_on_a_terminal_without_a_thread(caplog, slow, monkeypatch):
    pytest.importorskip("rich")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    seen = []
    start = progress._bar

    def bar():
        made = start()
        seen.append(made)
        return made

    monkeypatch.setattr(progress, "_bar", bar)
    with progress.Progress(3) as line:
        line.at("a", "first")
        assert threading.active_count() == before
        line.at("b", "first")
    assert "compiling a with first" in stream.getvalue()
    assert "1/3" in stream.getvalue()
    assert len(seen) == 1
    assert not [r for r in caplog.records if "compiling" in r.getMessage()]
