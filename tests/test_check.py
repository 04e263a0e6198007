"""``check=True``: what counts as agreeing with eager, and what becomes of a block that does not."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch
from torch import nn

import hierpart
from hierpart.build import compiling as build
from hierpart.build.check.tolerance import distance, tolerance_of
from hierpart.build.compiling import compile_model
from hierpart.capture.captured import capture
from hierpart.dynamo import Backend
from tests.doubles import Double, Wrapping, options_for, same


class Two(nn.Module):
    """Two results, a weight, integers and a view."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x, index):
        y = (x * self.weight).t()
        return y + 1, y.sin().argmax(0), index * 2


ARGS = (torch.randn(3, 4), torch.tensor([1, 2]))


def changed(change):
    """Return a wrap that changes the list of results, and may change the arguments."""

    def wrap(function, inputs):
        def run(*args):
            results = list(function(*args))
            return change(results, args)

        return run

    return wrap


def put(i, make):
    def change(results, args):
        results[i] = make(results[i])
        return results

    return changed(change)


CHANGES = {
    "a value": (put(0, lambda t: t + torch.eye(4, 3) * 0.1), r"output 0 differs by"),
    "one element to NaN": (put(0, lambda t: t.index_fill(0, torch.tensor(1), math.nan)), "by inf"),
    "a whole number": (put(1, lambda t: t + 1), r"output 1 differs by 1\.0e\+00 \(tolerance 0\)"),
    "a dtype": (put(0, lambda t: t.double()), r"output 0 is torch\.float64 in place of"),
    "a size": (put(1, lambda t: t[:-1]), r"output 1 has shape \(2,\) in place of \(3,\)"),
    "a type": (put(1, lambda t: 3), r"output 1 is of type int in place of a tensor"),
    "strides": (put(0, lambda t: t.contiguous()), r"output 0 has strides \(3, 1\) in place of \(1, 4\)"),
    "the count": (changed(lambda r, a: r[:-1]), r"2 outputs in place of 3"),
    "two outputs as one": (
        changed(lambda r, a: [r[0], r[2][:1].expand(3), r[2]]), r"output 1 has strides|shares memory",
    ),
    "an input": (changed(lambda r, a: [*r, a[0].mul_(2)][:3]), r"input 0 is left different"),
    "an index": (changed(lambda r, a: [*r, a[1].add_(1)][:3]), r"input 1 is left different"),
}  # fmt: skip


@pytest.fixture
def two(monkeypatch):
    """Return a function that compiles one model, captured once."""
    model, known = captured()
    monkeypatch.setattr(build, "capture", lambda *args, **kwargs: known)
    return model, lambda *backends, **fields: compile_model(
        model, ARGS, options=options_for(*backends, check=True, **fields)
    )


@functools.cache
def captured():
    model = Two()
    return model, capture(model, ARGS, options=options_for())


def exact(name, wrap, **fields):
    backend = Wrapping(name, wrap, **fields)
    backend.exact_strides = True
    return backend


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_told_and_does_not_reach_the_result(name, two):
    wrap, words = CHANGES[name]
    model, compiled = two
    module = compiled(exact("first", wrap), Double("second"))
    (outcome,) = module.report.outcomes
    assert (outcome.planned, outcome.attempts[0].backend) == ("first", "first")
    assert outcome.error.startswith("does not agree with eager: ")
    assert re.search(words, outcome.error), outcome.error
    with torch.no_grad():
        same(module(*ARGS), model(*ARGS))


def test_what_is_right_is_kept_and_the_users_random_numbers_are_left_alone():
    class Drawing(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, True) + 1

    before = torch.get_rng_state()
    options = options_for(Double("first"), check=True, compile_timeout=60)
    module = compile_model(Drawing(), ARGS[:1], options=options)
    assert module.report.outcomes[0].status == "compiled"
    assert torch.equal(torch.get_rng_state(), before)


