"""The seven behaviours that torch_tensorrt's own tests describe, re-told, and both side by side.

Every test of the first part runs twice: on hierpart and, where it can be imported, on
torch_tensorrt's function of the same name, which keeps the re-telling honest.
"""

from __future__ import annotations

import copy
import functools
import operator
import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import hierpart
from benchmarks import peers
from tests.cases.harness import export, same, trace, vector

aten = torch.ops.aten
ATEN = "torch.ops.aten."
BLOCK = re.compile(r"_run_on_(?:acc_(\w+)|(gpu))_\d+")
Partition = Callable[..., Any]


@functools.cache
def peers_function() -> Partition | str:
    """Return torch_tensorrt's function, or why it is not to be had here."""
    if why := peers.missing():
        return why
    module = sys.modules["torch_tensorrt.dynamo.partitioning._hierarchical_partitioner"]
    return module.hierarchical_adjacency_partition


@pytest.fixture(params=["hierpart", "torch_tensorrt"])
def partition(request, monkeypatch) -> Partition:
    """The function under test."""
    return prepared(request.param, monkeypatch)


@pytest.fixture
def peer(monkeypatch) -> Partition:
    """torch_tensorrt's function."""
    return prepared("torch_tensorrt", monkeypatch)


def prepared(name: str, monkeypatch: pytest.MonkeyPatch) -> Partition:
    if name == "hierpart":
        return hierpart.hierarchical_adjacency_partition
    function = peers_function()
    if isinstance(function, str):
        pytest.skip(f"torch_tensorrt cannot be imported: {function}")
    monkeypatch.setattr(sys, "argv", ["program"])  # its settings parse the program's arguments
    return function


@dataclass(frozen=True)
class Outcome:
    """Blocks of a result in the order of their calls: owner and ops, unpacking left out."""

    blocks: tuple[tuple[str, tuple[Any, ...]], ...]
    parent: GraphModule

    @property
    def accelerated(self) -> list[str]:
        return [owner for owner, _ in self.blocks if owner != "gpu"]

    def ops(self, *owners: str) -> list[Any]:
        """Ops of all blocks of these owners."""
        return [op for owner, ops in self.blocks for op in ops if owner in owners]


def outcome(
    partition: Partition, gm: GraphModule, args: tuple[Any, ...], **options: Any
) -> Outcome:
    """Split a copy of ``gm`` and check that the result computes what ``gm`` does (C8)."""
    parent, _ = partition(copy.deepcopy(gm), **options)
    torch.manual_seed(0)
    wanted = gm(*args)
    torch.manual_seed(0)
    same(parent(*args), wanted, "result")
    blocks = []
    for node in parent.graph.nodes:
        found = BLOCK.fullmatch(str(node.target)) if node.op == "call_module" else None
        if found:
            graph = parent.get_submodule(node.target).graph
            calls = [n for n in graph.nodes if n.op.startswith("call_")]
            ops = tuple(n.target for n in calls if n.target is not operator.getitem)
            blocks.append((found[1] or found[2], ops))
    return Outcome(tuple(blocks), parent)


# ------------------------------------------------------------------ the seven


class OneOp(nn.Module):
    """Adds two inputs."""

    def forward(self, x, y):
        return aten.sub.Tensor(x, y)


class FourOps(nn.Module):
    """Four ops, one after the other, two of them on both inputs."""

    def forward(self, x, y):
        z = aten.sub.Tensor(x, y)
        z = aten.mul.Tensor(z, x)
        return aten.tanh.default(aten.neg.default(z))


class Interrupted(nn.Module):
    """Two supported ops, one that no backend lists, two supported ops."""

    def forward(self, x, y):
        z = aten.neg.default(aten.sub.Tensor(x, y))
        z = aten.cumsum.default(z, 0)
        return aten.tanh.default(aten.mul.Tensor(z, y))


