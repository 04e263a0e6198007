"""Emitters of ops with several outputs and of sizes."""

from __future__ import annotations

import builtins
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from hierpart.testing.generate.graph_builder import Refused
from hierpart.testing.generate.maker import Maker, emitter, has_rank, is_float_of_rank

aten = torch.ops.aten

# ---------------------------------------------------------------------- several outputs


def _tuples(m: Maker) -> list[Node]:
    return m.builder.nodes(
        lambda v: isinstance(v, (tuple, list)) and any(isinstance(item, Tensor) for item in v)
    )


def _take(m: Maker, node: Node) -> None:
    if not m.value(node):
        raise Refused("an empty list of parts")
    m.call(operator.getitem, node, m.number(0, len(m.value(node)) - 1))


@emitter("multi_output")
def split(m: Maker) -> None:
    """``getitem(split(x, 1), i)``, some of the outputs, now or later."""
    x = m.tensor(has_rank(1))
    dim = m.dimension(x)
    kind = m.number(0, 3)
    if kind == 0:
        parts = m.call(aten.split.Tensor, x, 1, dim)
    elif kind == 1:
        parts = m.call(aten.unbind.int, x, dim)
    elif kind == 2:
        parts = m.call(aten.chunk.default, x, 2, dim)
    else:
        parts = m.call(torch.split, x, 1, dim)
    for _ in range(m.number(0, 2)):
        _take(m, parts)


@emitter("multi_output")
def values_and_indices(m: Maker) -> None:
    """``topk``, ``sort``, ``max``, ``var_mean``, ``native_layer_norm``."""
    x = m.tensor(is_float_of_rank(1))
    dim = m.dimension(x)
    kind = m.number(0, 4)
    if kind == 0:
        both = m.call(aten.max.dim, x, dim)
    elif kind == 1:
        both = m.call(aten.topk.default, x, 1, dim)
    elif kind == 2:
        both = m.call(aten.sort.default, x, dim)
    elif kind == 3:
        both = m.call(aten.var_mean.correction, x, [dim], correction=0)
    else:
        last = [m.value(x).shape[-1]]
        both = m.call(aten.native_layer_norm.default, x, last, None, None, 1e-5)
    for _ in range(m.number(0, 2)):
        _take(m, both)


@emitter("multi_output")
def take(m: Maker) -> None:
    """``getitem(parts, i)`` of an op that came earlier."""
    _take(m, m.builder.pick_of(m.choice, _tuples(m)))


@emitter("multi_output")
def join_parts(m: Maker) -> None:
    """``cat(split(x, 1))``: all outputs of an op at once, as one operand."""
    x = m.tensor(has_rank(1))
    dim = m.dimension(x)
    kind = m.number(0, 3)
    if kind == 0:
        m.call(aten.cat.default, m.call(aten.split.Tensor, x, 1, dim), dim)
    elif kind == 1:
        m.call(aten.stack.default, m.call(aten.unbind.int, x, dim), 0)
    elif kind == 2:
        m.call(torch.cat, m.call(torch.chunk, x, 2, dim), dim)
    else:
        m.call(aten.cat.default, m.builder.pick_of(m.choice, _tuples(m)), 0)


@emitter("multi_output")
def absent(m: Maker) -> None:
    """``None`` as an output of an op, or as the result of one that writes, given to another."""
    x = m.tensor(is_float_of_rank(1))
    if "mutation" in m.features and m.flag():
        nothing = m.call(aten._foreach_add_.Scalar, [m.writable(is_float_of_rank(1))], 2.0)
        m.call(aten.clamp.default, x, nothing, 1.0)
        return
    last = [m.value(x).shape[-1]]
    parts = m.call(aten.native_layer_norm.default, x, last, None, None, 1e-5)
    mean, deviation = (m.call(operator.getitem, parts, i) for i in (1, 2))
    op, mask = aten.native_layer_norm_backward.default, [True, False, False]
    grads = m.call(op, x, x, last, mean, deviation, None, None, mask)
    for i in (0, 1):
        m.call(operator.getitem, grads, i)


