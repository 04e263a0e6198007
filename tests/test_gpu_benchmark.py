"""The script for a GPU, as far as it runs without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import gpu

HAS_GPU = torch.cuda.is_available()


def case(model):
    return gpu.Case("small", model, lambda n: (torch.randn(n, 3),), (2, 4), ({0: torch.export.Dim("n", min=2)},))  # fmt: skip


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls


@pytest.mark.skipif(HAS_GPU, reason="it would write results")
def test_cases_are_compared_and_nothing_is_written(monkeypatch, capsys):
    before = sorted(gpu.RESULTS.iterdir())
    monkeypatch.setattr(gpu, "cases", lambda width: [case(Counting)])
    monkeypatch.setattr(gpu, "priorities", lambda: [()])
    assert gpu.main(["--seconds", "60"]) == 0
    text = capsys.readouterr().out
    assert "| small | eager | same | eager: eager |" in text
    assert "nothing was timed" in text
    assert gpu.main(["--seconds", "-1"]) == 0
    assert "no time left" in capsys.readouterr().out
    assert sorted(gpu.RESULTS.iterdir()) == before


@pytest.mark.skipif(HAS_GPU, reason="it would write results")
def test_a_wrong_result_is_an_exit_code(monkeypatch, capsys):
    real = gpu.hierpart.compile

    def wrong(model, *args, **kwargs):
        compiled = real(model, *args, **kwargs)
        return WithFault(compiled)

    class WithFault(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.calls, self.inner, self.report = inner.calls, inner, inner.report

        def forward(self, x):
            return self.inner(x) + 1

    monkeypatch.setattr(gpu.hierpart, "compile", wrong)
    monkeypatch.setattr(gpu, "cases", lambda width: [case(Counting)])
    monkeypatch.setattr(gpu, "priorities", lambda: [()])
    assert gpu.main([]) == 1
    assert "failed" in capsys.readouterr().out


def test_every_case_runs_eagerly():
    for one in gpu.cases(2):
        model = one.model().eval()
        with torch.no_grad():
            model(*one.inputs(one.sizes[0]))
    assert () in gpu.priorities()
