"""C6: what crosses from one block to another, and that it crosses as the graph defines it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from hierpart.plan import EAGER
from tests.cases.harness import Split, everywhere, export, record, split, trace, vector

aten = torch.ops.aten


def crossing(result: Split, args: tuple[Any, ...]) -> list[tuple[str, str, Any]]:
    """Call the split module and return (block, "in" or "out", value) for all that crosses."""
    seen: list[tuple[str, str, Any]] = []
    handles = []
    for block in result.blocks:

        def hook(module, inputs, outputs, name=block.name):
            seen.extend((name, "in", v) for v in inputs)
            seen.extend((name, "out", v) for v in outputs)

        handles.append(block.module.register_forward_hook(hook))
    result.parent(*args)
    for handle in handles:
        handle.remove()
    return seen


def tensors_only(result: Split, args: tuple[Any, ...]) -> None:
    for name, way, value in crossing(result, args):
        assert isinstance(value, torch.Tensor), f"{type(value).__name__} goes {way} of {name}"


# ------------------------------------------------------------------ ops with several outputs

SEVERAL = {
    "split": lambda x: torch.split(x, [3, 4, 5], dim=1),
    "even split": lambda x: torch.split(x, 4, dim=1),
    "chunk": lambda x: torch.chunk(x, 3, dim=1),
    "unbind": lambda x: torch.unbind(x.reshape(2, 3, 4), 1),
    "sort": lambda x: torch.sort(x, dim=1),
    "topk": lambda x: torch.topk(x, 3, dim=1),
    "max": lambda x: torch.max(x, 1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1, keepdim=True),
    "layer_norm": lambda x: aten.native_layer_norm.default(x, [12], None, None, 1e-5),
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1, keepdim=True),
    "qr": lambda x: torch.linalg.qr(x),
}


@pytest.mark.parametrize("op", SEVERAL.values(), ids=SEVERAL)
def test_unpacking_happens_with_the_producer(op):
    class Model(nn.Module):
        def forward(self, x):
            parts = op(torch.relu(x))
            y = torch.cumsum(torch.sin(parts[0].double()), 0)
            return torch.tanh(parts[-1].double()), torch.cos(y), parts[0]

    args = (vector(2, 12),)
    for result in everywhere(export(Model(), args), args):
        tensors_only(result, args)


@pytest.mark.parametrize("recorded", [True, False], ids=["values", "no values"])
def test_unpacking_far_below_the_producer(recorded):
    class Model(nn.Module):
        def forward(self, x):
            pair = torch.max(x, 1)
            y = torch.cumsum(torch.sin(x), 0)
            z = torch.relu(y)
            where = pair[1]
            z = torch.cos(z)
            best = pair[0]
            return torch.add(z, torch.unsqueeze(best, 1)), where

    args = (vector(3, 5),)
    for result in everywhere(trace(Model(), args if recorded else ()), args):
        tensors_only(result, args)
        home = {n.name: b.name for b in result.blocks for n in b.calls()}
        unpacked = [n for n in home if n.startswith("getitem")]
        assert {home[n] for n in unpacked} == {home["max_1"]}


def test_a_list_that_is_used_whole():
    class Model(nn.Module):
        def forward(self, x):
            rows = aten.unbind.int(torch.relu(x), 0)
            back = aten.stack.default(rows, 1)
            return torch.sin(back), aten.cat.default(rows)

    args = (vector(3, 4),)
    for result in everywhere(trace(Model(), args), args):
        tensors_only(result, args)


def test_a_tuple_that_is_a_result():
    graph = Graph()
    x = graph.placeholder("x")
    pair = graph.call_function(aten.sort.default, (x,))
    best = graph.call_function(operator.getitem, (pair, 0))
    late = graph.call_function(aten.sin.default, (best,))
    graph.output((pair, late))
    gm = GraphModule(nn.Module(), graph)
    record(gm, (vector(4),))
    everywhere(gm, (vector(4),))


def test_exactly_the_outputs_that_are_read_leave_a_block():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.pool = nn.MaxPool2d(2, return_indices=True)

        def forward(self, x):
            h = self.norm(x)
            top, where = torch.topk(h, 3, dim=-1)
            torch.relu(top)
            p, _ = self.pool(h.reshape(1, 1, 6, 4))
            return torch.cumsum(where, -1), torch.tanh(p)

    args = (vector(4, 6),)
    gm = export(Model(), args)
    everywhere(gm, args)  # check_structure looks at the outputs of every block
    names = {"native_layer_norm", "topk", "view", "tanh", "max_pool2d_with_indices"}
    support = {f"torch.ops.aten.{n}.default" for n in names}
    result = split(gm, {"tensorrt": support})
    assert sorted(result.backends) == [EAGER, "tensorrt"]


def test_results_keep_their_places_when_uses_are_in_reverse():
    class Model(nn.Module):
        def forward(self, x):
            a, b, c = torch.relu(x), torch.sigmoid(x), torch.tanh(x)
            d = torch.exp(-a)
            w = torch.cumsum(d, 0)
            v = torch.cumsum(c, 0) - w
            u = torch.cumprod(b, 0) + v
            t = torch.cummax(a, 0).values * u
            return d, b, t, a, c

    args = (vector(3, 3),)
    everywhere(export(Model(), args), args)


def test_one_value_given_out_twice_and_an_input_given_back():
    class Model(nn.Module):
        def forward(self, x, y):
            a = torch.sin(x)
            return a, y, {"again": a, "input": x}, torch.cumsum(a, 0)

    args = (vector(3), vector(3, seed=1))
    everywhere(export(Model(), args), args)


# ------------------------------------------------------------------ dtypes and shapes


def test_integer_regions_keep_their_dtype():
    def quantise(x, scale):
        return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)

    def restore(x, scale):
        return x.to(torch.float32) * scale

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            h = torch.relu(self.linear(restore(quantise(x, 0.05), 0.05)))
            b = quantise(h, 0.02)
            inside = torch.tanh(restore(b, 0.02))
            return inside + restore(torch.cumsum(b, 1), 0.02), b

    args = (vector(2, 8),)
    gm = export(Model(), args)
    values = {n.name: n.meta.get("val") for n in gm.graph.nodes}
    declared = {n: v.dtype for n, v in values.items() if isinstance(v, torch.Tensor)}
    for result in everywhere(gm, args):
        log = [v for _, way, v in crossing(result, args) if way == "out"]
        outs = [n for b in result.blocks for n in b.module.graph.output_node().args[0]]
        assert [v.dtype for v in log] == [declared[n.name] for n in outs if n.name in declared]


DTYPES = [
    torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
def test_every_dtype_and_shape_crosses_as_it_is(dtype, shape):
    class Model(nn.Module):
        def forward(self, x):
            a = aten.clone.default(x)
            b = aten.flip.default(a, [])
            return aten.eq.Tensor(a, b), aten.view.default(b, [-1]), a

    args = (vector(*shape).mul(2).to(dtype),)
    everywhere(trace(Model(), args), args, limit=9)


def test_large_integers_and_indices():
    class Model(nn.Module):
        def forward(self, data, index, ids):
            at = index.to(torch.int64) + 1
            h = (data * data).scatter(1, at, 7.0)
            big = torch.bitwise_xor(ids * 3, ids)
            return torch.relu(h + 1.0), big, at, torch.gather(data, 1, at)

    index = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32)
    args = (vector(5, 5), index, torch.tensor([2**33 + 5, 11, -(2**40)]))
    everywhere(export(Model(), args), args)


def test_scalars_and_masks():
    class Model(nn.Module):
        def forward(self, x, t, mask):
            both = mask | (x > t)
            h = torch.where(both, x * t, t)
            total = torch.logical_not(torch.cumsum(both.to(torch.int32), 0) > 2)
            return torch.relu(h), total, torch.neg(t), both.any()

    args = (vector(4, 3), torch.tensor(0.25), vector(4, 3, seed=1) > 0)
    everywhere(export(Model(), args), args)


def test_an_empty_cache():
    class Model(nn.Module):
        def forward(self, cache, x):
            first = cache[:, :2]
            grown = torch.cat([first, torch.relu(x)], 1)
            flat = torch.cumsum(grown, 1).reshape(1, -1)
            return torch.tanh(flat), torch.sin(first)

    args = (torch.empty(1, 0, 4), vector(1, 3, 4))
    everywhere(export(Model(), args), args)


def test_no_tensor_of_high_rank_enters_or_leaves_tensorrt():
    class Model(nn.Module):
        def forward(self, x):
            w = torch.cumsum(torch.relu(x).reshape(2, 1, 2, 1, 2, 1, 2, 1, 2, 1), 0)
            w = torch.sigmoid(w).permute(0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
            return torch.tanh(w.reshape(8, 4))

    args = (vector(4, 8),)
    for result in everywhere(export(Model(), args), args):
        kinds = dict(zip((b.name for b in result.blocks), result.backends, strict=True))
        ranks = [v.dim() for name, _, v in crossing(result, args) if kinds[name] == "tensorrt"]
        assert max(ranks, default=0) <= 8


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "expanded"])
def test_strides_at_a_boundary_are_those_of_the_graph(layout):
    shapes = {
        "channels_last": lambda t: t.to(memory_format=torch.channels_last),
        "transposed": lambda t: t.transpose(1, 3),
        "strided": lambda t: t[:, :, ::2],
        "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
    }

    class Model(nn.Module):
        def forward(self, x):
            a = shapes[layout](torch.relu(x))
            return torch.sin(a), a, torch.cumsum(a, 1)

    args = (vector(2, 3, 4, 4),)
    everywhere(trace(Model(), args), args)


# ------------------------------------------------------------------ None, objects, numbers


def test_optional_results_that_are_none():
    class Model(nn.Module):
        def forward(self, x, dy):
            h, mean, rstd = aten.native_layer_norm.default(x, [6], None, None, 1e-5)
            wanted = [True, False, False]
            got = aten.native_layer_norm_backward.default(
                dy, x, [6], mean, rstd, None, None, wanted
            )
            return torch.sin(got[0]), got[1], torch.cumsum(h, 0), got[2]

    args = (vector(2, 6), vector(2, 6, seed=1))
    for result in everywhere(trace(Model(), args), args):
        assert [t is None for t in result.parent(*args)] == [False, True, False, True]


def test_arguments_that_are_no_tensors():
    class Model(nn.Module):
        def forward(self, x, mask, mode, times, as_dict):
            h = torch.relu(x) * times
            h = h if mask is None else h + mask
            h = torch.cumsum(h, 0)
            h = torch.sin(h) if mode == "sin" else torch.cos(h)
            return {"h": h} if as_dict else (h,)

    args = (vector(3, 3), None, "sin", 3, False)
    for result in everywhere(export(Model(), args), args):
        tensors_only(result, args)


def test_a_number_read_from_a_tensor():
    class Model(nn.Module):
        def forward(self, x, n):
            factor = n.item()
            return torch.sin(x * factor), torch.cumsum(x, 0) + factor

    args = (vector(3), torch.tensor(2.0))
    more = [(vector(3), torch.tensor(5.0))]
    everywhere(export(Model(), args), args, more=more)


def test_functions_of_python_values():
    class Model(nn.Module):
        def forward(self, x):
            name, dtype, device = getattr(x, "ndim"), x.dtype, x.device  # noqa: B009
            y = torch.cumsum(torch.sin(x), 0)
            z = torch.zeros(2, dtype=dtype, device=device)
            return torch.cos(y).to(dtype) + name, torch.relu(z)

    everywhere(trace(Model()), (vector(3),), more=[(vector(3, seed=1).double(),)])


def test_a_slice_object_in_arguments():
    class Model(nn.Module):
        def forward(self, x):
            h = torch.sin(x)
            n = h.size(0)
            y = torch.cumsum(h, 0)
            return torch.cos(y)[: n // 2], torch.relu(y)[..., n - 1 :]

    everywhere(trace(Model(), (vector(4, 4),)), (vector(4, 4),))


def test_merging_makes_no_circle():
    class Model(nn.Module):
        def forward(self, a, b):
            p, q = torch.relu(a), torch.sigmoid(b)
            left = p + q
            away = torch.cumsum(left, 0)
            back = torch.cumprod(q, 0)
            m, n = p * away, left * back
            again = torch.cumsum(m + n, 1)
            return (m + n) * again, n

    args = (vector(4, 4), vector(4, 4, seed=1))
    gm = export(Model(), args)
    for result in everywhere(gm, args):
        called = [b.name for b in result.blocks]
        for node in result.parent.graph.find_nodes(op="call_module", target=called[-1]):
            assert all(n.op in ("placeholder", "call_function") for n in node.all_input_nodes)


def test_units_tied_by_numbers_do_not_deadlock():
    class Model(nn.Module):
        def forward(self, x, y):
            n, m = x.shape[0], y.shape[0]
            u, v = torch.relu(x).view(n * 4), torch.relu(y).view(m * 4)
            k = u.sum() + v.sum()
            return torch.sin(k.expand(n * 4) + 1.0), torch.sin(k.expand(m * 4) + 2.0)

    rows, columns = (torch.export.Dim(name, min=2, max=64) for name in ("rows", "columns"))
    args = (vector(3, 4), vector(5, 4, seed=1))
    gm = export(Model(), args, dynamic={"x": {0: rows}, "y": {0: columns}})
    everywhere(gm, args, more=[(vector(6, 4), vector(2, 4, seed=1))])


def test_a_result_agrees_when_a_block_hands_out_copies():
    """A backend may return fresh tensors; nothing outside may rely on sharing them."""

    class Model(nn.Module):
        def forward(self, x):
            a = torch.relu(x)
            return torch.sin(a.view(-1)), torch.cumsum(a, 0), a[0]

    args = (vector(3, 4),)
    result = split(export(Model(), args), {"tensorrt": {"torch.ops.aten.relu.default"}})
    want = result.source(*args)
    for block in result.blocks:
        block.module.register_forward_hook(lambda m, i, o: tuple(t.clone() for t in o))
    for got, right in zip(result.parent(*args), want, strict=True):
        assert torch.equal(got, right)
