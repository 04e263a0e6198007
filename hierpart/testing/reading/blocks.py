"""Reads a partitioned module: its blocks, and in which order the original nodes run in it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen

CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Placed:
    """A callable node of the result and the block that runs it; no name for the parent."""

    node: Node
    block: str


def block_calls(result: GraphModule) -> list[tuple[Node, GraphModule]]:
    """Return the parent's calls of blocks, in order, with the blocks."""
    found = []
    for node in result.graph.nodes:
        if node.op == "call_module":
            module = result.get_submodule(str(node.target))
            if isinstance(module, GraphModule):
                found.append((node, module))
    return found


def placed(result: GraphModule) -> list[Placed]:
    """Return the callable nodes in the order in which the result runs them.

    The parent's calls of blocks are replaced by what the blocks run; the ``getitem`` that takes a
    block's outputs apart is left out.
    """
    blocks = dict(block_calls(result))
    found: list[Placed] = []
    for node in result.graph.nodes:
        if node in blocks:
            inner = blocks[node].graph.nodes
            found.extend(Placed(n, str(node.target)) for n in inner if n.op in CALLS)
        elif node.op in CALLS and not _takes_apart(node, blocks):
            found.append(Placed(node, ""))
    return found


def _takes_apart(node: Node, blocks: dict[Node, GraphModule]) -> bool:
    return node.target is operator.getitem and node.args[0] in blocks


def callable_nodes(gm: GraphModule) -> list[Node]:
    """Return the callable nodes of ``gm`` in graph order."""
    return [node for node in gm.graph.nodes if node.op in CALLS]


def argument_names(gm: GraphModule) -> list[str]:
    """Return the names of the arguments of a call: where they are nested, not the placeholders."""
    codegen = gm.graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        return list(codegen.pytree_info.orig_args)
    return [str(node.target) for node in gm.graph.nodes if node.op == "placeholder"]


def is_size_work(node: Node, value: Any) -> bool:
    """Return whether ``node`` only computes with sizes: its value is a number or a ``Size``."""
    return isinstance(value, (int, float, bool, torch.Size, torch.SymInt, torch.SymBool))


def branches(gm: GraphModule, node: Node) -> Iterator[tuple[str, GraphModule]]:
    """Yield the graph modules among the operands of a higher-order op, with their targets."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        for operand in node.all_input_nodes:
            if operand.op == "get_attr":
                module = attribute(gm, str(operand.target))
                if isinstance(module, GraphModule):
                    yield str(operand.target), module


def attribute(gm: torch.nn.Module, target: str) -> Any:
    """Return the attribute at a qualified name, or ``None`` where there is none."""
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part, None)
    return value
