"""What one node does besides computing its value: writes, aliases, random draws, side effects.

Operators, functions and methods are in ``opeffects.py``; here are called modules, higher-order ops
and the bodies of submodules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.graph.node.op_effects import Effect, function_effect, method_effect, overload_effect

PURE_HIGHER_ORDER = frozenset(
    {
        "cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "switch",
        "associative_scan", "auto_functionalized", "auto_functionalized_v2",
    }
)  # fmt: skip


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
        return method_effect(node)
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return overload_effect(node, target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _higher_order_effect(node, target, module, bodies)
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(torch, target.__name__, target)
    return function_effect(node, target)


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
    functional = name.startswith("auto_functionalized")  # what it writes are copies of its own
    bodies = dict(branches_of(node, module))
    inner = [body_effect(body, known) for body in bodies.values()]
    attributes = tuple(n for n in node.all_input_nodes if n.op == "get_attr" and n not in bodies)
    # Capture makes no branch that returns its operand or attribute; graphs made by hand may.
    shares = name not in PURE_HIGHER_ORDER or (not functional and any(e.aliases for e in inner))
    return Effect(
        writes=inputs + attributes if any(e.writes for e in inner) and not functional else (),
        aliases=inputs + attributes if shares else (),
        aliases_tensors=shares,
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
    """Return the sum of the effects in a GraphModule.

    ``writes`` stands for any write at all; ``aliases`` are results that may share an input's or an
    attribute's storage.
    """
    if id(body) not in known:
        known[id(body)] = _sum_of_effects(body, known)
    return known[id(body)]


def _sum_of_effects(body: GraphModule, known: dict[int, Effect]) -> Effect:
    effects: list[Effect] = []
    tensors: dict[int, torch.Tensor] = {}
    written: dict[int, torch.Tensor] = {}
    shared: dict[Node, None] = {}  # may share a storage with an input or an attribute
    results: list[Node] = []
    resolve = functools.partial(resolve_attribute, body)
    for node in body.graph.nodes:
        if node.op == "get_attr" and isinstance(value := resolve(str(node.target)), torch.Tensor):
            tensors[id(value)] = value
            shared[node] = None
        if node.op == "placeholder":
            shared[node] = None
        if node.op == "output":
            results = node.all_input_nodes
        if node.op.startswith("call_"):
            effect = effect_of(node, resolve, known)
            sources = node.all_input_nodes if effect.maybe_aliases else effect.aliases
            if any(source in shared for source in sources):
                shared[node] = None
            effects.append(effect)
            tensors |= {id(t): t for t in effect.tensors}
            written |= {id(t): t for t in effect.written_tensors}
    writes = tuple(n for e in effects for n in e.writes)
    if writes:  # a write may reach any attribute through views: take all of them for written
        written |= tensors
    return Effect(
        writes=writes, maybe_aliases=True,
        aliases=tuple(n for n in results if n in shared),
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
