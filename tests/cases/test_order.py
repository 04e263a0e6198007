"""C2 and C3: writes, random draws, assertions and regions stay where the graph has them.

Each graph is split under many support maps (``everywhere``), so the cut falls in front of, behind
and between the nodes at stake, and each result is run and compared bit for bit.
"""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from tests.cases.harness import (
    agree,
    everywhere,
    export,
    record,
    split,
    through_dynamo,
    trace,
    vector,
)

aten = torch.ops.aten
F = nn.functional


def call(target, proxy, *args):
    """Record a call that Python would not make on a proxy."""
    return proxy.tracer.create_proxy("call_function", target, (proxy, *args), {})


# ------------------------------------------------------------------ writes to an intermediate

WRITES = {
    "fill": lambda t: aten.fill_.Scalar(t, 3.0),
    "zero": lambda t: aten.zero_.default(t),
    "copy": lambda t: aten.copy_.default(t, aten.ones_like.default(t)),
    "add": lambda t: aten.add_.Tensor(t, 1.5),
    "keyword": lambda t: aten.add_.Tensor(self=t, other=1.5),
    "out variant": lambda t: aten.sin.out(t, out=t),
    "method": lambda t: t.mul_(2.0),
    "python operator": lambda t: operator.iadd(t, 1.0),
    "setitem": lambda t: call(operator.setitem, t, 0, 5.0),
    "functional": lambda t: F.relu(t, inplace=True),
    "torch function": lambda t: torch.relu_(t),
    "out keyword": lambda t: torch.neg(t, out=t),
    "index_put": lambda t: aten.index_put_.default(t, [torch.tensor([0])], torch.tensor(9.0)),
    "random": lambda t: aten.uniform_.default(t, 0.0, 1.0),
}


