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
from hierpart.graph import SYMBOLIC, has_value, is_getitem, resolve_attribute, value_of

COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


def likeness(node: Node) -> Node:
    """Return a copy of a node with likenesses of its inputs and users, to ask the registry about.

    Some validators read ``tensor_meta``, which exported graphs do not have, and the graph that is
    asked about is not to be changed.
    """
    graph, env = Graph(), dict[Node, Node]()
    for i, source in enumerate(node.all_input_nodes):
        if source.op not in ("placeholder", "get_attr"):
            env[source] = graph.create_node(source.op, source.target)
        elif node.target in COPIES:
            env[source] = graph.call_function(torch.ops.aten.permute.default)  # see copy_node
        else:
            env[source] = graph.create_node(source.op, f"x{i}")
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

    Sizes that it is given are computed in the graph as they are in its own, from tensors.

    Args:
        node: The node.
        constants: Whether inputs that are inputs or attributes of its graph, the first one apart,
            are zeros in place of inputs.
        expansion: What stands for the node, if anything.
    """
    graph, env, attributes = Graph(), dict[Node, Node](), dict[str, Any]()
    sizes = _sizes_behind(node)
    sources = [s for n in (node, *sizes) for s in n.all_input_nodes if s not in sizes]
    for i, source in enumerate(dict.fromkeys(sources)):
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
    for size in sizes:
        env[size] = copy_node(graph, size, env)
    outputs = list(_outputs(graph, attributes, node, env, expansion))
    if not outputs:
        return None
    graph.output(tuple(outputs))
    return GraphModule(attributes, graph)


def _sizes_behind(node: Node) -> dict[Node, None]:
    """Return the nodes that compute the symbolic sizes that a node is given, in graph order."""
    found: dict[Node, None] = {}
    for source in node.all_input_nodes:
        computed = source.op == "call_function" and has_value(source)
        if computed and isinstance(value_of(source), SYMBOLIC):
            found |= {**_sizes_behind(source), source: None}
    return found


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
    copied, value = copy_node(graph, node, env), value_of(node)
    if isinstance(value, torch.Tensor):
        yield copied
        return
    for i in used_items(node):
        item = graph.call_function(operator.getitem, (copied, i))
        item.meta = with_tensor_meta({"val": value[i]})
        yield item


def unpacks(node: Node) -> bool:
    """Whether the node takes an item out of a tuple, not a slice out of a tensor."""
    source = node.all_input_nodes[0] if node.all_input_nodes else None
    return is_getitem(node) and source is not None and not _is_tensor(source)


def _is_tensor(node: Node) -> bool:
    return has_value(node) and isinstance(value_of(node), torch.Tensor)


def used_items(node: Node) -> list[int]:
    """Return the positions of the tensors in a tuple-valued node's value that are read."""
    value = value_of(node)
    if not isinstance(value, (tuple, list)):
        return []
    used = {u.args[1] if is_getitem(u) else None for u in node.users}
    if None in used:  # read as a whole, so that every item leaves its block
        used = set(range(len(value)))
    return sorted(i for i in used if isinstance(i, int) and isinstance(value[i], torch.Tensor))


def copy_node(graph: Graph, node: Node, env: Mapping[Node, Any]) -> Node:
    """Write a copy of a node with full metadata and return it.

    A copy or cast that is all there is between an input and an output has a converter of its own,
    for fixed sizes only; for other sizes its input is permuted to itself first.
    """
    given = env
    if node.target in COPIES:
        source = node.all_input_nodes[0]
        value, read = value_of(source), env[source]
        if read.op == "placeholder" and value._has_symbolic_sizes_strides:
            order = list(range(value.dim()))
            same = graph.call_function(torch.ops.aten.permute.default, (read, order))
            same.meta = with_tensor_meta({"val": value})
            given = {**env, source: same}
    copied = graph.node_copy(node, given.__getitem__)
    copied.meta = with_tensor_meta(node.meta)
    return copied


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
            env[node].meta = with_tensor_meta(node.meta)
        elif node.op.startswith("call_"):
            env[node] = copy_node(graph, node, env)
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
