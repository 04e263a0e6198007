"""Adding nodes to an FX graph under names that are known to be free: private torch API, kept here.

``Graph.create_node`` spends most of its time on finding a name and on looking through arguments for
raw symbolic sizes; nodes copied from a valid graph need neither. ``tests/test_torch_private.py``
holds the result against ``create_node``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import torch
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


class _GeneratedOnAccess:
    """Stands for ``forward``: looking it up on a module generates the module's own code first.

    A function that generates and then calls, as torch's own, would hide the signature and, since
    torch's calls the module again, run forward hooks twice.
    """

    def __get__(self, module: LazyModule | None, owner: type[LazyModule]) -> Any:
        if module is None:
            return self
        module.real_recompile()
        return types.MethodType(vars(type(module))["forward"], module)


class LazyModule(_LazyGraphModule):
    """A GraphModule whose Python code is generated when it is first run or looked at.

    Generating and compiling the code is nine tenths of the cost of a GraphModule, and a block that
    goes to a compiler never runs it. It is made without ``GraphModule.__init__`` and the attribute
    checks of ``nn.Module``, which are most of the rest.

    Args:
        graph: Its graph; the attributes that it names are for the caller to add.
        class_name: Name of its class.
    """

    def __init__(self, graph: Graph, class_name: str) -> None:
        state = vars(self)
        for name, value in _empty_state().items():
            state[name] = value.copy() if isinstance(value, (dict, list, set)) else value
        type(self).__name__ = class_name
        tracer = graph._tracer_cls
        if tracer is not None and "<locals>" not in tracer.__qualname__:
            state["_tracer_cls"] = tracer
        state["_graph"] = graph
        graph.owning_module = self

    forward = _lazy_forward = _GeneratedOnAccess()


@functools.cache
def _empty_state() -> dict[str, Any]:
    """Return what a module holds before it has a graph of its own."""
    return vars(_LazyGraphModule(torch.nn.Module(), Graph()))
