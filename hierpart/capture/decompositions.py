"""How far capture decomposes: torch's tables, less the ops that some backend takes whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierpart.backends import backend_named
from hierpart.options import Options


def aot_decompositions(options: Options) -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table of the ``torch.compile`` way in."""
    if options.decompositions == "minimal":
        return {}
    from torch._decomp import core_aten_decompositions

    kept = kept_ops(options)
    table: Any = core_aten_decompositions()
    return {op: function for op, function in table.items() if op_name(op) not in kept}


def kept_ops(options: Options) -> frozenset[str]:
    """Return the ops that some backend takes whole and capture must not decompose."""
    backends = (backend_named(name, options) for name in options.backend_priority)
    names = (name for backend in backends if backend is not None for name in backend.keep_ops)
    return frozenset(name.removeprefix("torch.ops.") for name in names)


def export_decompositions(options: Options) -> Any:
    """Return the decomposition table of the ``torch.export`` way in."""
    if options.decompositions == "minimal":
        return {}
    from torch.export import default_decompositions

    kept = kept_ops(options)
    table: Any = default_decompositions()
    for op in [op for op in table if op_name(op) in kept]:
        table.pop(op)
    return table


def op_name(op: Any) -> str:
    """Return an operator's qualified name, ``aten.add.Tensor``."""
    return str(op).removeprefix("torch.ops.")
