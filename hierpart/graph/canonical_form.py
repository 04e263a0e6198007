"""Blocks of equal structure: one canonical copy, one key.

A model's repeated layers differ in node names, input names and weights, which says nothing about
the code that a compiler makes of them. The copy made here has canonical names and takes every
tensor as an input; the key covers all that is left: operators, arguments, wiring, constants by
value, sizes and symbols, dtypes, strides, devices.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from hierpart.graph.node.assertions import is_proved
from hierpart.graph.node.effects import resolve_attribute
from hierpart.graph.node.values import SYMBOLIC, has_value, value_of

KEPT_META = ("val", "tensor_meta", "unbacked_bindings", "stack_trace")


@dataclass(frozen=True)
class Canonical:
    """A block ready for a compiler.

    Attributes:
        key: Digest of the structure; blocks with equal keys may share compiled code.
        graph: The backend's own copy of the graph.
        owned: What the graph reads besides tensors, by qualified name: branch modules as copies.
        inputs: One example value a placeholder.
        attributes: Qualified names of the tensors that the last placeholders stand for.
    """

    key: str
    graph: Graph
    owned: Mapping[str, Any]
    inputs: tuple[Any, ...]
    attributes: tuple[str, ...]

    @cached_property
    def block(self) -> GraphModule:
        """The backend's own copy: placeholders first, canonical names, no tensor attributes.

        Made when it is asked for: of blocks with equal keys one is compiled.
        """
        return GraphModule(dict(self.owned), self.graph)


def canonical(block: GraphModule) -> Canonical:
    """Return the canonical copy of ``block``, which is left as it is.

    Raises:
        ValueError: A node has no recorded value, so nothing can be compiled from it.
    """
    graph, attributes = _lifted(block)
    owned = {n.target: _own(block, n.target) for n in graph.nodes if n.op == "get_attr"}
    owned |= {n.target: resolve_attribute(block, str(n.target)) for n in _called(graph)}
    text = "\n".join(_lines(graph, owned))
    inputs = tuple(value_of(n) for n in graph.nodes if n.op == "placeholder")
    return Canonical(hashlib.sha256(text.encode()).hexdigest(), graph, owned, inputs, attributes)


def is_lifted(block: GraphModule, node: Node) -> bool:
    """Whether the node reads a tensor attribute, which becomes an input of the compiled block."""
    return node.op == "get_attr" and isinstance(
        resolve_attribute(block, str(node.target)), torch.Tensor
    )


def _called(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "call_module"]


def _lifted(block: GraphModule) -> tuple[Graph, tuple[str, ...]]:
    """Return a copy of the graph with tensor attributes as last placeholders, and their names."""
    graph, env = Graph(), dict[Node, Node]()
    nodes = list(block.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    tensors = [n for n in nodes if is_lifted(block, n)]
    first: dict[str, Node] = {}
    for node in (*placeholders, *tensors):
        name = str(node.target)
        if node.op == "get_attr" and name in first:
            env[node] = first[name]
            continue
        env[node] = _create(graph, "placeholder", f"a{len(env)}", (), {}, node)
        if node.op == "get_attr":
            first[name] = env[node]
            if "val" not in env[node].meta:
                env[node].meta["val"] = _fake(resolve_attribute(block, name), nodes)
    for i, node in enumerate(n for n in nodes if n not in env and not is_proved(n)):
        args = map_arg(node.args, env.__getitem__)
        kwargs = map_arg(node.kwargs, env.__getitem__)
        env[node] = _create(graph, node.op, node.target, args, kwargs, node, f"n{i}")
    return graph, tuple(first)


def _create(
    graph: Graph, op: str, target: Any, args: Any, kwargs: Any, source: Node, name: str = ""
) -> Node:
    node = graph.create_node(op, target, args, kwargs, name=name or str(target))
    node.meta.update({key: source.meta[key] for key in KEPT_META if key in source.meta})
    if has_value(source):
        node.meta["val"] = value_of(source)
    return node


def _fake(tensor: torch.Tensor, nodes: Iterable[Node]) -> torch.Tensor:
    """Return the fake of an attribute whose node has no value, in the mode of the other nodes."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode([value_of(n) for n in nodes if has_value(n)])
    if mode is None:
        raise ValueError("no node of the block has a fake tensor as meta['val']")
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def _own(block: GraphModule, target: str) -> Any:
    """Return the attribute for the copy: branch modules as copies, other objects as they are."""
    value = resolve_attribute(block, target)
    return _copy_module(value) if isinstance(value, GraphModule) else value


def _copy_module(module: GraphModule) -> GraphModule:
    """Return a copy with a graph of its own, branch modules included; tensors are shared."""
    import copy

    graph = copy.deepcopy(module.graph)
    used = [n.target for n in graph.nodes if n.op in ("get_attr", "call_module")]
    return GraphModule({name: _own(module, str(name)) for name in used}, graph)


def _lines(graph: Graph, owned: dict[Any, Any]) -> Iterator[str]:
    """Yield one line a node that says everything a compiler can see of it."""
    numbers = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        target = node.op if node.op in ("placeholder", "output") else _text(node.target, numbers)
        if node.op == "get_attr":
            target = _attribute(owned[node.target])
        elif node.op == "call_module":
            target = f"module {id(owned[node.target])}"
        args, kwargs = _text(node.args, numbers), _text(node.kwargs, numbers)
        yield f"{numbers[node]} {node.op} {target} {args} {kwargs} -> {_value(node)}"


def _attribute(value: Any) -> str:
    if isinstance(value, GraphModule):
        attributes = {
            n.target: resolve_attribute(value, str(n.target))
            for n in value.graph.nodes
            if n.op in ("get_attr", "call_module")
        }
        return "{" + "; ".join(_lines(value.graph, attributes)) + "}"
    if isinstance(value, pytree.TreeSpec):
        return repr(value)
    return f"{type(value).__qualname__} {id(value)}"


def _value(node: Node) -> str:
    return describe(value_of(node)) if has_value(node) else "?"


def describe(value: Any) -> str:
    """Return text that says everything a compiler can see of an example value."""
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        parts = (
            type(value).__name__, value.dtype, value.device, value.layout, list(value.shape),
            list(value.stride()) if strided else (), value.storage_offset() if strided else 0,
            value.requires_grad, value.is_conj(), value.is_neg(),
        )  # fmt: skip
        return "|".join(map(str, parts))
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(describe, value)) + ")"
    return _text(value, {})


def _text(value: Any, numbers: dict[Node, int]) -> str:
    """Return text that is equal only for arguments that mean the same."""
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_text(v, numbers) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, numbers)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return "slice" + _text([value.start, value.stop, value.step], numbers)
    if isinstance(value, SYMBOLIC):
        return f"{type(value).__name__} {value.node.expr}"
    if isinstance(value, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return f"op {value}"
    plain = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout,
             torch.memory_format)  # fmt: skip
    if isinstance(value, plain):
        return f"{type(value).__name__} {value!r}"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and getattr(sys.modules.get(module), str(name), None) is value:
        return f"function {module}.{name}"  # the same in every process
    # Local functions and foreign objects: equal only when they are the same object.
    return f"{getattr(value, '__qualname__', type(value).__qualname__)} {id(value)}"
