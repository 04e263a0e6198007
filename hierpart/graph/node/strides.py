"""Tensors in exactly the memory layout that the graph promises.

Consumers of a block were compiled against the strides in ``meta["val"]``; an engine that hands out
contiguous memory where the graph says channels-last would fail an assertion there or, in eager, a
``view``. Sizes come from the tensor at hand, so one function serves every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hierpart.graph.node.symbols import evaluator, is_symbolic

Restride = Callable[[Any], Any]


def restrider(value: Any) -> Restride | None:
    """Return a function that hands back its tensor in the layout of ``value``.

    The tensor itself comes back where the layout fits already (strides of sizes 0 and 1 do not
    matter), else a copy that has the layout.

    Args:
        value: An example value; a fake tensor with sizes and strides, symbolic ones included.

    Returns:
        The function, or ``None`` where ``value`` is not a strided tensor or its strides cannot be
        told from its own sizes.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    if not any(is_symbolic(s) for s in value.stride()):
        return _fixed(tuple(int(s) for s in value.stride()))
    strides = evaluator(value.stride(), [value])
    if strides is None:
        return None
    wanted = strides

    def restride(tensor: Tensor) -> Tensor:
        return _with_strides(tensor, wanted((tensor,)))

    return restride


def _fixed(strides: tuple[int, ...]) -> Restride:
    def restride(tensor: Tensor) -> Tensor:
        return tensor if tensor.stride() == strides else _with_strides(tensor, strides)

    return restride


def _with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    if tensor.ndim != len(strides) or same_layout(tensor.shape, tensor.stride(), strides):
        return tensor  # another rank: an in-place op has reshaped it since it was recorded
    # Overlapping memory cannot be copied into: copy one slice of each expanded dimension.
    expanded = [d for d, s in enumerate(strides) if s == 0 and tensor.shape[d] > 1]
    source = tensor
    for d in expanded:
        source = source.narrow(d, 0, 1)
    copy = torch.empty_strided(
        source.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(source)
    return copy.expand(tensor.shape) if expanded else copy


def same_layout(shape: Sequence[int], left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two strides address a tensor of this shape alike."""
    if 0 in shape:
        return True
    return all(a == b for n, a, b in zip(shape, left, right, strict=True) if n != 1)
