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
        "cond", "while_loop", "map_impl", "scan", "switch", "invoke_subgraph",
        "wrap_with_set_grad_enabled", "wrap_with_autocast",
    }
)  # fmt: skip
"""Ops whose branches are plain functions of their operands, called any number of times."""

ALIASES = {"map": "map_impl"}
"""Names that users know for an op's own name."""


def op_of(node: Node) -> str:
    """Return the name of a higher-order op, empty for any other node."""
    target = node.target
    return target.__name__ if isinstance(target, torch._ops.HigherOrderOperator) else ""


def mode_of(control_flow: Mapping[str, str], op: str, backend: str | None = None) -> str:
    """Return the mode that the user set for an op, for a backend where that is set, or ``auto``."""
    names = [op, *(short for short, name in ALIASES.items() if name == op)]
    keys = [f"{n}:{backend}" for n in names if backend is not None] + names
    return next((control_flow[k] for k in keys if k in control_flow), "auto")


def is_recursed(control_flow: Mapping[str, str], node: Node) -> bool:
    """Whether an op that runs eagerly has its branches split."""
    op = op_of(node)
    return op in RECURSABLE and mode_of(control_flow, op) != "opaque"


def check_modes(control_flow: Mapping[str, str], backends: tuple[str, ...]) -> None:
    """Check the keys of ``control_flow``.

    Raises:
        OptionError: A key names no higher-order op or no backend; the nearest one is named.
    """
    known = set(torch._ops._higher_order_ops) | set(ALIASES)
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
