"""What one operator, function or method does besides computing its value.

Facts come from operator schemas (alias annotations and tags, see the ATen ``native_functions``
README) where there is a schema, else from names and arguments. Where facts are missing the answer
is conservative.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from hierpart.graph.node.assertions import is_proved
from hierpart.graph.node.op_tables import (
    COLLECTIVES,
    CONTAINER_WRITES,
    INPLACE_OPERATORS,
    PURE_BUILTINS,
    PURE_CONSTRUCTORS,
    PURE_MODULES,
    RANDOM_FUNCTIONS,
    REGION_MARKERS,
    STATISTICS_WRITERS,
    UNANNOTATED_ALIASES,
)
from hierpart.graph.node.schemas import op_name, overloads


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node does besides computing its value.

    Attributes:
        writes: Argument nodes whose storage the node writes.
        aliases: Argument nodes whose storage the value may share.
        maybe_aliases: Whether any argument's storage may be shared for want of a schema.
        aliases_tensors: Whether the value may share the storage of one of ``tensors``.
        writes_metadata: Whether it changes the shape of what it writes.
        random: Whether it draws from a random generator.
        ordered: Whether it keeps its place among all side effects.
        guard: Whether it is an assertion, which later data-dependent nodes rely on.
        barrier: Whether nothing may move across it.
        proved: Whether it is an assertion that the graph's metadata proves; it has no effect then.
        tensors: Tensors that it reads besides its arguments (attributes of a called module).
        written_tensors: Those of them that it writes.
    """

    writes: tuple[Node, ...] = ()
    aliases: tuple[Node, ...] = ()
    maybe_aliases: bool = False
    aliases_tensors: bool = False
    writes_metadata: bool = False
    random: bool = False
    ordered: bool = False
    guard: bool = False
    barrier: bool = False
    proved: bool = False
    tensors: tuple[torch.Tensor, ...] = ()
    written_tensors: tuple[torch.Tensor, ...] = ()

    @property
    def is_effect(self) -> bool:
        """Whether the node must keep its place among the effects (C3)."""
        return bool(
            self.writes or self.random or self.ordered or self.guard or self.barrier
            or self.written_tensors
        )  # fmt: skip


PURE = Effect()


MAYBE_VIEW = Effect(maybe_aliases=True)
PROVED = Effect(proved=True)


@dataclass(frozen=True, slots=True)
class _Schema:
    """The parts of an operator's schema that matter here, computed once an operator."""

    names: tuple[str, ...]
    writes: tuple[str, ...]
    aliases: tuple[str, ...]
    flags: tuple[str, ...]
    base: Effect


def _argument(node: Node, schema: _Schema, name: str) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    position = schema.names.index(name)
    return node.args[position] if position < len(node.args) else None


def _nodes(value: Any) -> tuple[Node, ...]:
    found: list[Node] = []
    map_aggregate(value, lambda leaf: found.append(leaf) if isinstance(leaf, Node) else None)
    return tuple(found)


def overload_effect(node: Node, op: torch._ops.OpOverload) -> Effect:
    """Return the effect of a call of an operator's overload."""
    if is_proved(node):
        return PROVED
    schema = _schema_of(op)
    base = schema.base
    if not (schema.writes or schema.aliases or schema.flags):
        return base
    writes = tuple(n for a in schema.writes for n in _nodes(_argument(node, schema, a)))
    if "running_mean" in schema.flags and _is_training(node, schema):
        stats = [a for a in ("running_mean", "running_var") if a in schema.flags]
        writes += tuple(n for a in stats for n in _nodes(_argument(node, schema, a)))
    random = base.random and not _draws_nothing(node, schema)
    aliases = tuple(n for a in schema.aliases for n in _nodes(_argument(node, schema, a)))
    return Effect(
        writes=writes, aliases=aliases, maybe_aliases=base.maybe_aliases,
        writes_metadata=base.writes_metadata and bool(writes), random=random,
        ordered=base.ordered, guard=base.guard, barrier=base.barrier,
    )  # fmt: skip


def _is_training(node: Node, schema: _Schema) -> bool:
    flags = [f for f in ("training", "train", "use_input_stats") if f in schema.names]
    return not flags or _argument(node, schema, flags[0]) is not False


def _draws_nothing(node: Node, schema: _Schema) -> bool:
    """Whether a dropout-like op is switched off by its own constant arguments."""
    for flag in ("train", "training"):
        if flag in schema.flags and _argument(node, schema, flag) is False:
            return True
    for rate in ("dropout_p", "p"):
        if rate in schema.flags:
            value = _argument(node, schema, rate)
            return value == 0 or (value is None and rate == "dropout_p")
    return False


@functools.cache
def _schema_of(op: torch._ops.OpOverload) -> _Schema:
    schema, name = op._schema, op._schema.name.split("::")[-1]
    names = tuple(a.name for a in schema.arguments)
    writes = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    returns_alias = any(r.alias_info is not None for r in schema.returns)
    aliases = tuple(a.name for a in schema.arguments if a.alias_info) if returns_alias else ()
    random = torch.Tag.nondeterministic_seeded in op.tags or "generator" in names
    statistics = ("running_mean", "running_var") if name in STATISTICS_WRITERS else ()
    flags = [n for n in names if n in statistics and n not in writes]
    if random:
        flags += [n for n in names if n in ("p", "dropout_p", "train", "training")]
    guard = "assert" in name or name.startswith("sym_constrain_range")
    no_value = not schema.returns and not writes
    ordered = guard or no_value or op.namespace in COLLECTIVES or op in _side_effectful()
    composite = not aliases and _is_composite(op)
    base = Effect(
        maybe_aliases=composite or name in UNANNOTATED_ALIASES, random=random, ordered=ordered,
        guard=guard, writes_metadata=bool(writes) and torch.Tag.inplace_view in op.tags,
    )  # fmt: skip
    return _Schema(names, writes, aliases, tuple(flags), base)


