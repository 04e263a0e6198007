"""The chain of blocks in the page: a strip to see all of it, and one box a block."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hierpart.page import counted, listed, seconds, size, tallied
from hierpart.plan import EAGER, Block, Outcome, Plan, headline, short_name
from hierpart.report.details import Details, Value
from hierpart.report.figures import count
from hierpart.report.html.markup import Child, Markup, element, scroller
from hierpart.report.palette import css_class

FEW = 24
"""Up to so many blocks each stands apart, with what flows to the next; beyond, they are rows."""

OPEN = 4
"""Up to so many blocks are shown open."""

MAX_ARCS = 1500
"""Most connections that are drawn, those of the most bytes first."""


def chain(
    plan: Plan, details: Details, outcomes: Sequence[Outcome] = (), where: str = ""
) -> Markup:
    """Return the strip, the boxes and, below, the branches of control-flow ops as trees.

    Args:
        plan: The plan.
        details: Its details; those of no node need be known.
        outcomes: What became of the blocks, where they were compiled.
        where: Path of op and branch, empty for the plan itself; part of the anchors.
    """
    by_block = {outcome.block: outcome for outcome in outcomes}
    flow = _Flow(plan)
    few = len(plan.blocks) <= FEW
    items = [
        element("li", _box(plan, details, block, by_block.get(block.index), flow, where),
                _between(plan, details, block, flow) if few else None)
        for block in plan.blocks
    ]  # fmt: skip
    return Markup(
        _strip(plan, details, flow, where)
        + element("ol", items, class_="chain" if few else "chain dense")
        + "".join(_branches(plan, details, where))
    )


class _Flow:
    """Who makes and who reads each value that crosses."""

    def __init__(self, plan: Plan) -> None:
        self.maker = {name: b.index for b in plan.blocks for name in b.outputs}
        self.readers: dict[str, list[int]] = {}
        for block in plan.blocks:
            for name in block.inputs:
                self.readers.setdefault(name, []).append(block.index)

    def edges(self, plan: Plan, values: Mapping[str, Value]) -> Counter[tuple[int, int]]:
        """Count bytes by making and reading block, at least one each."""
        found: Counter[tuple[int, int]] = Counter()
        for block in plan.blocks:
            for name in block.inputs:
                if name in self.maker:
                    made = values.get(name)
                    found[self.maker[name], block.index] += 1 + (made.bytes if made else 0)
        return found


def _strip(plan: Plan, details: Details, flow: _Flow, where: str) -> Markup:
    """Return a drawing of all blocks, as wide as they have nodes, and of what they hand on."""
    if not plan.blocks:
        return Markup("")
    least = min(3.0, 600 / len(plan.blocks))
    total = sum(len(b.nodes) for b in plan.blocks) or 1
    widths = [least + (1000 - least * len(plan.blocks)) * len(b.nodes) / total for b in plan.blocks]
    left, at = [], 0.0
    for width in widths:
        left.append(at)
        at += width
    middle = [x + w / 2 for x, w in zip(left, widths, strict=True)]
    edges = flow.edges(plan, details.values).most_common(MAX_ARCS)
    top = 70 if edges else 0
    thin = min(1.0, 60 / len(plan.blocks))
    arcs = [_arc(middle[a], middle[b], n, top, thin) for (a, b), n in edges]
    gap = min(1.0, least / 4)
    boxes = [
        element(
            "a",
            element("rect", x=f"{x:.2f}", y=top + 4, width=f"{w - gap:.2f}", height=20,
                    class_=css_class(b.backend, plan)),
            element("text", b.index, x=f"{x + w / 2:.2f}", y=top + 18) if w > 22 else None,
            element("title", f"block {b.index}, {b.backend}, {counted(len(b.nodes), 'node')}"),
            href=f"#{anchor(where, b.index)}",
        )
        for b, x, w in zip(plan.blocks, left, widths, strict=True)
    ]  # fmt: skip
    name = f"{len(plan.blocks)} blocks in order; arcs are values that one hands to another"
    return element(
        "svg", arcs, boxes, viewBox=f"0 0 1000 {top + 28}", class_="strip", role="img",
        aria_label=name,
    )  # fmt: skip


def _arc(start: float, end: float, weight: int, base: int, thin: float) -> Markup:
    """Draw a value's way; the wider the more bytes, and ``thin`` where there are many blocks."""
    height = min(base - 4.0, 10 + abs(end - start) * 0.35 / thin)
    width = thin * (0.6 + 0.14 * math.log2(1 + weight))
    path = f"M{start:.1f} {base + 2} C{start:.1f} {base - height:.1f} {end:.1f} "
    path += f"{base - height:.1f} {end:.1f} {base + 2}"
    return element("path", d=path, stroke_width=f"{width:.2f}")


def anchor(where: str, index: int) -> str:
    """Return the id of a block's box."""
    return f"block-{where}{index}"


