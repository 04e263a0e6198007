"""What would help most: the graph planned again with one thing changed, nothing guessed.

Each row is a plan of its own by the whole line: what it says is what would come out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.fx import Node
from torch.nn import Module

from hierpart.graph import names_of, resolve_attribute
from hierpart.page import Page, Table, to_text
from hierpart.partition import BackendOpSupportTester, Verdicts, run_line
from hierpart.plan import EAGER, GETITEM, Plan, Reason, Verdict, compute_ops, tree

if TYPE_CHECKING:
    from hierpart.report.planned_graph import Planned

SIZES = (1, 2, 3, 5, 8, 13, 20)
"""The minimum sizes that a sweep tries."""

MOST = 10
"""How many pairs of op and backend are planned with, those of the most nodes."""

MATTERS_OF_SUPPORT = frozenset(
    {
        Reason.NOT_LISTED, Reason.DTYPE, Reason.LAYOUT, Reason.RANK, Reason.DYNAMIC,
        Reason.DATA_DEPENDENT, Reason.VALIDATOR, Reason.CONTROL_FLOW,
    }
)  # fmt: skip
"""Refusals that a better backend would not make; the user's wishes and our own rules stay."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What would change if a backend supported an op.

    Attributes:
        op: Qualified name of the op.
        backend: The backend that refuses it.
        count: How many nodes of that op it refuses, branches included.
        blocks: How many blocks would go; negative where there would be more.
        eager_ops: How many compute ops would leave eager.
        accelerated: Share of compute ops that would not run eagerly, 0 to 1.
    """

    op: str
    backend: str
    count: int
    blocks: int
    eager_ops: int
    accelerated: float


@dataclass(frozen=True, slots=True)
class SizeRow:
    """What one minimum size for all backends gives.

    Attributes:
        size: The minimum; ``None`` for what the options say.
        blocks: Number of blocks, branches included.
        accelerated_blocks: How many of them are not eager.
        ops: Compute ops of each backend.
    """

    size: int | None
    blocks: int
    accelerated_blocks: int
    ops: tuple[tuple[str, int], ...]

    @property
    def accelerated(self) -> float:
        """Share of compute ops that do not run eagerly, 0 to 1."""
        return _accelerated(dict(self.ops))


@dataclass(frozen=True)
class Advice:
    """Both rankings; prints as two tables.

    Attributes:
        suggestions: Ops worth supporting, most blocks first.
        sizes: Minimum sizes, ascending.
        left_out: How many pairs of op and backend were not tried, those with the fewest nodes.
    """

    suggestions: tuple[Suggestion, ...]
    sizes: tuple[SizeRow, ...]
    left_out: int = 0

    def tables(self) -> tuple[Table, ...]:
        """Return the tables that have rows."""
        found = (suggestions_table(self.suggestions, self.left_out), sizes_table(self.sizes))
        return tuple(table for table in found if table.rows)

    def __str__(self) -> str:
        return to_text(Page("", self.tables())).strip("\n")


class Supposing(BackendOpSupportTester):
    """Answers as another tester, but for one op that one backend is supposed to take.

    Args:
        base: The other tester.
        known: Its answers so far; filled in, so that each node is asked about once.
        op: Qualified name of the op; empty to suppose nothing.
        backend: Who takes it.
    """

    def __init__(
        self,
        base: BackendOpSupportTester,
        known: dict[Node, Verdicts],
        op: str = "",
        backend: str = "",
    ) -> None:
        super().__init__(
            base.backend_support_map, base.backend_priority, base.torch_executed_ops,
            control_flow=base.control_flow,
        )  # fmt: skip
        self._base, self._known, self._op, self._backend = base, known, op, backend

    def verdicts(self, node: Node) -> Verdicts:
        """Return every backend's answer for a callable node, in order of priority."""
        if node not in self._known:
            self._known[node] = self._base.verdicts(node)
        found = self._known[node]
        if not self._op or _op_of(node) != self._op:
            return found
        return tuple(
            Verdict(v.backend, True)
            if v.backend == self._backend and v.reason in MATTERS_OF_SUPPORT
            else v
            for v in found
        )


