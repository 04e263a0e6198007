"""The split itself: blocks become submodules, the parent calls them in order.

Nodes keep their names and metadata (C11); attributes are shared by identity (C7); every block takes
its placeholders first and returns a flat tuple.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_aggregate

from hierpart.effects import resolve_attribute
from hierpart.errors import InputTypeError
from hierpart.graph import Facts
from hierpart.plan import EAGER, Plan
from hierpart.values import has_value, value_of
from hierpart.wiring import BlockWiring, Port, ports_of

ACCELERATED_PREFIX = "_run_on_acc_"
EAGER_PREFIX = "_run_on_gpu_"
IMPURE = "_is_impure"
"""Set on blocks with effects, so that torch's dead code removal keeps their calls."""


class BlockModule(_LazyGraphModule):
    """A block's GraphModule, whose Python code is generated when it is first run or looked at.

    Generating and compiling the code is nine tenths of the cost of a GraphModule, and a block that
    goes to a compiler never runs it.
    """

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        # torch's own version calls the module again, which runs forward hooks twice.
        self.real_recompile()
        return type(self).forward(self, *args, **kwargs)

    forward = _lazy_forward


def check_module(gm: Any) -> GraphModule:
    """Return ``gm`` if it is a GraphModule.

    Raises:
        InputTypeError: It is something else; the message says what to call.
    """
    if isinstance(gm, GraphModule):
        return gm
    if isinstance(gm, torch.export.ExportedProgram):
        hint = "pass exported_program.module(), or call hierpart.compile(exported_program)"
    elif isinstance(gm, torch.nn.Module):
        hint = (
            "pass torch.export.export(model, args).module() or torch.fx.symbolic_trace(model), or "
            "call hierpart.compile(model, args)"
        )
    else:
        hint = "pass a torch.fx.GraphModule"
    raise InputTypeError(f"expected a torch.fx.GraphModule, got {type(gm).__name__}: {hint}")


