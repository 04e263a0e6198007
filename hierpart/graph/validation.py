"""Checks that an FX graph is one: before anything is planned, with a message that names the node.

``torch.fx.Graph.lint`` asks for less (it lets two outputs pass) and for more than splitting needs.
One pass over nodes and edges, branches of higher-order ops included.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.errors import GraphError
from hierpart.graph.node.effects import branches_of, resolve_attribute
from hierpart.graph.node.op_tables import INPLACE_OPERATORS
from hierpart.graph.node.schemas import overloads
from hierpart.graph.node.values import Kind, is_getitem, kind_of_schema, kind_of_value, value_of

TORCH_FUNCTIONS = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn")
OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


def check_graph(module: GraphModule) -> GraphModule:
    """Return ``module`` if its graph, and those of the branches in it, can be run as they stand.

    Raises:
        GraphError: A node uses what comes after it or what is in another graph, names an attribute
            that is not there, has no legal target, or has a value that its op cannot have; there
            is no output, or more than one.
    """
    pending, seen = [module], {id(module)}
    while pending:
        for branch in _check(pending.pop()):
            if id(branch) not in seen:
                seen.add(id(branch))
                pending.append(branch)
    return module


def _check(module: GraphModule) -> Iterator[GraphModule]:
    """Check one graph and yield the branches in it."""
    known: set[Node] = set()
    names: set[str] = set()
    ended = False
    for node in module.graph.nodes:
        if ended:
            raise GraphError(f"{node.name!r} comes after the graph's output")
        for source in node.all_input_nodes:
            if source not in known:
                where = "comes later" if source.graph is node.graph else "is in another graph"
                raise GraphError(f"{node.name!r} uses {source.name!r}, which {where}")
        if node.name in names:
            raise GraphError(f"two nodes have the name {node.name!r}")
        known.add(node)
        names.add(node.name)
        ended = node.op == "output"
        _check_target(module, node)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            resolve = functools.partial(resolve_attribute, module)
            yield from (body for _, body in branches_of(node, resolve))
    if not ended:
        raise GraphError("the graph has no output")


def _check_target(module: GraphModule, node: Node) -> None:
    op, target = node.op, node.target
    if op == "call_function":
        if not callable(target):
            raise GraphError(f"{node.name!r} calls {target!r}, which cannot be called")
        _check_value(node, target)
        _check_tensor(node, getattr(target, "__name__", ""))
        return
    if op not in OPCODES:
        raise GraphError(f"{node.name!r} has the opcode {op!r}; legal are {', '.join(OPCODES)}")
    if not isinstance(target, str) or not target:
        raise GraphError(f"{node.name!r} is a {op} of {target!r}, which is no name")
    if op in ("placeholder", "get_attr") and node.all_input_nodes:
        raise GraphError(f"{node.name!r} is a {op} and takes {node.all_input_nodes}")
    if op == "call_method":
        _check_tensor(node, target)
    if op in ("get_attr", "call_module"):
        try:
            value = resolve_attribute(module, target)
        except AttributeError as error:
            raise GraphError(f"{node.name!r}: {error}") from error
        if op == "call_module" and not isinstance(value, torch.nn.Module):
            raise GraphError(f"{node.name!r} calls {target!r}, which is no module")


def _check_tensor(node: Node, name: str) -> None:
    """Check that what surely gives a tensor has one recorded: else it would not cross as one.

    That is a torch function, or a tensor's method, of which every operator of its name gives a
    tensor, an operator that writes a tensor in place, and ``getitem`` of a tuple with one there.
    """
    if "val" not in node.meta or kind_of_value(node.meta["val"]) is Kind.TENSOR:
        return
    if _gives_tensor(node, name):
        kind = type(node.meta["val"]).__name__
        raise GraphError(
            f"meta['val'] of {node.name!r} is a {kind}, and {name} returns a tensor: propagate "
            "shapes again"
        )


def _gives_tensor(node: Node, name: str) -> bool:
    if getattr(node.target, "__module__", None) in TORCH_FUNCTIONS:
        return _always_gives_one(node, name)
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return False
    if is_getitem(node):
        items, place = value_of(source), node.args[1]
        if not isinstance(items, (tuple, list)) or not isinstance(place, int):
            return False
        return 0 <= place < len(items) and kind_of_value(items[place]) is Kind.TENSOR
    if kind_of_value(value_of(source)) is not Kind.TENSOR:
        return False
    if node.op == "call_method":
        return _always_gives_one(node, name)
    in_place = node.target in INPLACE_OPERATORS
    return in_place and node.target not in (operator.setitem, operator.delitem)


def _always_gives_one(node: Node, name: str) -> bool:
    """Whether each operator of that name gives a tensor, and one of them takes these keywords.

    With others, as ``as_tuple`` of ``nonzero``, Python code stands before the operators.
    """
    found = overloads(name)
    known = [{argument.name for argument in o._schema.arguments} for o in found]
    takes = any(node.kwargs.keys() <= names for names in known)
    return takes and all(kind_of_schema(o) is Kind.TENSOR for o in found)


def _check_value(node: Node, target: Any) -> None:
    """Check that a recorded value is of the kind that the operator's schema says."""
    if not isinstance(target, torch._ops.OpOverload) or "val" not in node.meta:
        return
    returned, recorded = kind_of_schema(target), kind_of_value(node.meta["val"])
    numbers = recorded is Kind.SIZES and not _returns_tensors(target)
    several = returned is Kind.TUPLE and recorded is not Kind.TUPLE and not numbers
    if several or (returned is Kind.TENSOR and recorded is not Kind.TENSOR):
        raise GraphError(
            f"meta['val'] of {node.name!r} is a {type(node.meta['val']).__name__}, and {target} "
            f"returns a {returned.value}: propagate shapes again"
        )


def _returns_tensors(op: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(returned.type) for returned in op._schema.returns)
