"""A deep model of equal layers compiles each distinct block once, with weights of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import overhead, sharing
from hierpart.build.compiling import compile_model
from tests.doubles import Double, options_for, same


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(nn.functional.gelu(self.up(x)))


def test_twenty_four_layers_compile_at_most_six_blocks():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Layer() for _ in range(24))).eval(), torch.randn(2, 3, 8)
    double = Double("first", refuses=["gelu", "scaled_dot_product_attention"])
    module = compile_model(model, (x,), options=options_for(double))
    blocks = [o for o in module.report.outcomes if o.planned == "first"]
    assert len(blocks) == 49, "the end of a layer and the start of the next are one block"
    assert len(double.compiled) <= 6
    assert f"compiled {len(double.compiled)}, shared {49 - len(double.compiled)}" in str(
        module.report
    )
    with torch.no_grad():
        same(module(x), model(x))


def test_the_benchmark_of_overhead_runs(monkeypatch):
    monkeypatch.setattr(overhead, "CALLS", 2)
    monkeypatch.setattr(overhead, "BLOCKS", 4)
    data = overhead.measure(1)
    assert data["blocks"] == overhead.BLOCKS
    assert len(data["seconds"]) == 5
    assert "| by hand |" in overhead.markdown(data)


@pytest.mark.slow
@pytest.mark.inductor
def test_time_and_memory_of_a_real_compile():
    """Bounds are loose here: benchmarks/results has the figures of a calm machine."""
    data = sharing.measure(4)
    rows = data["rows"]
    assert all(row["gap"] < 1e-4 for row in rows.values())
    assert rows["sharing"]["distinct"] <= 6 < rows["each block"]["distinct"]
    assert rows["sharing, warm cache"]["seconds"] < rows["sharing"]["seconds"] / 2
    assert rows["sharing"]["peak"] < 1.3 * rows["torch.compile"]["peak"]
    assert "peak memory to torch.compile's" in sharing.markdown(data)
