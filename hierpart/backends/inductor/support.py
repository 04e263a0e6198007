"""Which nodes Inductor compiles in a block by itself, and why it does not compile the others."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.graph import SYMBOLIC, has_value, resolve_attribute, value_of
from hierpart.plan import Reason

DEVICES = ("cpu", "cuda", "xpu", "mps")
CONTROL_FLOW = frozenset(
    {
        "cond", "while_loop", "while_loop_stack_output", "switch", "scan", "map_impl",
        "invoke_subgraph", "wrap_with_set_grad_enabled", "wrap_with_autocast",
    }
)  # fmt: skip
"""Higher-order ops that ``standalone_compile`` takes with their branches."""
WRAPPERS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Higher-order ops around one operator, or around a control-flow op whose branches write."""
EFFECTS = frozenset({"with_effects", "print", "_make_token", "_sink_tokens"})
QUANTISED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
PURE_HOMES = ("torch", "_operator", "math", "builtins")


def refusal(node: Node) -> tuple[Reason, str] | None:
    """Return why ``standalone_compile`` does not take a node, ``None`` if it does."""
    target = node.target
    if node.op == "call_module":
        return Reason.NOT_LISTED, "a called module; capture it with torch.export"
    if isinstance(target, torch._ops.HigherOrderOperator):
        refused = _higher_order_refusal(node, str(target))
    elif isinstance(target, torch._ops.OpOverload):
        refused = _overload_refusal(target)
    else:
        refused = _function_refusal(node)
    return refused or _value_refusal(node)


def _overload_refusal(op: torch._ops.OpOverload) -> tuple[Reason, str] | None:
    if op._schema.is_mutable:
        return Reason.MUTATES, str(op)
    name = op._schema.name.split("::")[-1]
    if name in EFFECTS or op.namespace == "profiler":
        return Reason.EFFECT, str(op)
    return None


def _function_refusal(node: Node) -> tuple[Reason, str] | None:
    """Refuse functions that are not PyTorch's or Python's own: they may do anything."""
    home = getattr(node.target, "__module__", None) or ""
    if node.op == "call_method" or home.split(".")[0] in PURE_HOMES:
        return None
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return None
    return Reason.NOT_LISTED, f"function of {home or 'unknown origin'}"


def _higher_order_refusal(node: Node, name: str) -> tuple[Reason, str] | None:
    if name in EFFECTS:
        return Reason.EFFECT, name
    writes = name in WRAPPERS
    if writes:
        inner = node.args[0] if node.args else None
        if isinstance(inner, torch._ops.OpOverload):
            return None
        if str(inner) not in CONTROL_FLOW:
            return Reason.CONTROL_FLOW, f"{name} around {inner}"
    elif name not in CONTROL_FLOW:
        return Reason.CONTROL_FLOW, f"{name} is not among the ops that Inductor compiles by itself"
    owner = node.graph.owning_module
    for source in node.all_input_nodes:
        if source.op != "get_attr" or owner is None:
            continue
        body = resolve_attribute(owner, str(source.target))
        refused = _body_refusal(body, writes) if isinstance(body, GraphModule) else None
        if refused:
            return Reason.CONTROL_FLOW, f"in {source.target}: {refused[1] or refused[0].value}"
    return None


def _body_refusal(body: GraphModule, writes: bool) -> tuple[Reason, str] | None:
    """Return why a branch cannot be compiled with its op, if so; its operands are its own."""
    for node in body.graph.nodes:
        if writes and _writes_an_operand(node):
            continue
        if node.op == "get_attr":
            value = resolve_attribute(body, str(node.target))
            if isinstance(value, torch.Tensor):
                return Reason.CONTROL_FLOW, f"the tensor {node.target} is not an operand"
        if node.op.startswith("call_"):
            refused = refusal(node)
            if refused:
                return refused[0], f"{node.name}: {refused[1] or refused[0].value}"
    return None


def _writes_an_operand(node: Node) -> bool:
    """Whether the node is the ``copy_`` into a placeholder that functionalisation leaves."""
    copies = node.op == "call_function" and node.target is torch.ops.aten.copy_.default
    return copies and isinstance(node.args[0], Node) and node.args[0].op == "placeholder"


def _value_refusal(node: Node) -> tuple[Reason, str] | None:
    """Refuse nodes without metadata and values that Inductor has no code for."""
    if not has_value(node) and not _returns_nothing(node):
        return Reason.NO_METADATA, ""
    for source in (node, *node.all_input_nodes):
        if source is not node and source.op == "get_attr" and not has_value(source):
            continue
        if source is not node and not has_value(source):
            return Reason.NO_METADATA, f"of its input {source.name}"
        refused = _layout_refusal(value_of(source)) if has_value(source) else None
        if refused:
            return refused
    return None


def _returns_nothing(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _layout_refusal(value: Any) -> tuple[Reason, str] | None:
    if isinstance(value, (tuple, list)):
        return next((r for r in map(_layout_refusal, value) if r), None)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return Reason.LAYOUT, str(value.layout)
        if value.dtype in QUANTISED:
            return Reason.LAYOUT, f"quantised, {value.dtype}"
        if torch.utils._python_dispatch.is_traceable_wrapper_subclass(value):
            return Reason.LAYOUT, f"tensor subclass {type(value).__name__}"
        if value.device.type not in DEVICES:
            return Reason.LAYOUT, f"device {value.device.type}"
        return None
    plain = (bool, int, float, complex, str, type(None), *SYMBOLIC, torch.dtype, torch.device)
    return None if isinstance(value, plain) else (Reason.NON_TENSOR_BOUNDARY, type(value).__name__)
