"""Higher-order ops: which mode each backend and op has, and which ops may have split branches.

Modes: ``whole``, the backend's compiler takes the op with its branches; ``recurse``, the op runs
eagerly and each branch is split by the same line; ``opaque``, op and branches run eagerly as they
are. ``auto`` asks the backend whether it takes the op whole and recurses where none does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from hierpart.errors import OptionError, nearest

RECURSABLE = frozenset(
    {
        "cond", "while_loop", "while_loop_stack_output", "map_impl", "scan", "switch",
        "invoke_subgraph", "wrap_with_set_grad_enabled", "wrap_with_autocast",
    }
)  # fmt: skip
"""Ops whose branches are plain functions of their operands, called any number of times."""

ALIASES = {"map_impl": "map", "while_loop_stack_output": "while_loop"}
"""Names that users know for ops with a name of their own; the second is what training makes."""


def op_of(node: Node) -> str:
    """Return the name of a higher-order op, empty for any other node.

    An op whose branches write their operands comes wrapped in ``auto_functionalized_v2``; its name
    is that of the op inside.
    """
    inner = wrapped_op(node)
    target = node.target if inner is None else inner
    return target.__name__ if isinstance(target, torch._ops.HigherOrderOperator) else ""


def wrapped_op(node: Node) -> torch._ops.HigherOrderOperator | None:
    """Return the higher-order op that ``auto_functionalized`` is around, if it is around one."""
    name = getattr(node.target, "__name__", "")
    inner = node.args[0] if name.startswith("auto_functionalized") and node.args else None
    return inner if isinstance(inner, torch._ops.HigherOrderOperator) else None


def mode_of(control_flow: Mapping[str, str], op: str, backend: str | None = None) -> str:
    """Return the mode that the user set for an op, for a backend where that is set, or ``auto``."""
    names = [op, *([ALIASES[op]] if op in ALIASES else [])]
    keys = [f"{n}:{backend}" for n in names if backend is not None] + names
    return next((control_flow[k] for k in keys if k in control_flow), "auto")


def is_recursed(control_flow: Mapping[str, str], node: Node) -> bool:
    """Whether an op that runs eagerly has its branches split; never where they write operands."""
    op = op_of(node)
    plain = op in RECURSABLE and wrapped_op(node) is None
    return plain and mode_of(control_flow, op) != "opaque"


def check_modes(control_flow: Mapping[str, str], backends: tuple[str, ...]) -> None:
    """Check the keys of ``control_flow``.

    Raises:
        OptionError: A key names no higher-order op or no backend; the nearest one is named.
    """
    known = set(torch._ops._higher_order_ops) | set(ALIASES.values())
    for key in control_flow:
        op, _, backend = key.partition(":")
        if op not in known:
            raise OptionError(f"control_flow names {op!r}, no higher-order op{nearest(op, known)}")
        if backend and backend not in backends:
            raise OptionError(
                f"control_flow[{key!r}] names {backend!r}, which is not in backend_priority"
                + nearest(backend, backends)
            )


def set_branch(module: torch.nn.Module, original: torch.nn.Module, target: str, to: Any) -> bool:
    """Put a split branch in a block's place for it; return False if that is the user's own module.

    A block holds containers of its own for dotted names, unless it also calls the module that
    contains the branch; that one is shared with the user and stays as it is.
    """
    path, _, name = target.rpartition(".")
    owner = module.get_submodule(path)
    if owner is original.get_submodule(path):
        return False
    setattr(owner, name, to)
    return True
