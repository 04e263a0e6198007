"""The table of all nodes in the page, those in branches included, and the tools above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hierpart.page import size
from hierpart.plan import EAGER, Move, Plan, Verdict
from hierpart.report.details import Details, NodeDetail, Value
from hierpart.report.figures import count
from hierpart.report.html.markup import Child, Markup, element
from hierpart.report.palette import css_class

_UNKNOWN = NodeDetail(Value())
LONG = 500
WIDEST, WIDEST_REASON = 38, 34
"""Most characters of a column; a reason goes on in a second line, other text is cut."""

NARROW = 0.86
"""Width of a letter of running text to that of a zero, in which widths are given."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        text: What it shows.
        number: What it sorts by in a column of numbers.
        hint: What is told when the pointer rests on it.
    """

    text: str
    number: float | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One node.

    Attributes:
        owner: Who runs it.
        css: Class of the owner's colour.
        block: Its block, empty in a branch: the tools above the table show blocks by number.
        refused: Whether a backend before the owner said no, or the node was moved.
        cells: In the order of the columns.
    """

    owner: str
    css: str
    block: str
    refused: bool
    cells: tuple[Cell, ...]


def node_table(plan: Plan, details: Details) -> Markup:
    """Return the tools and the table; columns without a single entry are left out."""
    asked = [name for name in plan.priority if name != EAGER]
    rows = list(_rows(plan, details, asked, ""))
    columns = [
        ("#", "number"), ("node", "text"), ("op", "text"), ("block", "number"), ("runs on", "chip"),
        *((f"{name}'s answer", "why") for name in asked), ("moved", "why"),
        ("value", "text"), ("bytes", "number"), ("FLOPs", "number"), ("source", "text"),
        ("module", "text"), ("branch", "text"),
    ]  # fmt: skip
    kept = [i for i in range(len(columns)) if i < 5 or any(row.cells[i].text for row in rows)]
    heads = (
        element("th", columns[i][0], scope="col", data_kind=columns[i][1],
                class_="r" if columns[i][1] == "number" else None)
        for i in kept
    )  # fmt: skip
    # Widths are given, so that a browser need not look at every row to find them.
    widths = (element("col", style=f"width:{_width(*columns[i], rows, i)}ch") for i in kept)
    table = element(
        "table",
        element("colgroup", widths),
        element("thead", element("tr", heads)),
        element("tbody", (_row(row, kept, [kind for _, kind in columns]) for row in rows)),
        id="node-table",
    )
    tools = _tools(dict.fromkeys(row.owner for row in rows), len(plan.blocks))
    return Markup(tools + element("div", table, class_=_box_class(len(rows)), tabindex=0))


def _box_class(rows: int) -> str:
    """Return the class of the table's box; a long table is laid out when it comes into view."""
    return "big long" if rows > LONG else "big"


def _width(title: str, kind: str, rows: Sequence[Row], i: int) -> int:
    longest = max((len(row.cells[i].text) for row in rows), default=0)
    most = WIDEST_REASON if kind == "why" else WIDEST
    return round(NARROW * max(len(title) + 2, min(longest, most))) + 2


def _row(row: Row, kept: Sequence[int], kinds: Sequence[str]) -> Markup:
    cells = (_cell(row.cells[i], kinds[i], row.css) for i in kept)
    return element(
        "tr", cells, data_owner=row.owner, data_block=row.block, data_refused=int(row.refused)
    )


def _cell(cell: Cell, kind: str, css: str) -> Markup:
    if kind == "chip":
        return element("td", element("span", cell.text, class_=f"chip {css}"))
    if kind == "number":
        return element("td", cell.text, class_="r", data_v=cell.number)
    hint = cell.hint or (cell.text if kind == "text" and len(cell.text) > WIDEST else None)
    return element("td", cell.text, class_="why" if kind == "why" else None, title=hint)


def _tools(owners: dict[str, None], blocks: int) -> Markup:
    hint = "show nodes whose row holds these words"
    return element(
        "div",
        element("input", type="search", id="filter-text", placeholder="filter", aria_label=hint),
        _choice("owner", "all backends", {owner: owner for owner in owners}),
        _choice("block", "all blocks", {str(b): f"block {b}" for b in range(blocks)}),
        element("label", element("input", type="checkbox", id="filter-refused"),
                " only refused or moved"),
        element("span", id="filter-count", class_="soft", role="status"),
        class_="tools",
    )  # fmt: skip


def _choice(name: str, title: str, options: dict[str, str]) -> Markup:
    made: list[Child] = [element("option", title, value="")]
    made += [element("option", text, value=value) for value, text in options.items()]
    return element("select", made, id=f"filter-{name}", aria_label=title)


def _rows(
    plan: Plan, details: Details, asked: Sequence[str], branch: str, first: int = 0
) -> Iterator[Row]:
    """Yield the plan's nodes block by block, those of each branch after the plan's own."""
    moved = {name: _move(move) for move in plan.moves() for name in move.nodes}
    number = first
    for block in plan.blocks:
        css = css_class(block.backend, plan)
        for name in block.nodes:
            op, verdicts = plan.ops.get(name, ""), plan.verdicts.get(name, ())
            answers = {v.backend: v for v in verdicts}
            refused = name in moved or _is_refused(verdicts, block.backend)
            cells = (
                Cell(str(number)), Cell(name), Cell(op.removeprefix("torch.ops.")),
                Cell(str(block.index)), Cell(block.backend),
                *(Cell(answer(answers.get(a), op)) for a in asked), Cell(moved.get(name, "")),
                *_detail_cells(details.nodes.get(name, _UNKNOWN)), Cell(branch),
            )  # fmt: skip
            yield Row(block.backend, css, "" if branch else str(block.index), refused, cells)
            number += 1
    for i, nested in enumerate(plan.nested):
        inside = details.nested[i] if i < len(details.nested) else Details()
        path = f"{branch}{' / ' if branch else ''}{nested.node}: {nested.branch}"
        for row in _rows(nested.plan, inside, asked, path, number):
            yield row
            number += 1


def _move(move: Move) -> str:
    why = move.reason.value + (f" ({move.detail})" if move.detail else "")
    return f"{move.source} -> {move.target}: {why}"


def _detail_cells(detail: NodeDetail) -> Iterator[Cell]:
    made, flops, source = detail.value, detail.flops, detail.source
    yield Cell(str(made))
    yield Cell(size(made.bytes), made.bytes) if made.bytes else Cell("")
    yield Cell("") if flops is None else Cell(count(flops), flops)
    yield Cell(short_path(source), hint=source or None)
    yield Cell(detail.module)


def short_path(path: str) -> str:
    """Return the file and the folder that it is in; a path's end tells more than its start."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def answer(verdict: Verdict | None, op: str = "") -> str:
    """Return a backend's answer in words, empty where it was not asked.

    A detail that only names ``op`` is left out.
    """
    if verdict is None:
        return ""
    if verdict.supported:
        return "yes"
    why = verdict.reason.value if verdict.reason else "no"
    return why + (f" ({verdict.detail})" if verdict.detail not in ("", op) else "")


def _is_refused(verdicts: Sequence[Verdict], owner: str) -> bool:
    for verdict in verdicts:
        if verdict.backend == owner:
            return False
        if not verdict.supported:
            return True
    return False
