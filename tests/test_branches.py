"""Blocks inside the branches of control-flow ops are compiled, and step aside for stand-ins (C8)."""

from __future__ import annotations

import copy

import pytest
import torch

import hierpart
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
    from hierpart.branch import are_plain

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
