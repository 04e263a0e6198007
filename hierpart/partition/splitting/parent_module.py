"""The split itself: blocks become submodules, the parent calls them in order.

Nodes keep their names and metadata (C11); attributes are shared by identity (C7); every block takes
its placeholders first and returns a flat tuple.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from hierpart.errors import InputTypeError
from hierpart.graph import Facts, LazyModule, append_node, check_graph, has_value, value_of
from hierpart.partition.splitting.block_module import (
    build_block,
    port_meta,
    rebuild,
    share_attributes,
    tracer_class,
)
from hierpart.partition.splitting.ports import Port, ports_of
from hierpart.partition.splitting.wiring import BlockWiring
from hierpart.plan import EAGER, Plan

ACCELERATED_PREFIX = "_run_on_acc_"
EAGER_PREFIX = "_run_on_gpu_"


def check_module(gm: Any) -> GraphModule:
    """Return ``gm`` if it is a GraphModule with a valid graph.

    Raises:
        InputTypeError: It is something else; the message says what to call.
        GraphError: Its graph cannot be run as it stands.
    """
    if isinstance(gm, GraphModule):
        return check_graph(gm)
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


def block_names(backends: Sequence[str], module: GraphModule) -> tuple[str, ...]:
    """Return ``_run_on_acc_<backend>_<i>`` and ``_run_on_gpu_<i>`` as ``module`` has no names.

    ``i`` is the running number of the block; it skips numbers whose name is taken.
    """
    nodes = {n.name for n in module.graph.nodes}
    names, i = [], 0
    for backend in backends:
        prefix = EAGER_PREFIX if backend == EAGER else f"{ACCELERATED_PREFIX}{backend}_"
        while f"{prefix}{i}" in nodes or hasattr(module, f"{prefix}{i}"):
            i += 1
        names.append(f"{prefix}{i}")
        i += 1
    return tuple(names)


def split_graph(
    facts: Facts,
    wiring: Sequence[BlockWiring],
    plan: Plan,
    branches: Mapping[int, Mapping[str, GraphModule]],
) -> GraphModule:
    """Return a module that runs the blocks in order and equals ``facts.module`` (C8).

    ``branches`` holds, per block, the split branches of the control-flow ops in it, by target. The
    module that was analysed is not changed. ``result.meta["hierpart"]`` is the plan.
    """
    source = facts.module
    blocks = {
        block.name: build_block(facts, block_wiring, branches.get(block.index, {}))
        for block, block_wiring in zip(plan.blocks, wiring, strict=True)
    }
    graph, attributes = _build_parent(facts, wiring, plan)
    parent = LazyModule(graph, type(source).__name__)
    share_attributes(source, parent, attributes)
    for name, block in blocks.items():
        parent.add_module(name, block)
    _inherit(source, parent)
    parent.meta["hierpart"] = plan
    return parent


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
        env[node] = append_node(
            graph, node.name, node.op, node.target, node.args, {}, node.type, node.meta
        )
        if node in needed:
            attributes[str(node.target)] = None
    _call_blocks(graph, env, wiring, plan)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, Node):
            return leaf
        return _outside_value(graph, leaf, env)

    if output is not None:
        made = graph.output(map_aggregate(output.args[0], value), output.type)
        made.meta = dict(output.meta)
    graph.set_codegen(copy.copy(source._codegen))
    return graph, list(attributes)


def _outside_value(graph: Graph, node: Node, env: dict[Any, Any]) -> Any:
    """Return what the parent hands out for a node; sizes and named tuples keep their type."""
    if node in env:
        return env[node]
    items = ports_of(node)
    if items is None:
        return None
    made, kind = rebuild(node, [env[p] for p in items]), type(value_of(node))
    if kind not in (tuple, list):
        made = append_node(graph, f"{node.name}_whole", "call_function", kind, (list(made),))
    return made


def _call_blocks(
    graph: Graph, env: dict[Any, Any], wiring: Sequence[BlockWiring], plan: Plan
) -> None:
    """Add the call of each block and the unpacking of what it returns."""
    for block, wires in zip(plan.blocks, wiring, strict=True):
        args = tuple(_argument(graph, env, port) for port in wires.inputs)
        call = append_node(graph, block.name, "call_module", block.name, args)
        if all(has_value(port.node) for port in wires.outputs):
            call.meta["val"] = tuple(port.value for port in wires.outputs)
        for i, port in enumerate(wires.outputs):
            name, meta = port.name, port_meta(port)
            item = append_node(graph, name, "call_function", operator.getitem, (call, i), meta=meta)
            env[port.node if port.is_whole else port] = item


def _argument(graph: Graph, env: dict[Any, Any], port: Port) -> Any:
    """Return the parent's value for what enters a block, made on first use."""
    key = port.node if port.is_whole else port
    if key not in env:
        target: Any = operator.getitem if port.dim is None else torch.ops.aten.sym_size.int
        args = (env[port.node], port.item if port.dim is None else port.dim)
        meta = port_meta(port)
        env[key] = append_node(graph, port.name, "call_function", target, args, meta=meta)
    return env[key]


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
    for name, child in source._modules.items():
        if type(child).__name__ == "GuardsFn":
            # torch's input check looks for it on the module and leaves its part to it; the call is
            # in a block, so it is kept here in view, not as a child.
            vars(parent)[name] = child
