"""Emitters of several names of one storage: what one name writes, another one reads."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from hierpart.testing.generate.emit.control_flow import (
    attach,
    branch_of,
    flow_call,
    operand_values,
    plain,
    ready,
)
from hierpart.testing.generate.emit.structure import buffer_of
from hierpart.testing.generate.graph_builder import Refused
from hierpart.testing.generate.maker import Maker, emitter

aten = torch.ops.aten


def write_one_read_both(m: Maker, x: Node, y: Node) -> None:
    """Write one of two names, with a read of each before it and after it."""
    written, other = (x, y) if m.flag() else (y, x)
    value = m.value(written)
    if "mutation" not in m.features or value.requires_grad or 0 in value.stride():
        return
    if m.flag():
        m.call(aten.neg.default, other)
    m.call(aten.add_.Tensor, written, m.call(aten.sin.default, written))
    m.call(aten.neg.default, other)


# ---------------------------------------------------------------------- views that no schema tells


def _unannotated(m: Maker, x: Node) -> Node:
    """Return ``x`` by an operator that may give its operand, of which its schema says nothing."""
    kind = m.number(0, 5)
    if kind == 0:
        return m.call(aten.atleast_1d.default, x)
    if kind == 1:
        return m.call(aten.type_as.default, x, m.like(x))
    if kind == 2:
        return m.call(aten.dropout.default, x, 0.5, False)
    if kind == 3:
        return m.call(aten.sum_to_size.default, x, list(m.value(x).shape))
    if kind == 4:
        return m.call(aten.atleast_3d.default, x)
    return m.call(aten._cast_Float.default, x)


def _by_function(m: Maker, x: Node) -> Node:
    """Return ``x`` by a function or method that may give its operand, or a part of it."""
    kind = m.number(0, 6)
    if kind == 0:
        return m.method("type_as", x, m.like(x))
    if kind == 1:
        return m.call(functional.dropout, x, 0.5, False)
    if kind == 2:
        return m.call(torch.atleast_2d, x)
    if kind == 3:
        return m.method("contiguous", x)
    if kind == 4:
        return m.method("to", x, torch.float32)
    if kind == 5:
        return m.method("reshape", x, -1)
    return m.call(operator.getitem, x, slice(0, 1, None))


@emitter("views")
def composed_view(m: Maker) -> None:
    """``atleast_1d(x)``, ``type_as(x, y)``: the operand itself, or a copy, as values tell."""
    x = m.floating()
    write_one_read_both(m, x, _unannotated(m, x))


@emitter("python")
def python_composed_view(m: Maker) -> None:
    """``x.type_as(y)``, ``dropout(x, 0.5, False)``, ``x.to(float32)``, ``x[0:1]``."""
    x = m.floating()
    write_one_read_both(m, x, _by_function(m, x))


# ---------------------------------------------------------------------- branches and inputs


@emitter("branch_effects")
def operand_given_back(m: Maker) -> None:
    """``cond(test, f, f, (x,))`` with an ``f`` that returns ``x``, a view of it or a buffer."""
    ready("cond")
    if "control_flow" not in m.features:
        raise Refused("no branches")
    x = m.tensor(plain())
    state = m.builder.attribute("state", buffer_of((2, 3), 40)) if _may_hold(m) else None

    def finish(inside: Maker) -> Any:
        given = inside.builder.scope[0]
        if state is not None:
            given = inside.builder.attribute("state", buffer_of((2, 3), 40))
        return (inside.call(aten.alias.default, given) if inside.flag() else given,)

    test = m.call(aten.any.default, m.call(aten.gt.Scalar, x, 0.0))
    kind = "back" if state is None else "state"
    module = branch_of(m, kind, operand_values(m, [x]), finish)
    nodes = attach(m, ("true", "false"), [module, module])
    both = flow_call(m, "cond", nodes, test, *nodes, (x,))
    write_one_read_both(m, state or x, m.call(operator.getitem, both, 0))


def _may_hold(m: Maker) -> bool:
    return "buffers" in m.features and m.flag()


@emitter("shared_inputs")
def write_shared_input(m: Maker) -> None:
    """``x.add_(sin(x)); neg(y)``, where ``y`` may be ``x``."""
    tensors = [node for node in m.builder.scope if isinstance(m.value(node), Tensor)]
    inputs = [node for node in tensors if node.op == "placeholder"]
    storages = {node: _storage(m.value(node)) for node in inputs}
    sharing = [n for n in inputs if [*storages.values()].count(storages[n]) > 1]
    x = m.builder.pick_of(m.choice, sharing)
    others = [n for n in sharing if n is not x and storages[n] == storages[x]]
    y = m.builder.pick_of(m.choice, others)
    write_one_read_both(m, x, y)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# ---------------------------------------------------------------------- sizes


@emitter("reshape_in_place")
def sizes_around_reshape(m: Maker) -> None:
    """``n = x.size(0); x.unsqueeze_(0); ones([n]); ones([x.size(0)])``."""
    if "sizes" not in m.features:
        raise Refused("no sizes")
    base = m.call(aten.clone.default, m.tensor(lambda v: 1 <= v.dim() <= 3))
    before = _size(m, base)
    op = m.pick((aten.unsqueeze_.default, aten.t_.default, aten.squeeze_.default))
    m.call(op, base, *((0,) if op is aten.unsqueeze_.default else ()))
    m.call(aten.full.default, [before], 1.5)
    m.call(aten.full.default, [_size(m, base)], 1.5)


def _size(m: Maker, x: Node) -> Node:
    return m.method("size", x, 0) if m.flag() else m.call(aten.sym_size.int, x, 0)
