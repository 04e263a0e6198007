"""What one node does besides computing its value: writes, aliases, random draws, side effects.

Facts come from operator schemas (alias annotations and tags, see the ATen ``native_functions``
README) where there is a schema, from names and keyword arguments for Python functions, methods and
modules, and from the bodies of submodules. Where facts are missing the answer is conservative.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from hierpart.schemas import op_name, overloads

INPLACE_OPERATORS = frozenset(
    getattr(operator, n)
    for n in dir(operator)
    if n.startswith("i")
    and hasattr(operator, f"__{n}__")
    and n not in ("inv", "invert", "is_", "is_not", "index")
) | {operator.setitem, operator.delitem}
REGION_MARKERS = frozenset(
    {
        "_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode",
        "_exit_inference_mode", "set_grad_enabled", "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable", "_vmap_increment_nesting", "_vmap_decrement_nesting",
        "manual_seed", "set_rng_state", "seed", "backward", "set_default_dtype",
    }
)  # fmt: skip
CONTAINER_WRITES = frozenset(
    {
        "append", "extend", "update", "pop", "popitem", "insert", "clear", "remove", "setdefault",
        "__setitem__", "__delitem__", "backward", "register_hook",
    }
)  # fmt: skip
PURE_MODULES = (
    "torch.nn.functional", "torch._C._nn", "torch._C._linalg", "torch._C._special", "torch._C._fft",
    "torch.functional", "torch.fx", "torch.fx.experimental.sym_node", "math", "_operator",
    "numpy", "torch.nn.init", "einops",
)  # fmt: skip
RANDOM_FUNCTIONS = frozenset(
    {
        "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
        "rrelu", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
        "multi_head_attention_forward", "rand", "randn", "randint", "randperm", "normal",
        "feature_dropout", "native_dropout", "scaled_dot_product_attention",
    }
)  # fmt: skip
PURE_HIGHER_ORDER = frozenset(
    {"cond", "while_loop", "scan", "map_impl", "switch", "associative_scan"}
)
COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
STATISTICS_WRITERS = frozenset(
    {
        "batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm",
        "_batch_norm_impl_index", "batch_norm_update_stats", "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    }
)  # fmt: skip
"""Ops that write running statistics in training without an annotation in their schema."""
PURE_BUILTINS = frozenset(
    getattr(builtins, n)
    for n in (
        "len", "min", "max", "abs", "int", "float", "bool", "complex", "tuple", "list", "dict",
        "set", "slice", "range", "round", "pow", "sum", "divmod", "isinstance", "hasattr", "str",
        "type", "zip", "enumerate", "reversed", "sorted", "all", "any",
    )
)  # fmt: skip
PURE_CONSTRUCTORS = frozenset(
    {
        "tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor", "is_tensor", "Size",
        "device", "dtype", "finfo", "iinfo", "is_grad_enabled", "is_autocast_enabled",
        "get_default_dtype", "result_type", "promote_types", "can_cast", "broadcast_shapes",
    }
)  # fmt: skip
UNANNOTATED_ALIASES = frozenset(
    {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"}
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node does besides computing its value.

    Attributes:
        writes: Argument nodes whose storage the node writes.
        aliases: Argument nodes whose storage the value may share.
        maybe_aliases: Whether any argument's storage may be shared for want of a schema.
        writes_metadata: Whether it changes the shape of what it writes.
        random: Whether it draws from a random generator.
        ordered: Whether it keeps its place among all side effects.
        guard: Whether it is an assertion, which later data-dependent nodes rely on.
        barrier: Whether nothing may move across it.
        tensors: Tensors that it reads besides its arguments (attributes of a called module).
        written_tensors: Those of them that it writes.
    """

    writes: tuple[Node, ...] = ()
    aliases: tuple[Node, ...] = ()
    maybe_aliases: bool = False
    writes_metadata: bool = False
    random: bool = False
    ordered: bool = False
    guard: bool = False
    barrier: bool = False
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


@dataclass(frozen=True, slots=True)
class _Schema:
    """The parts of an operator's schema that matter here, computed once an operator."""

    names: tuple[str, ...]
    writes: tuple[str, ...]
    aliases: tuple[str, ...]
    flags: tuple[str, ...]
    base: Effect


