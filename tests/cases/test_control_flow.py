"""Higher-order ops: their branches go where they go, whatever the owner, however deep."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx import GraphModule

from hierpart.plan import EAGER
from tests.cases.harness import Split, agree, everywhere, export, split, vector

COND = "torch.ops.higher_order.cond"
MATH = {f"torch.ops.aten.{op}.default" for op in ("relu", "tanh", "permute", "addmm", "sin", "cos")}
COMPARE = {
    "torch.ops.aten.sum.dim_IntList",
    "torch.ops.aten.gt.Scalar",
    "torch.ops.aten.add.Tensor",
}


@pytest.fixture(autouse=True)
def _without_gradients():
    """With gradients on, eager traces the branches of every cond anew at every call."""
    with torch.no_grad():
        yield


class Choice(nn.Module):
    """A cond between linear layers; each branch uses both operands."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, y):
        h = torch.relu(self.linear(x))
        flag = h.sum() > 0

        def yes(a, b):
            return torch.sin(a) + b

        def no(a, b):
            return torch.cos(a) - b

        return torch.tanh(torch.cond(flag, yes, no, (h, y)))


CHOICE_ARGS = (vector(2, 4), vector(2, 4, seed=1))
BOTH_WAYS = [
    (torch.full((2, 4), -50.0), vector(2, 4, seed=2)),
    (torch.full((2, 4), 50.0), vector(2, 4, seed=3)),
]


class Cache(nn.Module):
    """Read two tensors from a cache or compute them with weights that only one branch uses."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4, bias=False)
        self.value = nn.Linear(4, 4, bias=False)

    def forward(self, cached, states):
        ready = (cached != 0).any()

        def read(c, s):
            return c.clone(), c + 1.0

        def build(c, s):
            return self.key(s), self.value(s)

        k, v = torch.cond(ready, read, build, (cached, states))
        return torch.softmax(k @ v.transpose(0, 1), -1)


CACHE_ARGS = (torch.zeros(3, 4), vector(3, 4))
CACHE_MORE = [(vector(3, 4, seed=1), vector(3, 4, seed=2)), CACHE_ARGS]


class Nested(nn.Module):
    """A cond in a branch of a cond in a branch of a cond."""

    def forward(self, x):
        def deepest(flag, y):
            return torch.cond(flag, lambda z: z.sin(), lambda z: z.cos() + 1.0, (y,))

        def middle(flag, y):
            return torch.cond(flag, lambda z: deepest(z.sum() > 2, z), lambda z: z * 2.0, (y,))

        h = torch.relu(x)
        out = torch.cond(h.sum() > 0, lambda z: middle(z.sum() > 1, z), lambda z: z - 1.0, (h,))
        return torch.tanh(out)


NESTED_MORE = [(torch.full((2,), v),) for v in (-1.0, 0.3, 0.7, 5.0)]


class Loop(nn.Module):
    """A while_loop between supported ops, its count an argument."""

    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, x, n):
        h = torch.relu(x)

        def go_on(i, v):
            return i < 5

        def body(i, v):
            return i + 1, v * 2.0 + 1.0

        i, y = while_loop(go_on, body, (n.clone(), h))
        return torch.tanh(y) * self.step, i


LOOP_MORE = [(torch.ones(3, 2), torch.tensor(2)), (torch.ones(3, 2), torch.tensor(9))]


class Mapped(nn.Module):
    """The map op over rows, with a weight that its body closes over."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(vector(4, seed=5))

    def forward(self, xs):
        h = torch.sin(xs)
        return torch.tanh(torch_map(lambda row, w: torch.relu(row) * w, h, self.weight))


class Scanned(nn.Module):
    """A scan that carries a running sum."""

    def forward(self, start, xs):
        def step(carry, x):
            following = carry + x
            return following, torch.sin(following)

        last, rows = scan(step, torch.relu(start), torch.cos(xs))
        return torch.tanh(last), rows * 2.0


GRAPHS = {
    "cond": (Choice, CHOICE_ARGS, BOTH_WAYS),
    "cond with weights": (Cache, CACHE_ARGS, CACHE_MORE),
    "nested cond": (Nested, (vector(2),), NESTED_MORE),
    "while_loop": (Loop, (vector(3, 2), torch.tensor(0)), LOOP_MORE),
    "map": (Mapped, (vector(3, 4),), [(vector(3, 4, seed=1),)]),
    "scan": (Scanned, (vector(4), vector(3, 4, seed=1)), []),
}


@pytest.mark.parametrize(("model", "args", "more"), GRAPHS.values(), ids=GRAPHS)
def test_every_deal_of_ops_agrees(model, args, more):
    results = everywhere(export(model(), args), args, more=more, limit=16)
    for result in results:
        check_branches(result)


def check_branches(result: Split) -> None:
    """Each branch module is an attribute of the block of its op and crosses no boundary."""
    for block in result.blocks:
        for node in block.module.graph.nodes:
            if not isinstance(node.target, torch._ops.HigherOrderOperator):
                continue
            held = [n for n in node.all_input_nodes if n.op == "get_attr"]
            modules = [block.module.get_submodule(n.target) for n in held if _is_module(block, n)]
            assert modules, f"{node.name} has lost its branches"
            assert all(isinstance(m, GraphModule) for m in modules)


