"""Blocks inside the branches of control-flow ops are compiled, and step aside for stand-ins (C8)."""

from __future__ import annotations

import copy
import operator

import pytest
import torch

import hierpart
from hierpart.testing import annotate
from tests.doubles import Double, Raising, Wrapping
from tests.test_control_flow import PREDICATES, nested_model

REFUSED = ("cond", "while_loop")


def compiled_with(double, **more):
    return hierpart.compile(
        nested_model(), PREDICATES[0], backend_priority=["inductor"], min_block_size=1,
        backend_support_map={"inductor": double}, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def double():
    return Double("inductor", refuses=REFUSED)


@pytest.fixture(scope="module")
def compiled(double):
    return compiled_with(double)


def branch_blocks(plan) -> int:
    here = sum(b.backend != "eager" for n in plan.nested for b in n.plan)
    return here + sum(branch_blocks(n.plan) for n in plan.nested)


def test_blocks_in_branches_are_compiled(compiled, double):
    assert branch_blocks(compiled.plan) >= 4
    notes = [n for n in compiled.report.notes if n.startswith("branch ")]
    assert len(notes) >= 4
    assert all(
        "inductor (compiled)" in n or "inductor (shared)" in n for n in notes if "true" not in n
    )
    calls = []

    def counting(run, inputs):
        return lambda *args: (calls.append(1), run(*args))[1]

    wrapped = Wrapping("inductor", counting, refuses=REFUSED)
    counted = compiled_with(wrapped)
    with torch.no_grad():
        counted(*PREDICATES[0])
    assert len(calls) > len([b for b in counted.plan if b.backend != "eager"])


@pytest.mark.parametrize("call", range(len(PREDICATES)))
def test_compiled_branches_equal_eager(compiled, call):
    model = nested_model()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(compiled(*PREDICATES[call]), model(*PREDICATES[call]))


def test_a_copy_runs_its_own_branches(compiled):
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
        assert not torch.equal(twin(*PREDICATES[0]), compiled(*PREDICATES[0]))
        torch.testing.assert_close(compiled(*PREDICATES[0]), nested_model()(*PREDICATES[0]))


def test_branches_step_aside_for_fake_tensors_and_gradients():
    from hierpart.runtime.branch_module import are_plain

    real, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
        assert not are_plain([real])  # a mode traces
    assert not are_plain([fake])
    assert are_plain([real, 3])
    assert not are_plain([parameter])
    with torch.no_grad():
        assert are_plain([parameter])


def test_a_branch_block_that_fails_runs_eagerly_and_is_told():
    double = Raising("inductor", RuntimeError("no such kernel"), refuses=REFUSED)
    compiled = compiled_with(double)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*PREDICATES[0]), nested_model()(*PREDICATES[0]))
    assert any(n.startswith("branch ") and "fell back" in n for n in compiled.report.notes)
    with pytest.raises(hierpart.BackendCompileError):
        compiled_with(double, fallback=False)


class Region(torch.nn.Module):
    """A product in an autocast region, and one after it."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.mm(x, x).relu()
        return y, torch.mm(x, x)


def wrapped_region():
    program = torch.export.export(Region(), (torch.ones(3, 3),), strict=False)
    return program.module(check_guards=False)


def marked_region():
    modes, graph = torch.amp.autocast_mode, torch.fx.Graph()
    x = graph.placeholder("x")
    entered = graph.call_function(modes._enter_autocast, ("cpu", torch.bfloat16, True, None))
    y = graph.call_function(torch.ops.aten.mm.default, (x, x))
    y = graph.call_function(torch.ops.aten.relu.default, (y,))
    graph.call_function(modes._exit_autocast, (entered,))
    graph.output((y, graph.call_function(torch.ops.aten.mm.default, (x, x))))
    return torch.fx.GraphModule({}, graph)


REGIONS = pytest.mark.parametrize("make", [wrapped_region, marked_region])


@pytest.mark.inductor
@REGIONS
def test_blocks_of_a_region_are_compiled_in_it(make):
    """The casts are the mode's doing; without it a block would give float32."""
    x = torch.randn(3, 3)
    compiled = hierpart.compile(
        make(), (x,), backend_priority=["inductor"], min_block_size=1,
        options={"control_flow": {"wrap_with_autocast": "recurse"}},
    )  # fmt: skip

    assert not [o for o in compiled.report.outcomes if o.error]
    assert compiled.report.notes == () or "inductor (compiled)" in compiled.report.notes[0]
    with torch.no_grad():
        inside, after = compiled(x)
        torch.testing.assert_close(inside, Region()(x)[0])
        torch.testing.assert_close(after, x @ x)


@REGIONS
def test_a_backend_that_sees_no_modes_compiles_no_block_of_a_region(make):
    double = Double("inductor")
    double.follows_modes = False
    x = torch.randn(3, 3)
    compiled = hierpart.compile(
        make(), (x,), backend_priority=["inductor"], min_block_size=1,
        backend_support_map={"inductor": double},
        options={"control_flow": {"wrap_with_autocast": "recurse"}},
    )  # fmt: skip

    said = compiled.report.notes if make is wrapped_region else compiled.report.outcomes
    assert "fell back" in str(said)
    assert len(double.compiled) == 1  # what comes after the region
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), (Region()(x)[0], x @ x))


def test_a_branch_runs_its_graph_in_another_region_than_it_was_compiled_for():
    from hierpart.runtime.autocast import Autocast, fits

    region = Autocast("cpu", torch.bfloat16, True, None)
    assert fits(None)
    assert not fits(region)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits(None)
        assert fits(region)
        assert not fits(Autocast("cpu", torch.float16, True, None))
        with torch.autocast("cpu", enabled=False):
            assert not fits(region)
            assert fits(Autocast("cpu", None, False, None))


def test_a_branch_finds_tensors_that_only_its_blocks_hold():
    """AOTAutograd leaves a literal of a branch in it; the split branch holds it in its block."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, graph.get_attr("a.b"))),))
    bodies = {}
    for name, value in (("yes", 2.0), ("no", 3.0)):
        root = torch.nn.Module()
        root.a = torch.nn.Module()
        root.a.b = torch.nn.Parameter(torch.full((2,), value), requires_grad=False)
        bodies[name] = torch.fx.GraphModule(root, copy.deepcopy(graph))
    outer = torch.fx.Graph()
    p, y = outer.placeholder("p"), outer.placeholder("y")
    branches = (outer.get_attr("yes"), outer.get_attr("no"))
    both = outer.call_function(torch.ops.higher_order.cond, (p, *branches, (y,)))
    outer.output(outer.call_function(operator.getitem, (both, 0)))
    args = (torch.tensor(True), torch.ones(2))
    gm = annotate(torch.fx.GraphModule(bodies, outer), args)

    compiled = hierpart.compile(
        gm, args, backend_priority=["inductor"], min_block_size=1,
        backend_support_map={"inductor": Double("inductor", refuses=["cond"])},
    )  # fmt: skip
    twin = copy.deepcopy(compiled)

    assert "inductor (compiled)" in compiled.report.notes[0]
    for test, value in ((True, 2.0), (False, 3.0)):
        for function in (compiled, twin):
            found = function(torch.tensor(test), torch.ones(2))
            assert torch.equal(found, torch.full((2,), value))
