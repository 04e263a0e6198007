"""Expressions on sizes, as sympy's ``srepr`` writes them, read without evaluating any text.

sympy's own reader evaluates a text as Python, and several of its classes do so with their
arguments; a power of powers takes for ever. So a text is parsed, every part of it has to be in the
lists below, and numbers, depth, length and the size of the results are bounded, before any class of
sympy's is called. The exported program's expressions, which torch gives to sympy's reader, are
checked by the same rules first (:mod:`hierpart.artefact.archive`).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from typing import Any

from hierpart.artefact.members import ArtefactError
from hierpart.graph import symbols_in

LONGEST, DEEPEST, MOST_PARTS = 20_000, 50, 1_000
"""Most characters, levels and parts of one expression."""
LARGEST = 1 << 64
"""Numbers in a text are below this."""
MOST_BITS = 1 << 17
"""Most bits that a result may have where every symbol has 64."""
_SYMBOL_BITS = 64
_CONSTANTS = ("true", "false", "oo", "int_oo", "zoo", "nan")
_ASSUMPTIONS = (
    "integer", "positive", "nonnegative", "nonzero", "negative", "nonpositive", "zero", "real",
    "finite", "commutative",
)  # fmt: skip
_PLAIN = (
    "Add", "Mul", "Max", "Min", "Abs", "floor", "ceiling", "Equality", "Unequality",
    "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "And", "Or", "Not", "Xor",
    "Piecewise", "ExprCondPair", "ITE", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod",
    "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "IntTrueDiv", "FloatTrueDiv",
    "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
    "RoundDecimal", "ToFloat", "Identity", "RShift", "BitwiseFn_bitwise_and",
    "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor", "OpaqueUnaryFn_sqrt", "OpaqueUnaryFn_cos",
    "OpaqueUnaryFn_cosh", "OpaqueUnaryFn_sin", "OpaqueUnaryFn_sinh", "OpaqueUnaryFn_tan",
    "OpaqueUnaryFn_tanh", "OpaqueUnaryFn_asin", "OpaqueUnaryFn_acos", "OpaqueUnaryFn_atan",
    "OpaqueUnaryFn_exp", "OpaqueUnaryFn_log", "OpaqueUnaryFn_asinh", "OpaqueUnaryFn_log2",
)  # fmt: skip
"""Classes that take expressions alone and whose result is no longer than all of them together."""
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_NUMBERS = ("Integer", "Rational")
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_DECIMAL = re.compile(r"[+-]?[0-9.]{1,60}(e[+-]?[0-9]{1,3})?")


def read_expressions(texts: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return expressions in the symbols of ``values``, found by their names.

    Raises:
        ArtefactError: A text is no expression as sympy's ``srepr`` writes them, or is too large.
    """
    symbols = {str(s): s for value in values for s in symbols_in(value)}
    found = []
    for text in texts:
        tree = check_expression(text)
        try:
            expression = _made(tree)
            known = {s: symbols[str(s)] for s in expression.free_symbols if str(s) in symbols}
            found.append(expression.xreplace(known))
        except Exception as error:  # sympy's classes raise whatever they like at odd arguments
            raise ArtefactError(f"a condition on sizes cannot be read: {error}") from error
    return found


def check_expression(text: object) -> ast.expr:
    """Return the parsed text of an expression that is harmless to make and to evaluate.

    Raises:
        ArtefactError: It is not.
    """
    try:
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"no text of at most {LONGEST} characters")
        tree = ast.parse(text.strip(), mode="eval").body
        if sum(1 for _ in ast.walk(tree)) > 4 * MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS} parts")
        if _bits(tree, 0) > MOST_BITS:
            raise ValueError("its results could be too large")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ArtefactError(f"a condition on sizes cannot be read: {error}") from error
    return tree


def _bits(node: ast.expr, depth: int) -> int:
    """Return a bound on the bits of what a node stands for.

    Raises:
        ValueError: It is no part of an expression.
    """
    if depth > DEEPEST:
        raise ValueError(f"deeper than {DEEPEST} levels")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _bits(node.operand, depth + 1)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return 1
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{_shown(node)} is no part of an expression")
    name, args = node.func.id, node.args
    if name == "Symbol":
        return _symbol(node)
    if name == "Float":
        return _float(node)
    if node.keywords:
        raise ValueError(f"{_shown(node)} has a keyword")
    if name in _NUMBERS and args:
        return sum(_number(a).bit_length() for a in args)
    if name in _POWERS and len(args) == 2:
        return _bits(args[0], depth + 1) * _exponent(args[1], depth + 1)
    if name in _PLAIN and args:
        return 1 + sum(_bits(a, depth + 1) for a in args)
    raise ValueError(f"{_shown(node)} is no part of an expression")


def _symbol(node: ast.Call) -> int:
    fits = (
        len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
        and _NAME.fullmatch(node.args[0].value)
        and all(
            k.arg in _ASSUMPTIONS
            and isinstance(k.value, ast.Constant)
            and isinstance(k.value.value, bool)
            for k in node.keywords
        )
    )
    if not fits:
        raise ValueError(f"{_shown(node)} is no symbol")
    return _SYMBOL_BITS


def _float(node: ast.Call) -> int:
    text = getattr(node.args[0], "value", None) if len(node.args) == 1 else None
    fits = isinstance(text, str) and _DECIMAL.fullmatch(text) is not None
    for keyword in node.keywords:
        fits = fits and keyword.arg == "precision" and 0 < _number(keyword.value) <= 256
    if not fits:
        raise ValueError(f"{_shown(node)} is no decimal number")
    return _SYMBOL_BITS


def _number(node: ast.expr) -> int:
    sign, inner = 1, node
    if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub):
        sign, inner = -1, inner.operand
    value = inner.value if isinstance(inner, ast.Constant) else None
    if type(value) is not int or value >= LARGEST:
        raise ValueError(f"{_shown(node)} is no whole number below 2**64")
    return sign * value


def _exponent(node: ast.expr, depth: int) -> int:
    """Return by how much a power with this exponent can lengthen its base."""
    bits = _bits(node, depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in _NUMBERS:  # "_bits" has seen that it has an argument
            return max(abs(_number(node.args[0])), 1)
        if node.func.id == "Symbol":
            return _SYMBOL_BITS  # a size, which the caller's tensors bound
    raise ValueError(f"an exponent of {bits} bits that is neither a number nor a symbol")


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return repr(text if len(text) < 100 else f"{text[:100]}...")


def _made(node: Any) -> Any:
    """Return what a checked node stands for."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -_made(node.operand)
    if isinstance(node, ast.Name):
        return _classes()[node.id]
    named = {str(k.arg): _made(k.value) for k in node.keywords}
    return _classes()[node.func.id](*map(_made, node.args), **named)


@functools.cache
def _classes() -> dict[str, Any]:
    """Return the classes and constants of the lists above that there are, by name."""
    import sympy
    from torch.utils._sympy import functions
    from torch.utils._sympy.numbers import int_oo

    names = (*_CONSTANTS, *_PLAIN, *_POWERS, *_NUMBERS, "Symbol", "Float")
    there = {**vars(sympy), "ExprCondPair": sympy.functions.elementary.piecewise.ExprCondPair,
             **vars(functions), "int_oo": int_oo}  # fmt: skip
    return {name: there[name] for name in names if name in there}
