"""``hierpart.bisect``: which block is wrong, in few runs; and the ``max_blocks`` knob."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import hierpart
from hierpart.build.check.halving import SearchEndedError, guilty_items
from hierpart.build.compiling import compile_model
from hierpart.dynamo import Backend
from hierpart.errors import HierpartError, InputTypeError, OptionError
from tests.doubles import Double, Wrapping, options_for, same

BLOCKS = 60


class Many(nn.Module):
    """Sixty blocks, each of another constant, with a relu between that the backend refuses."""

    def forward(self, x):
        for i in range(BLOCKS):
            x = torch.relu(x * (1 + i / 1000) + 0.01)
        return x


X = (torch.rand(3) + 1,)


@pytest.fixture(scope="module")
def right():
    """Return the module with sixty blocks, all of them right."""
    options = options_for(Double("first", ["relu"]))
    module = compile_model(Many(), X, options=options)
    assert sum(o.status == "compiled" for o in module.report.outcomes) == BLOCKS
    return module


def planted(module, *wrong, how=lambda r: r + 0.1):
    """Return the module with the blocks at these places doing wrong, and their indices."""
    names = [b.name for b in module.plan.blocks if b.backend == "first"]
    calls = dict(module._pieces.calls)
    for place in wrong:
        call = calls[names[place]]
        function = lambda args, f=call.function: [how(r) for r in f(args)]  # noqa: E731
        calls[names[place]] = replace(call, function=function)
    pieces = replace(module._pieces, calls=calls)
    made = module.running(pieces.flat())
    vars(made)["_pieces"] = pieces
    indices = {b.name: b.index for b in module.plan.blocks}
    return made, tuple(indices[names[place]] for place in wrong)


@pytest.mark.parametrize("place", [0, 30, 59])
@pytest.mark.parametrize("blockwise", [True, False])
def test_a_wrong_block_among_sixty_is_found_in_eight_runs(right, place, blockwise):
    module, (index,) = planted(right, place)
    before = module(*X).clone()
    found = hierpart.bisect(module, X, blockwise=blockwise)
    assert found.guilty == (index,)
    assert found.runs <= (2 if blockwise else 8)
    assert f"block {index} (first)" in str(found)
    if blockwise:
        assert (found.first.block, found.first.backend) == (index, "first")
        assert [f.block for f in found.findings if f.is_wrong] == [index]
        assert len(found.findings) == BLOCKS
    same(module(*X), before)


def test_two_wrong_blocks_and_none(right):
    module, wanted = planted(right, 7, 50)
    found = hierpart.bisect(module, X)
    assert (found.guilty, found.first.block) == (wanted, wanted[0])
    assert hierpart.bisect(module, X, blockwise=False).guilty == wanted
    for blockwise in (True, False):
        found = hierpart.bisect(right, X, blockwise=blockwise)
        assert (found.guilty, found.first) == ((), None)
        assert "no block is guilty" in str(found)
        assert found.runs <= 8


def test_a_block_that_raises_and_one_that_is_wrong_only_later(right):
    def fail(result):
        raise RuntimeError("launch failed")

    module, wanted = planted(right, 20, how=fail)
    found = hierpart.bisect(module, X)
    assert found.guilty == wanted
    assert found.first.fault == "raised RuntimeError: launch failed"
    calls = []

    def late(result):
        calls.append(0)
        return result + (len(calls) > 1)

    module, wanted = planted(right, 20, how=late)
    found = hierpart.bisect(module, X)
    assert (found.guilty, found.first) == (wanted, None)
    assert found.runs <= 8


class Counting(nn.Module):
    """Writes a buffer and an argument, draws random numbers, has weights."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x, *, scale):
        self.calls.add_(1)
        x.mul_(scale)
        y = nn.functional.dropout(self.linear(x).relu(), 0.5, True)
        return {"y": (y + self.calls) @ self.linear.weight}


@pytest.mark.parametrize("reference", ["original", "float64"])
def test_module_arguments_and_random_numbers_are_left_as_they_were(reference):
    model = Counting()
    args, kwargs = (torch.randn(2, 3),), {"scale": torch.tensor(2.0)}
    wrong = Wrapping("first", lambda f, inputs: lambda *a: [r * 1.1 for r in f(*a)], ["relu"])
    module = compile_model(model, args, kwargs, options=options_for(wrong))
    x, calls, state = args[0].clone(), module.calls.clone(), torch.get_rng_state()
    found = hierpart.bisect(module, args, kwargs, reference=reference)
    assert found.guilty == tuple(o.block for o in module.report.outcomes if o.backend == "first")
    same((args[0], module.calls, torch.get_rng_state()), (x, calls, state))
    right = compile_model(model, args, kwargs, options=options_for(Double("first", ["relu"])))
    found = hierpart.bisect(right, args, kwargs, reference=reference)
    assert found.guilty == ()
    assert len(found.findings) >= 2


