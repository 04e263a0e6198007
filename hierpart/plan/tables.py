"""The tables of a report: what each of them says about a plan."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hierpart.page import (
    Page,
    Table,
    capped,
    counted,
    listed,
    seconds,
    share,
    size,
    tallied,
    to_text,
)
from hierpart.plan.records import EAGER, Move, PlanData, Reason

if TYPE_CHECKING:
    from hierpart.plan.outcomes import Outcome

GETITEM = "_operator.getitem"
LIMIT = 24
"""Most rows of one table; the rest is counted and said to be in the plan."""


def plan_text(plan: PlanData, limit: int = LIMIT) -> str:
    """Return the plan as plain text with at most ``limit`` rows a table; 0 shows all.

    The text depends on nothing but the plan: equal plans give equal text.
    """
    return to_text(plan_page(plan, limit))


def plan_page(plan: PlanData, limit: int = LIMIT) -> Page:
    """Return the plan's page: what runs where, blocks, refusals, moves, and branches below."""
    return _page(plan, limit, (what_runs_where(plan),))


def _page(plan: PlanData, limit: int, first: tuple[Table, ...] = ()) -> Page:
    traffic = _traffic(plan)
    tables = (*first, _blocks(plan, limit), _refusals(plan, limit), _moves(plan, limit))
    parts: list[str | Table | Page] = [traffic] if traffic else []
    parts += _unavailable(plan)
    parts += [table for table in tables if table.rows]
    for nested in plan.nested:
        page = _page(nested.plan, limit)
        title = f"branch {nested.branch} of {nested.node}: {page.title}"
        parts.append(dataclasses.replace(page, title=title))
    return Page(headline(plan), tuple(parts))


def plan_lines(plan: PlanData) -> list[str]:
    """Return what the page says in lines: traffic between blocks, backends that are not here."""
    traffic = _traffic(plan)
    return [*([traffic] if traffic else []), *_unavailable(plan)]


def plan_tables(plan: PlanData) -> tuple[Table, Table]:
    """Return all refused ops and all moves."""
    return _refusals(plan, 0), _moves(plan, 0)


def block_count(plan: PlanData) -> str:
    """Return ``'3 blocks'`` and the like."""
    return counted(len(plan.blocks), "block")


def headline(plan: PlanData) -> str:
    """Count nodes and blocks, and say how near the blocks are to the fewest possible."""
    text = f"{counted(len(plan.owner), 'node')} in {block_count(plan)}"
    if not plan.blocks:
        return text
    if plan.proved:
        return text + ", the fewest possible with these owners (proved)"
    return text + f"; with these owners {plan.lower_bound} or more are needed (gap not closed)"


def _traffic(plan: PlanData) -> str:
    """Count the values that one block hands to another, once per reading block."""
    made = {name for block in plan.blocks for name in block.outputs}
    read = sum(name in made for block in plan.blocks for name in block.inputs)
    if not read:
        return ""
    if not plan.boundary_bytes:
        return f"between blocks: {counted(read, 'value')} of unknown or no size"
    peak, original = size(plan.peak_bytes), size(plan.original_peak_bytes)
    return (
        f"between blocks: {counted(read, 'value')}, {size(plan.boundary_bytes)}; "
        f"most alive at once {peak} ({original} in the original order)"
    )


def what_runs_where(plan: PlanData) -> Table:
    """Return the table of what each backend runs, branches included; idle backends are listed."""
    parts = tuple(tree(plan))
    ops = compute_ops(plan)
    rows = []
    for name, count in blocks_by_backend(*parts).items():
        nodes = sum(len(b.nodes) for part in parts for b in part.blocks if b.backend == name)
        least = plan.min_block_size.get(name)
        percent = share(ops[name], sum(ops.values()))
        minimum = "" if least is None else str(least)
        rows.append((name, str(count), str(nodes), str(ops[name]), percent, minimum))
    header = ("backend", ">blocks", ">nodes", ">compute ops", ">share", ">minimum")
    title = "what runs where" + (", branches included" if plan.nested else "")
    return Table(title, header, tuple(rows))


def compute_ops(plan: PlanData) -> Counter[str]:
    """Count compute ops by backend.

    A control-flow op counts the ops of its branches (C5). Where the branches have plans of their
    own, these ops count where they run and not once more as part of the op, which runs eagerly.
    """
    counts: Counter[str] = Counter()
    for block in plan.blocks:
        counts[block.backend] += block.compute_ops
    for nested in plan.nested:
        inner = compute_ops(nested.plan)
        counts.update(inner)
        counts[EAGER] -= sum(inner.values())
    return counts


def tree(plan: PlanData) -> Iterator[PlanData]:
    """Yield the plan and the plans of all branches below it."""
    yield plan
    for nested in plan.nested:
        yield from tree(nested.plan)