# ---------------------------------------------------------------------- sizes


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _size(m: Maker) -> Node:
    return m.builder.pick_of(m.choice, m.builder.nodes(_is_size))


@emitter("sizes")
def size(m: Maker) -> None:
    """``sym_size(x, 0)``."""
    x = m.tensor(has_rank(1))
    m.call(aten.sym_size.int, x, m.dimension(x))


@emitter("sizes")
def size_arithmetic(m: Maker) -> None:
    """``n * 2``, ``n + k``."""
    left = _size(m)
    right = _size(m) if m.flag() else m.number(1, 3)
    if abs(m.value(left)) > 50:
        raise Refused("large enough")
    m.call(m.pick((operator.add, operator.mul, operator.floordiv)), left, right)


@emitter("sizes")
def use_size(m: Maker) -> None:
    """``zeros([n])``, ``view(x, [n, -1])``, ``x * n``, ``x[:n]``."""
    n = _size(m)
    if not 0 <= m.value(n) <= 50:
        raise Refused("not a size")
    kind = m.number(0, 3)
    if kind == 0:
        m.call(aten.full.default, [n], 1.5)
    elif kind == 1:
        m.call(aten.view.default, m.tensor(), [n, -1])
    elif kind == 2:
        m.call(aten.mul.Tensor, m.floating(), n)
    else:
        m.call(aten.slice.Tensor, m.tensor(has_rank(1)), 0, 0, n)


@emitter("sizes")
def size_beside_tensor(m: Maker) -> None:
    """``x * x.size(dim)``: the op that takes the size takes the tensor too."""
    x = m.tensor(is_float_of_rank(2))
    m.call(aten.mul.Tensor, x, m.call(aten.sym_size.int, x, m.dimension(x)))


@emitter("sizes")
def sizes_across(m: Maker) -> None:
    """Two sizes, each used before and after an op that both reach."""
    x = m.tensor(is_float_of_rank(1))
    pair = (x, m.like(x))
    sizes = [m.call(aten.sym_size.int, node, m.dimension(node)) for node in pair]
    scaled = [m.call(aten.mul.Tensor, *both) for both in zip(pair, sizes, strict=True)]
    joined = m.call(aten.mul.Tensor, *scaled)
    for size in sizes:
        m.call(aten.mul.Tensor, joined, size)


@emitter("sizes")
def compare_sizes(m: Maker) -> None:
    """``sym_ite(n < k, n, k)``: a truth value that differs from call to call."""
    x = m.tensor(has_rank(1))
    n = m.call(aten.sym_size.int, x, m.dimension(x))
    k = _size(m) if m.flag() else m.number(4, 8)
    test = m.call(m.pick((operator.lt, operator.ge, operator.eq)), n, k)
    if m.flag():
        test = m.call(torch.sym_not, test)
    m.call(torch.sym_ite, test, n, 1)


@emitter("scalars")
def use_scalar(m: Maker) -> None:
    """``x * scale`` with an input that is a number or a truth value."""
    inputs = [node for node in m.builder.scope if node.op == "placeholder"]
    scales = [node for node in inputs if isinstance(m.value(node), (bool, float))]
    scale = m.builder.pick_of(m.choice, scales)
    if m.flag() and isinstance(m.value(scale), bool):
        scale = m.call(operator.not_, scale)
    m.call(m.pick((aten.mul.Tensor, operator.mul)), m.floating(), scale)


@emitter("sizes")
def python_size(m: Maker) -> None:
    """``x.size()``, ``x.shape[0]``, ``x.size(0)``."""
    x = m.tensor(has_rank(1))
    kind = m.number(0, 2)
    if kind == 0:
        m.method("size", x, 0)
    elif kind == 1:
        m.call(operator.getitem, m.method("size", x), 0)
    else:
        m.call(operator.getitem, m.call(builtins.getattr, x, "shape"), 0)


@emitter("sizes")
def whole_size(m: Maker) -> None:
    """``zeros(x.size())``: a ``torch.Size`` used as it is."""
    x = m.tensor()
    shape = m.method("size", x) if m.flag() else m.call(builtins.getattr, x, "shape")
    m.call(torch.ones, shape)