LISTED = {ATEN + n for n in ("sub.Tensor", "mul.Tensor", "neg.default", "tanh.default")}
MAP = {"backend_support_map": {"tensorrt": LISTED}, "backend_priority": ["tensorrt"]}
PAIR = (vector(3), vector(3, seed=1))


def test_one_op_is_below_the_default_minimum(partition):
    """1: no accelerated block."""
    assert outcome(partition, trace(OneOp()), PAIR, **MAP).accelerated == []


def test_one_op_where_full_compilation_is_required(partition):
    """2: one accelerated block."""
    made = outcome(partition, trace(OneOp()), PAIR, **MAP, require_full_compilation=True)
    assert made.blocks == (("tensorrt", (aten.sub.Tensor,)),)


def test_four_ops_at_a_minimum_of_two(partition):
    """3: one accelerated block."""
    made = outcome(partition, trace(FourOps()), PAIR, **MAP, min_block_size=2)
    assert made.accelerated == ["tensorrt"]
    assert len(made.ops("tensorrt")) == 4


def test_an_unsupported_op_in_the_middle(partition):
    """4: two accelerated blocks and the op between them."""
    made = outcome(partition, trace(Interrupted()), PAIR, **MAP, min_block_size=2)
    assert [owner for owner, _ in made.blocks] == ["tensorrt", "gpu", "tensorrt"]
    assert made.ops("gpu") == [aten.cumsum.default]


@pytest.mark.parametrize("op", [ATEN + "mul.Tensor", aten.mul.Tensor], ids=["name", "op"])
def test_ops_that_are_to_run_eagerly_never_run_accelerated(partition, op):
    """5: the op is in no accelerated block, all the others are."""
    made = outcome(
        partition, trace(FourOps()), PAIR, **MAP, min_block_size=1, torch_executed_ops={op}
    )
    assert made.ops("gpu") == [aten.mul.Tensor]
    assert set(made.ops("tensorrt")) == {aten.sub.Tensor, aten.neg.default, aten.tanh.default}


class Twice(nn.Module):
    """Convolution, batch norm and relu, twice."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(x)))


IMAGE = (vector(1, 3, 6, 6),)


@functools.cache
def twice(capture: str) -> tuple[GraphModule, dict[str, Any]]:
    """The network as a graph, and what each of its three ops is called there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Twice().eval()
    if capture == "exported":
        names = (
            "convolution.default",
            "_native_batch_norm_legit_no_training.default",
            "relu.default",
        )
        return export(model, IMAGE), dict(zip("cnr", (ATEN + n for n in names), strict=True))
    return trace(model), {"c": nn.Conv2d, "n": nn.BatchNorm2d, "r": nn.ReLU}


def network_options(ops: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "backend_support_map": {
            "inductor": {ops["c"]}, "tensorrt": {*ops.values(), "_operator.getitem"},
        },
        "backend_priority": ["inductor", "tensorrt"], "min_block_size": 1,
    }  # fmt: skip


def test_convolutions_on_one_backend_and_the_rest_on_the_other(partition):
    """6: exactly two inductor and two tensorrt blocks, and nothing else."""
    gm, ops = twice("exported")
    made = outcome(partition, gm, IMAGE, **network_options(ops))
    assert [owner for owner, _ in made.blocks] == ["inductor", "tensorrt"] * 2
    assert [len(block) for _, block in made.blocks] == [1, 2, 1, 2]


def test_with_the_norms_excluded_there_are_two_blocks_of_each_kind(partition):
    """7: two eager, two inductor and two tensorrt blocks."""
    gm, ops = twice("exported")
    made = outcome(partition, gm, IMAGE, **network_options(ops), torch_executed_ops={ops["n"]})
    assert [owner for owner, _ in made.blocks] == ["inductor", "gpu", "tensorrt"] * 2


