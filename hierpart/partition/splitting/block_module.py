"""One block's graph and module."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph_module import _copy_attr
from torch.fx.node import map_aggregate

from hierpart.graph import Facts, LazyModule, append_node, set_branch, value_of
from hierpart.partition.splitting.ports import Port, ports_of
from hierpart.partition.splitting.wiring import BlockWiring

IMPURE = "_is_impure"
"""Set on blocks with effects, so that torch's dead code removal keeps their calls."""


def build_block(
    facts: Facts, wiring: BlockWiring, branches: Mapping[str, GraphModule]
) -> GraphModule:
    """Return the module of one block: placeholders, ``get_attr`` nodes, ops, a flat tuple.

    Attributes are those of the analysed module, shared by identity, under their own names, but for
    ``branches``: split branches of the control-flow ops that run eagerly, by target.
    """
    builder = _BlockBuilder(facts, wiring)
    builder.fill()
    source = facts.module
    module = LazyModule(builder.graph, "Block")
    share_attributes(source, module, builder.attributes)
    effects = any(facts.effects[i].is_effect or facts.effects[i].proved for i in wiring.members)
    vars(module).update({"training": source.training, IMPURE: effects})
    for target in builder.attributes:
        if target in branches:
            set_branch(module, source, target, branches[target])
    return module


class _BlockBuilder:
    """Builds one block's graph; ``env`` maps original nodes to their values in the block."""

    def __init__(self, facts: Facts, wiring: BlockWiring) -> None:
        self.facts, self.wiring = facts, wiring
        self.graph = Graph(tracer_cls=tracer_class(facts.module.graph))
        self.members = frozenset(wiring.members)
        self.env: dict[Node, Any] = {}
        self.ports: dict[Port, Node] = {}
        self.attributes: dict[str, None] = {}

    def fill(self) -> None:
        for port in self.wiring.inputs:
            made = append_node(
                self.graph, port.name, "placeholder", port.name, meta=port_meta(port)
            )
            self.ports[port] = made
            if port.is_whole:
                self.env[port.node] = made
        members = [self.facts.nodes[i] for i in self.wiring.members]
        for node in members:
            for used in node.all_input_nodes:
                if used.op == "get_attr":
                    self.value(used)
        for node in members:
            self.value(node)
        self.graph.output(tuple(self.result(port) for port in self.wiring.outputs))

    def value(self, leaf: Any) -> Any:
        """Return what stands in the block for an argument of an original node."""
        if not isinstance(leaf, Node):
            return leaf
        if leaf not in self.env:
            self.env[leaf] = self.make(leaf)
        return self.env[leaf]

    def make(self, node: Node) -> Any:
        """Return the value of a node on its first use in the block."""
        if node in self.wiring.sizes:
            return self.size(node)
        if node.op == "get_attr":
            self.attributes[str(node.target)] = None
            return self.copy(node)
        i = self.facts.index.get(node)
        if i is not None and (i in self.members or self.facts.recomputable[i]):
            return self.copy(node)
        items = ports_of(node)
        return None if items is None else rebuild(node, [self.ports[p] for p in items])

    def copy(self, node: Node) -> Node:
        if node.op == "call_module":
            self.attributes[str(node.target)] = None
        args, kwargs = map_aggregate(node.args, self.value), node.kwargs
        if kwargs:
            kwargs = map_aggregate(kwargs, self.value)
        return append_node(
            self.graph, node.name, node.op, node.target, args, kwargs, node.type, node.meta
        )

    def size(self, node: Node) -> Node:
        """Return a size from an input: the scalar itself, or a dimension of a tensor."""
        source, dim = self.wiring.sizes[node]
        if dim < 0:
            return self.ports[source]
        target, args = torch.ops.aten.sym_size.int, (self.ports[source], dim)
        return append_node(self.graph, node.name, "call_function", target, args, meta=node.meta)

    def result(self, port: Port) -> Any:
        value = self.env[port.node]
        if port.item is None:
            return value
        args = (value, port.item)
        meta = port_meta(port)
        return append_node(
            self.graph, port.name, "call_function", operator.getitem, args, meta=meta
        )


def port_meta(port: Port) -> Mapping[str, Any]:
    """Return the metadata of what crosses at a port."""
    if port.is_whole:
        return port.node.meta
    kept = ("stack_trace", "nn_module_stack")
    return {**{k: v for k, v in port.node.meta.items() if k in kept}, "val": port.value}


def tracer_class(graph: Graph) -> Any:
    """Return the tracer class if unpickling, which calls it without arguments, can use it."""
    tracer: Any = graph._tracer_cls
    return None if tracer is None else _usable_tracer(tracer)


@functools.cache
def _usable_tracer(tracer: Any) -> Any:
    parameters = inspect.signature(tracer).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    return None if required else tracer


def rebuild(node: Node, items: Sequence[Any]) -> Any:
    """Return ``node``'s tuple or list, given its items that are not ``None``."""
    value, given = value_of(node), iter(items)
    made = [None if item is None else next(given) for item in value]
    return made if type(value) is list else tuple(made)


def share_attributes(
    source: torch.nn.Module, copy: torch.nn.Module, targets: Iterable[str]
) -> None:
    """Give ``copy`` the attributes of ``source`` at dotted paths, the same objects.

    Buffers that ``source`` leaves out of its state dict stay out of the copy's.
    """
    for target in targets:
        _copy_attr(source, copy, target)
        path, _, name = target.rpartition(".")
        owner, made = source.get_submodule(path), copy.get_submodule(path)
        if name in owner._buffers:
            if name in owner._non_persistent_buffers_set:
                made._non_persistent_buffers_set.add(name)
        elif name in made._buffers and owner is not made:
            # A plain tensor attribute: torch registers it as a buffer, which keeps it on ``.to()``;
            # it was in no state dict before.
            made._non_persistent_buffers_set.add(name)
