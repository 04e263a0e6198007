"""What a node's value is: tensor, scalar, sizes, tuple, ...; its bytes and its size symbols.

Read from ``meta["val"]`` (or Dynamo's ``example_value``, or what ``ShapeProp`` recorded), else
inferred from the operator. Nothing here guards on, or specialises, a symbolic size.
"""

from __future__ import annotations

import builtins
import enum
import functools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from hierpart.graph.node.schemas import overloads

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
SIZE_METHODS = frozenset(
    {"size", "dim", "numel", "stride", "storage_offset", "ndimension", "nelement", "element_size",
     "__len__", "is_floating_point", "is_complex", "dim_order"}
)  # fmt: skip
SIZE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "itemsize", "layout", "is_cuda"})
SIZE_OPS = ("aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset")
SCALAR_FUNCTIONS = frozenset(
    {
        builtins.min, builtins.max, builtins.abs, builtins.round, builtins.pow, builtins.int,
        builtins.float, builtins.bool, builtins.len, builtins.tuple, builtins.list, torch.Size,
        torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_ite,
        torch.sym_sum,
    }
)  # fmt: skip
SEVERAL = ("as_tuple", "return_indices", "return_inverse", "return_counts")
"""Flags with which Python functions return several values, whatever the operators of their name."""
SCHEMA_SCALARS = frozenset({"int", "float", "bool", "complex", "number", "Scalar", "SymInt"})


class Kind(enum.Enum):
    """What a value is, as far as crossing a boundary goes."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    SIZES = "sizes"
    TUPLE = "tuple"
    NONE = "none"
    OBJECT = "object"
    UNKNOWN = "unknown"


_MISSING = object()


def value_of(node: Node) -> Any:
    """Return the recorded example value of a node, or a marker when none was recorded."""
    meta = node.meta
    if "val" in meta:
        return meta["val"]
    return meta.get("example_value", _MISSING)


def has_value(node: Node) -> bool:
    """Whether an example value was recorded for the node."""
    return value_of(node) is not _MISSING


def kind_of(node: Node) -> Kind:
    """Return the kind of the node's value; ``UNKNOWN`` where nothing tells."""
    value = value_of(node)
    if value is not _MISSING:
        return kind_of_value(value)
    if "tensor_meta" in node.meta:
        recorded = node.meta["tensor_meta"]
        is_one = type(recorded).__name__ == "TensorMetadata"
        return Kind.TENSOR if is_one else Kind.TUPLE
    if isinstance(node.meta.get("type"), type):
        return _kind_of_type(node.meta["type"])
    return _kind_of_operator(node)


def kind_of_value(value: Any) -> Kind:
    """Return the kind of an example value."""
    if isinstance(value, torch.Tensor):
        return Kind.TENSOR
    if isinstance(value, (int, float, bool, complex, *SYMBOLIC)):
        return Kind.SCALAR
    if value is None:
        return Kind.NONE
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(v, (int, float, *SYMBOLIC)) for v in value):
            return Kind.SIZES
        return Kind.SIZES if isinstance(value, torch.Size) else Kind.TUPLE
    return Kind.OBJECT


def _kind_of_type(kind: type) -> Kind:
    if issubclass(kind, torch.Tensor):
        return Kind.TENSOR
    if issubclass(kind, (int, float, bool, *SYMBOLIC)):
        return Kind.SCALAR
    if issubclass(kind, torch.Size):
        return Kind.SIZES
    if issubclass(kind, (tuple, list)):
        return Kind.TUPLE
    return Kind.NONE if kind is type(None) else Kind.OBJECT