def test_rounding_agrees(two):
    _, compiled = two
    close = exact("first", put(0, lambda t: t * (1 + 1e-5)))
    assert compiled(close).report.outcomes[0].status == "compiled"
    tight = compiled(close, Double("second"), check_tolerance=1e-7)
    assert "does not agree" in tight.report.outcomes[0].error


def test_strides_of_a_backend_that_promises_none_are_mended_and_no_fault(two):
    _, compiled = two
    module = compiled(Wrapping("first", put(0, lambda t: t.contiguous())))
    assert module.report.outcomes[0].status == "compiled"


def test_results_that_are_drawn_have_no_right_value():
    class Drawing(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x), x * 2

    drawn = changed(lambda r, a: [torch.rand_like(r[0]), r[1]])
    wrong = changed(lambda r, a: [r[0], r[1] + 1])
    x = (torch.randn(5),)
    options = options_for(Wrapping("first", drawn), Double("second"), check=True)
    assert compile_model(Drawing(), x, options=options).report.outcomes[0].status == "compiled"
    options = options_for(Wrapping("first", wrong), Double("second"), check=True)
    assert "output 1" in compile_model(Drawing(), x, options=options).report.outcomes[0].error


def test_a_block_that_eager_cannot_run_on_made_up_inputs_is_kept_and_said_to_be_unchecked():
    class Picky(nn.Module):
        def forward(self, x):
            return torch.linalg.cholesky(x) + 1

    x = (torch.eye(3),)
    module = compile_model(Picky(), x, options=options_for(Double("first"), check=True))
    (outcome,) = module.report.outcomes
    assert outcome.status == "compiled"
    assert outcome.detail.startswith("not checked: eager raises on inputs that are made up")


