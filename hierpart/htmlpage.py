"""One self-contained HTML page of a report: no network, no file besides it.

Tables and trees can be read without JavaScript; the script of the page sorts and filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from hierpart.details import Details
from hierpart.figures import figures, figures_table
from hierpart.htmlblocks import chain
from hierpart.htmlnodes import node_table
from hierpart.markup import Child, Markup, element, raw, table
from hierpart.page import Table, seconds
from hierpart.palette import css_class
from hierpart.plan import Plan
from hierpart.tables import headline, outcomes_table, plan_lines, plan_tables

if TYPE_CHECKING:
    from hierpart.report import Report
    from hierpart.suggest import Advice


def html(report: Report, title: str = "", advice: Advice | None = None) -> str:
    """Return the page.

    Args:
        report: What it tells.
        title: What was planned, in the heading; a name of the model or of its file.
        advice: What would help most, where it was worked out.
    """
    details = report.details or Details()
    parts = list(_sections(report, details, advice))
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
        element("header", element("h1", name), element("p", headline(report.plan)),
                (element("p", line, class_="soft") for line in plan_lines(report.plan)),
                element("nav", links)),
        (element("section", element("h2", text), content, id=key) for key, text, content in parts),
        element("script", raw(_asset("report.js"))),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (files("hierpart") / "assets" / name).read_text(encoding="utf-8")


def _sections(
    report: Report, details: Details, advice: Advice | None
) -> Iterator[tuple[str, str, Child]]:
    """Yield the anchor, the heading and the content of each section that has something to say."""
    plan = report.plan
    yield "summary", "What runs where", _summary(plan, details, report)
    yield "blocks", "Blocks, in the order in which they run", chain(plan, details, report.outcomes)
    if advice is not None:
        yield "advice", "What would help most", [table(t) for t in advice.tables()]
    for key, found in zip(("refused", "moved"), plan_tables(plan), strict=True):
        if found.rows:
            yield key, found.title.capitalize(), table(_untitled(found))
    if report.outcomes:
        yield "compiled", "Compiled", table(_untitled(outcomes_table(report.outcomes, 0)))
    yield "nodes", "Every node", node_table(plan, details)


def _untitled(found: Table) -> Table:
    return Table("", found.header, found.rows)


def _summary(plan: Plan, details: Details, report: Report) -> Iterator[Child]:
    rows = figures(plan, report.details)
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
    yield _with_chips(plan, figures_table(plan, report.details))
    if any(f.flops for f in rows):
        said = "FLOPs are estimates by torch's formulas: matrix products, convolutions, attention."
        yield element("p", said, class_="soft")
    if report.seconds:
        spent = ", ".join(f"{name} {seconds(value)}" for name, value in report.seconds.items())
        yield element("p", f"Time: {spent}.", class_="soft")
    yield (element("p", note) for note in report.notes)


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