def _kind_of_operator(node: Node) -> Kind:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return kind_of_schema(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return Kind.TUPLE
    if reads_sizes(node):
        several = target in ("size", "stride") and len(node.args) == 1 and not node.kwargs
        if several or (node.op == "call_function" and node.args[1] == "shape"):
            return Kind.SIZES
        return Kind.SCALAR
    if node.op in ("call_function", "call_method"):
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name.endswith("_") and not name.startswith("_"):
            return Kind.TENSOR
        flagged = any(node.kwargs.get(flag) is True for flag in SEVERAL)
        return Kind.TUPLE if flagged or _returns_several(name) else Kind.UNKNOWN
    return Kind.UNKNOWN


@functools.cache
def kind_of_schema(op: torch._ops.OpOverload) -> Kind:
    """Return the kind of value that the operator's schema says it returns."""
    returns = op._schema.returns
    if len(returns) != 1:
        return Kind.TUPLE if returns else Kind.NONE
    kind = str(returns[0].type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return Kind.TENSOR
    if kind.startswith("List["):
        return Kind.TUPLE
    return Kind.SCALAR if kind in SCHEMA_SCALARS else Kind.OBJECT


@functools.cache
def _returns_several(name: str) -> bool:
    """Whether some overload of ``aten::name`` returns more than one tensor or a list of them."""
    return any(kind_of_schema(o) is Kind.TUPLE for o in overloads(name))


def reads_sizes(node: Node) -> bool:
    """Whether the node only reads the sizes, strides or type of its first argument."""
    target = node.target
    if node.op == "call_method":
        return target in SIZE_METHODS
    if node.op != "call_function":
        return False
    if target is builtins.getattr:
        return len(node.args) > 1 and node.args[1] in SIZE_ATTRIBUTES
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.startswith(SIZE_OPS)


def is_scalar_function(node: Node) -> bool:
    """Whether the node's function maps scalars to scalars when all of its arguments are scalars."""
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return False
    home = getattr(node.target, "__module__", "")
    return node.target in SCALAR_FUNCTIONS or home in (
        "_operator",
        "math",
        "torch.utils._sympy.functions",
    )


def binds_symbols(node: Node) -> bool:
    """Whether the node brings a data-dependent (unbacked) symbol into being."""
    return bool(node.meta.get("unbacked_bindings"))


def hint(size: Any) -> int:
    """Return a plain number for a size: its value, its hint, or 1 for a data-dependent one."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    known = size.node.maybe_as_int()
    if known is not None:
        return int(known)
    return int(size.node.hint) if size.node.has_hint() else 1  # type: ignore[arg-type]


def bytes_of_value(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a tuple; a scalar counts 8."""
    if isinstance(value, torch.Tensor):
        if not value._has_symbolic_sizes_strides:
            return value.numel() * value.element_size()
        return math.prod([hint(s) for s in value.shape]) * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(bytes_of_value(v) for v in value)
    return 8 if isinstance(value, (int, float, *SYMBOLIC)) else 0


def bytes_of(node: Node) -> int:
    """Return the bytes of the node's value; 0 where nothing was recorded."""
    value = value_of(node)
    if value is not _MISSING:
        return bytes_of_value(value)
    recorded = node.meta.get("tensor_meta")
    if type(recorded).__name__ != "TensorMetadata" or recorded is None:
        return 0
    return math.prod([hint(s) for s in recorded.shape]) * int(recorded.dtype.itemsize)


def symbol_of(value: Any) -> Any:
    """Return the sympy symbol when a size is one plain symbol, else None."""
    if isinstance(value, torch.SymInt) and value.node.maybe_as_int() is None:
        expression = value.node.expr
        return expression if expression.is_Symbol else None
    return None


def symbols_in(value: Any) -> Iterator[Any]:
    """Yield the sympy symbols in a value: in a scalar, or in a tensor's sizes and strides."""
    if isinstance(value, SYMBOLIC):
        yield from sorted(value.node.expr.free_symbols, key=str)
    elif isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            sizes = (*value.shape, *value.stride())
        else:
            sizes = tuple(value.shape)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                yield from symbols_in(size)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from symbols_in(item)


def expression_of(value: Any) -> Any:
    """Return the sympy expression of a symbolic scalar, else None."""
    if isinstance(value, SYMBOLIC):
        return value.node.expr
    return None


def is_getitem(node: Node) -> bool:
    """Whether the node unpacks a tuple with a constant index or key."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and len(node.args) > 1
        and isinstance(node.args[0], Node)
        and isinstance(node.args[1], (int, str))
    )