def block_names(backends: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Return ``_run_on_acc_<backend>_<i>`` and ``_run_on_gpu_<i>``, free of ``taken`` names.

    ``i`` is the running number of the block; it skips numbers whose name is taken.
    """
    used, names, i = set(taken), [], 0
    for backend in backends:
        prefix = EAGER_PREFIX if backend == EAGER else f"{ACCELERATED_PREFIX}{backend}_"
        while f"{prefix}{i}" in used:
            i += 1
        names.append(f"{prefix}{i}")
        i += 1
    return tuple(names)


def taken_names(module: GraphModule) -> list[str]:
    """Return the names that blocks must not have: attributes and node names of the parent."""
    attributes = [
        name for part in (module._modules, module._buffers, module._parameters) for name in part
    ]
    return [*attributes, *(n.name for n in module.graph.nodes)]


def split_graph(facts: Facts, wiring: Sequence[BlockWiring], plan: Plan) -> GraphModule:
    """Return a module that runs the blocks in order and equals ``facts.module`` (C8).

    The module that was analysed is not changed. ``result.meta["hierpart"]`` is the plan.
    """
    source = facts.module
    blocks = {
        block.name: _Block(facts, block_wiring).module()
        for block, block_wiring in zip(plan.blocks, wiring, strict=True)
    }
    graph, attributes = _build_parent(facts, wiring, plan)
    root: dict[str, Any] = {**blocks, **{t: resolve_attribute(source, t) for t in attributes}}
    parent = GraphModule(root, graph, type(source).__name__)
    keep_buffer_flags(source, parent, attributes)
    _inherit(source, parent)
    parent.meta["hierpart"] = plan
    return parent


def tracer_class(graph: Graph) -> Any:
    """Return the tracer class if unpickling, which calls it without arguments, can use it."""
    tracer = graph._tracer_cls
    if tracer is None:
        return None
    parameters = inspect.signature(tracer).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    return None if required else tracer


def _meta(node: Node, value: Any = None) -> dict[str, Any]:
    meta = dict(node.meta)
    if value is not None:
        meta = {k: v for k, v in meta.items() if k in ("stack_trace", "nn_module_stack")}
        meta["val"] = value
    return meta


def _port_meta(port: Port) -> dict[str, Any]:
    if port.item is None and port.dim is None:
        return _meta(port.node)
    return _meta(port.node, port.value)


class _Block:
    """Builds one block's graph; ``env`` maps original nodes to their values in the block."""

    def __init__(self, facts: Facts, wiring: BlockWiring) -> None:
        self.facts, self.wiring = facts, wiring
        self.graph = Graph(tracer_cls=tracer_class(facts.module.graph))
        self.members = frozenset(wiring.members)
        self.env: dict[Node, Any] = {}
        self.ports: dict[Port, Node] = {}
        self.attributes: dict[str, None] = {}

    def module(self) -> GraphModule:
        for port in self.wiring.inputs:
            self.ports[port] = self.add("placeholder", port.name, port.name, meta=_port_meta(port))
        members = [self.facts.nodes[i] for i in self.wiring.members]
        for node in members:
            for used in node.all_input_nodes:
                if used.op == "get_attr" and Port(used) not in self.ports:
                    self.attribute(used)
        for node in members:
            self.value(node)
        self.output()
        source = self.facts.module
        module = BlockModule(source, self.graph, "Block")
        keep_buffer_flags(source, module, list(self.attributes))
        module.training = source.training
        impure = any(self.facts.effects[i].is_effect for i in self.wiring.members)
        setattr(module, IMPURE, impure)
        return module

    def add(
        self, op: str, name: str, target: Any, args: Any = (), kwargs: Any = None, meta: Any = None
    ) -> Node:
        node = self.graph.create_node(op, target, args, kwargs or {}, name=name)
        if meta:
            node.meta = meta
        return node

    def attribute(self, node: Node) -> Node:
        if node not in self.env:
            self.env[node] = self.add("get_attr", node.name, node.target, meta=_meta(node))
            self.attributes[str(node.target)] = None
        found: Node = self.env[node]
        return found

    def copy(self, node: Node) -> Node:
        args = map_aggregate(node.args, self.value)
        kwargs = map_aggregate(node.kwargs, self.value)
        made = self.add(node.op, node.name, node.target, args, kwargs, _meta(node))
        made.type = node.type
        self.env[node] = made
        if node.op == "call_module":
            self.attributes[str(node.target)] = None
        return made

    def value(self, leaf: Any) -> Any:
        """Return what stands in the block for an argument of an original node."""
        if not isinstance(leaf, Node):
            return leaf
        if leaf not in self.env:
            self.env[leaf] = self.fetch(leaf)
        return self.env[leaf]

    def fetch(self, node: Node) -> Any:
        port = Port(node)
        if port in self.ports:
            return self.ports[port]
        if node in self.wiring.sizes:
            source, dim = self.wiring.sizes[node]
            if dim < 0:
                return self.ports[source]
            target = torch.ops.aten.sym_size.int
            return self.add(
                "call_function", node.name, target, (self.ports[source], dim), meta=_meta(node)
            )
        i = self.facts.index.get(node)
        if i is not None and (i in self.members or self.facts.recomputable[i]):
            return self.copy(node)
        if node.op == "get_attr":
            return self.attribute(node)
        items = ports_of(node)
        if items is None:
            return None
        return rebuild(node, [self.ports[p] for p in items])

    def output(self) -> None:
        values = []
        for port in self.wiring.outputs:
            value = self.env[port.node]
            if port.item is not None:
                args = (value, port.item)
                value = self.add(
                    "call_function", port.name, operator.getitem, args, meta=_port_meta(port)
                )
            values.append(value)
        self.graph.output(tuple(values))


def rebuild(node: Node, items: Sequence[Any]) -> Any:
    """Return ``items`` as the kind of sequence that ``node``'s value is."""
    return list(items) if type(value_of(node)) is list else tuple(items)


def _build_parent(
    facts: Facts, wiring: Sequence[BlockWiring], plan: Plan
) -> tuple[Graph, list[str]]:
    """Return the parent's graph and the attributes that it reads itself."""
    source = facts.module.graph
    graph = Graph(tracer_cls=tracer_class(source))
    env: dict[Node, Any] = {}
    attributes: dict[str, None] = {}
    output = None
    needed = {p.node: None for w in wiring for p in w.inputs if p.node.op == "get_attr"}
    for node in source.nodes:
        if node.op == "output":
            output = node
            needed |= dict.fromkeys(n for n in node.all_input_nodes if n.op == "get_attr")
    inputs = [n for n in source.nodes if n.op == "placeholder"]
    for node in (*inputs, *(n for n in source.nodes if n in needed)):
        env[node] = graph.node_copy(node)
        env[node].meta = dict(node.meta)
        if node in needed:
            attributes[str(node.target)] = None
    _call_blocks(graph, env, wiring, plan)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, Node):
            return leaf
        return _outside_value(leaf, env)

    if output is not None:
        made = graph.output(map_aggregate(output.args[0], value), output.type)
        made.meta = dict(output.meta)
    graph.set_codegen(copy.deepcopy(source._codegen))
    return graph, list(attributes)


