"""A block in the ops that converters take.

Only nodes that the registry refuses are rewritten, each by torch_tensorrt's own decompositions (or
by what the op is composed of); all other nodes stay whole, and so do all nodes of other backends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from hierpart.backends.tensorrt.network import NetworkError
from hierpart.backends.tensorrt.stand_ins import copy_node, inline, with_tensor_meta
from hierpart.graph import has_value, is_getitem, sizes_stay_open, value_of
from hierpart.plan import Reason

IDENTITIES = (
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.lift_fresh_copy.default,
)
"""Ops that hand on their input in a functional graph; nothing is computed for them."""


Refusal = tuple[Reason, str]


@dataclass(frozen=True)
class Answer:
    """What is known of a node.

    Attributes:
        refusal: Why it is not taken; ``None`` where it is.
        expansion: What the node is rewritten to; ``None`` where its converter takes it as it is.
    """

    refusal: Refusal | None = None
    expansion: GraphModule | None = None


@dataclass(frozen=True)
class Lowered:
    """A block ready for the converters.

    Attributes:
        block: Tensor placeholders that are read, weights as ``get_attr``, ops that converters take,
            a flat tuple of distinct computed values.
        inputs: Position among the original placeholders of each placeholder.
        outputs: Where each original output comes from: a position among the lowered outputs, or
            (negative, minus one) the original placeholder that it is.
        weights: Positions among the original placeholders of the weights that are inside.
    """

    block: GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[int, ...]


def lower(
    block: GraphModule, weights: Mapping[int, torch.Tensor], answer: Callable[[Node], Answer]
) -> Lowered:
    """Return the block in ops that converters take, with its weights inside.

    Args:
        block: Placeholders first, no ``get_attr`` of tensors, a flat tuple as output.
        weights: The tensor of each placeholder that is a weight, by position.
        answer: Says of a node whether it is taken and what it is rewritten to.

    Raises:
        NetworkError: A node is refused, a value that is read is no tensor, or nothing is left to
            compute.
    """
    writer = _Writer(block, weights, answer)
    outputs = writer.write()
    computed = list(dict.fromkeys(o for o in outputs if o not in writer.given))
    if not computed:
        raise NetworkError("its outputs are its inputs: there is nothing to compute")
    writer.graph.output(tuple(computed))
    placeholders = writer.graph.find_nodes(op="placeholder")
    places = {node: i for i, node in enumerate(computed)}
    places |= {node: -1 - i for node, i in writer.given.items()}
    return Lowered(
        block=GraphModule(writer.attributes, writer.graph),
        inputs=tuple(writer.given[node] for node in placeholders),
        outputs=tuple(places[o] for o in outputs),
        weights=tuple(i for node, i in writer.given.items() if node.op == "get_attr"),
    )


class _Writer:
    def __init__(
        self,
        block: GraphModule,
        weights: Mapping[int, torch.Tensor],
        answer: Callable[[Node], Answer],
    ) -> None:
        self.block, self.weights, self.answer = block, weights, answer
        self.graph, self.attributes = Graph(), dict[str, Any]()
        self.given: dict[Node, int] = {}
        self.env: dict[Node, Any] = {}

    def write(self) -> list[Node]:
        """Write every node and return the nodes of the block's outputs."""
        live = _live(self.block)
        for i, node in enumerate(self.block.graph.find_nodes(op="placeholder")):
            if node in live:
                self._placeholder(i, node)
        for node in self.block.graph.nodes:
            if node.op.startswith("call_") and node in live:
                self.env[node] = self._call(node)
        outputs: Any = self.block.graph.output_node().args[0]
        found = [self.env[o] if isinstance(o, Node) else o for o in outputs]
        if not all(isinstance(o, Node) for o in found):
            raise NetworkError("an output is no tensor")
        return found

    def _placeholder(self, i: int, node: Node) -> None:
        if not isinstance(value_of(node), torch.Tensor):
            raise NetworkError(f"its input {node.name} is no tensor")
        if i in self.weights:
            made = self._constant(f"weight_{i}", self.weights[i])
        else:
            made = self.graph.create_node("placeholder", f"in_{i}", name=f"in_{i}")
        made.meta = with_tensor_meta({"val": value_of(node)})
        self.env[node] = made
        self.given[made] = i

    def _constant(self, name: str, value: Any) -> Node:
        self.attributes[name] = value
        return self.graph.create_node("get_attr", name, name=name)

    def _call(self, node: Node) -> Any:
        if is_getitem(node) and isinstance(self.env[node.args[0]], (tuple, list)):  # type: ignore[index]
            return self.env[node.args[0]][node.args[1]]  # type: ignore[index]
        answer = self.answer(node)
        if answer.refusal is not None:
            reason, detail = answer.refusal
            raise NetworkError(f"{node.name} ({node.target}): {reason.value} ({detail})")
        if answer.expansion is None:
            return copy_node(self.graph, node, self.env)
        given = [self.env[source] for source in node.all_input_nodes]
        return inline(self.graph, self.attributes, answer.expansion, given)


def _live(block: GraphModule) -> dict[Node, None]:
    """Return the nodes that the outputs need; what a backend takes has no effects."""
    live: dict[Node, None] = dict.fromkeys(block.graph.output_node().all_input_nodes)
    for node in reversed(block.graph.nodes):
        if node in live:
            live |= dict.fromkeys(node.all_input_nodes)
    return live


def expand(node: Node) -> GraphModule | None:
    """Return what an op is composed of as a graph of its node inputs, ``None`` if it is not.

    Its results have the dtypes and shapes of the node's own, else it is not taken.
    """
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    sources = node.all_input_nodes
    if not isinstance(node.target, torch._ops.OpOverload) or not all(map(has_value, sources)):
        return None
    if node.target in IDENTITIES:
        return _identity()
    values = [value_of(s) for s in sources]
    mode = detect_fake_mode([*values, value_of(node)])
    if mode is None or node.target._schema.is_mutable:
        return None
    target = node.target

    def run(*given: Any) -> Any:
        env = dict(zip(sources, given, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        return target(*args, **kwargs)

    with torch.no_grad(), sizes_stay_open(values), mode:
        body = make_fx(run, decomposition_table=_table(target))(*values)
    body.graph.eliminate_dead_code()
    calls = [n.target for n in body.graph.nodes if n.op.startswith("call_")]
    if target in calls or not _same_results(body, value_of(node)):
        return None
    return body


def _identity() -> GraphModule:
    graph = Graph()
    graph.output(graph.placeholder("x"))
    return GraphModule({}, graph)


@functools.cache
def _table(target: Any) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of all ops that have no converter, and of ``target`` itself."""
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS
    from torch_tensorrt.dynamo.lowering import get_decompositions

    known = DYNAMO_CONVERTERS.keys()
    table: dict[Any, Any] = get_decompositions()
    return {op: f for op, f in table.items() if op is target or op not in known}


def _same_results(body: GraphModule, value: Any) -> bool:
    made = pytree.tree_leaves(body.graph.output_node().args[0])
    wanted = pytree.tree_leaves(value)
    if len(made) != len(wanted) or not all(isinstance(m, Node) and has_value(m) for m in made):
        return False
    return all(
        isinstance(w, torch.Tensor) and v.dtype is w.dtype and str(v.shape) == str(w.shape)
        for v, w in zip(map(value_of, made), wanted, strict=True)
    )
