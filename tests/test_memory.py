"""A split copies no weight (C7): storages are shared and the peak of resident memory stays.

Each measurement runs in a process of its own, since a peak never comes down again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the peak is read from Linux's /proc")

PROGRAM = """
import copy, pathlib, sys
import torch
from torch import nn
import hierpart

def peak():
    # getrusage's ru_maxrss starts at the size of the process that started this one.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

def split(gm):
    return hierpart.hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"tensorrt": {"torch.nn.Linear"}}, backend_priority=["tensorrt"]
    )[0]

def network(width, layers):
    parts = [p for _ in range(layers) for p in (nn.Linear(width, width), nn.ReLU())]
    return torch.fx.symbolic_trace(nn.Sequential(*parts))

split(network(4, 16)), copy.deepcopy(network(4, 2))  # imports and caches
gm = network(2048, 16)
before = peak()
made = {"split": split, "copy": copy.deepcopy}[sys.argv[1]](gm)
grown = peak() - before
shared = {p.data_ptr() for p in gm.parameters()} == {p.data_ptr() for p in made.parameters()}
weights = sum(p.numel() * p.element_size() for p in gm.parameters())
print(grown / weights, shared)
"""


def measure(what: str) -> tuple[float, bool]:
    """Return the growth of the peak as a share of 256 MiB of weights, and whether all are shared."""
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, shared = done.stdout.split()
    return float(grown), shared == "True"


def test_a_split_copies_no_weight():
    grown, shared = measure("split")
    assert shared
    assert grown < 0.05, f"the peak grew by {grown:.1%} of the weights"


def test_the_measurement_sees_a_copy():
    grown, shared = measure("copy")
    assert not shared
    assert grown > 0.9
