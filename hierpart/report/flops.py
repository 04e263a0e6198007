"""Floating-point operations of a node, by the formulas of ``torch.utils.flop_counter``.

These cover matrix products, convolutions and attention; other ops have no formula and count
nothing. Formulas see sizes only: a symbolic size counts with its hint, and no guard is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hierpart.graph import SYMBOLIC, has_value, hint, value_of

COMPOSITE = frozenset(
    f"aten.{name}"
    for name in (
        "linear", "matmul", "einsum", "bilinear", "tensordot", "chain_matmul", "linalg_multi_dot",
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "scaled_dot_product_attention", "mv", "dot", "outer",
    )
)  # fmt: skip
"""Ops that torch takes apart into ops with a formula."""


class FlopTable:
    """Counts each distinct call once, on meta tensors: nothing is computed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int | None] = {}

    def of(self, node: Node) -> int | None:
        """Return the estimated operations of a node; ``None`` where no formula applies."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not _is_counted(target):
            return None
        if not all(has_value(n) for n in node.all_input_nodes):
            return None
        args, kwargs = map_aggregate((node.args, node.kwargs), _on_meta)
        key = (str(target), str((_spelled(args), _spelled(kwargs))))
        if key not in self._known:
            self._known[key] = _count(target, args, kwargs)
        return self._known[key]


def _is_counted(target: torch._ops.OpOverload) -> bool:
    return target.overloadpacket in flop_registry or str(target.overloadpacket) in COMPOSITE


def _on_meta(leaf: Any) -> Any:
    """Return an argument as a tensor without data, with hints for symbolic sizes."""
    value = value_of(leaf) if isinstance(leaf, Node) else leaf
    if isinstance(leaf, Node) and isinstance(value, (tuple, list)):
        return type(value)(_on_meta(v) for v in value) if type(value) in (tuple, list) else value
    if isinstance(value, torch.Tensor):
        return torch.empty([hint(s) for s in value.shape], dtype=value.dtype, device="meta")
    return hint(value) if isinstance(value, torch.SymInt) else value


def _spelled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(k, _spelled(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        return [_spelled(v) for v in value]
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def _count(target: Any, args: Any, kwargs: Any) -> int | None:
    """Run the op on meta tensors under torch's counter.

    An op that cannot be run so has no estimate; an estimate must never keep a report from being
    made.
    """
    if any(isinstance(a, SYMBOLIC) for a in args):
        return None
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), counter:
            target(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError, IndexError):
        return None
    return int(counter.get_total_flops())
