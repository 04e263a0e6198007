"""Conditions on sizes come back from a file as they were, and no text in it is run."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy import functions as own

from hierpart.artefact.expressions import read_expressions
from hierpart.artefact.members import ArtefactError

S = sympy.Symbol("s0", integer=True, positive=True)


@pytest.mark.parametrize(
    "expression",
    [
        sympy.Eq(own.Mod(S, 2), 0),
        own.FloorDiv(S, 3) + 2 >= 17 * S,
        sympy.Or(own.PythonMod(S, 5) > 1, S**2 < 8, evaluate=False),
        sympy.Rational(-1, 2) * S < 3,
        sympy.Float(2.5) * S > own.Max(S, 2),
        sympy.true,
    ],
)
def test_expressions_come_back(expression):
    assert read_expressions([sympy.srepr(expression)], []) == [expression]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()",
        "(lambda: 1)()",
        "Symbol.__class__",
        "sympify('1')",
        "Max('__import__(\\'os\\').getcwd()', Integer(1))",
        "[Integer(1)]",
        "Integer(1",
    ],
)
def test_no_text_is_run(text):
    with pytest.raises(ArtefactError, match="condition on sizes"):
        read_expressions([text], [])
