"""The errors that hierpart raises; each class says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierpart.plan import Block


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
    """A block failed and ``strict=True`` (or ``fallback=False``) forbids falling back.

    It failed to compile, broke a cap, or did not agree with eager under ``check=True``; the cause
    is chained. Compile with ``strict=False`` to give the block to the next backend.

    Attributes:
        block: The block as the plan has it.
        backend: Who failed.
        source: A Python program that builds the block's graph and inputs like its own and runs it
            eagerly.
        inputs: What each input of the block is, in order.
    """

    def __init__(
        self,
        message: str,
        block: Block | None = None,
        backend: str = "",
        source: str = "",
        inputs: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.block, self.backend, self.source, self.inputs = block, backend, source, inputs


class BlockFaultError(HierpartError, RuntimeError):
    """A compiled block broke a cap, killed its process, or does not agree with eager.

    The block goes to the next backend; with ``strict=True`` this is the cause of the error raised.

    Attributes:
        remote: The traceback of the child process in which it happened, if it was one.
        is_costly: Whether it took all of the time or memory that it was given.
    """

    def __init__(self, message: str, remote: str = "", is_costly: bool = False) -> None:
        super().__init__(message)
        self.remote, self.is_costly = remote, is_costly


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