def test_float64_lets_a_block_be_as_far_off_as_eager():
    class Cancelling(nn.Module):
        def forward(self, x):
            return (x + 1e8) - 1e8 + x * 0

    x = (torch.rand(8),)
    noisy = Wrapping("first", lambda f, inputs: lambda *a: [a[0] * 1.5])
    module = compile_model(Cancelling(), x, options=options_for(noisy))
    assert hierpart.bisect(module, x).first is not None
    assert hierpart.bisect(module, x, reference="float64").first is None


def test_graph_modules_too():
    gm = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(5, 3)
    ep = torch.export.export(gm, (x,)).module()
    wrong = Wrapping("first", lambda f, inputs: lambda *a: [-r for r in f(*a)], ["relu"])
    module = compile_model(ep, (x,), options=options_for(wrong))
    assert len(hierpart.bisect(module, (x,)).guilty) == 2


def test_what_it_cannot_do_is_said(right):
    module = compile_model(
        Counting(), (torch.ones(1, 3),), {"scale": torch.ones(1)}, options=options_for()
    )
    with pytest.raises(HierpartError, match="no block of this module is compiled"):
        hierpart.bisect(module, (torch.ones(1, 3),), {"scale": torch.ones(1)})
    with pytest.raises(OptionError, match="did you mean 'float64'"):
        hierpart.bisect(right, X, reference="float6")
    with pytest.raises(InputTypeError, match=r"hierpart\.compile"):
        hierpart.bisect(Many(), X)


class Few(nn.Module):
    def forward(self, x):
        for i in range(4):
            x = torch.relu(x * (1 + i / 1000) + 0.01)
        return x


@pytest.mark.parametrize("limit", [0, 2, 100])
def test_max_blocks_compiles_that_many_and_runs_the_rest_eagerly(limit):
    double = Double("first", ["relu"])
    module = compile_model(Few(), X, options=options_for(double, max_blocks=limit))
    ran = [o for o in module.report.outcomes if o.planned == "first"]
    assert [o.backend for o in ran] == ["first"] * min(limit, 4) + ["eager"] * max(4 - limit, 0)
    assert {(o.status, o.detail) for o in ran[limit:]} <= {("left out", f"max_blocks={limit}")}
    assert len(double.compiled) == min(limit, 4)
    same(module(*X), Few()(*X))


def test_max_blocks_counts_in_branches_and_in_torch_compile():
    class Choosing(nn.Module):
        def forward(self, x):
            y = x.sin() + 1
            return torch.cond(y.sum() > 0, lambda a: a.cos(), lambda a: a.tanh(), (y,)) * 3

    x = (torch.randn(3),)
    for limit in (0, 1, 3):
        double = Double("first", refuses=["cond", "sum", "gt"])
        module = compile_model(Choosing(), x, options=options_for(double, max_blocks=limit))
        assert len(double.compiled) == limit
        same(module(*x), Choosing()(*x))
    torch._dynamo.reset()
    double = Double("first", refuses=["relu"])
    backend = Backend(
        backend_priority=["first"], backend_support_map={"first": double}, min_block_size=1,
        max_blocks=1,
    )  # fmt: skip
    same(torch.compile(Few(), backend=backend)(*X), Few()(*X))
    assert len(double.compiled) == 1
    torch._dynamo.reset()


def test_halving():
    for n in (1, 2, 3, 7, 60):
        for guilty in range(n):
            runs = []

            def works(aside, g=guilty, runs=runs):
                runs.append(aside)
                return g in aside

            assert guilty_items(range(n), works) == (guilty,)
            assert len(runs) <= (n - 1).bit_length() + 1
    for pair in ((0, 1), (3, 40), (58, 59)):
        assert guilty_items(range(60), lambda aside, p=pair: set(p) <= set(aside)) == pair
    with pytest.raises(SearchEndedError, match="more than 2"):
        guilty_items(range(9), lambda aside: len(aside) > 8, most=2)
