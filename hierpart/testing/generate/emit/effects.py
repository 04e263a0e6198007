"""Emitters with effects: in-place writes, random ops, asserts, prints."""

from __future__ import annotations

import builtins
import operator

import torch
from torch.nn import functional

from hierpart.testing.generate.graph_builder import Refused
from hierpart.testing.generate.maker import Maker, emitter, has_rank, is_float_of_rank

aten = torch.ops.aten

WRITES = (aten.add_.Tensor, aten.mul_.Tensor, aten.sub_.Tensor, aten.copy_.default)
WRITE_METHODS = ("add_", "mul_", "copy_")
PYTHON_WRITES = (operator.iadd, operator.imul, operator.isub)


# ---------------------------------------------------------------------- in-place writes


@emitter("mutation")
def write_number(m: Maker) -> None:
    """``add_(x, 2.0)``, ``fill_(x, 0.5)``, ``zero_(x)``."""
    x = m.writable()
    kind = m.number(0, 3)
    if kind == 0:
        m.call(aten.add_.Scalar, x, m.scalar())
    elif kind == 1:
        m.call(aten.mul_.Scalar, x, m.scalar())
    elif kind == 2:
        m.call(aten.fill_.Scalar, x, m.scalar())
    else:
        m.call(aten.zero_.default, x)


@emitter("mutation")
def write_tensor(m: Maker) -> None:
    """``add_(x, y)``, ``copy_(x, y)``."""
    x = m.writable()
    m.call(m.pick(WRITES), x, m.like(x))


@emitter("mutation")
def write_method(m: Maker) -> None:
    """``x.add_(y)``: nothing but the name says that it writes."""
    x = m.writable()
    if m.flag():
        m.method(m.pick(WRITE_METHODS), x, m.like(x))
    else:
        m.method(m.pick(("add_", "mul_", "fill_")), x, m.scalar())


@emitter("mutation")
def write_operator(m: Maker) -> None:
    """``x += y``."""
    x = m.writable()
    m.call(m.pick(PYTHON_WRITES), x, m.like(x) if m.flag() else m.scalar())


@emitter("mutation")
def write_item(m: Maker) -> None:
    """``x[0] = 2.0``, ``x[0:1] = y``."""
    x = m.writable(has_rank(1))
    index = m.pick((0, slice(0, 1, None), Ellipsis))
    if index is Ellipsis and m.flag():
        m.call(operator.setitem, x, index, m.like(x))
    else:
        m.call(operator.setitem, x, index, m.scalar())


@emitter("mutation")
def write_out(m: Maker) -> None:
    """``add(x, y, out=z)``."""
    z = m.writable(lambda v: v.is_floating_point())
    x, y = m.like(z), m.like(z)
    if m.flag():
        m.call(torch.add, x, y, out=z)
    else:
        m.call(aten.mul.out, x, y, out=z)


@emitter("mutation")
def write_part(m: Maker) -> None:
    """``masked_fill_``, ``index_fill_``, ``relu(x, inplace=True)``."""
    x = m.writable(is_float_of_rank(1))
    kind = m.number(0, 2)
    if kind == 0:
        m.call(aten.masked_fill_.Scalar, x, m.call(aten.lt.Scalar, x, 0.0), m.scalar())
    elif kind == 1:
        index = m.call(aten.zeros.default, [1], dtype=torch.int64)
        m.call(aten.index_fill_.int_Scalar, x, m.dimension(x), index, m.scalar())
    else:
        m.call(functional.relu, x, inplace=True)


@emitter("mutation")
def write_many(m: Maker) -> None:
    """``_foreach_add_([x, y], 2.0)``: writes through a list and returns nothing."""
    x = m.writable(lambda v: v.is_floating_point())
    m.call(aten._foreach_add_.Scalar, [x, m.like(x)], m.scalar())


