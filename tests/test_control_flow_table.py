"""Every form of control flow, in every mode, through both ways in: equal to plain Python (C8).

What runs where
    CI, Inductor      every form x mode through ``torch.export``, ``switch`` of 1 and 2 apart
    CI, no compiler   every form through ``torch.compile``, recurse, with gradients where torch can
    slow, Inductor    every form x mode through ``torch.compile``, with and without gradients
    slow, no compiler what CI leaves out

Each cell is compiled once, with a symbolic size, and called with every predicate value (index, trip
count) at two sizes. Cells that torch refuses are in ``REFUSED`` with torch's own words.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hierpart
from hierpart.backends.inductor import InductorBackend
from hierpart.plan import EAGER, Plan
from hierpart.report.report import Report
from tests.control_flow_forms import FORMS, Form, Function, Plain, torch_switch
from tests.doubles import Double

MODES = ("whole", "recurse", "opaque")
WAYS = ("export", "compile", "gradients")

REFUSED: dict[tuple[str, str], str] = {
    ("mutated cond", "export"): "Encountered input mutation during higher order op tracing",
    ("mutated cond", "gradients"): "Encountered input mutation during higher order op tracing",
    ("cond of unequal sizes", "gradients"): r"shape '\[1, \w+\]' is invalid for input of size",
}
"""What torch itself cannot do, by form and way in, and a part of its message."""

WRONG: dict[tuple[str, str], int] = {("while_loop", "gradients"): 4}
"""Where torch gives wrong values, also in eager: the first argument of the calls left out.

