"""Expressions on sizes, as sympy's ``srepr`` writes them, read without evaluating any text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from hierpart.artefact.members import ArtefactError
from hierpart.graph import symbols_in


def read_expressions(texts: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return expressions in the symbols of ``values``, found by their names.

    Raises:
        ArtefactError: A text is no expression as sympy's ``srepr`` writes them.
    """
    symbols = {str(s): s for value in values for s in symbols_in(value)}
    found = []
    for text in texts:
        try:
            expression = _made(ast.parse(text, mode="eval").body, _classes())
        except (SyntaxError, TypeError, ValueError) as error:
            raise ArtefactError(f"a condition on sizes cannot be read: {error}") from error
        known = {s: symbols[str(s)] for s in expression.free_symbols if str(s) in symbols}
        found.append(expression.xreplace(known))
    return found


def _made(node: ast.expr, classes: Mapping[str, Any]) -> Any:
    """Return what ``Class(argument, ..., key=constant)`` stands for.

    sympy's own reader evaluates the text as Python, which a file must not make this process do.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_made(node.operand, classes)
    if isinstance(node, ast.Name) and node.id in classes:
        return classes[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
        # Some classes read a text as Python; only names and decimals have to be texts.
        if node.func.id not in ("Symbol", "Float") and any(map(_is_text, node.args)):
            raise ValueError(f"{ast.unparse(node)!r} holds a text")
        args = [_made(a, classes) for a in node.args]
        named = {str(k.arg): _made(k.value, classes) for k in node.keywords}
        return classes[node.func.id](*args, **named)
    raise ValueError(f"{ast.unparse(node)!r} is no part of an expression")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


@functools.cache
def _classes() -> dict[str, Any]:
    """Return the classes and constants that expressions on sizes are made of, by name."""
    import sympy
    from torch.utils._sympy import functions

    found = {**vars(sympy), **vars(functions)}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, sympy.Basic)
        or (isinstance(value, type) and issubclass(value, sympy.Basic))
    }