def _is_module(block, node):
    return node.target in dict(block.module.named_modules())


def test_a_cond_is_taken_whole_where_all_its_ops_are_supported():
    gm = export(Choice(), CHOICE_ARGS)
    everything = MATH | COMPARE | {COND, "torch.ops.aten.sub.Tensor"}
    result = split(gm, {"tensorrt": everything})
    assert result.backends == ["tensorrt"]
    agree(result, CHOICE_ARGS, more=BOTH_WAYS)


def test_an_op_that_no_backend_lists_is_eager_and_its_neighbours_are_not():
    gm = export(Loop(), (vector(3, 2), torch.tensor(0)))
    result = split(gm, {"tensorrt": MATH, "inductor": {"torch.ops.aten.clone.default"}})
    assert result.home_of_op("while_loop") == {EAGER}
    assert "tensorrt" in result.backends
    agree(result, (vector(3, 2), torch.tensor(0)), more=LOOP_MORE)


def test_gradients_reach_the_weights_of_a_branch():
    model = Cache()
    gm = export(model, CACHE_ARGS)
    with torch.enable_grad():
        model(*CACHE_ARGS).sin().sum().backward()
        wanted = {k: p.grad for k, p in model.named_parameters()}
        assert wanted["key.weight"].abs().sum() > 0
        for support in ({"tensorrt": {COND}}, {"inductor": {"torch.ops.aten.mm.default"}}):
            gm.zero_grad()
            split(gm, support).parent(*CACHE_ARGS).sin().sum().backward()
            torch.testing.assert_close({k: p.grad for k, p in gm.named_parameters()}, wanted)


def test_branch_weights_are_the_original_ones():
    model = Cache()
    gm = export(model, CACHE_ARGS)
    for support in ({"tensorrt": {COND}}, {"inductor": set(MATH)}):
        result = split(gm, support)
        before = {t.untyped_storage().data_ptr() for t in gm.state_dict(keep_vars=True).values()}
        parent = result.parent.state_dict(keep_vars=True).values()
        assert {t.untyped_storage().data_ptr() for t in parent} == before


def test_two_conds_with_one_branch_module():
    def double(a):
        return a * 2.0

    def halve(a):
        return a / 2.0

    class Model(nn.Module):
        def forward(self, x):
            first = torch.cond(x.sum() > 0, double, halve, (torch.sin(x),))
            second = torch.cond(first.sum() > 0, double, halve, (torch.cos(first),))
            return torch.relu(first) + second

    args = (vector(3),)
    everywhere(export(Model(), args), args, more=[(-vector(3),), (vector(3, seed=4),)], limit=16)


def test_a_branch_that_draws_keeps_its_place_in_the_random_stream():
    class Model(nn.Module):
        def forward(self, x):
            late = torch.cumsum(torch.sin(x), 0)
            first = torch.cond(late.sum() > 0, torch.rand_like, torch.randn_like, (late,))
            return first, torch.rand_like(x), torch.relu(x)

    args = (vector(3),)
    everywhere(export(Model(), args), args, more=[(-vector(3),)], limit=16)


@pytest.mark.parametrize("owner", ["tensorrt", "inductor"])
def test_a_cond_with_a_dynamic_size_in_its_branches(owner):
    class Model(nn.Module):
        def forward(self, x):
            n = x.shape[0]
            yes, no = (lambda a: a.expand(n, 3) + 1.0), (lambda a: a - torch.ones(n, 3))
            h = torch.relu(x)
            return torch.sin(torch.cond(h.sum() > 1, yes, no, (h,)))

    rows = torch.export.Dim("rows", min=2, max=32)
    args = (vector(4, 3),)
    gm = export(Model(), args, dynamic={"x": {0: rows}})
    more = [(torch.full((5, 3), 2.0),), (torch.full((7, 3), -2.0),)]
    for support in ({owner: MATH}, {owner: MATH | {COND}}, {owner: {COND}}):
        agree(split(gm, support), args, more=more)


def test_regions_that_export_wraps_in_modules():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = torch.relu(self.a(x))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                m = torch.matmul(h, self.b(h).t())
            with torch.no_grad():
                s = torch.sin(h) * 2.0
            return torch.tanh(m), torch.cumsum(s, 0) + h

    args = (vector(3, 4),)
    with torch.enable_grad():
        gm = export(Model(), args, decompose=False)
    names = {str(n.target) for n in gm.graph.nodes}
    assert {"wrap_with_autocast", "wrap_with_set_grad_enabled"} <= names
    results = everywhere(gm, args, limit=16)
    wraps = {f"torch.ops.higher_order.{n}" for n in names if n.startswith("wrap_with")}
    results.append(split(gm, {"tensorrt": {"torch.ops.aten.relu.default"}, "inductor": wraps}))
    agree(results[-1], args)
    assert results[-1].parent(*args)[0].dtype == torch.bfloat16
