"""C9: one graph gives one plan, however the heap lies and whatever the order of the options."""

from __future__ import annotations

import random

import torch
from torch import nn

from tests.cases.harness import agree, export, maps, operators, split, trace, vector
from tests.models import twin

ATEN = "torch.ops.aten."


class Branches(nn.Module):
    """Eight branches of four ops each, all alike."""

    def forward(self, x):
        starts = [torch.relu(x + float(i)) for i in range(8)]
        return torch.stack([torch.cos(torch.tanh(torch.sin(h))) for h in starts])


SUPPORT = {
    "tensorrt": {ATEN + op for op in ("relu.default", "tanh.default", "add.Tensor")},
    "inductor": {ATEN + op for op in ("sin.default", "cos.default")},
}
ARGS = (vector(2, 2),)


def shape_of(result):
    return [
        (b.name, [(n.op, n.name, str(n.target)) for n in b.module.graph.nodes])
        for b in result.blocks
    ]


def test_equal_graphs_at_other_addresses_give_one_result():
    rng, kept, found = random.Random(0), [], []
    gm = export(Branches(), ARGS)
    for i in range(12):
        kept.append([bytearray(rng.randint(1, 4000)) for _ in range(40 * i)])
        rng.shuffle(kept[-1])
        del kept[-1][::2]
        result = split(twin(gm), SUPPORT)
        kept.append(result)
        found.append((shape_of(result), result.plan.fingerprint(), result.parent.code))
    assert all(f == found[0] for f in found)


def test_the_order_of_the_collections_given_does_not_matter():
    gm = export(Branches(), ARGS)
    ops = sorted(SUPPORT["tensorrt"])
    plans = {
        split(gm, {"tensorrt": kind, "inductor": sorted(SUPPORT["inductor"])}).plan.fingerprint()
        for kind in (ops, ops[::-1], tuple(ops), set(ops), frozenset(ops), dict.fromkeys(ops))
    }
    assert len(plans) == 1


def test_names_of_nodes_do_not_decide():
    class Renamed(nn.Module):
        def forward(self, x):
            return Branches.forward(self, x)

    first, second = export(Branches(), ARGS), export(Renamed(), ARGS)
    for i, node in enumerate(second.graph.nodes):
        if node.op == "call_function":
            node._rename(f"z{1000 - i}")
    second.recompile()
    for support in maps(first, limit=8):
        one, two = split(first, support), split(second, support)
        assert [len(b.calls()) for b in one.blocks] == [len(b.calls()) for b in two.blocks]
        assert one.backends == two.backends


def test_independent_branches_are_not_cut_into_pieces():
    class Two(nn.Module):
        def forward(self, x):
            a = b = x
            for _ in range(3):
                a = torch.tanh(torch.relu(a))
                b = torch.cos(torch.sin(b))
            return a, b

    result = split(export(Two(), ARGS), SUPPORT)
    assert sorted(result.backends) == ["inductor", "tensorrt"]
    agree(result, ARGS)


def test_every_map_of_the_branches_gives_few_blocks():
    gm = trace(Branches(), ARGS)
    for support in maps(gm, limit=30):
        result = split(gm, support)
        assert len(result.blocks) == result.plan.lower_bound <= len(operators(gm)) + 1
        agree(result, ARGS)
