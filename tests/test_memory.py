"""C7 and C12: a split copies no weight; its peak is the graph's own objects and little else."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.fx import Graph, GraphModule

from hierpart import hierarchical_adjacency_partition

aten = torch.ops.aten
SUPPORT = {
    "tensorrt": {"torch.ops.aten.mm.default"},
    "inductor": {"torch.ops.aten.relu.default"},
}
BYTES_A_BLOCK = 60_000
"""Python objects of one block (its module, graph, nodes and code), generously."""


def layers(count: int, width: int) -> GraphModule:
    """``count`` times x -> mm(weight) -> relu; every eighth weight is used a second time."""
    graph, root = Graph(), torch.nn.Module()
    at = graph.placeholder("x")
    at.meta["val"] = torch.empty(1, width, device="meta")
    for i in range(count):
        name = f"weight_{i - 1 if i % 8 == 7 else i}"
        if not hasattr(root, name):
            root.register_parameter(name, torch.nn.Parameter(torch.ones(width, width)))
        weight = graph.get_attr(name)
        weight.meta["val"] = torch.empty(width, width, device="meta")
        for target, args in ((aten.mm.default, (at, weight)), (aten.relu.default, None)):
            at = graph.call_function(target, args or (at,))
            at.meta["val"] = torch.empty(1, width, device="meta")
    graph.output(at)
    return GraphModule(root, graph)


def storages(module: torch.nn.Module) -> set[int]:
    return {p.untyped_storage().data_ptr() for p in module.parameters()}


@pytest.mark.parametrize("support", [SUPPORT, {"tensorrt": set()}], ids=["many blocks", "one"])
def test_storages_are_shared_and_none_is_new(support):
    gm = layers(count=16, width=32)
    parent, _ = hierarchical_adjacency_partition(
        gm, min_block_size=1, backend_support_map=support, backend_priority=list(support)
    )
    assert storages(parent) == storages(gm)
    originals = {id(p) for p in gm.parameters()}
    for module in parent.modules():
        assert {id(p) for p in module.parameters(recurse=False)} <= originals
    assert torch.equal(parent(torch.ones(1, 32)), gm(torch.ones(1, 32)))


PROBE = """
import copy, json, sys
import torch
from hierpart import hierarchical_adjacency_partition
from tests.test_memory import SUPPORT, layers

def split(gm):
    options = dict(backend_support_map=SUPPORT, backend_priority=list(SUPPORT))
    return hierarchical_adjacency_partition(gm, min_block_size=1, **options)[0]

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

split(layers(4, 8))  # imports and caches
gm = layers(count=32, width=1024)
weights = sum(p.numel() * p.element_size() for p in gm.parameters())
act = {"split": split, "deepcopy": copy.deepcopy}[sys.argv[1]]
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts from the present size
before = status("VmRSS")
kept = act(gm)
blocks = len(list(kept.named_children()))
print(json.dumps({"weights": weights, "growth": status("VmHWM") - before, "blocks": blocks}))
"""


def probe(action: str) -> dict[str, int]:
    """Run one action in a process of its own and return how far its resident size grew."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, action],
        capture_output=True,
        text=True,
        check=True,
        cwd=pathlib.Path(__file__).parent.parent,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="needs Linux /proc")
def test_the_peak_of_a_split_is_the_graph_and_a_twentieth_of_the_weights():
    found = probe("split")
    assert found["blocks"] == 64
    assert found["weights"] > 100 << 20
    assert found["growth"] <= 0.05 * found["weights"] + found["blocks"] * BYTES_A_BLOCK
    assert probe("deepcopy")["growth"] > 0.9 * found["weights"]  # the probe sees a copy