A loop that makes no trip hands its operands on; torch's gradient is that of one trip.
"""

VANISHES: dict[tuple[str, str], str] = {
    ("switch of 1", "export"): "one branch is no choice: torch calls it",
    ("switch of 1", "compile"): "one branch is no choice: torch calls it",
    ("switch of 1", "gradients"): "one branch is no choice: torch calls it",
    ("no_grad region", "compile"): "AOTAutograd runs the body in its mode and records its ops",
    ("no_grad region", "gradients"): "AOTAutograd runs the body in its mode and records its ops",
    ("autocast region", "compile"): "AOTAutograd runs the body in its mode and records its ops",
    ("autocast region", "gradients"): "AOTAutograd runs the body in its mode and records its ops",
}
"""Where no op is left in the graph that torch captures, and why; the values are compared still."""

NEVER_SPLIT: dict[str, str] = {
    "mutated cond": "its branches write their operands, so it runs as it is where asked to recurse",
    "cond without operands": "nothing but constants in its branches: work on these is eager",
}
"""Forms whose branches hold no accelerated block in the mode ``recurse``, and why."""


class Counting:
    """Counts the calls of the blocks that a backend compiled."""

    calls = 0

    def compile(self, block: Any, inputs: Any, options: Any) -> Any:
        function = super().compile(block, inputs, options)  # type: ignore[misc]

        def run(*args: Any) -> Any:
            self.calls += 1
            return function(*args)

        if getattr(function, "_boxed_call", False):
            run._boxed_call = True  # type: ignore[attr-defined]
        return run


class CountingDouble(Counting, Double):
    pass


class CountingInductor(Counting, InductorBackend):
    pass


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---------------------------------------------------------------------- running a cell


def settings(form: Form, mode: str, backend: Any) -> dict[str, Any]:
    return {
        "backend_priority": ["inductor"], "backend_support_map": {"inductor": backend},
        "min_block_size": 1, "control_flow": {form.op: mode},
        "inductor": {"cpp.simdlen": 1},  # scalar kernels compile in half the time
    }  # fmt: skip


@functools.cache
def program_of(name: str) -> torch.export.ExportedProgram:
    """Export with the rows of every matrix symbolic."""
    form = FORMS[name]
    args, model, rows = form.calls()[0], form.model(), torch.export.Dim("rows", min=3, max=64)
    each = tuple({0: rows} if a.dim() == 2 else None for a in args)
    shapes = (each,) if isinstance(model, Function) else each
    # Only strict export keeps the regions that become invoke_subgraph.
    strict = form.op == "invoke_subgraph"
    return torch.export.export(model, args, dynamic_shapes=shapes, strict=strict)


def exported(name: str, mode: str, backend: Any) -> list[Report]:
    """Compile what ``torch.export`` captures and compare every call."""
    form, program = FORMS[name], program_of(name)
    # Decomposing takes regions apart, so these are split as export leaves them.
    regions = form.op.startswith("wrap_with")
    given = program.module(check_guards=False) if regions else program
    chosen = settings(form, mode, backend)
    fields = {key: chosen.pop(key) for key in ("control_flow", "inductor")}
    made = hierpart.compile(given, options=fields, **chosen)
    with torch.no_grad():
        for args in form.calls():
            compare_values(made, form.model(Plain), args)
    return [made.report]


def compiled(name: str, mode: str, backend: Any, gradients: bool) -> list[Report]:
    """Compile with ``torch.compile(backend="hierpart")`` and compare every call."""
    form = FORMS[name]
    kept: list[hierpart.Backend] = []
    original = hierpart.Backend

    def keeping(**options: Any) -> hierpart.Backend:
        kept.append(original(**options))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierpart.dynamo.Backend", keeping)  # else nobody could read the reports
        model = form.model()
        function = torch.compile(
            model, backend="hierpart", options=settings(form, mode, backend), dynamic=True,
            fullgraph=True,
        )  # fmt: skip
        with torch.set_grad_enabled(gradients):
            for args in form.calls():
                compare = compare_gradients if gradients else compare_values
                if not (gradients and is_wrong(name, args)):
                    compare(function, form.model(Plain), args)
    assert len(kept) == 1, f"compiled {len(kept)} times: a size or a predicate became a constant"
    return kept[0].reports


def is_wrong(name: str, args: Any) -> bool:
    """Whether torch has a wrong gradient for this call."""
    return (name, "gradients") in WRONG and int(args[0]) == WRONG[name, "gradients"]


def compare_values(function: Any, model: nn.Module, args: Any) -> None:
    torch.testing.assert_close(function(*args), model(*args))


def compare_gradients(function: Any, model: nn.Module, args: Any) -> None:
    torch.testing.assert_close(gradients_of(function, args), gradients_of(model, args))


def gradients_of(function: Any, args: Any) -> list[Any]:
    """Return the result and the gradients of inputs and weights."""
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    weights = list(function.parameters())
    result = function(*given)
    result.float().square().sum().backward()
    tensors = [t for t in (*given, *weights) if t.requires_grad]
    # Where Python takes one branch, what only the other one reads has no gradient at all.
    found = [result, *(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors)]
    for weight in weights:
        weight.grad = None
    return found


# ---------------------------------------------------------------------- what became of it


def modes_in(plan: Plan, op: str) -> list[str]:
    """Return the mode of every op of that name, at every level."""
    found = []
    for node, name in plan.ops.items():
        if op not in name and "auto_functionalized" not in name:
            continue
        nested = [n.plan for n in plan.nested if n.node == node]
        if plan.owner[node] != EAGER:
            found.append("whole")
        else:
            split = any(b.backend != EAGER for inner in nested for b in inner)
            found.append("recurse" if split else "looked into" if nested else "opaque")
    for nested in plan.nested:
        found += modes_in(nested.plan, op)
    return found


def check_modes(name: str, way: str, mode: str, reports: list[Report]) -> None:
    """Each op is in the mode that was asked for, and nothing fell back."""
    form = FORMS[name]
    found = [m for report in reports for m in modes_in(report.plan, form.op)]
    if (name, way) in VANISHES:
        assert not found, f"torch keeps the op now: take {name!r}, {way!r} out of VANISHES"
        return
    wanted = mode
    if mode == "recurse" and name in NEVER_SPLIT:
        wanted = "opaque" if name == "mutated cond" else "looked into"
    assert set(found) == {wanted}, f"{name}, {way}: asked for {mode}, was {found}"
    assert [r.notes for r in reports if any("fell back" in note for note in r.notes)] == []
    for report in reports:
        assert all(outcome.error is None for outcome in report.outcomes)


def run_cell(name: str, mode: str, way: str, backend: Any) -> None:
    if FORMS[name].op == "switch" and torch_switch is None:
        pytest.skip("this torch has no switch")
    refusal = REFUSED.get((name, way))
    if refusal is not None:
        check_refusal(name, way, refusal)
        return
    if way == "export":
        reports = exported(name, mode, backend)
    else:
        reports = compiled(name, mode, backend, way == "gradients")
    check_modes(name, way, mode, reports)
    check_calls(name, mode, way, backend, reports)


def check_calls(name: str, mode: str, way: str, backend: Any, reports: list[Report]) -> None:
    """Compiled code ran: in ``recurse`` mode more often than the parents have blocks to call."""
    form = FORMS[name]
    wrong = way == "gradients"
    calls = sum(not (wrong and is_wrong(name, args)) for args in form.calls())
    outer = sum(o.backend != EAGER for r in reports for o in r.outcomes) * calls
    split = mode == "recurse" and name not in NEVER_SPLIT and (name, way) not in VANISHES
    if split:
        assert backend.calls > outer, f"no block of a branch ran: {backend.calls} calls"
    else:
        assert backend.calls == outer


def check_refusal(name: str, way: str, pattern: str) -> None:
    """Without hierpart too, torch refuses, with the reason in the table."""
    with pytest.raises(Exception, match=pattern):  # of several types; the message tells
        torch_alone(name, way)


def torch_alone(name: str, way: str) -> None:
    form = FORMS[name]
    if way == "export":
        program_of(name)
    else:
        function = torch.compile(form.model(), backend="aot_eager", dynamic=True, fullgraph=True)
        for args in form.calls():
            compare_gradients(function, form.model(Plain), args)
    pytest.fail(f"torch accepts ({name!r}, {way!r}) now: take it out of REFUSED")


def test_torch_still_has_a_wrong_gradient_for_loops_without_a_trip() -> None:
    form = FORMS["while_loop"]
    args = next(args for args in form.calls() if is_wrong("while_loop", args))
    mine, theirs = gradients_of(form.model(Plain), args), gradients_of(form.model(), args)
    torch.testing.assert_close(mine[0], theirs[0])
    assert not torch.allclose(mine[1], theirs[1]), "torch has it right now: take it out of WRONG"


# ---------------------------------------------------------------------- the cells


def cells(backend: str, way: str) -> list[Any]:
    """Return the cells of a way in; see the head of this file for which are slow."""
    found = []
    for name in FORMS:
        for mode in MODES:
            fast = _is_fast(backend, name, mode, way)
            marks = () if fast else (pytest.mark.slow,)
            found.append(pytest.param(name, mode, way, marks=marks, id=f"{name}-{mode}-{way}"))
    return found


def _is_fast(backend: str, name: str, mode: str, way: str) -> bool:
    if backend == "inductor":
        return way == "export" and name not in ("switch of 1", "switch of 2")
    # Where torch has no gradients, the other way through torch.compile is all there is of it.
    wanted = "compile" if (name, "gradients") in REFUSED else "gradients"
    refused = mode == "whole" and (name, way) in REFUSED
    return refused or (way == wanted and mode == "recurse")


def all_cells(backend: str) -> list[Any]:
    return [cell for way in WAYS for cell in cells(backend, way)]


@pytest.mark.parametrize(("name", "mode", "way"), all_cells("double"))
def test_every_cell_with_a_double(name: str, mode: str, way: str) -> None:
    """Blocks run eagerly: what is asked for happens, in forward and backward graphs, and is equal."""
    run_cell(name, mode, way, CountingDouble("inductor"))


@pytest.mark.inductor
@pytest.mark.parametrize(("name", "mode", "way"), all_cells("inductor"))
def test_every_cell_with_inductor(name: str, mode: str, way: str) -> None:
    """Blocks are compiled, with the op in them, or in the branches, or around the op."""
    run_cell(name, mode, way, CountingInductor())