def _blocks(plan: PlanData, limit: int) -> Table:
    rows = [
        (
            str(block.index),
            block.backend,
            str(len(block.nodes)),
            str(block.compute_ops),
            str(len(block.inputs)),
            str(len(block.outputs)),
            tallied(short_name(plan.ops.get(name, name)) for name in block.nodes),
        )
        for block in plan.blocks
    ]
    header = (">#", "backend", ">nodes", ">compute ops", ">in", ">out", "holds")
    return capped("blocks, in the order in which they run", header, rows, limit, "plan.blocks")


def _refusals(plan: PlanData, limit: int) -> Table:
    """Table of refused ops: those that end in eager first, then by count and position.

    ``getitem`` is left out: it goes where the op goes that it takes apart. So are backends that
    are not available, which say the same of every op; the page has one line for each of them.
    """
    found: Counter[tuple[str, str, str, str]] = Counter()
    details: dict[tuple[str, str, str, str], dict[str, None]] = {}
    for node, owner in plan.owner.items():
        if plan.ops.get(node) == GETITEM:
            continue
        for (reason, detail), backends in _refused(plan, node, owner).items():
            key = (plan.ops.get(node, node), owner, ", ".join(backends), reason)
            found[key] += 1
            details.setdefault(key, {})[detail] = None
    order = sorted(found, key=lambda key: (key[1] != EAGER, -found[key]))
    rows = [
        (str(found[key]), _qualified(op), backends, owner, _why(op, reason, details[key]))
        for key in order
        for op, owner, backends, reason in [key]
    ]
    header = (">count", "op", "refused by", "runs on", "why")
    return capped("refused ops", header, rows, limit, "plan.verdicts")


def _unavailable(plan: PlanData) -> list[str]:
    """Return one line for each backend that refused nodes because it cannot be used here."""
    found: Counter[tuple[str, str]] = Counter()
    for verdicts in plan.verdicts.values():
        for v in verdicts:
            if v.reason is Reason.BACKEND_UNAVAILABLE:
                found[v.backend, v.detail] += 1
    return [
        f"not available: {backend}, asked for {counted(count, 'node')}"
        + (f" ({why})" if why else "")
        for (backend, why), count in found.items()
    ]


def _refused(plan: PlanData, node: str, owner: str) -> dict[tuple[str, str], list[str]]:
    """Return the refusals of the backends that come before the owner, by reason and detail."""
    out: dict[tuple[str, str], list[str]] = {}
    for verdict in plan.verdicts.get(node, ()):
        if verdict.backend == owner:
            break
        if not verdict.supported and verdict.reason is not Reason.BACKEND_UNAVAILABLE:
            reason = verdict.reason.value if verdict.reason else "no"
            out.setdefault((reason, verdict.detail), []).append(verdict.backend)
    return out


def _why(op: str, reason: str, details: Iterable[str]) -> str:
    """Return the reason and its first detail; a detail that only names the op says nothing new."""
    told = [d for d in details if d and _qualified(d) != _qualified(op)]
    return reason + (f" ({listed(told, 1)})" if told else "")


def _moves(plan: PlanData, limit: int) -> Table:
    """Table of the undersized blocks and where they went, and of every other change of owner."""
    rows = [
        (
            str(len(move.nodes)),
            f"{move.source} -> {move.target}",
            tallied(short_name(plan.ops.get(name, name)) for name in move.nodes),
            move.reason.value + (f" ({move.detail})" if move.detail else ""),
        )
        for move in sorted(plan.moves(), key=_size_first)
    ]
    header = (">nodes", "from -> to", "which", "why")
    return capped("moved to another backend", header, rows, limit, "plan.moves()")


def _size_first(move: Move) -> bool:
    return move.reason is not Reason.TOO_SMALL


def outcomes_table(outcomes: Sequence[Outcome], limit: int) -> Table:
    """Return the table of what became of each block, in block order."""
    rows = [
        (
            str(outcome.block),
            outcome.planned,
            outcome.backend,
            outcome.status,
            "" if outcome.shared_with is None else f"block {outcome.shared_with}",
            seconds(outcome.seconds) if outcome.backend != EAGER or outcome.error else "",
            outcome.error or "",
        )
        for outcome in outcomes
    ]
    header = (">#", "planned", "ran on", "status", "shared with", ">time", "error")
    if any(outcome.detail for outcome in outcomes):
        lines = (outcome.detail.partition("\n")[0] for outcome in outcomes)
        wider = [(*row, line) for row, line in zip(rows, lines, strict=True)]
        return capped("compiled", (*header, "detail"), wider, limit, "report.outcomes")
    return capped("compiled", header, rows, limit, "report.outcomes")


def blocks_by_backend(*plans: PlanData) -> dict[str, int]:
    """Return the number of blocks of each backend, in priority order."""
    counts = Counter(block.backend for plan in plans for block in plan.blocks)
    return {name: counts[name] for name in dict.fromkeys((*plans[0].priority, *counts))}


def _qualified(op: str) -> str:
    return op.removeprefix("torch.ops.")


def short_name(op: str) -> str:
    """Return ``softmax`` for ``torch.ops.aten._softmax.default`` and the like."""
    parts = _qualified(op).split(".")
    name = parts[1] if op.startswith("torch.ops.") and len(parts) > 1 else parts[-1]
    return name.lstrip("_") or name
