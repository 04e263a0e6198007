"""Adding nodes to an FX graph under names that are known to be free: private torch API, kept here.

``Graph.create_node`` spends most of its time on finding a name and on looking through arguments for
raw symbolic sizes; nodes copied from a valid graph need neither. ``tests/test_torch_private.py``
holds the result against ``create_node``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _LazyGraphModule


def append_node(
    graph: Graph,
    name: str,
    op: str,
    target: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    type_expr: Any = None,
    meta: Mapping[str, Any] | None = None,
) -> Node:
    """Append a node, named ``name`` where that is free, with a shallow copy of ``meta``.

    Args:
        graph: The graph, with its insertion point at the end.
        name: A legal Python identifier that shadows no builtin, as every node's name is.
        op: Opcode.
        target: Target of the opcode.
        args: Arguments; nodes in them belong to ``graph``.
        kwargs: Keyword arguments.
        type_expr: Type expression.
        meta: Metadata.
    """
    namespace = graph._graph_namespace
    if name in namespace._used_names:
        name = namespace.create_name(name, None)
    else:
        namespace._used_names.add(name)
    node = Node(graph, name, op, target, args, dict(kwargs or {}), type_expr)
    namespace._obj_to_name[node] = name
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    if meta:
        node.meta.update(meta)  # assigning the attribute would file the node anew
    return node


def _generate_code(module: LazyModule) -> bool:
    module.real_recompile()
    return True


# Dynamo, when it traces a model that contains a block, runs this instead of tracing it.
_generate_code._dynamo_marked_constant = True  # type: ignore[attr-defined]


class LazyModule(_LazyGraphModule):
    """A GraphModule whose Python code is generated when it is first run or looked at.

    Generating and compiling the code is nine tenths of the cost of a GraphModule, and a block that
    goes to a compiler never runs it.
    """

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        # torch's own version calls the module again, which runs forward hooks twice.
        _generate_code(self)
        return type(self).forward(self, *args, **kwargs)

    forward = _lazy_forward
