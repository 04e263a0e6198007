"""Sums over a plan and its branches: what each backend has of ops, FLOPs and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hierpart.page import Table, share, size
from hierpart.plan import EAGER, Plan, blocks_by_backend, compute_ops, tree
from hierpart.report.details import Details


@dataclass(frozen=True, slots=True)
class Figures:
    """What one backend runs, branches included.

    Attributes:
        backend: Its name.
        blocks: Number of its blocks.
        nodes: Number of its nodes.
        compute_ops: How many of them count for the minimum size.
        flops: Estimated floating-point operations of those that have a formula.
        bytes: Bytes of the values that its nodes make.
    """

    backend: str
    blocks: int
    nodes: int
    compute_ops: int
    flops: int
    bytes: int


def figures(plan: Plan, details: Details | None) -> tuple[Figures, ...]:
    """Return one entry a backend, in priority order; idle backends are listed."""
    ops, parts = compute_ops(plan), tuple(tree(plan))
    nodes: Counter[str] = Counter()
    for part in parts:
        nodes.update(part.owner.values())
    flops: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for part, detail in pairs(plan, details):
        frames = {n.node for n in part.nested}
        for name, owner in part.owner.items():
            known = detail.nodes.get(name)
            if known is not None and name not in frames:
                flops[owner] += known.flops or 0
                made[owner] += known.value.bytes
    return tuple(
        Figures(name, count, nodes[name], ops[name], flops[name], made[name])
        for name, count in blocks_by_backend(*parts).items()
    )


def pairs(plan: Plan, details: Details | None) -> Iterator[tuple[Plan, Details]]:
    """Yield the plan and those of its branches, each with its details."""
    yield plan, details or Details()
    inner = details.nested if details is not None else ()
    for i, nested in enumerate(plan.nested):
        yield from pairs(nested.plan, inner[i] if i < len(inner) else None)


def figures_table(plan: Plan, details: Details | None) -> Table:
    """Return the table of :func:`figures`; columns that nothing is known of are left out."""
    rows = figures(plan, details)
    total_flops, total_bytes = sum(f.flops for f in rows), sum(f.bytes for f in rows)
    ops = sum(f.compute_ops for f in rows)
    header = ["backend", ">blocks", ">nodes", ">compute ops", ">share"]
    header += [">FLOPs", ">share"] if total_flops else []
    header += [">bytes made", ">share"] if total_bytes else []
    cells = []
    for f in rows:
        row = [f.backend, str(f.blocks), str(f.nodes), str(f.compute_ops)]
        row.append(share(f.compute_ops, ops))
        row += [count(f.flops), share(f.flops, total_flops)] if total_flops else []
        row += [size(f.bytes), share(f.bytes, total_bytes)] if total_bytes else []
        least = plan.min_block_size.get(f.backend)
        cells.append((*row, "" if least is None or f.backend == EAGER else str(least)))
    return Table("", (*header, ">minimum"), tuple(cells))


def count(number: float) -> str:
    """Return a count in decimal units, three significant digits: ``1.05 M``."""
    for unit in ("", " k", " M", " G", " T"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.4g} P"
