"""docs/peers-faults.md is true: every block of it runs, torch_tensorrt's where it is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hierpart.testing import adapters, random_graph_module

PAGE = Path(__file__).resolve().parent.parent / "docs" / "peers-faults.md"
FENCE = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_faults_are_there(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program"])  # its settings parse the program's arguments
    fences = FENCE.findall(PAGE.read_text())
    names = {}
    for language, code in fences:
        if language == "python":
            exec(code, names)
    try:
        adapters.torch_tensorrt_hierarchical(names["written"](), **names["options"])
    except adapters.Unavailable as error:
        pytest.skip(str(error))
    theirs = [code for language, code in fences if language == "py"]
    assert len(theirs) == 5
    for code in theirs:
        exec(code, names)


def test_random_graphs_have_sizes_that_two_groups_share(monkeypatch):
    """Torch's splitter refuses what the page shows; ours does not."""
    monkeypatch.setattr(sys, "argv", ["program"])
    refused = 0
    for seed in range(20):
        gm = random_graph_module(seed, 4, features={"arithmetic", "sizes"})
        targets = {n.target for n in gm.graph.nodes if n.op == "call_function"}
        every = {
            "backend_priority": ["fast"],
            "backend_support_map": {"fast": [adapters._name(t) for t in targets]},
            "min_block_size": 1,
        }
        adapters.hierpart(gm, **every)
        try:
            adapters.splitter_base(gm, **every)
        except Exception as error:
            refused += "Subgraph can't be empty" in str(error)
    assert refused