def test_only_the_guilty_nodes_leave_and_equal_blocks_share_what_is_left():
    class Layers(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = torch.relu(torch.tanh(x * 2 + 1) - 3).exp().cumsum(0)
            return x

    def wrong_for_tanh(function, inputs):
        has = any("tanh" in str(n.target) for n in backend.compiled[-1].graph.nodes)
        return (lambda *a: [r + has for r in function(*a)]) if has else function

    backend = Wrapping("first", wrong_for_tanh, refuses=["cumsum"])
    second = Double("second", refuses=["cumsum"])
    module = compile_model(
        Layers(), (torch.randn(3, 2),), options=options_for(backend, second, check=True)
    )
    one, _, two, _ = module.report.outcomes
    assert (one.status, one.backend, one.detail) == ("divided", "first", "without tanh")
    assert [(p.planned, p.status) for p in one.parts] == [
        ("first", "compiled"), ("second", "compiled"), ("first", "compiled"),
    ]  # fmt: skip
    assert (two.shared_with, two.backend) == (0, "first")
    x = torch.randn(3, 2)
    same(module(x), Layers()(x))


def test_a_block_that_is_small_or_has_many_faults_goes_whole():
    class Deep(nn.Module):
        def forward(self, x):
            for _ in range(6):
                x = torch.tanh(x)
            return x

    wrong = Wrapping("first", put(0, lambda t: t + 1))
    for fields in ({}, {"min_block_size": 6}):
        options = options_for(wrong, Double("second"), check=True, **fields)
        (outcome,) = compile_model(Deep(), (torch.randn(3),), options=options).report.outcomes
        assert (outcome.status, outcome.backend) == ("fell back", "second")


def test_it_works_in_torch_compile_in_training_with_open_sizes():
    """The compile runs among fake tensors there; checks use real ones."""
    torch._dynamo.reset()
    wrong = Wrapping("first", put(0, lambda t: t + 1), refuses=["relu"])
    right = Double("second", refuses=["relu"])
    backend = Backend(
        backend_priority=["first", "second"],
        backend_support_map={"first": wrong, "second": right},
        min_block_size=1, check=True, compile_timeout=60,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        compiled(x).square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(grads, [p.grad for p in model.parameters()])
        model.zero_grad()
    assert len(backend.reports) >= 2
    told = [o for report in backend.reports for o in report.outcomes if o.planned == "first"]
    assert told
    assert all("does not agree with eager" in o.error for o in told)
    torch._dynamo.reset()


def test_a_saved_module_is_checked_where_it_is_compiled_again(tmp_path):
    options = options_for(Double("first"), check=True, check_tolerance=0.5, compile_timeout=60)
    compile_model(Two(), ARGS, options=options).save(tmp_path / "module")
    loaded = hierpart.load(tmp_path / "module")
    settled = loaded._origin.options
    assert (settled.check, settled.check_tolerance, settled.compile_timeout) == (True, 0.5, 60)


def test_distances():
    one = torch.tensor([1.0, 2.0, 1e-9])
    assert distance(one, one.clone()) == 0
    assert distance(one + torch.tensor([0, 0, 1e-6]), one) < 1e-5, "measured by its neighbours"
    nan, inf = torch.tensor([math.nan, 1]), torch.tensor([math.inf, 1])
    assert distance(nan, nan.clone()) == 0
    assert distance(inf, inf.clone()) == 0
    assert distance(nan, torch.ones(2)) == math.inf
    assert distance(inf, -inf) == math.inf
    assert distance(torch.ones(2), torch.ones(3)) == math.inf
    assert distance(torch.ones(0), torch.ones(0)) == 0
    assert distance(3, 4) == math.inf
    assert tolerance_of(torch.int64, 0.1) == 0
    assert tolerance_of(torch.float32, 0.1) == 0.1
    assert tolerance_of(torch.float64) < tolerance_of(torch.float32) < tolerance_of(torch.bfloat16)


def test_private_names_of_torch():
    """Checks run among real tensors by these names."""
    from torch._dispatch.python import no_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    with FakeTensorMode(), _disable_current_modes(), no_python_dispatcher():
        assert type(torch.ones(2) + 1) is torch.Tensor, "modes are not disabled any more"


class Sized(nn.Module):
    """Open sizes that enter the block as numbers."""

    def forward(self, x, y):
        n = x.shape[0] * 2
        z = torch.tanh(x.reshape(n, -1) * n).cumsum(0) + 1
        return torch.tanh(z * n + y.shape[0]).reshape(x.shape) - 1


class Branching(nn.Module):
    """A cond that the backend takes whole, and weights of a traced module."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x) * 2
        y = torch.cond(y.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos(), (y,))
        return torch.tanh(y) @ self.linear.weight + 1


class Regions(nn.Module):
    """An autocast region, in which matrix products are bfloat16 by the mode alone."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.tanh(x @ x) @ x
        return y.float() * 2


N = {0: torch.export.Dim("n", min=2, max=50)}
SHAPES = {
    "open sizes": (Sized(), (torch.randn(4, 6), torch.randn(3)), (N, {0: torch.export.Dim("m")})),
    "cond and weights": (Branching(), (torch.randn(2, 3),), None),
    "autocast": (Regions(), (torch.randn(4, 4),), None),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_blocks_of_every_kind_are_divided(name, traced):
    model, args, shapes = SHAPES[name]
    if traced:
        program = torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
        model_or_graph, shapes = program.module(), None
    else:
        model_or_graph = model

    def wrong_for_tanh(function, inputs):
        graphs = [m for m in backend.compiled[-1].modules() if isinstance(m, torch.fx.GraphModule)]
        wrong = any("tanh" in str(n.target) for m in graphs for n in m.graph.nodes)
        return (lambda *a: [r * 3 for r in function(*a)]) if wrong else function

    backend = Wrapping("first", wrong_for_tanh, refuses=["cumsum"])
    options = options_for(backend, Double("second", ["cumsum"]), check=True)
    module = compile_model(model_or_graph, args, dynamic_shapes=shapes, options=options)
    told = [o for o in module.report.outcomes if o.planned == "first"]
    assert "divided" in {o.status for o in told}, told
    with torch.no_grad():
        same(module(*args), model(*args))
        if name == "open sizes":
            args = torch.randn(6, 6), torch.randn(5)
            same(module(*args), model(*args))
