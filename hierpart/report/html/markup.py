"""HTML elements as text; whatever is not an element already is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from hierpart.page import Table

VOID = frozenset({"meta", "input", "br", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def element(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Return one element.

    Args:
        tag: Its name.
        children: Elements, and text and numbers, which are escaped; ``None`` is left out.
        attributes: Attributes; a trailing ``_`` of a name is dropped and other ``_`` become ``-``.
            ``True`` gives an attribute without a value, ``None`` and ``False`` none at all.
    """
    head = tag
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = name.rstrip("_").replace("_", "-")
        head += f" {spelled}" if value is True else f' {spelled}="{escape(str(value))}"'
    if tag in VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{joined(children)}</{tag}>")


def joined(child: Child) -> Markup:
    """Return children one after the other, text escaped."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return Markup(escape(str(child), quote=False))
    return Markup("".join(map(joined, child)))


def raw(text: str) -> Markup:
    """Return text of our own, a style sheet or a script, as it is.

    Raises:
        ValueError: It would end the element that holds it.
    """
    if "</" in text:
        raise ValueError("a style sheet or a script that holds '</' cannot be put into a page")
    return Markup(text)


def table(source: Table, **attributes: str) -> Markup:
    """Return a table of text as an HTML table; its title is the caption."""
    right = [name.startswith(">") for name in source.header]
    head = (
        element("th", name.lstrip(">"), scope="col", class_="r" if is_right else None)
        for name, is_right in zip(source.header, right, strict=True)
    )
    rows = (
        element("tr", (
            element("td", cell, class_="r" if is_right else None)
            for cell, is_right in zip(row, right, strict=True)
        ))
        for row in source.rows
    )  # fmt: skip
    return scroller(
        element(
            "table",
            element("caption", source.title) if source.title else None,
            element("thead", element("tr", head)),
            element("tbody", rows),
            **attributes,
        )
    )


def scroller(child: Markup) -> Markup:
    """Return a box that scrolls sideways where its content is wider than the page."""
    return element("div", child, class_="scroll", tabindex=0)
