"""Sizes: nothing is baked in, only tensors and single numbers cross, symbols can be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hierpart.plan import EAGER
from tests.cases.harness import Split, agree, everywhere, export, split, through_dynamo, vector

ROWS = torch.export.Dim("rows", min=2, max=64)
LONG = torch.export.Dim("long", min=4, max=64)  # so that half of it is no single row
COLUMNS = torch.export.Dim("columns", min=2, max=64)
ATEN = "torch.ops.aten."


def numbers_only(result: Split) -> None:
    """No placeholder or output of a block stands for a size as a whole."""
    for block in result.blocks:
        returned = block.module.graph.output_node().args[0]
        for node in (*block.module.graph.find_nodes(op="placeholder"), *returned):
            value = node.meta.get("val", node.meta.get("example_value"))
            assert not isinstance(value, (tuple, list)), f"{node.name} of {block.name}: {value!r}"


def test_a_size_as_a_whole_does_not_cross():
    class Model(nn.Module):
        def forward(self, a, b):
            h = torch.relu(a)
            size = h.size()
            gate = torch.cumsum(h, 1)
            return torch.sin(torch.reshape(b, size)) * gate

    support = {
        "tensorrt": {"torch.relu", "size", "torch.sin", "_operator.mul"},
        "inductor": {"torch.reshape"},
    }
    calls = [(vector(6, 4), vector(24)), (vector(5, 4), vector(20)), (vector(7, 4), vector(28))]
    for dynamic in (False, True):
        for result in through_dynamo(Model(), calls, support, dynamic=dynamic):
            numbers_only(result)


SIZE_USES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "shape[0]": lambda x, y: y.expand(x.shape[0], 4),
    "size(0)": lambda x, y: y.expand(x.size(0), 4),
    "product": lambda x, y: x.reshape(x.shape[0] * x.shape[1]),
    "numel": lambda x, y: torch.full((x.numel(),), 2.0),
    "floor division": lambda x, y: torch.zeros(x.shape[0] // 2, 3),
    "narrow": lambda x, y: x.narrow(0, 0, x.shape[0] - 1),
    "float": lambda x, y: y * (x.shape[0] ** 0.5),
    "arange": lambda x, y: torch.arange(x.shape[0] + 1),
    "max": lambda x, y: torch.zeros(max(x.shape[0], x.shape[1])),
    "stride": lambda x, y: y.expand(x.stride(0), 4),
    "like": lambda x, y: torch.ones_like(x) * x.shape[0],
}


@pytest.mark.parametrize("use", SIZE_USES.values(), ids=SIZE_USES)
def test_other_sizes_work_without_another_split(use):
    class Model(nn.Module):
        def forward(self, x, y):
            h = torch.cumsum(torch.relu(x), 0)
            used = use(h, torch.sin(y))
            return torch.tanh(used), h, x.shape[0] * 2

    args = (vector(5, 4), vector(1, 4))
    gm = export(Model(), args, dynamic={"x": {0: LONG}, "y": None})
    more = [(vector(8, 4), vector(1, 4)), (vector(4, 4), vector(1, 4))]
    for result in everywhere(gm, args, more=more):
        numbers_only(result)


def test_attention_over_batch_and_length():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls = nn.Parameter(torch.ones(1, 1, 6))
            self.qkv = nn.Linear(6, 18)

        def forward(self, x):
            n = x.shape[0]
            h = torch.cat([self.cls.expand(n, -1, -1), torch.relu(x)], 1)
            h = torch.cumsum(self.qkv(h), 1)
            h = h.reshape(n, h.shape[1], 3, 2, -1).permute(2, 0, 3, 1, 4)
            q, k, v = h.unbind(0)
            w = torch.softmax(q @ k.transpose(-1, -2), -1)
            return (w @ v).transpose(1, 2).reshape(n, h.shape[3], 6), n * 2

    args = (vector(4, 5, 6),)
    gm = export(Model(), args, dynamic={"x": {0: ROWS, 1: COLUMNS}})
    was = {n.name: n.meta["val"] for n in gm.graph.nodes if "val" in n.meta}
    for result in everywhere(gm, args, more=[(vector(2, 9, 6),), (vector(7, 3, 6),)]):
        numbers_only(result)
        for block in result.blocks:
            for node in block.module.graph.find_nodes(op="placeholder"):
                if isinstance(was.get(node.name), torch.Tensor):
                    kinds = [type(d) for d in was[node.name].shape]
                    assert [type(d) for d in node.meta["val"].shape] == kinds


def symbols_of(value):
    """Return (symbols in the sizes of ``value``, those of them that stand there alone)."""
    sizes = [value] if isinstance(value, torch.SymInt) else []
    if isinstance(value, torch.Tensor):
        sizes = [s for s in (*value.shape, *value.stride()) if isinstance(s, torch.SymInt)]
    used = {x for s in sizes for x in s.node.expr.free_symbols}
    return used, {s.node.expr for s in sizes if s.node.expr.is_Symbol}


def test_each_symbol_of_a_compiled_block_can_be_told_from_its_inputs():
    class Model(nn.Module):
        def forward(self, x, y):
            z = torch.cat([torch.relu(x), torch.relu(y)], 0)
            w = torch.cumsum(z, 0)
            n = x.shape[0]
            return torch.sin(w[:n]) * 2.0, torch.cos(w)

    args = (vector(3, 4), vector(5, 4, seed=1))
    gm = export(Model(), args, dynamic={"x": {0: ROWS}, "y": {0: COLUMNS}})
    for result in everywhere(gm, args, more=[(vector(7, 4), vector(2, 4, seed=1))]):
        for block in result.blocks:
            if block.backend != "inductor":
                continue
            used, bound = set(), set()
            for node in block.module.graph.nodes:
                symbols, alone = symbols_of(node.meta.get("val"))
                used |= symbols
                bound |= alone if node.op == "placeholder" else set()
            assert used <= bound, f"{block.name} cannot tell {used - bound}"


def test_one_unsupported_use_of_a_size_leaves_the_rest_accelerated():
    class Model(nn.Module):
        def forward(self, x):
            rows = x.shape[0]
            h = x.reshape(rows * 2, 2)
            for _ in range(4):
                h = torch.tanh(torch.relu(h))
            return torch.sin(h.reshape(rows, 4)), torch.arange(rows)

    args = (vector(3, 4),)
    gm = export(Model(), args, dynamic={"x": {0: ROWS}})
    names = {"relu.default", "tanh.default", "view.default", "sin.default", "sym_size.int"}
    result = split(gm, {"tensorrt": {ATEN + n for n in names} | {"_operator.mul"}})
    for op in ("relu", "tanh", "view", "aten.sin"):
        assert result.home_of_op(op) == {"tensorrt"}
    assert result.home_of_op("arange") == {EAGER}
    assert len(result.blocks) == 2
    agree(result, args, more=[(vector(5, 4),)])


@pytest.mark.parametrize("op", ["nonzero", "item", "unique", "mask"])
def test_sizes_that_depend_on_data(op):
    class Model(nn.Module):
        def forward(self, x, n):
            h = torch.relu(x)
            if op == "nonzero":
                part = torch.nonzero(h)
            elif op == "unique":
                part = torch.unique(torch.round(h))
            elif op == "mask":
                part = h[h > 0]
            else:
                k = n.item()
                torch._check(k >= 2)
                torch._check(k <= 6)
                part = torch.ones(k, 3)
            count = part.shape[0]
            return torch.sin(part.double()), torch.full((3,), 1.0) * count, torch.cumsum(h, 0)

    args = (vector(6, 4), torch.tensor(3))
    more = [(vector(6, 4, seed=2), torch.tensor(5))]
    for result in everywhere(export(Model(), args), args, more=more, limit=16):
        numbers_only(result)


def test_integer_arguments_become_symbols_under_torch_compile():
    class Model(nn.Module):
        def forward(self, x, n):
            h = torch.relu(x)
            wide = torch.cumsum(h, 0).repeat(n, 1)
            return torch.sin(wide), torch.cos(h) * n

    support = {"tensorrt": {"torch.relu", "torch.sin"}, "inductor": {"torch.cos", "repeat"}}
    calls = [(vector(3, 4), 2), (vector(5, 4), 3), (vector(7, 4), 4)]
    for result in through_dynamo(Model(), calls, support, dynamic=True):
        numbers_only(result)
