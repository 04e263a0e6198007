"""Emitters without effects: arithmetic and views."""

from __future__ import annotations

import builtins
import operator

import torch
from torch.nn import functional

from hierpart.testing.generate.maker import Maker, emitter, has_rank, is_float_of_rank

aten = torch.ops.aten

UNARY = (
    aten.relu.default,
    aten.neg.default,
    aten.sin.default,
    aten.abs.default,
    aten.sigmoid.default,
    aten.clone.default,
    aten.tanh.default,
)
BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.maximum.default)
PYTHON_UNARY = (torch.relu, torch.sin, operator.neg, torch.abs, functional.gelu)
PYTHON_BINARY = (operator.add, torch.mul, operator.sub, torch.maximum)
METHODS = ("relu", "neg", "sin", "abs", "clone", "contiguous")


# ---------------------------------------------------------------------- arithmetic


@emitter("arithmetic")
def unary(m: Maker) -> None:
    """``relu(x)``."""
    m.call(m.pick(UNARY), m.tensor())


@emitter("arithmetic")
def binary(m: Maker) -> None:
    """``add(x, y)``."""
    x = m.tensor()
    m.call(m.pick(BINARY), x, m.fitting(x))


@emitter("arithmetic")
def with_number(m: Maker) -> None:
    """``mul(x, 2.0)``."""
    m.call(m.pick((aten.mul.Scalar, aten.add.Scalar, aten.sub.Scalar)), m.tensor(), m.scalar())


@emitter("arithmetic")
def compare_and_choose(m: Maker) -> None:
    """``where(x > 0, x, y)``."""
    x = m.floating()
    test = m.call(aten.gt.Scalar, x, 0.0)
    m.call(aten.where.self, test, x, m.fitting(x))


@emitter("arithmetic")
def reduce(m: Maker) -> None:
    """``sum(x, [dim], keepdim)``."""
    x = m.tensor(is_float_of_rank(1))
    m.call(m.pick((aten.sum.dim_IntList, aten.mean.dim)), x, [m.dimension(x)], m.flag())


@emitter("arithmetic")
def along_dimension(m: Maker) -> None:
    """``cumsum(x, dim)``."""
    x = m.tensor(is_float_of_rank(1))
    if m.flag():
        m.call(aten._softmax.default, x, m.dimension(x), False)
    else:
        m.call(aten.cumsum.default, x, m.dimension(x))


@emitter("arithmetic")
def matrix_product(m: Maker) -> None:
    """``mm(x, y)``."""
    x = m.tensor(lambda v: v.is_floating_point() and v.dim() == 2)
    inner = m.value(x).shape[1]
    y = m.tensor(lambda v: v.dtype == m.value(x).dtype and v.dim() == 2 and v.shape[0] == inner)
    m.call(m.pick((aten.mm.default, torch.matmul, operator.matmul)), x, y)


@emitter("arithmetic")
def join(m: Maker) -> None:
    """``cat([x, y], dim)``."""
    x = m.tensor(has_rank(1))
    y = m.tensor(lambda v: v.shape == m.value(x).shape and v.dtype == m.value(x).dtype)
    m.call(m.pick((aten.cat.default, aten.stack.default)), [x, y], m.dimension(x))


@emitter("dtypes")
def convert(m: Maker) -> None:
    """``_to_copy(x, dtype=...)``."""
    dtype = m.pick((torch.float64, torch.float32, torch.int64, torch.bool, torch.bfloat16))
    m.call(aten._to_copy.default, m.tensor(lambda v: not v.is_complex()), dtype=dtype)


@emitter("indexing")
def gather_rows(m: Maker) -> None:
    """``index(x, [i])`` with whole numbers that are always in range."""
    x = m.tensor(lambda v: v.dim() >= 1 and v.shape[0] >= 1)
    index = m.call(aten.zeros.default, [m.number(1, 3)], dtype=torch.int64)
    m.call(aten.index.Tensor, x, [index])


@emitter("kwargs")
def by_keyword(m: Maker) -> None:
    """``add(input=x, other=y, alpha=2)``."""
    x = m.floating()
    if m.flag():
        m.call(torch.add, input=x, other=m.fitting(x), alpha=2)
    else:
        m.call(aten.add.Tensor, x, other=m.fitting(x), alpha=2)


@emitter("python")
def python_call(m: Maker) -> None:
    """``operator.add(x, y)`` and ``x.relu()``, as symbolic tracing writes them."""
    kind = m.number(0, 2)
    x = m.tensor()
    if kind == 0:
        m.call(m.pick(PYTHON_UNARY), x)
    elif kind == 1:
        m.call(m.pick(PYTHON_BINARY), x, m.fitting(x))
    else:
        m.method(m.pick(METHODS), x)


# ---------------------------------------------------------------------- views


@emitter("views")
def view(m: Maker) -> None:
    """``view(x, [-1])``."""
    m.call(m.pick((aten.view.default, aten.reshape.default)), m.tensor(), [-1])


@emitter("views")
def reorder(m: Maker) -> None:
    """``transpose(x, 0, 1)``."""
    x = m.tensor(has_rank(2))
    order = list(range(m.value(x).dim()))[::-1]
    if m.flag():
        m.call(aten.permute.default, x, order)
    else:
        m.call(aten.transpose.int, x, 0, 1)


@emitter("views")
def part(m: Maker) -> None:
    """``slice(x, dim, 1, 3)`` or ``select(x, dim, 0)``."""
    x = m.tensor(has_rank(1))
    dim = m.dimension(x)
    if m.flag():
        m.call(aten.select.int, x, dim, m.pick((0, -1)))
    else:
        m.call(aten.slice.Tensor, x, dim, m.number(0, 1), m.number(1, 3))


@emitter("views")
def widen(m: Maker) -> None:
    """``expand(unsqueeze(x, 0), [2, ...])``."""
    x = m.tensor(lambda v: v.dim() <= 2)
    wide = m.call(aten.unsqueeze.default, x, 0)
    if m.flag():
        m.call(aten.expand.default, wide, [2] + [-1] * m.value(x).dim())


@emitter("views")
def same_storage(m: Maker) -> None:
    """``alias(x)``, ``detach(x)``, ``contiguous(x)``: other names of one storage."""
    m.call(m.pick((aten.alias.default, aten.detach.default, aten.contiguous.default)), m.tensor())


@emitter("views")
def overlapping(m: Maker) -> None:
    """``as_strided(x, [2], [1], 1)``."""
    x = m.tensor(lambda v: v.untyped_storage().nbytes() >= 4 * v.element_size())
    m.call(aten.as_strided.default, x, [2], [1], m.number(0, 2))


@emitter("python")
def python_view(m: Maker) -> None:
    """``x[0:1]``, ``x.t()``, ``x.T``."""
    kind = m.number(0, 3)
    x = m.tensor(has_rank(1))
    if kind == 0:
        m.call(
            operator.getitem, x, m.pick((slice(0, 1, None), 0, (Ellipsis, slice(1, None)), None))
        )
    elif kind == 1:
        m.method("view", x, -1)
    elif kind == 2:
        m.method("transpose", x, 0, -1)
    else:
        m.call(builtins.getattr, x, "mT")
