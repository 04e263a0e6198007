"""One self-contained HTML page of a report: no network, no file besides it.

Tables and trees can be read without JavaScript; the script of the page sorts and filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from hierpart.page import Table, seconds
from hierpart.plan import Outcome, Plan, headline, outcomes_table, plan_lines, plan_tables
from hierpart.report.details import Details
from hierpart.report.figures import figures, figures_table
from hierpart.report.html.blocks import chain
from hierpart.report.html.markup import Child, Markup, element, raw, table
from hierpart.report.html.nodes import node_table
from hierpart.report.palette import css_class

if TYPE_CHECKING:
    from hierpart.report.advice import Advice  # plans again; a page without advice needs no planner


def html(
    plan: Plan,
    outcomes: Sequence[Outcome],
    notes: Sequence[str],
    spent: Mapping[str, float],
    details: Details | None,
    *,
    title: str = "",
    advice: Advice | None = None,
) -> str:
    """Return the page.

    Args:
        plan: The plan that it tells of.
        outcomes: What became of each block; empty where nothing was compiled.
        notes: Things that a user should know.
        spent: Wall-clock seconds by stage.
        details: What is known of each node and value, if anything is.
        title: What was planned, in the heading; a name of the model or of its file.
        advice: What would help most, where it was worked out.
    """
    parts = list(_sections(plan, outcomes, details or Details(), advice))
    parts.insert(0, ("summary", "What runs where", _summary(plan, notes, spent, details)))
    name = f"hierpart: {title}" if title else "hierpart report"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", name),
        element("style", raw(_asset("report.css"))),
    )
    links = (element("a", text, href=f"#{key}") for key, text, _ in parts)
    body = element(
        "body",
        element("header", element("h1", name), element("p", headline(plan)),
                (element("p", line, class_="soft") for line in plan_lines(plan)),
                element("nav", links)),
        (element("section", element("h2", text), content, id=key) for key, text, content in parts),
        element("script", raw(_asset("report.js"))),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (files("hierpart.report.html") / "assets" / name).read_text(encoding="utf-8")


def _sections(
    plan: Plan, outcomes: Sequence[Outcome], details: Details, advice: Advice | None
) -> Iterator[tuple[str, str, Child]]:
    """Yield the anchor, the heading and the content of each section that has something to say."""
    yield "blocks", "Blocks, in the order in which they run", chain(plan, details, outcomes)
    if advice is not None:
        yield "advice", "What would help most", [table(t) for t in advice.tables()]
    for key, found in zip(("refused", "moved"), plan_tables(plan), strict=True):
        if found.rows:
            yield key, found.title.capitalize(), table(_untitled(found))
    if outcomes:
        yield "compiled", "Compiled", table(_untitled(outcomes_table(outcomes, 0)))
    yield "nodes", "Every node", node_table(plan, details)


def _untitled(found: Table) -> Table:
    return Table("", found.header, found.rows)


def _summary(
    plan: Plan, notes: Sequence[str], spent: Mapping[str, float], details: Details | None
) -> Iterator[Child]:
    rows = figures(plan, details)
    shares = [
        ("compute ops", [(f.backend, f.compute_ops) for f in rows]),
        ("FLOPs", [(f.backend, f.flops) for f in rows]),
        ("bytes made", [(f.backend, f.bytes) for f in rows]),
    ]
    bars = [
        (element("span", name), _bar(plan, parts))
        for name, parts in shares
        if sum(number for _, number in parts)
    ]
    yield element("div", bars, class_="bars")
    yield _with_chips(plan, figures_table(plan, details))
    if any(f.flops for f in rows):
        said = "FLOPs are estimates by torch's formulas: matrix products, convolutions, attention."
        yield element("p", said, class_="soft")
    if spent:
        stages = ", ".join(f"{name} {seconds(value)}" for name, value in spent.items())
        yield element("p", f"Time: {stages}.", class_="soft")
    yield (element("p", note) for note in notes)


def _bar(plan: Plan, parts: list[tuple[str, int]]) -> Markup:
    total = sum(number for _, number in parts)
    return element(
        "div",
        (
            element("span", class_=css_class(name, plan), style=f"flex:{number / total:.4f}",
                    title=f"{name} {100 * number / total:.1f} %")
            for name, number in parts
            if number
        ),
        class_="bar",
    )  # fmt: skip


def _with_chips(plan: Plan, source: Table) -> Markup:
    """Return the table of figures with the colour of each backend beside its name."""
    made: str = table(source)
    for row in source.rows:
        chip = element("span", row[0], class_="chip " + css_class(row[0], plan))
        made = made.replace(element("td", row[0]), element("td", chip), 1)
    return Markup(made)