def _outside_value(node: Node, env: dict[Any, Any]) -> Any:
    if node in env:
        return env[node]
    items = ports_of(node)
    if items is None:
        return None
    return rebuild(node, [env[p] for p in items])


def _call_blocks(
    graph: Graph, env: dict[Any, Any], wiring: Sequence[BlockWiring], plan: Plan
) -> None:
    """Add the call of each block and the unpacking of what it returns."""
    for block, wires in zip(plan.blocks, wiring, strict=True):
        args = tuple(_argument(graph, env, port) for port in wires.inputs)
        call = graph.create_node("call_module", block.name, args, name=block.name)
        values = [_port_meta(port).get("val") for port in wires.outputs]
        if all(has_value(port.node) for port in wires.outputs):
            call.meta["val"] = tuple(values)
        for i, port in enumerate(wires.outputs):
            item = graph.create_node("call_function", operator.getitem, (call, i), name=port.name)
            item.meta = _port_meta(port)
            env[port if port.item is not None else port.node] = item


def _argument(graph: Graph, env: dict[Any, Any], port: Port) -> Any:
    """Return the parent's value for what enters a block, made on first use."""
    key = port if port.item is not None or port.dim is not None else port.node
    if key not in env:
        target: Any = operator.getitem if port.dim is None else torch.ops.aten.sym_size.int
        args = (env[port.node], port.item if port.dim is None else port.dim)
        made = graph.create_node("call_function", target, args, name=port.name)
        made.meta = _port_meta(port)
        env[key] = made
    return env[key]


def keep_buffer_flags(
    source: torch.nn.Module, copy: torch.nn.Module, targets: Sequence[str]
) -> None:
    """Keep buffers that ``source`` leaves out of its state dict out of the copy's."""
    for target in targets:
        path, _, name = target.rpartition(".")
        owner, made = source.get_submodule(path), copy.get_submodule(path)
        if name in owner._buffers:
            if name in owner._non_persistent_buffers_set:
                made._non_persistent_buffers_set.add(name)
        elif name in made._buffers and owner is not made:
            # A plain tensor attribute: torch registers it as a buffer, which keeps it on ``.to()``;
            # it was in no state dict before.
            made._non_persistent_buffers_set.add(name)


def _inherit(source: GraphModule, parent: GraphModule) -> None:
    """Give the parent what the source carries besides its graph and attributes."""
    parent.training = source.training
    parent.meta = dict(source.meta)
    for name, value in vars(source).items():
        if name in ("_modules", "_parameters", "_buffers", "_graph", "_code", "meta", "training"):
            continue
        mine = vars(parent).get(name)
        if isinstance(mine, dict) and name.endswith(("_hooks", "_with_kwargs", "_always_called")):
            mine.update(value)
        elif name not in vars(parent):
            setattr(parent, name, value)
