"""Assertions on dtype, device and layout that a graph's recorded metadata already proves.

``torch.export`` leaves one at each cast. It cannot fail where the graph is run on what it was
captured for, so nothing has to wait for it and no compiler has to see it. It stays in the graph and
runs wherever the graph itself is run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from hierpart.graph.node.values import value_of

ASSERTION = torch.ops.aten._assert_tensor_metadata.default
NAMES = ("size", "stride", "dtype", "device", "layout")
"""Its arguments after the tensor. Sizes and strides can change in place, so they prove nothing."""


def is_proved(node: Node) -> bool:
    """Whether the node is such an assertion and the value that it is about is as it says."""
    if node.target is not ASSERTION:
        return False
    source = node.args[0] if node.args else None
    value = value_of(source) if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor):
        return False
    said = {**dict(zip(NAMES, node.args[1:], strict=False)), **node.kwargs}
    return all(_is_so(value, name, wanted) for name, wanted in said.items())


def _is_so(value: torch.Tensor, name: str, wanted: Any) -> bool:
    if wanted is None:
        return True
    if name == "device":
        return _same_device(value.device, torch.device(wanted))
    return name in ("dtype", "layout") and bool(getattr(value, name) == wanted)


def _same_device(found: torch.device, wanted: torch.device) -> bool:
    return found.type == wanted.type and wanted.index in (None, found.index)