def effect_of(
    node: Node, module: Callable[[str], Any], bodies: dict[int, Effect] | None = None
) -> Effect:
    """Return the effect of a callable node.

    Args:
        node: A ``call_function``, ``call_method`` or ``call_module`` node.
        module: Resolves a qualified name in the module that owns the node's graph.
        bodies: Effects of modules that are known already, by ``id``; filled in on the way, so that
            a module that many nodes share is looked through once.
    """
    bodies = {} if bodies is None else bodies
    if node.op == "call_module":
        return _module_effect(node, module(str(node.target)), bodies)
    if node.op == "call_method":
        return _method_effect(node)
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _overload_effect(node, target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _higher_order_effect(node, target, module, bodies)
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(torch, target.__name__, target)
    return _function_effect(node, target)


def _argument(node: Node, schema: _Schema, name: str) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    position = schema.names.index(name)
    return node.args[position] if position < len(node.args) else None


def _nodes(value: Any) -> tuple[Node, ...]:
    found: list[Node] = []
    map_aggregate(value, lambda leaf: found.append(leaf) if isinstance(leaf, Node) else None)
    return tuple(found)


def _overload_effect(node: Node, op: torch._ops.OpOverload) -> Effect:
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


def _method_effect(node: Node) -> Effect:
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


def _function_effect(node: Node, target: Any) -> Effect:
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


def _higher_order_effect(
    node: Node,
    op: torch._ops.HigherOrderOperator,
    module: Callable[[str], Any],
    known: dict[int, Effect],
) -> Effect:
    name, inputs = op.__name__, tuple(n for n in node.all_input_nodes if n.op != "get_attr")
    if "effects" in name or name in (
        "print",
        "call_torchbind",
        "run_and_save_rng_state",
        "run_with_rng_state",
    ):
        return Effect(ordered=True, random="rng" in name)
    if name == "triton_kernel_wrapper_mutation":
        return Effect(writes=inputs, aliases=inputs, ordered=True)
    if name.startswith("auto_functionalized"):
        return PURE
    inner = [body_effect(body, known) for _, body in branches_of(node, module)]
    attributes = tuple(n for n in node.all_input_nodes if n.op == "get_attr")
    return Effect(
        writes=inputs + attributes if any(e.writes for e in inner) else (),
        aliases=() if name in PURE_HIGHER_ORDER else inputs,
        random=any(e.random for e in inner),
        ordered=any(e.ordered for e in inner),
        guard=any(e.guard for e in inner),
        barrier=any(e.barrier for e in inner),
        tensors=tuple(t for e in inner for t in e.tensors),
        written_tensors=tuple(t for e in inner for t in e.written_tensors),
    )


def branches_of(node: Node, module: Callable[[str], Any]) -> list[tuple[Node, GraphModule]]:
    """Return the ``get_attr`` nodes among the node's inputs that name a GraphModule.

    One rule for every higher-order op: any leaf of args and kwargs, lists, tuples and dicts
    included, resolved in the module that owns the node.
    """
    found = [(n, module(str(n.target))) for n in node.all_input_nodes if n.op == "get_attr"]
    return [(n, value) for n, value in found if isinstance(value, GraphModule)]


def body_effect(body: GraphModule, known: dict[int, Effect]) -> Effect:
    """Return the sum of the effects in a GraphModule; ``writes`` stands for any write at all."""
    if id(body) not in known:
        known[id(body)] = _sum_of_effects(body, known)
    return known[id(body)]


def _sum_of_effects(body: GraphModule, known: dict[int, Effect]) -> Effect:
    effects: list[Effect] = []
    tensors: dict[int, torch.Tensor] = {}
    written: dict[int, torch.Tensor] = {}
    resolve = functools.partial(resolve_attribute, body)
    for node in body.graph.nodes:
        if node.op == "get_attr" and isinstance(value := resolve(str(node.target)), torch.Tensor):
            tensors[id(value)] = value
        if node.op.startswith("call_"):
            effect = effect_of(node, resolve, known)
            effects.append(effect)
            tensors |= {id(t): t for t in effect.tensors}
            written |= {id(t): t for t in effect.written_tensors}
    writes = tuple(n for e in effects for n in e.writes)
    if writes:  # a write may reach any attribute through views: take all of them for written
        written |= tensors
    return Effect(
        writes=writes, maybe_aliases=True,
        random=any(e.random for e in effects), ordered=any(e.ordered for e in effects),
        guard=any(e.guard for e in effects), barrier=any(e.barrier for e in effects),
        tensors=tuple(tensors.values()), written_tensors=tuple(written.values()),
    )  # fmt: skip


def _module_effect(node: Node, module: Any, known: dict[int, Effect]) -> Effect:
    inputs = tuple(node.all_input_nodes)
    if isinstance(module, GraphModule):
        body = body_effect(module, known)
        return Effect(
            writes=inputs if body.writes else (), aliases=inputs, random=body.random,
            ordered=body.ordered, guard=body.guard, barrier=body.barrier,
            tensors=body.tensors, written_tensors=body.written_tensors,
        )  # fmt: skip
    if type(module).__name__ == "GuardsFn":  # torch.export's input checks
        return Effect(guard=True, ordered=True)
    owned = tuple(module.parameters()) + tuple(module.buffers())
    parts = list(module.modules())
    if not all(map(_is_known_module, parts)):
        return Effect(
            writes=inputs, aliases=inputs, ordered=True, random=True,
            tensors=owned, written_tensors=owned,
        )  # fmt: skip
    training = [m for m in parts if m.training]
    return Effect(
        writes=inputs if any(getattr(m, "inplace", False) for m in parts) else (),
        aliases=inputs,
        random=any(_is_random_module(m) for m in training)
        or any("Fractional" in type(m).__name__ for m in parts),
        tensors=owned,
        written_tensors=tuple(b for m in training for b in _statistics(m)),
    )


def _is_known_module(module: torch.nn.Module) -> bool:
    """Whether a module is torch's own and does what its class says: no hooks, no renormalising."""
    plain = (
        type(module).__module__.startswith("torch.nn.modules") or type(module) is torch.nn.Module
    )
    hooked = module._forward_hooks or module._forward_pre_hooks
    return plain and not hooked and getattr(module, "max_norm", None) is None


def _is_random_module(module: torch.nn.Module) -> bool:
    rate = getattr(module, "p", None) or getattr(module, "dropout", None)
    return (isinstance(rate, (int, float)) and rate > 0) or "RReLU" in type(module).__name__


def _statistics(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    if getattr(module, "track_running_stats", False):
        yield from module.buffers(recurse=False)


def resolve_attribute(root: torch.nn.Module, path: str) -> Any:
    """Return the attribute at a dotted path.

    Raises:
        AttributeError: There is none; the message names the path and the module.
    """
    value: Any = root
    for part in path.split("."):
        if not hasattr(value, part):
            raise AttributeError(
                f"{type(root).__name__} has no attribute {path!r} (missing at {part!r})"
            )
        value = getattr(value, part)
    return value
