"""Tensor literals inside branches become operands of the control-flow op.

``torch.export`` and AOTAutograd leave a tensor literal of a branch as an attribute of the branch
module, where neither decomposition nor a compiler behind AOTAutograd accepts it. Here it becomes a
constant of the program that is handed to the op and to all of its branches alike.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node

from hierpart.graph.node.control_flow import op_of, wrapped_op
from hierpart.graph.node.effects import branches_of, resolve_attribute

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_OPERANDS: dict[str, int | None] = {
    "cond": 3, "switch": 2, "while_loop": 3, "scan": 3, "map_impl": 2, "invoke_subgraph": None,
    "wrap_with_set_grad_enabled": None, "wrap_with_autocast": None,
}  # fmt: skip
"""Position of the operands that every branch takes last; None: they are the last arguments."""

_PREFIX = "lifted_literal_"

Fake = Callable[[torch.Tensor], Any]


def lift_literals_of(module: GraphModule) -> GraphModule:
    """Return a module without tensor literals in branches; ``module`` itself if it has none.

    The literals become attributes of the module that is returned, under names of their own.
    """
    if not any(_has_literal(m) for m in _branches(module)):
        return module
    result = _copy(module)
    fake = _faker(module)
    first = next(n for n in result.graph.nodes if n.op != "placeholder")

    def constant(tensor: torch.Tensor) -> Node:
        names = (f"{_PREFIX}{i}" for i in itertools.count())
        name = next(name for name in names if not hasattr(result, name))
        result.register_buffer(name, tensor, persistent=False)
        with result.graph.inserting_before(first):
            node = result.graph.get_attr(name)
        node.meta["val"] = fake(tensor)
        return node

    _lift_into(result, constant, fake, {})
    result.recompile()
    return result


def lift_literals(program: ExportedProgram) -> ExportedProgram:
    """Return a program without tensor literals in branches; ``program`` itself if it has none.

    The program that is given is not changed.
    """
    if not any(_has_literal(m) for m in _branches(program.graph_module)):
        return program
    from torch.export import ExportedProgram as Program
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    module = _copy(program.graph_module)
    constants: dict[str, torch.Tensor] = {}
    specs = list(program.graph_signature.input_specs)
    first = next((i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT), len(specs))
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    fake = _faker(program.graph_module)

    def constant(tensor: torch.Tensor) -> Node:
        name = f"{_PREFIX}{len(constants)}"
        before = inputs[first] if first < len(inputs) else next(iter(module.graph.nodes))
        with module.graph.inserting_before(before):
            node = module.graph.placeholder(name)
        node.meta["val"] = fake(tensor)
        constants[name] = tensor
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        specs.insert(first + len(constants) - 1, spec)
        return node

    _lift_into(module, constant, fake, {})
    module.recompile()
    signature = copy.copy(program.graph_signature)
    signature.input_specs = specs
    return Program(
        root=module, graph=module.graph, graph_signature=signature, state_dict=program.state_dict,
        range_constraints=program.range_constraints, module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs, constants={**program.constants, **constants},
        verifiers=[program.verifier],
    )  # fmt: skip


def _branches(module: GraphModule) -> list[GraphModule]:
    return [m for m in module.modules() if isinstance(m, GraphModule) and m is not module]


def _has_literal(module: GraphModule) -> bool:
    return any(
        n.op == "get_attr" and isinstance(resolve_attribute(module, str(n.target)), torch.Tensor)
        for n in module.graph.nodes
    )


def _copy(module: GraphModule) -> GraphModule:
    """Return a module with a graph of its own over the same attributes."""
    graph = Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    graph.set_codegen(copy.copy(module.graph._codegen))
    old = next(n for n in module.graph.nodes if n.op == "output")
    next(n for n in graph.nodes if n.op == "output").meta.update(old.meta)
    return GraphModule(module, graph)


def _faker(module: GraphModule) -> Fake:
    from torch._guards import detect_fake_mode

    values = [n.meta.get("val") for n in module.graph.nodes]
    mode = detect_fake_mode([v for v in values if isinstance(v, torch.Tensor)])
    if mode is None:
        return lambda tensor: tensor
    return lambda tensor: mode.from_tensor(tensor, static_shapes=True)


def _lift_into(
    module: GraphModule,
    source: Callable[[torch.Tensor], Node],
    fake: Fake,
    done: dict[int, tuple[GraphModule, list[torch.Tensor]]],
) -> None:
    """Give each op in ``module`` the literals of its branches, as nodes that ``source`` makes."""
    nodes: dict[int, Node] = {}

    def value(tensor: torch.Tensor) -> Node:
        if id(tensor) not in nodes:
            nodes[id(tensor)] = source(tensor)
        return nodes[id(tensor)]

    for node in list(module.graph.nodes):
        if op_of(node) not in _OPERANDS or wrapped_op(node) is not None:
            continue
        branches = branches_of(node, lambda target: resolve_attribute(module, target))
        wanted: dict[int, torch.Tensor] = {}
        for _, body in branches:
            wanted |= {id(t): t for t in _literals(body)}
        if not wanted:
            continue
        tensors = list(wanted.values())
        for attribute, body in branches:
            path, _, name = str(attribute.target).rpartition(".")
            setattr(module.get_submodule(path), name, _lifted(body, tensors, fake, done))
        _append_operands(node, [value(t) for t in tensors])


def _literals(body: GraphModule) -> list[torch.Tensor]:
    """Return the tensors that a branch and the branches in it hold, each once."""
    found: dict[int, torch.Tensor] = {}
    for node in body.graph.nodes:
        if node.op != "get_attr":
            continue
        value = resolve_attribute(body, str(node.target))
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, GraphModule):
            found |= {id(t): t for t in _literals(value)}
    return list(found.values())


def _lifted(
    body: GraphModule,
    tensors: Sequence[torch.Tensor],
    fake: Fake,
    done: dict[int, tuple[GraphModule, list[torch.Tensor]]],
) -> GraphModule:
    """Return a copy of a branch that takes ``tensors`` as its last inputs."""
    module, known = done.get(id(body), (None, []))
    if module is not None and [id(t) for t in known] == [id(t) for t in tensors]:
        return module
    module = _copy(body)
    graph = module.graph
    anchor = next((n for n in graph.nodes if n.op != "placeholder"), None)
    inputs: dict[int, Node] = {}
    for i, tensor in enumerate(tensors):
        with graph.inserting_before(anchor):
            inputs[id(tensor)] = graph.placeholder(f"literal_{i}")
        inputs[id(tensor)].meta["val"] = fake(tensor)
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        value = resolve_attribute(module, str(node.target))
        if isinstance(value, torch.Tensor):
            node.replace_all_uses_with(inputs[id(value)])
            graph.erase_node(node)
    _lift_into(module, lambda tensor: inputs[id(tensor)], fake, done)
    module = GraphModule(module, graph)  # without the attributes that nothing reads any more
    done[id(body)] = (module, list(tensors))
    return module


def _append_operands(node: Node, values: Sequence[Node]) -> None:
    position = _OPERANDS[op_of(node)]
    if position is None:
        node.args = (*node.args, *values)
        return
    operands = node.args[position]
    if not isinstance(operands, (tuple, list)):
        raise TypeError(f"{node.name}: argument {position} is no sequence of operands")
    more = (*operands, *values)
    longer = list(more) if isinstance(operands, list) else more
    node.args = (*node.args[:position], longer, *node.args[position + 1 :])
