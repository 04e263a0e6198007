"""Fifty optimizer steps through ``torch.compile(backend=hierpart.Backend(...))``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hierpart.dynamo import Backend
from tests.doubles import Double

STEPS = 50


class ConvNet(nn.Module):
    """Convolutions with batch norm and dropout, a residual, and a buffer that counts the calls."""

    shape = (6, 3, 8, 8)

    def __init__(self):
        super().__init__()
        # A bias before a batch norm has no gradient but noise, which Adam makes as large as any.
        self.one = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.two = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=0.3)])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        y = self.norms[0](self.one(x)).relu()
        y = (y + self.norms[1](self.two(self.drop(y)))).relu()
        return self.head(self.drop(nn.functional.max_pool2d(y, 2).mean((2, 3))))


class Transformer(nn.Module):
    """An encoder layer with dropout; the output layer shares the embedding's weight."""

    shape = (4, 6)

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.encoder(self.embed(tokens), mask=mask, is_causal=True))


MODELS = {"conv net": ConvNet, "transformer": Transformer}


def losses_of(model, call, steps=STEPS):
    """Train ``call``, which runs ``model``, and return the loss of each step."""
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        if isinstance(model, ConvNet):
            x = torch.randn(model.shape, generator=generator)
            target = torch.randint(0, 5, (model.shape[0],), generator=generator)
        else:
            x = torch.randint(0, 20, model.shape, generator=generator)
            target = x.roll(-1, 1).flatten()
        torch.manual_seed(step)
        loss = nn.functional.cross_entropy(call(x).flatten(0, -2), target)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.fixture(autouse=True)
def fresh():
    """One thread: tensors are tiny, and threads that wait for work use up the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MODELS)
def test_fifty_steps_with_eager_blocks_are_those_of_eager(name):
    """C8: gradients, batch-norm statistics, dropout's stream, tied weights."""
    torch.manual_seed(0)
    model = MODELS[name]()
    reference = copy.deepcopy(model)
    double = Double("first", refuses=["relu", "threshold", "native_layer_norm"])
    backend = Backend(
        backend_priority=["first"], backend_support_map={"first": double}, min_block_size=1
    )
    found = losses_of(model, torch.compile(model, backend=backend))
    expected = losses_of(reference, reference)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-3, atol=1e-4
    )
    assert expected[-10:].mean() < expected[:10].mean()
    notes = {note for report in backend.reports for note in report.notes}
    assert {"forward graph of torch.compile", "backward graph of torch.compile"} <= notes
    assert len(backend.reports) == 2, "no step compiles again"
    for report in backend.reports:
        assert {b.backend for b in report.plan} == {"first", "eager"}


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("name", MODELS)
def test_fifty_steps_compiled_are_those_of_torch_compile(name):
    """Dropout draws as in eager by ``fallback_random``, since the graphs are cut otherwise."""
    torch.manual_seed(0)
    model = MODELS[name]()
    reference = copy.deepcopy(model)
    settings = {"fallback_random": True}
    backend = Backend(
        backend_priority=["inductor"], min_block_size=1, inductor=settings,
        torch_executed_ops=["torch.ops.aten.relu"],
    )  # fmt: skip
    found = losses_of(model, torch.compile(model, backend=backend))
    expected = losses_of(reference, torch.compile(reference, options=settings))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-2, atol=1e-3
    )
    assert any(o.backend == "inductor" for report in backend.reports for o in report.outcomes)
