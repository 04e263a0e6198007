"""The errors that hierpart raises; each class says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HierpartError(Exception):
    """Root of every error that hierpart raises on purpose."""


class OptionError(HierpartError, ValueError):
    """An option has a value that is not legal; the message names the nearest legal one."""


class InputTypeError(HierpartError, TypeError):
    """Something other than a GraphModule was passed; the message says what to call instead."""


class GraphError(HierpartError, ValueError):
    """A graph is not a valid FX graph; the message names the node and what is wrong with it.

    Run ``graph.lint()`` where the graph is made, and propagate shapes again after changing it.
    """


class FullCompilationError(HierpartError, RuntimeError):
    """``require_full_compilation=True`` and some compute op has to run eagerly.

    The message lists each op that stops it and every backend's reason. Give one of the backends
    support for these ops, or drop ``require_full_compilation``.
    """


class PlanError(HierpartError, RuntimeError):
    """A plan breaks the contract (C1 to C7). This is a defect of hierpart or of a plug-in step.

    Please report it with the graph's code and the options.
    """


class BackendUnavailableError(HierpartError, RuntimeError):
    """A backend that was asked for cannot be used on this machine; the message says why."""


class BackendCompileError(HierpartError, RuntimeError):
    """A block failed to compile and falling back was switched off.

    The cause is chained. Compile with ``fallback=True`` to give the block to the next backend.
    """


class UnsupportedModeError(HierpartError, ValueError):
    """``torch.compile(mode=...)`` was given a mode that hierpart cannot honour."""


class MissingExtraError(HierpartError, ImportError):
    """An optional package is needed and not installed; the message names the extra."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'hierpart[{extra}]'")


def nearest(value: str, legal: Iterable[str]) -> str:
    """Return ``'; did you mean X?'`` for the legal name closest to ``value``, else the list."""
    names = sorted(set(legal))
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    shown = ", ".join(repr(n) for n in names[:8]) + (", ..." if len(names) > 8 else "")
    return f"; legal: {shown}" if names else ""
