"""Size symbols at run time: which input tells each one, and expressions over them as functions.

Captured graphs describe sizes and strides by sympy expressions over symbols. A compiled block is
called with tensors, so whoever has to check a range, a guard or a stride first has to find the
symbols in the sizes that are at hand.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hierpart.graph.node.values import expression_of

if TYPE_CHECKING:
    import sympy

Evaluate = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Takes the values of a call and returns one number or truth value an expression."""


def places(values: Sequence[Any]) -> dict[sympy.Symbol, str]:
    """Return, for each size symbol that ``values`` determine, Python code that computes it.

    The code reads the sequence ``a`` of the values of a call. A symbol that stands alone as a size
    or scalar is read; one inside ``k*s + c`` (whole ``k`` and ``c``) is solved for. The first
    place found wins, plain ones before solved ones.
    """
    plain: dict[sympy.Symbol, str] = {}
    solved: dict[sympy.Symbol, str] = {}
    for expression, code in _sizes(values):
        if expression.is_Symbol:
            plain.setdefault(expression, code)
        elif len(expression.free_symbols) == 1:
            symbol = next(iter(expression.free_symbols))
            found = _solve(expression, symbol, code)
            if found:
                solved.setdefault(symbol, found)
    return solved | plain


def evaluator(expressions: Iterable[Any], values: Sequence[Any]) -> Evaluate | None:
    """Return a function from the values of a call to the values of ``expressions``.

    Args:
        expressions: Sympy expressions, symbolic scalars or plain numbers.
        values: Example values (fake tensors, symbolic scalars) of the same call.

    Returns:
        The function, or ``None`` when the values do not determine every symbol.
    """
    exprs = [_as_expression(e) for e in expressions]
    found = places(values)
    needed = sorted({s for e in exprs for s in getattr(e, "free_symbols", ())}, key=str)
    if any(symbol not in found for symbol in needed):
        return None
    names = {symbol: f"s{i}" for i, symbol in enumerate(needed)}
    printed = [_print(e, names) for e in exprs]
    inner = f"lambda {', '.join(names.values())}: ({''.join(p + ', ' for p in printed)})"
    code = f"lambda a: ({inner})({', '.join(found[s] for s in needed)})"
    function: Evaluate = eval(code, {"math": math, "torch": torch})
    return function


def is_symbolic(value: Any) -> bool:
    """Whether a size, stride or scalar is not a plain number."""
    expression = expression_of(value)
    return expression is not None and bool(expression.free_symbols)


def shape_env_of(values: Iterable[Any]) -> Any:
    """Return the ``ShapeEnv`` that the symbolic sizes among ``values`` belong to, or ``None``."""
    for value in values:
        env = getattr(getattr(value, "fake_mode", None), "shape_env", None)
        if env is None and isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            env = value.node.shape_env
        if env is not None:
            return env
    return None


class SpecialisationError(RuntimeError):
    """Compiling asked a question whose answer would fix a size that the user left open."""


def guards_of(values: Iterable[Any]) -> list[Any]:
    """Return the conditions that have been put on the symbols of ``values`` so far."""
    env = shape_env_of(values)
    return [guard.expr for guard in env.guards] if env is not None else []


@contextlib.contextmanager
def sizes_stay_open(values: Iterable[Any]) -> Iterator[None]:
    """Refuse, within, every question that would tie a symbol of ``values`` to a number.

    Nobody installs the guards of an exported graph's symbols: code compiled after such a question
    would be wrong, without a word, for other sizes; and once asked, the symbol is gone from the
    metadata of all other blocks. Bounds and divisibility leave the symbol be; whoever runs the
    code checks them. Under ``torch.compile`` Dynamo installs the guards, and nothing is refused.

    Private: ``ShapeEnv._check_frozen``, which is called before each guard is recorded.

    Raises:
        SpecialisationError: At the question, within the block.
    """
    from torch._guards import TracingContext

    env = shape_env_of(values)
    if env is None or TracingContext.try_get() is not None:
        yield
        return
    outer, ask = vars(env).get("_check_frozen"), env._check_frozen

    def check(expression: Any, answer: Any) -> None:
        if _fixes_a_size(expression, answer):
            raise SpecialisationError(f"would only be right where {expression} is {answer}")
        ask(expression, answer)

    env._check_frozen = check
    try:
        yield
    finally:
        if outer is None:
            del env._check_frozen
        else:
            env._check_frozen = outer


def _fixes_a_size(expression: Any, answer: Any) -> bool:
    import sympy
    from torch.utils._sympy.functions import Mod, PythonMod

    if answer is not sympy.true and answer is not sympy.false:
        return True  # asked for the number itself
    equal = isinstance(expression, sympy.Eq if answer is sympy.true else sympy.Ne)
    return equal and not expression.has(Mod, PythonMod)


def _as_expression(value: Any) -> Any:
    expression = expression_of(value)
    return value if expression is None else expression


def _sizes(values: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                if is_symbolic(size):
                    yield expression_of(size), f"a[{i}].shape[{d}]"
        elif is_symbolic(value):
            yield expression_of(value), f"a[{i}]"


def _solve(expression: Any, symbol: Any, code: str) -> str | None:
    """Return code for the symbol where the expression is ``k*symbol + c`` with whole numbers."""
    if not expression.is_polynomial(symbol):
        return None
    terms = expression.as_poly(symbol)
    if terms is None or terms.degree() != 1:
        return None
    scale, offset = terms.all_coeffs()
    if not (scale.is_Integer and offset.is_Integer):
        return None
    return f"(({code} - {int(offset)}) // {int(scale)})"


def _print(expression: Any, names: Mapping[Any, str]) -> str:
    """Return Python code of an expression; the symbols are printed by the given names."""
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    if not isinstance(expression, sympy.Basic):
        return repr(expression)
    plain = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    text: str = PythonPrinter().doprint(expression.xreplace(plain))
    return text
