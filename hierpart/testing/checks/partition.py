"""The checks of a partition, for any partitioner: plain functions that raise on the first breach.

They share no logic with what they judge. Orders are judged by what nodes were seen to do to
storages (:mod:`hierpart.testing.oracle.record`), results by ``fx.Interpreter`` on the original.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.fx import Graph, GraphModule

from hierpart.plan import Plan
from hierpart.testing.checks.carried import check_metadata, check_names
from hierpart.testing.checks.nested import Seen, branch_pairs
from hierpart.testing.checks.owners import Asked, check_owners
from hierpart.testing.checks.plan import PLAN_RULES, check_plan
from hierpart.testing.checks.planned_blocks import check_planned
from hierpart.testing.checks.structure import (
    check_attributes,
    check_blocks,
    check_cover,
    check_crossings,
    check_nested_cover,
    check_order,
)
from hierpart.testing.contract import ContractViolation, require
from hierpart.testing.generate.graph_builder import undisturbed
from hierpart.testing.generate.reproduce import reproduction
from hierpart.testing.oracle.expected import Expected, check_moved
from hierpart.testing.oracle.observe import state_kept, state_of
from hierpart.testing.oracle.record import Access, record
from hierpart.testing.reading.snapshot import describe, difference, snapshot

Partition = Callable[..., GraphModule]
"""Takes a graph module and options by keyword, returns the partitioned module."""

STRUCTURE = frozenset({"C1", "C3", "C6", "C7", "C11"})
ALL = frozenset({*STRUCTURE, "C2", "C4", "C5", "C8", "C9", "C10"})


def check_partition(
    gm: GraphModule,
    result: GraphModule,
    *calls: Sequence[Any],
    reference: GraphModule | None = None,
    judge: Collection[str] = ALL,
    options: Mapping[str, Any] | None = None,
) -> Expected | None:
    """Check a partitioned module against the module that it was made from (C1 to C8, C11).

    Args:
        gm: The input of the partitioner. Its attributes are what ``result`` has to share.
        result: What the partitioner returned.
        calls: Arguments of the calls to compare, made in turn on one object each.
        reference: A copy of ``gm`` made before it was partitioned; by default made now.
        judge: The rules to judge, by number.
        options: What the partitioner was given; by default owners are judged by the plan alone.

    Returns:
        What the original did in ``calls``, where C8 was judged.

    Raises:
        ContractViolation: A rule is broken; its number is in ``contract``.
    """
    reference = copy.deepcopy(gm) if reference is None else reference
    calls = calls or ((),)
    if set(judge) & {*STRUCTURE, *PLAN_RULES}:
        plan, asked = result.meta.get("hierpart"), Asked.of(options or {})
        _check_level(gm, result, calls[0], reference, plan, asked, judge, Seen())
    if "C8" in judge:
        expected = Expected(reference, calls)
        with state_kept(gm):
            expected.check(result, state_of(gm))
        with state_kept(gm):
            _check_survivor(expected, result, state_of(gm))
        if state_of(reference):
            check_moved(reference, result, calls)
        return expected
    return None


def _check_level(
    gm: GraphModule,
    result: GraphModule,
    inputs: Sequence[Any],
    reference: GraphModule,
    plan: Plan | None,
    asked: Asked | None,
    judge: Collection[str],
    seen: Seen,
    where: str = "",
) -> None:
    """Check what needs no comparison of results, here and in the branches, taken or not."""
    accesses = record(reference, inputs)
    _check_structure(gm, result, inputs, reference, accesses, judge)
    if plan is not None:
        rules = set(judge) & set(PLAN_RULES)
        check_plan(plan, reference, rules=rules, accesses=accesses)
        if result is not gm and {"C1", "C6", "C9"} <= set(judge):
            check_planned(plan, reference, result, accesses)
        if asked is not None and "C4" in judge:
            check_owners(asked, plan, reference, accesses)
    for pair in branch_pairs(gm, result, accesses, plan, seen, where):
        branch, inner = pair.branch, pair.operands
        try:
            _check_level(
                branch, pair.result, inner, branch, pair.plan, asked, judge, seen, pair.where
            )
            if "C8" in judge and pair.result is not branch:
                with state_kept(branch):
                    Expected(branch, [inner]).check(pair.result, state_of(branch))
        except ContractViolation as error:
            detail = f"{pair.where}{error.detail.removeprefix(pair.where)}"
            raise ContractViolation(error.contract, detail) from error


def _check_structure(
    gm: GraphModule,
    result: GraphModule,
    inputs: Sequence[Any],
    reference: GraphModule,
    accesses: dict[str, Access],
    judge: Collection[str],
) -> None:
    if "C1" in judge:
        check_cover(reference, result, accesses)
        check_nested_cover(reference, result)
    if "C3" in judge:
        check_order(reference, result, accesses)
    if "C6" in judge:
        check_blocks(gm, result)
        with state_kept(gm), undisturbed():
            check_crossings(gm, result, copy.deepcopy(tuple(inputs)))
    if "C7" in judge:
        check_attributes(gm, result)
    if "C11" in judge:
        check_names(reference, result, accesses)
        check_metadata(reference, result)


def _copy_of(graph: Graph) -> Graph:
    copied = Graph()
    copied.output(copied.graph_copy(graph, {}))
    copied._codegen = copy.deepcopy(graph._codegen)
    return copied


def check_equal(
    reference: GraphModule,
    result: GraphModule,
    calls: Sequence[Sequence[Any]],
    state: Mapping[str, Any],
) -> None:
    """C8: both give the same, call by call, down to bits, strides, aliases and random stream.

    Args:
        reference: The original; it runs by ``fx.Interpreter`` and is copied first.
        result: The partitioned module.
        calls: Positional arguments of each call. The second call passes them by name.
        state: The tensor attributes that ``result`` works on, by their names in ``reference``.

    Raises:
        ContractViolation: They differ.
    """
    Expected(reference, calls).check(result, state)


def _check_survivor(expected: Expected, result: GraphModule, state: Mapping[str, Any]) -> None:
    survivor = GraphModule(result, _copy_of(result.graph))
    survivor.graph.eliminate_dead_code()
    survivor.recompile()
    try:
        expected.check(survivor, state)
    except ContractViolation as error:
        detail = f"after eliminate_dead_code on the result: {error.detail}"
        raise ContractViolation(error.contract, detail) from error


def check_partitioner(
    partition: Partition,
    gm: GraphModule,
    *calls: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    judge: Collection[str] = ALL,
) -> GraphModule:
    """Partition ``gm`` and check everything: the result, and that it can be done again.

    Args:
        partition: The partitioner, as an adapter makes it.
        gm: The module to partition.
        calls: Arguments of the calls to compare.
        options: Keyword arguments for ``partition``.
        judge: The rules to judge, by number.

    Returns:
        The result.

    Raises:
        ContractViolation: A rule is broken; the error holds a program that shows it.
    """
    options = dict(options or {})
    try:
        return _check_partitioner(partition, gm, calls, options, judge)
    except ContractViolation as error:
        program = reproduction(gm, calls, options)
        raise ContractViolation(error.contract, error.detail, program) from error


def _check_partitioner(
    partition: Partition,
    gm: GraphModule,
    calls: Sequence[Sequence[Any]],
    options: Mapping[str, Any],
    judge: Collection[str],
) -> GraphModule:
    reference, before = copy.deepcopy(gm), snapshot(gm)
    with _nothing_printed():
        result = partition(gm, **options)
    if "C10" in judge:
        changed = difference(before, snapshot(gm))
        require(not changed, "C10", f"the input was changed: {changed}")
    expected = check_partition(
        gm, result, *calls, reference=reference, judge=judge, options=options
    )
    if "C9" in judge:
        same = describe(partition(gm, **options)) == describe(result)
        require(same, "C9", "splitting the same module again gives another result")
        # Nodes of a copy have other addresses, on which the order of a set of nodes depends.
        same = describe(partition(copy.deepcopy(reference), **options)) == describe(result)
        require(same, "C9", "splitting a copy of the module gives another result")
    if "C10" in judge and expected is not None:
        with state_kept(gm):
            expected.check(partition(result, **options), state_of(gm))
    return result


@contextlib.contextmanager
def _nothing_printed() -> Any:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield
    require(not text.getvalue(), "C10", f"the partitioner printed {text.getvalue()[:200]!r}")


def check_deterministic(make: Callable[[], object], times: int = 5) -> None:
    """C9: ``make`` gives the same plan or module each time, however the heap is laid out.

    Args:
        make: Builds its graph anew and returns a ``Plan``, a graph module or text.
        times: How often it is called; between calls the heap is fragmented differently.

    Raises:
        ContractViolation: Two calls differ.
    """
    first = _text(make())
    for number in range(1, times):
        noise = [bytearray(random.Random(number).randint(1, 4000)) for _ in range(200 * number)]
        random.Random(number).shuffle(noise)
        del noise[::2]
        text = _text(make())
        require(text == first, "C9", f"call {number} differs:\n{text}\ninstead of\n{first}")
        gc.collect()


def _text(made: object) -> str:
    if isinstance(made, GraphModule):
        return describe(made)
    fingerprint = getattr(made, "fingerprint", None)
    return str(fingerprint()) if fingerprint is not None else str(made)
