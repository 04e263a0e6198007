"""Graphs of one node that stand for it when the registry is asked and networks are tried."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import TensorMetadata
from torch.utils import _pytree as pytree

from hierpart.backends.tensorrt.ranges import range_of
from hierpart.effects import resolve_attribute
from hierpart.values import has_value, is_getitem, value_of


def likeness(node: Node) -> Node:
    """Return a copy of a node with likenesses of its inputs and users, to ask the registry about.

    Some validators read ``tensor_meta``, which exported graphs do not have, and the graph that is
    asked about is not to be changed.
    """
    graph, env = Graph(), dict[Node, Node]()
    for i, source in enumerate(node.all_input_nodes):
        known = source.op not in ("placeholder", "get_attr")
        env[source] = graph.create_node(source.op, source.target if known else f"x{i}")
        env[source].meta = with_tensor_meta(source.meta)
    copied = graph.node_copy(node, env.__getitem__)
    copied.meta = with_tensor_meta(node.meta)
    outputs = [copied for user in node.users if user.op == "output"]
    for user in node.users:
        if is_getitem(user):
            graph.call_function(operator.getitem, (copied, user.args[1]))
        elif user.op != "output":
            graph.call_function(operator.pos, (copied,))
    graph.output(tuple(outputs))
    return copied


def one_node(
    node: Node, constants: bool, expansion: GraphModule | None = None
) -> GraphModule | None:
    """Return a graph of one node, ``None`` where there is no tensor to return.

    Args:
        node: The node.
        constants: Whether inputs that are inputs or attributes of its graph, the first one apart,
            are zeros in place of inputs.
        expansion: What stands for the node, if anything.
    """
    graph, env, attributes = Graph(), dict[Node, Node](), dict[str, Any]()
    for i, source in enumerate(node.all_input_nodes):
        if not has_value(source):
            return None
        value = value_of(source)
        if not isinstance(value, torch.Tensor):
            return None
        if constants and i and source.op in ("placeholder", "get_attr"):
            shape = range_of(value, 1).likeliest
            attributes[f"c{i}"] = torch.zeros(shape, dtype=value.dtype)
            env[source] = graph.create_node("get_attr", f"c{i}")
        else:
            env[source] = graph.create_node("placeholder", f"x{i}")
        env[source].meta = with_tensor_meta({"val": value})
    if constants and not attributes:
        return None
    outputs = list(_outputs(graph, attributes, node, env, expansion))
    if not outputs:
        return None
    graph.output(tuple(outputs))
    return GraphModule(attributes, graph)


def _outputs(
    graph: Graph,
    attributes: dict[str, Any],
    node: Node,
    env: dict[Node, Node],
    expansion: GraphModule | None,
) -> Iterator[Node]:
    """Yield the node, or every item of its value that is used."""
    if expansion is not None:
        made = inline(graph, attributes, expansion, [env[s] for s in node.all_input_nodes])
        items = [made[i] for i in used_items(node)] if isinstance(made, (tuple, list)) else [made]
        yield from dict.fromkeys(item for item in items if item.op != "get_attr")
        return
    copied, value = graph.node_copy(node, env.__getitem__), value_of(node)
    copied.meta = with_tensor_meta(node.meta)
    if isinstance(value, torch.Tensor):
        yield copied
        return
    for i in used_items(node):
        item = graph.call_function(operator.getitem, (copied, i))
        item.meta = with_tensor_meta({"val": value[i]})
        yield item


def used_items(node: Node) -> list[int]:
    """Return the positions in a tuple-valued node's value that some ``getitem`` reads."""
    used = {u.args[1] for u in node.users if is_getitem(u)}
    return sorted(i for i in used if isinstance(i, int))


def inline(
    graph: Graph, attributes: dict[str, Any], body: GraphModule, given: Sequence[Any]
) -> Any:
    """Write the nodes of ``body`` into ``graph`` and return its result.

    Args:
        graph: The graph; written to.
        attributes: What its ``get_attr`` nodes name; added to.
        body: What is written.
        given: A node for each of its placeholders.
    """
    inputs = body.graph.find_nodes(op="placeholder")
    env: dict[Node, Any] = dict(zip(inputs, given, strict=True))
    for node in body.graph.nodes:
        if node.op == "get_attr":
            name = f"literal_{len(attributes)}"
            attributes[name] = resolve_attribute(body, str(node.target))
            env[node] = graph.create_node("get_attr", name, name=name)
        elif node.op.startswith("call_"):
            env[node] = graph.node_copy(node, env.__getitem__)
        else:
            continue
        env[node].meta = with_tensor_meta(node.meta)
    return map_arg(body.graph.output_node().args[0], env.__getitem__)


def with_tensor_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's metadata with what ``torch.fx``'s ``ShapeProp`` would record for ``val``."""
    if "val" not in meta:
        return dict(meta)
    value = meta["val"]
    return {**meta, "tensor_meta": pytree.tree_map_only(torch.Tensor, _tensor_meta, value)}


def _tensor_meta(value: torch.Tensor) -> TensorMetadata:
    return TensorMetadata(
        value.shape, value.dtype, value.requires_grad, value.stride(), None, False, {}
    )