@pytest.mark.parametrize("recorded", [True, False], ids=["values", "no values"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_read_between_two_writes(write, recorded):
    class Model(nn.Module):
        def forward(self, x):
            base = aten.clone.default(x)
            write(base)
            between = aten.exp.default(base)
            write(base)
            return base, between

    gm = trace(Model(), (vector(3, 4),) if recorded else ())
    everywhere(gm, (vector(3, 4),))


VIEWS = {
    "view": lambda t: aten.view.default(t, [-1]),
    "transpose": lambda t: t.t(),
    "select": lambda t: aten.select.int(t, 0, 1),
    "slice": lambda t: t[1:, ::2],
    "view of a view": lambda t: aten.unsqueeze.default(aten.permute.default(t, [1, 0]), 0),
    "half of a split": lambda t: aten.split.Tensor(t, 2)[0],
    "unbind": lambda t: torch.unbind(t, 1)[2],
    "diagonal": lambda t: torch.diagonal(t),
    "detach": lambda t: t.detach(),
    "reshape that is a view": lambda t: torch.reshape(t, (2, 8)),
    "contiguous that is the same": lambda t: t.contiguous(),
    "type_as that is the same": lambda t: t.type_as(t),
    "to that is the same": lambda t: t.to(torch.float32),
    "real": lambda t: torch.real(t),
    "chunk and expand": lambda t: torch.chunk(t, 2, 1)[1].expand(4, 2),
}


@pytest.mark.parametrize("recorded", [True, False], ids=["values", "no values"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_write_through_a_view_is_seen_by_the_base(view, recorded):
    class Model(nn.Module):
        def forward(self, x):
            base = aten.relu.default(x)
            before = aten.cos.default(base)
            part = view(base)
            aten.mul_.Tensor(part, 10.0)
            return aten.add.Tensor(base, 1.0), before

    gm = trace(Model(), (vector(4, 4),) if recorded else ())
    everywhere(gm, (vector(4, 4),))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_write_to_the_base_is_seen_by_the_view(view):
    class Model(nn.Module):
        def forward(self, x):
            base = aten.relu.default(x)
            part = view(base)
            before = aten.cos.default(part)
            aten.fill_.Scalar(base, 2.0)
            return aten.sin.default(part), before

    everywhere(trace(Model(), (vector(4, 4),)), (vector(4, 4),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_writes_of_every_dtype(dtype):
    class Model(nn.Module):
        def forward(self, x):
            base = aten.clone.default(x)
            flat = aten.view.default(base, [-1])
            before = aten.sum.default(base)
            aten.zero_.default(flat)
            return aten.sum.default(base), before, flat

    args = (vector(3, 3).mul(3).to(dtype),)
    everywhere(trace(Model(), args), args)


def test_metadata_changes_in_place():
    class Model(nn.Module):
        def forward(self, x):
            base = aten.clone.default(x)
            rows = base.size(0)
            aten.t_.default(base)
            aten.unsqueeze_.default(base, 0)
            return aten.sin.default(base), aten.full.default([rows], 1.0), base.size(1)

    everywhere(trace(Model(), (vector(3, 5),)), (vector(3, 5),))


# ------------------------------------------------------------------ writes to inputs and buffers


def test_writes_to_arguments_reach_the_caller():
    class Model(nn.Module):
        def forward(self, x, state):
            y = torch.relu(x) + 1.0
            state.mul_(2.0)
            state.add_(torch.cumsum(x, 0))
            return torch.tanh(y)

    args = (vector(3, 4), vector(3, 4, seed=1))
    everywhere(export(Model(), args), args)


def test_two_arguments_may_be_one_tensor():
    class Model(nn.Module):
        def forward(self, x, y):
            before = aten.sin.default(y)
            aten.mul_.Tensor(x, 2.0)
            return before, aten.cos.default(y)

    gm, base = trace(Model(), (vector(4), vector(4))), vector(4)
    for result in everywhere(gm, (vector(4), vector(4, seed=1))):
        got = result.parent(x := base.clone(), x)
        want = (base.sin(), (base * 2).cos())
        torch.testing.assert_close(got, want)


def test_dead_code_removal_on_the_result_keeps_blocks_that_only_write():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x, state):
            state.add_(torch.cumsum(x, 0))
            self.total.add_(1.0)
            return torch.tanh(x)

    args = (vector(4), vector(4, seed=1))
    for result in everywhere(export(Model(), args), args):
        result.parent.graph.eliminate_dead_code()
        result.parent.recompile()
        agree(result, args, more=[args])


@pytest.mark.parametrize("train", [True, False])
def test_methods_that_write_are_not_dead_code(train):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            h = torch.relu(x)
            h.mul_(10.0)
            self.total.add_(h)
            return torch.sin(h) + self.total

    gm = trace(Model(), (vector(4),)).train(train)
    everywhere(gm, (vector(4),), more=[(torch.ones(4),)])


def test_a_buffer_is_read_before_it_is_updated():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(3, 3))

        def forward(self, x):
            late = torch.cumsum(torch.sin(x), 0)
            old = self.count * late
            self.count.add_(x)
            return old, x + self.count

    more = [(torch.full((3, 3), 0.5),), (torch.full((3, 3), -2.0),)]
    everywhere(export(Model(), (vector(3, 3),)), (vector(3, 3),), more=more)


def test_two_attributes_of_one_storage():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            base = torch.arange(6.0)
            self.register_buffer("head", base[:4])
            self.register_buffer("tail", base[2:])
            self.register_buffer("again", self.head)

        def forward(self, x):
            before = self.tail * x
            self.head.add_(x)
            after = torch.sin(self.tail) + self.again
            self.again.mul_(0.5)
            return before, after, torch.cos(self.tail)

    gm = trace(Model())
    everywhere(gm, (vector(4),), more=[(vector(4, seed=1),)])


def test_one_attribute_fetched_twice():
    graph = Graph()
    x = graph.placeholder("x")
    first, second = graph.get_attr("state"), graph.get_attr("state")
    before = graph.call_function(aten.sin.default, (first,))
    graph.call_function(aten.add_.Tensor, (second, x))
    third = graph.get_attr("state")
    after = graph.call_function(aten.cos.default, (third,))
    still = graph.call_function(aten.exp.default, (first,))
    graph.output((before, after, still))
    root = nn.Module()
    root.register_buffer("state", torch.zeros(3))
    gm = GraphModule(root, graph)
    record(gm, (vector(3),))
    everywhere(gm, (vector(3),), more=[(vector(3, seed=1),)])


def test_running_statistics_are_updated():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x):
            h = torch.relu(self.bn(self.conv(x)))
            h = torch.cumsum(h, 0)
            return torch.tanh(self.bn(h)), self.bn.running_mean * 1.0

    args, more = (vector(2, 3, 5, 5),), [(vector(2, 3, 5, 5, seed=1) + 3.0,)]
    everywhere(export(Model(), args), args, more=more, limit=12)
    everywhere(trace(Model()), args, more=more, limit=12)


def test_statistics_through_a_function_without_a_schema_for_the_write():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("var", torch.ones(3))

        def forward(self, x):
            before = torch.sin(self.mean)
            h = F.batch_norm(x, self.mean, self.var, training=True)
            return h, before, torch.cos(self.mean)

    args = (vector(5, 3) + 2.0,)
    everywhere(trace(Model()), args, more=[args])


def test_embedding_with_max_norm_writes_its_weight():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((5, 3), 2.0), requires_grad=False)

        def forward(self, ids):
            before = torch.sin(self.weight)
            rows = F.embedding(ids, self.weight, max_norm=1.0)
            return before, rows, torch.cos(self.weight)

    everywhere(trace(Model()), (torch.tensor([0, 3]),), more=[(torch.tensor([1, 3]),)])


class Counter(nn.Module):
    """A leaf module with state of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def test_called_modules_with_state_keep_their_order():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.counter, self.relu = Counter(), nn.ReLU(inplace=True)

        def forward(self, x):
            first = self.counter(torch.sin(x))
            second = self.counter(torch.cos(x))
            third = torch.neg(first)
            return self.relu(first), second, third, self.counter.calls * 1.0

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m, name):
            return isinstance(m, Counter) or super().is_leaf_module(m, name)

    model = Model()
    gm = GraphModule(model, Tracer().trace(model))
    everywhere(gm, (vector(4),), more=[(vector(4, seed=1),)])


# ------------------------------------------------------------------ the random stream


def test_random_ops_draw_in_program_order():
    class Model(nn.Module):
        def forward(self, big, small):
            a = torch.relu(big)
            m1 = torch.rand_like(a)
            m2 = torch.rand_like(small)
            m3 = torch.randint_like(torch.tanh(a), 0, 100)
            noise = torch.randn(3)
            return a * (m1 > 0.5), small * (m2 > 0.5), m3, noise

    args = (vector(4, 8), vector(3))
    everywhere(export(Model(), args), args)


RANDOM = {
    "dropout": lambda t: F.dropout(t, 0.5, training=True),
    "native": lambda t: aten.native_dropout.default(t, 0.5, True)[0],
    "bernoulli": lambda t: torch.bernoulli(torch.sigmoid(t)),
    "in place": lambda t: torch.empty(4).uniform_(),
    "method": lambda t: t.clone().normal_(),
    "permutation": lambda t: torch.randperm(4).to(t.dtype),
    "rrelu": lambda t: F.rrelu(t, training=True),
    "multinomial": lambda t: torch.multinomial(torch.exp(t), 2),
    "module": nn.Dropout(0.5),
}


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM)
def test_draws_of_every_kind_beside_others(draw):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.draw = draw

        def forward(self, x, y):
            late = draw(torch.cumsum(torch.sin(x), 0))
            early = torch.rand_like(y)
            return late, early, draw(torch.cos(early)), torch.randn(2)

    everywhere(trace(Model().train()), (vector(4), vector(4, seed=1)))


# ------------------------------------------------------------------ assertions and prints


def test_a_range_check_stays_ahead_of_what_it_protects():
    class Model(nn.Module):
        def forward(self, x, n):
            k = n.item()
            torch._check(k >= 1)
            torch._check(k <= 8)
            head = torch.relu(x)[:k]
            return torch.sin(head) * 2.0, head.sum()

    args = (vector(10, 3), torch.tensor(4))
    gm = export(Model(), args)
    was = [n.name for n in gm.graph.nodes if n.op == "call_function"]
    guards = [n for n in was if "assert" in n or "constrain" in n]
    use = next(n for n in was if n.startswith("slice"))
    assert guards
    for result in everywhere(
        gm, args, more=[(args[0], torch.tensor(8)), (args[0], torch.tensor(1))]
    ):
        order = result.running_order()
        assert [n for n in order if n in guards] == guards
        for guard in guards:
            assert order.index(guard) < order.index(use) or was.index(guard) > was.index(use)
        with pytest.raises(RuntimeError):
            result.parent(args[0], torch.tensor(9))


def test_an_assertion_fires_before_the_index_that_it_guards():
    class Model(nn.Module):
        def forward(self, table, index):
            fits = torch.lt(index, 4)
            torch.ops.aten._assert_async.msg(torch.all(fits), "index too big")
            return torch.cos(torch.index_select(table, 0, index))

    args = (vector(4, 2), torch.tensor([0, 3]))
    for result in everywhere(trace(Model(), args), args):
        with pytest.raises(RuntimeError, match="index too big"):
            result.parent(args[0], torch.tensor([1, 40]))


def test_prints_keep_their_order(capfd):
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.cumsum, (graph.call_function(torch.sin, (x,)), 0))
    graph.call_function(aten._print.default, ("first",))
    z = graph.call_function(torch.cos, (y,))
    graph.call_function(aten._print.default, ("second",))
    graph.output((z, graph.call_function(torch.neg, (x,))))
    gm = GraphModule(nn.Module(), graph)
    for result in everywhere(gm, (vector(3),)):
        capfd.readouterr()
        result.parent.graph.eliminate_dead_code()
        result.parent.recompile()
        result.parent(vector(3))
        assert capfd.readouterr().out.split() == ["first", "second"]


# ------------------------------------------------------------------ regions


class Regions(nn.Module):
    """Two autocast regions, one with gradients off inside, and work outside of both."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.relu(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.a(h)
            s = torch.sinc(h)
            h = torch.matmul(s, s.t())
        outside = self.b(x)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            off = self.b(torch.sin(x))
        return h, outside, off, torch.cos(outside)


REGION_MAPS = [
    {"tensorrt": {"torch.relu", "torch._C._nn.linear", "torch.matmul"}},
    {"tensorrt": {"torch.sinc", "torch.sin", "torch.cos"}, "inductor": {"torch._C._nn.linear"}},
    {"tensorrt": {"torch.relu", "torch.sin"}, "inductor": {"torch.matmul", "torch.cos"}},
]


@pytest.mark.parametrize("support", REGION_MAPS, ids=["linear", "sinc", "relu"])
def test_autocast_regions_hold_exactly_their_nodes(support):
    results = through_dynamo(Regions(), [(vector(3, 4),), (vector(3, 4, seed=1),)], support)
    assert results


class NoGrad(nn.Module):
    """Gradients off for the middle part only."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            s = torch.sin(h) * 2.0
        return torch.cumsum(s, 0) + h, self.b(s)


@pytest.mark.parametrize("owner", ["tensorrt", "inductor"])
def test_gradients_off_for_the_region_only(owner):
    def gradients(module):
        return torch.autograd.grad(sum(o.sum() for o in module(x)), list(model.parameters()))

    model, x = NoGrad(), vector(3, 4)
    wanted = gradients(model)
    without_region = gradients(trace(model))  # a symbolic trace does not record the region
    assert not all(torch.equal(a, b) for a, b in zip(wanted, without_region, strict=True))
    support = {owner: {"torch.sin", "torch._C._nn.linear"}}
    (result,) = through_dynamo(model, [(x,)], support)
    assert result.source.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=lambda gm, _: split(gm, support).parent)
    torch.testing.assert_close(gradients(compiled), wanted)


def test_grad_mode_in_a_hand_made_graph():
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.sin, (x,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    b = graph.call_function(torch.cos, (x,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    c = graph.call_function(torch.sin, (x,))
    graph.output((a, b, c))
    gm = GraphModule(nn.Module(), graph)
    results = everywhere(gm, (vector(3).requires_grad_(),))
    for result in results:
        got = result.parent(vector(3).requires_grad_())
        assert [t.requires_grad for t in got] == [True, False, True]