def test_the_network_as_called_modules():
    """6 and 7 on a symbolic trace, whose modules we match by type; the peer does not."""
    gm, ops = twice("traced")
    ours = functools.partial(outcome, hierpart.hierarchical_adjacency_partition, gm, IMAGE)
    made = ours(**network_options(ops))
    assert [owner for owner, _ in made.blocks] == ["inductor", "tensorrt"] * 2
    made = ours(**network_options(ops), torch_executed_ops={nn.BatchNorm2d})
    assert [owner for owner, _ in made.blocks] == ["inductor", "gpu", "tensorrt"] * 2


def test_the_tester_counts(partition):
    """Unsupported ops are counted by name, supported ones by backend and name."""
    _, tester = partition(trace(Interrupted()), min_block_size=2, **MAP)
    assert tester.unsupported_operators == {ATEN + "cumsum.default": 1}
    assert set(tester.supported_operators) == {f"tensorrt_{name}" for name in LISTED}


# ------------------------------------------------------------------ side by side


class Branches(nn.Module):
    """Independent chains of two owners that meet again."""

    def forward(self, x, y):
        a = [aten.neg.default(aten.tanh.default(x)) for _ in range(3)]
        b = [aten.exp.default(aten.sin.default(y)) for _ in range(3)]
        return aten.add.Tensor(aten.add.Tensor(a[0], b[0]), aten.add.Tensor(a[1], b[2])), a[2], b[1]


class Mixed(nn.Module):
    """A residual network of ops of three owners."""

    def forward(self, x, y):
        for _ in range(3):
            h = aten.sin.default(aten.tanh.default(x))
            x = aten.add.Tensor(aten.cumsum.default(h, 0), aten.neg.default(x))
        return aten.exp.default(x), aten.sub.Tensor(x, y)


class Unpacked(nn.Module):
    """Several results, taken apart far from where they were made."""

    def forward(self, x, y):
        parts = aten.split.Tensor(x, 1)
        h = aten.tanh.default(y)
        return aten.sin.default(aten.add.Tensor(parts[0], h)), aten.exp.default(parts[2])


OPS = ("neg.default", "tanh.default", "exp.default", "sin.default", "add.Tensor", "sub.Tensor",
       "cumsum.default", "split.Tensor")  # fmt: skip


@pytest.mark.parametrize("model", [FourOps, Interrupted, Branches, Mixed, Unpacked])
@pytest.mark.parametrize("seed", [0, 1])
def test_never_more_blocks_nor_fewer_accelerated_ops_than_the_peer(model, seed, peer):
    """The same map and minimum: at most the peer's blocks, at least its accelerated ops."""
    rng = random.Random(seed)
    support: dict[str, set[str]] = {"tensorrt": {"_operator.getitem"}, "inductor": set()}
    for op in OPS:
        owner = rng.choice(["tensorrt", "inductor", "eager"])
        support.get(owner, set()).add(ATEN + op)
    options = {
        "backend_support_map": support, "backend_priority": ["tensorrt", "inductor"],
        "min_block_size": 1,
    }  # fmt: skip
    gm = trace(model())
    ours = outcome(hierpart.hierarchical_adjacency_partition, gm, PAIR, **options)
    theirs = outcome(peer, gm, PAIR, **options, skip_fusion=True)

    assert len(ours.blocks) <= len(theirs.blocks)
    for owner in ("tensorrt", "inductor"):
        assert set(theirs.ops(owner)) <= set(ours.ops(owner)) | {operator.getitem}
    assert len(ours.ops("tensorrt", "inductor")) >= len(theirs.ops("tensorrt", "inductor"))


def test_the_peers_own_result_can_be_split_by_us(peer):
    """C10: a split module, whoever made it, is a graph like any other."""
    options = {**MAP, "min_block_size": 1}
    theirs, _ = peer(trace(Interrupted()), **options)
    ours, _ = hierpart.hierarchical_adjacency_partition(theirs, **options)
    same(ours(*PAIR), Interrupted()(*PAIR), "split of a split")