def advise(planned: Planned, limit: int = MOST, sizes: Sequence[int] = SIZES) -> Advice:
    """Return both rankings.

    Args:
        planned: The graph, its plan and the options.
        limit: Most pairs of op and backend to plan with.
        sizes: Minimum sizes to plan with.
    """
    known: dict[Node, Verdicts] = {}
    pairs = refused_pairs(planned.result.plan)
    found = (_suppose(planned, known, pair, count) for pair, count in pairs[:limit])
    ranked = sorted(found, key=lambda s: (-s.blocks, -s.eager_ops, -s.count, s.op))
    rows = (_size_row(None, planned.result.plan), *(_sweep(planned, known, size) for size in sizes))
    return Advice(tuple(ranked), rows if sizes else (), max(0, len(pairs) - limit))


def refused_pairs(plan: Plan) -> list[tuple[tuple[str, str], int]]:
    """Return op and backend with the number of nodes that it refuses, the most first.

    Only backends that come before the owner count, and only refusals that are a matter of support.
    """
    found: Counter[tuple[str, str]] = Counter()
    for part in tree(plan):
        for node, verdicts in part.verdicts.items():
            op = part.ops.get(node, node)
            for verdict in verdicts if op != GETITEM else ():
                if verdict.backend == part.owner[node]:
                    break
                if verdict.reason in MATTERS_OF_SUPPORT:
                    found[op, verdict.backend] += 1
    return found.most_common()


def _suppose(
    planned: Planned, known: dict[Node, Verdicts], pair: tuple[str, str], count: int
) -> Suggestion:
    op, backend = pair
    tester = Supposing(planned.result.tester, known, op, backend)
    before, module = planned.result.plan, planned.result.facts.module
    after = run_line(module, planned.options, tester).plan
    gone = compute_ops(before)[EAGER] - compute_ops(after)[EAGER]
    fewer = _blocks(before) - _blocks(after)
    return Suggestion(op, backend, count, fewer, gone, _accelerated(compute_ops(after)))


def _sweep(planned: Planned, known: dict[Node, Verdicts], size: int) -> SizeRow:
    options = dataclasses.replace(planned.options, min_block_size=size)
    tester = Supposing(planned.result.tester, known)
    return _size_row(size, run_line(planned.result.facts.module, options, tester).plan)


def _size_row(size: int | None, plan: Plan) -> SizeRow:
    ops = compute_ops(plan)
    names = dict.fromkeys((*plan.priority, *ops))
    eager = sum(b.backend == EAGER for part in tree(plan) for b in part.blocks)
    blocks = _blocks(plan)
    return SizeRow(size, blocks, blocks - eager, tuple((name, ops[name]) for name in names))


def _blocks(plan: Plan) -> int:
    return sum(len(part.blocks) for part in tree(plan))


def _accelerated(ops: Mapping[str, int]) -> float:
    total = sum(ops.values())
    return 1 - ops.get(EAGER, 0) / total if total else 0.0


def _op_of(node: Node) -> str:
    owner = node.graph.owning_module or Module()  # only what calls modules asks it
    return names_of(node, functools.partial(resolve_attribute, owner))[0]


def suggestions_table(suggestions: Sequence[Suggestion], left_out: int = 0) -> Table:
    """Return the ranking of ops."""
    rows = tuple(
        (
            s.op.removeprefix("torch.ops."), s.backend, str(s.count), _less(s.blocks),
            _less(s.eager_ops), f"{100 * s.accelerated:.1f} %",
        )
        for s in suggestions
    )  # fmt: skip
    title = "if a backend supported an op that it refuses (planned again with each)"
    if left_out:
        title += f"; {left_out} with fewer nodes were not tried"
    header = ("op", "backend", ">nodes", ">change of blocks", ">of eager ops", ">then accelerated")
    return Table(title, header, rows)


def sizes_table(sizes: Sequence[SizeRow]) -> Table:
    """Return the sweep over minimum sizes."""
    names = [name for name, _ in sizes[0].ops] if sizes else []
    rows = tuple(
        (
            "as set" if row.size is None else str(row.size), str(row.blocks),
            str(row.accelerated_blocks), *(str(n) for _, n in row.ops),
            f"{100 * row.accelerated:.1f} %",
        )
        for row in sizes
    )  # fmt: skip
    title = "minimum block size for all backends (planned with each)"
    ops = tuple(f">{name} ops" for name in names)
    header = (">size", ">blocks", ">accelerated blocks", *ops, ">accelerated")
    return Table(title, header, rows)


def _less(number: int) -> str:
    """Return how many go as a change: fewer are negative."""
    return f"{-number:+d}" if number else "0"
