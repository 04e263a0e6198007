"""Pages of lines and tables, rendered as plain text or for rich; they know nothing of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, zip_longest
from typing import Any

INDENT = "  "
GAP = "  "
MAX_CELL, MAX_LAST_CELL = 60, 120


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text.

    Attributes:
        title: One line above the table.
        header: Names of the columns; a name that starts with ``>`` is a right-aligned column.
        rows: One tuple of cells a row, as long as the header.
        left_out: How many rows were left out after the ``head`` first ones.
        head: How many rows come before the gap.
        where: Where the rows that were left out are to be found.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0
    head: int = 0
    where: str = ""

    def gap(self) -> str:
        """Return the line that stands for the rows that were left out."""
        return f"... {self.left_out} more" + (f" in {self.where}" if self.where else "")


@dataclass(frozen=True, slots=True)
class Page:
    """A title over lines of text, tables and indented pages, in reading order."""

    title: str
    parts: tuple[str | Table | Page, ...]


def capped(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int, where: str
) -> Table:
    """Return a table of at most ``limit`` rows: the first three quarters and the last ones.

    Columns without a single cell are left out.

    Args:
        title: One line above the table.
        header: Names of the columns.
        rows: All rows; none is left out when there are at most ``limit``, or one more.
        limit: Most rows that are shown; 0 shows all.
        where: Where the rows that are left out are to be found.
    """
    filled = [any(cells) for cells in zip(*rows, strict=True)] or [True] * len(header)
    header = tuple(compress(header, filled))
    rows = [tuple(compress(row, filled)) for row in rows]
    if not limit or len(rows) <= limit + 1:
        return Table(title, header, tuple(rows))
    tail = limit // 4
    head = limit - tail
    kept = (*rows[:head], *rows[len(rows) - tail :])
    return Table(title, header, kept, len(rows) - len(kept), head, where)


def to_text(page: Page, indent: str = "") -> str:
    """Return the page as plain text without trailing blanks, nested pages indented."""
    return "\n".join((indent + line).rstrip() for line in _page_lines(page))


def to_rich(page: Page) -> Any:
    """Return the page as a rich renderable.

    Raises:
        ImportError: rich is not installed; ``pip install 'hierpart[cli]'`` brings it.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = [Text(page.title, style="bold")]
    for part in page.parts:
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, Table):
            parts.append(Padding(_rich_table(part), (1, 0, 0, 0)))
        else:
            parts.append(Padding(to_rich(part), (1, 0, 0, 2)))
    return Group(*parts)


def _page_lines(page: Page) -> Iterable[str]:
    yield page.title
    for part in page.parts:
        if isinstance(part, str):
            yield part
            continue
        yield ""
        lines = _table_lines(part) if isinstance(part, Table) else _indented(_page_lines(part))
        yield from lines


def _indented(lines: Iterable[str]) -> Iterable[str]:
    return (INDENT + line for line in lines)


def _table_lines(table: Table) -> Iterable[str]:
    right = [name.startswith(">") for name in table.header]
    names = tuple(name.lstrip(">") for name in table.header)
    rows = [_clipped(row) for row in table.rows]
    widths = [max(map(len, column)) for column in zip_longest(names, *rows, fillvalue="")]
    yield table.title
    for number, row in enumerate([names, *rows]):
        if table.left_out and number == table.head + 1:
            yield INDENT + table.gap()
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        yield INDENT + GAP.join(cells)


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    for name in table.header:
        out.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    blank = ("",) * (len(table.header) - 1)
    for number, row in enumerate(table.rows):
        if table.left_out and number == table.head:
            out.add_row(*blank, Text(table.gap(), style="dim"))
        out.add_row(*map(Text, _clipped(row)))
    return out


def _clipped(row: Sequence[str]) -> tuple[str, ...]:
    """Return the cells cut to their widths; only the last one pushes no other aside."""
    return (*(clip(cell) for cell in row[:-1]), clip(row[-1], MAX_LAST_CELL))


def clip(text: str, width: int = MAX_CELL) -> str:
    """Return the first line of ``text``, cut to ``width`` characters."""
    lines = text.strip().splitlines()
    first = lines[0] if lines else ""
    return first if len(first) <= width else first[: width - 3].rstrip() + "..."


def listed(names: Sequence[str], limit: int = 3) -> str:
    """Return ``names`` joined by commas, the first ``limit`` of them and a count of the rest."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f", +{rest}" if rest > 0 else "")


def tallied(names: Iterable[str], limit: int = 3) -> str:
    """Return each distinct name with its count, in order of first appearance, as :func:`listed`."""
    counts = Counter(names)
    return listed([f"{n} x{c}" if c > 1 else n for n, c in counts.items()], limit)


def counted(number: int, noun: str) -> str:
    """Return ``'1 block'`` or ``'2 blocks'``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(number: float) -> str:
    """Return a number of bytes in binary units, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return (
                f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.3g} {unit}"
            )
        number /= 1024
    return f"{number:,.1f} TiB"


def seconds(number: float) -> str:
    """Return a duration in seconds or milliseconds."""
    if number >= 1:
        return f"{number:.1f} s"
    milliseconds = number * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.2g} ms"


def share(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` in per cent, ``'-'`` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
