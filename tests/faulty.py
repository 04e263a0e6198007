"""A backend with one fault of nine, shown only by blocks that hold one op, and models for it."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn

from tests.doubles import Double

FAULTS = {
    "raises at once": r"RuntimeError: no such kernel",
    "raises late": r"raised when run: RuntimeError: launch failed",
    "hangs": r"did not end within compile_timeout=\d+ s",
    "kills its process": r"its process died by SIGKILL",
    "returns wrong numbers": r"does not agree with eager: output \d+ differs by",
    "returns wrong strides": r"does not agree with eager: output \d+ has strides",
    "returns its input": r"does not agree with eager: output \d+ (shares memory with input|differs)",
    "mutates its input": r"does not agree with eager: input \d+ is left different",
    "allocates without end": r"wanted more than compile_memory=\d+ bytes: RuntimeError",
}
"""Each fault and how the report has to tell of it."""
AT_COMPILE = ("raises at once", "hangs", "kills its process", "allocates without end")


class Faulty(Double):
    """Does ``fault`` with blocks that hold an op whose name contains ``op``; others are right."""

    exact_strides = True

    def __init__(self, name, fault, op, refuses=()):
        super().__init__(name, refuses)
        self.fault, self.op = fault, op

    def compile(self, block, inputs, options):
        function = super().compile(block, inputs, options)
        if not any(self.op in str(n.target) for n in block.graph.nodes):
            return function
        if self.fault in AT_COMPILE:
            at_compile(self.fault)
        return lambda *args: when_run(self.fault, function, args)


def at_compile(fault):
    if fault == "raises at once":
        raise RuntimeError("no such kernel")
    if fault == "kills its process":
        os.kill(os.getpid(), signal.SIGKILL)
    kept = []
    while True:
        time.sleep(60 if fault == "hangs" else 0)
        kept.append(torch.empty(2**24))


def when_run(fault, function, args):
    if fault == "raises late":
        raise RuntimeError("launch failed")
    results = list(function(*args))
    first = next(i for i, r in enumerate(results) if r.is_floating_point())
    if fault == "returns wrong numbers":
        results[first] = results[first] * 1.01
    elif fault == "returns wrong strides":
        results[first] = turned(results[first])
    elif fault == "returns its input":
        results[first] = args[0].as_strided(results[first].shape, results[first].stride())
    elif fault == "mutates its input":
        args[0].add_(1)
    return results


def turned(value):
    """Return the same values laid out from the last dimension to the first."""
    order = tuple(reversed(range(value.ndim)))
    return value.permute(order).contiguous().permute(order)


class Convolutions(nn.Module):
    """Convolutions and batch norm, with a concatenation in the middle; the guilty op is sigmoid."""

    guilty = "sigmoid"

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        y = torch.cat([torch.relu(self.norm(self.one(x))), x], 1)
        return self.head(torch.sigmoid(self.two(y) * 2).mean((2, 3)))


class Attention(nn.Module):
    """A layer of attention and a feed-forward; two results; the guilty op is gelu."""

    guilty = "gelu"

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        q, k, v = self.query(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1)
        y = self.norm(x + self.out(weights @ v))
        y = torch.cat([y, x], 1)
        return y + self.down(nn.functional.gelu(self.up(y))), weights


class Repeated(nn.Module):
    """Three equal layers with integers and views beside them; the guilty op is tanh."""

    guilty = "tanh"

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x[-4:]
            y = layer(x).view(2, 2, 6).transpose(1, 2).reshape(4, 6)
            x = torch.cat([x, torch.tanh(y) * 2 + x], 0)
        return x, x.argmax(1)


MODELS = {
    "convolutions": (Convolutions, (2, 3, 6, 6)),
    "attention": (Attention, (2, 5, 8)),
    "repeated": (Repeated, (8, 6)),
}


def model_of(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().eval()
    return model, (torch.randn(shape),)