@emitter("mutation")
def write_statistics(m: Maker) -> None:
    """Batch normalisation in training: running statistics are written inside the op."""
    x = m.tensor(lambda v: v.dtype == torch.float32 and v.dim() == 2 and v.shape[0] > 1)
    columns = m.value(x).shape[1]
    mean = m.writable(lambda v: v.dtype == torch.float32 and v.shape == (columns,))
    statistics = [mean, m.like(mean)]
    for world in m.builder.worlds:  # the op does not look and would write elsewhere
        if any(world.values[s].shape != world.values[x].shape[1:] for s in statistics):
            raise Refused("statistics of another size")
    op = m.pick((aten._native_batch_norm_legit.default, aten.native_batch_norm.default))
    both = m.call(op, x, None, None, *statistics, True, 0.5, 1e-5)
    m.call(operator.getitem, both, 0)


@emitter("reshape_in_place")
def write_shape(m: Maker) -> None:
    """``x.unsqueeze_(0)``: writes the sizes and strides of one tensor, not its storage."""
    x = m.writable(lambda v: v.dim() <= 3)
    base = m.call(aten.clone.default, x)
    op = m.pick((aten.unsqueeze_.default, aten.squeeze_.dim, aten.t_.default))
    m.call(op, base, *(() if op is aten.t_.default else (0,)))


# ---------------------------------------------------------------------- the random stream


@emitter("random")
def random_like(m: Maker) -> None:
    """``rand_like(x)``, ``bernoulli(sigmoid(x))``."""
    x = m.floating()
    kind = m.number(0, 3)
    if kind == 0:
        m.call(aten.rand_like.default, x)
    elif kind == 1:
        m.call(aten.randn_like.default, x)
    elif kind == 2:
        m.call(
            aten.bernoulli.default, m.call(aten.sigmoid.default, m.call(aten.nan_to_num.default, x))
        )
    else:
        m.call(torch.rand, [m.number(1, 3)])


@emitter("random")
def dropout(m: Maker) -> None:
    """``dropout(x, 0.5, True)``."""
    # Without elements the mask's dtype is another one on fake tensors than on real ones.
    x = m.tensor(lambda v: v.is_floating_point() and v.numel() > 0)
    kind = m.number(0, 2)
    if kind == 0:
        m.call(functional.dropout, x, 0.5, True)
    elif kind == 1:
        both = m.call(aten.native_dropout.default, x, 0.5, True)
        m.call(operator.getitem, both, m.number(0, 1))
    else:
        m.call(aten.dropout.default, x, 0.5, m.flag())


@emitter("random_in_place")
def random_write(m: Maker) -> None:
    """``x.uniform_()``: a write and a draw in one."""
    x = m.writable(lambda v: v.is_floating_point())
    if m.flag():
        m.method("normal_", x)
    else:
        m.call(m.pick((aten.uniform_.default, aten.bernoulli_.float)), x)


# ---------------------------------------------------------------------- asserts and prints


@emitter("asserts")
def assert_value(m: Maker) -> None:
    """``_assert_async(not any(abs(x) < 0))``: true, unless it comes after a later write."""
    x = m.tensor(lambda v: v.is_floating_point())
    square = m.call(aten.abs.default, x)
    bad = m.call(aten.any.default, m.call(aten.lt.Scalar, square, 0.0))
    good = m.call(aten.logical_not.default, bad)
    if m.builder.outer is not None or m.flag():  # on fake tensors a branch runs as it is
        m.call(aten._assert_async.msg, good, "an absolute value is negative")
    else:
        m.call(torch._assert, good, "an absolute value is negative")
    if "mutation" in m.features and m.flag():
        m.call(aten.sub_.Scalar, square, 100.0)


@emitter("asserts")
def assert_size(m: Maker) -> None:
    """``_assert_scalar(n >= 0)``."""
    x = m.tensor(has_rank(1))
    n = m.call(aten.sym_size.int, x, 0)
    enough = m.call(operator.ge, n, 0)
    if m.flag():
        m.call(aten._assert_scalar.default, enough, "a size is negative")
    else:
        m.call(torch._check, enough)


@emitter("prints")
def show(m: Maker) -> None:
    """``print('...', x)``: what is printed, and in which order, can be seen."""
    m.call(builtins.print, f"line {len(m.builder.graph.nodes)}", m.tensor())