def _between(plan: Plan, details: Details, block: Block, flow: _Flow) -> Markup:
    """Return the line between this block and the next: what passes from one to the other."""
    following = block.index + 1
    if following == len(plan.blocks):
        return Markup("")
    names = [n for n in plan.blocks[following].inputs if flow.maker.get(n) == block.index]
    told = [f"{n} ({v})" if (v := str(details.values.get(n, ""))) else n for n in names]
    return element("div", listed(told, 3) or None, class_="flow")


def _box(
    plan: Plan, details: Details, block: Block, outcome: Outcome | None, flow: _Flow, where: str
) -> Markup:
    flops = sum(details.nodes[n].flops or 0 for n in block.nodes if n in details.nodes)
    facts = counted(block.compute_ops, "compute op") + (f", {count(flops)} FLOPs" if flops else "")
    moved = outcome is not None and outcome.backend != block.backend
    runs = [element("span", block.backend, class_="chip " + css_class(block.backend, plan))]
    if moved and outcome is not None:
        runs.append(element("span", f" ran on {outcome.backend}", class_="bad"))
    summary = element(
        "summary",
        element("span", f"{block.index}", class_="r"),
        element("span", runs),
        element("span", facts),
        element("span", tallied((short_name(plan.ops.get(n, n)) for n in block.nodes), 6),
                class_="holds"),
        element("span", _time(outcome), class_="r soft"),
    )  # fmt: skip
    body = element("div", _inside(plan, details, block, outcome, flow, where))
    return element(
        "details", summary, body, id=anchor(where, block.index),
        class_=f"block {css_class(block.backend, plan)}", open=len(plan.blocks) <= OPEN,
    )  # fmt: skip


def _time(outcome: Outcome | None) -> str:
    if outcome is None or (outcome.backend == EAGER and not outcome.error):
        return ""
    return f"{outcome.status}, {seconds(outcome.seconds)}"


def _inside(
    plan: Plan, details: Details, block: Block, outcome: Outcome | None, flow: _Flow, where: str
) -> Iterator[Child]:
    handed = [n for n in block.inputs if n in flow.maker]
    given = [n for n in block.inputs if n not in flow.maker]
    taken = {n: f"block {flow.maker[n]}" for n in handed}
    read = {n: _readers(flow.readers.get(n, ())) for n in block.outputs}
    yield element("div",
        element("div", _values("takes from other blocks", "from", taken, details),
                _given(given, details)),
        element("div", _values("hands on", "read by", read, details)),
        class_="two",
    )  # fmt: skip
    shown = element(
        "button", "show in the table", type="button", class_="link", data_show_block=block.index
    )
    yield element(
        "details",
        element("summary", counted(len(block.nodes), "node"), None if where else shown),
        element("p", element("code", ", ".join(block.nodes)), class_="names"),
        class_="more",
    )
    yield from _history(outcome)


def _readers(blocks: Sequence[int]) -> str:
    return listed([f"block {b}" for b in blocks], 6) or "the caller"


def _values(title: str, other: str, names: Mapping[str, str], details: Details) -> Child:
    if not names:
        return element("p", f"{title}: nothing", class_="soft")
    rows = [
        element("tr",
            element("td", element("code", name)),
            element("td", str(value) or "-"),
            element("td", size(value.bytes) if value.bytes else "", class_="r"),
            element("td", who),
        )
        for name, who in names.items()
        for value in [details.values.get(name, Value())]
    ]  # fmt: skip
    head = element("tr", (element("th", t) for t in ("value", "dtype and shape")),
                   element("th", "bytes", class_="r"), element("th", other))  # fmt: skip
    return scroller(
        element("table", element("caption", title), element("thead", head), element("tbody", rows))
    )


def _given(names: Sequence[str], details: Details) -> Child:
    if not names:
        return None
    total = sum(details.values[n].bytes for n in names if n in details.values)
    said = f"{counted(len(names), 'input')} and weights from the caller"
    if total:
        said += f", {size(total)}"
    told = [f"{n} ({v})" if (v := str(details.values.get(n, ""))) else n for n in names]
    return element("details", element("summary", said),
                   element("p", element("code", ", ".join(told)), class_="names"),
                   class_="more")  # fmt: skip


def _history(outcome: Outcome | None) -> Iterator[Child]:
    """Yield what was tried to build the block, failures in full."""
    if outcome is None:
        return
    if outcome.shared_with is not None:
        yield element("p", f"runs the code of block {outcome.shared_with}")
    if outcome.detail:
        yield element("pre", outcome.detail)
    for attempt in outcome.attempts:
        said = f"{attempt.backend}: {'failed' if attempt.error else 'built'}"
        said += f" after {seconds(attempt.seconds)}"
        yield element("p", said, class_="bad" if attempt.error else None)
        yield element("pre", attempt.error) if attempt.error else None


def _branches(plan: Plan, details: Details, where: str) -> Iterator[Markup]:
    for i, nested in enumerate(plan.nested):
        inner = details.nested[i] if i < len(details.nested) else Details()
        title = f"branch {nested.branch} of {nested.node}: {headline(nested.plan)}"
        yield element(
            "details",
            element("summary", title),
            chain(nested.plan, inner, (), f"{where}{i}-"),
            class_="branch",
        )