def _is_composite(op: torch._ops.OpOverload) -> bool:
    """Whether the op is a composition whose aliasing no annotation describes (``type_as``)."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(op_name(op), "CompositeImplicitAutograd")
    )


@functools.lru_cache(maxsize=1)
def _side_effectful() -> frozenset[Any]:
    return frozenset(torch.fx.node._side_effectful_functions)


@functools.cache
def _packet(name: str) -> tuple[torch._ops.OpOverload, ...]:
    """Return the overloads of ``aten::name``, without the out= variants where there are others."""
    found = overloads(name)
    plain = [o for o in found if not any(a.is_out for a in o._schema.arguments)]
    return tuple(plain) or found


def _name_effect(node: Node, name: str) -> Effect | None:
    """Return the union of what the overloads of ``aten::name`` do, or None without such an op."""
    variants = _packet(name)
    if not variants:
        return None
    found = [_schema_of(o) for o in variants]
    first = _nodes(node.args[:1]) or node.all_input_nodes[:1]
    return Effect(
        writes=tuple(first) if any(s.writes for s in found) else (),
        aliases=tuple(first) if any(s.aliases for s in found) else (),
        maybe_aliases=any(s.base.maybe_aliases for s in found),
        writes_metadata=any(s.base.writes_metadata for s in found),
        random=any(s.base.random for s in found),
        ordered=any(s.base.ordered for s in found),
        guard=any(s.base.guard for s in found),
    )


def method_effect(node: Node) -> Effect:
    """Return the effect of a ``call_method`` node."""
    name = str(node.target)
    owner = _nodes(node.args[:1])
    if name in CONTAINER_WRITES:
        return Effect(writes=owner, aliases=owner, barrier=True)
    if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
        drawn = _name_effect(node, name)
        metadata = name in ("resize_", "set_", "requires_grad_") or bool(
            drawn and drawn.writes_metadata
        )
        return Effect(
            writes=owner,
            aliases=owner,
            writes_metadata=metadata,
            random=bool(drawn and drawn.random),
        )
    return _name_effect(node, name) or Effect(aliases=owner)


def function_effect(node: Node, target: Any) -> Effect:
    """Return the effect of a call of a Python or built-in function."""
    name, home = getattr(target, "__name__", str(target)), getattr(target, "__module__", None) or ""
    tensors = tuple(node.all_input_nodes)
    if target in INPLACE_OPERATORS:
        first = _nodes(node.args[:1])
        return Effect(writes=first, aliases=first)
    if target is operator.getitem or target is builtins.getattr:
        return Effect(aliases=_nodes(node.args[:1]))
    if name in REGION_MARKERS:
        return Effect(barrier=True)
    if name.startswith("_check") or "assert" in name:
        return Effect(guard=True, ordered=True)
    if target is builtins.print:
        return Effect(ordered=True)
    if target in PURE_BUILTINS:
        return MAYBE_VIEW
    if home in ("_operator", "math") or (home == "torch" and name in PURE_CONSTRUCTORS):
        return PURE
    written = _nodes(node.kwargs.get("out"))
    flags = _bound_flags(target, name, node.args, node.kwargs)
    if flags.get("inplace") or (name.endswith("_") and not name.endswith("__")):
        written += _nodes(node.args[:1]) or tensors[:1]
    trains = flags.get(
        "training", flags.get("use_input_stats", "gather" in name or "update" in name)
    )
    if name in STATISTICS_WRITERS and trains is not False:
        written += _nodes([flags.get("running_mean"), flags.get("running_var")])
    if flags.get("max_norm") is not None:
        written += _nodes(flags.get("weight"))
    known = _name_effect(node, name)
    if known is None and not home.startswith(PURE_MODULES) and not name.startswith("sym_"):
        return Effect(writes=tensors, aliases=tensors, ordered=True, barrier=not tensors)
    if name in RANDOM_FUNCTIONS:
        rate = flags.get("p", flags.get("dropout_p", 1))
        random = flags.get("training", True) is not False and rate != 0
    else:
        random = bool(known and known.random)
    return Effect(
        writes=written, aliases=written + (known.aliases if known else ()),
        maybe_aliases=known is None or known.maybe_aliases, random=random,
        ordered=bool(known and known.ordered), guard=bool(known and known.guard),
    )  # fmt: skip


def _bound_flags(
    target: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments by name, from the signature or else from the schema of that name."""
    signature = _signature(target)
    if signature is None:
        schemas = [s for s in map(_schema_of, _packet(name)) if len(s.names) >= len(args)]
        positional = dict(zip(schemas[0].names, args, strict=False)) if schemas else {}
        return {**positional, **kwargs}
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the graph's author passes what the signature does not show
        return kwargs
    bound.apply_defaults()
    return bound.arguments


@functools.cache
def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # built-in functions have none
        return None
