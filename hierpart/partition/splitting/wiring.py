"""What enters and leaves each block, and which sizes each block computes for itself (C6).

Only single tensors and scalars cross a boundary: a tuple crosses as its items, ``None`` not at all.
A size that a block needs is read from a tensor that the block receives anyway, else computed again
from where it came from, else handed in as a symbolic scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from hierpart.backends import Backend
from hierpart.graph import (
    Facts,
    Kind,
    expression_of,
    has_value,
    reads_sizes,
    symbol_of,
    symbols_in,
    value_of,
)
from hierpart.partition.splitting.ports import Port, kind_of_port, ports_of
from hierpart.plan import EAGER


@dataclass(frozen=True, slots=True)
class BlockWiring:
    """One block's nodes and edges.

    Attributes:
        backend: Owner of the block.
        members: Positions of the block's nodes, ascending.
        inputs: What it receives, in order of first use.
        sizes: For a recomputed node, the input and dimension that give its value.
        outputs: What later blocks or the caller read, in graph order.
    """

    backend: str
    members: tuple[int, ...]
    inputs: tuple[Port, ...]
    sizes: dict[Node, tuple[Port, int]]
    outputs: tuple[Port, ...]


@dataclass(slots=True)
class _Draft:
    backend: str
    takes_scalars: bool
    takes_symbols: bool
    members: list[int] = field(default_factory=list)
    inputs: dict[Port, None] = field(default_factory=dict)
    own: set[Node] = field(default_factory=set)  # floating nodes that belong to it
    again: dict[Node, None] = field(default_factory=dict)  # sizes that it works out for itself
    sizes: dict[Node, tuple[Port, int]] = field(default_factory=dict)
    outputs: dict[Port, None] = field(default_factory=dict)


def wire(
    facts: Facts,
    block_of: Sequence[int],
    backends: Sequence[str],
    takes_scalars: Callable[[str], bool],
    takes_symbols: Callable[[str], bool] = lambda backend: False,
) -> tuple[BlockWiring, ...]:
    """Return the wiring of every block.

    Args:
        facts: Facts of the graph.
        block_of: Block of each node, floating nodes included.
        backends: Owner of each block.
        takes_scalars: Whether blocks of a backend take symbolic scalars.
        takes_symbols: Whether they take each symbol that they use as one of these, also where a
            tensor that they take has it as a dimension.
    """
    drafts = [_Draft(b, takes_scalars(b), takes_symbols(b)) for b in backends]
    for i, b in enumerate(block_of):
        drafts[b].members.append(i)
    shared = set(facts.written_attributes)
    sources = _Sources(facts, block_of)
    for b, draft in enumerate(drafts):
        inside = {facts.nodes[i] for i in draft.members if not facts.floating[i]}
        draft.own = {facts.nodes[i] for i in draft.members if facts.floating[i]}
        draft.again = {facts.nodes[i]: None for i in draft.members if facts.floating[i]}
        for i in draft.members:
            if facts.floating[i]:
                continue
            for node in facts.nodes[i].all_input_nodes:
                if node not in inside:
                    _need(facts, draft, node, shared)
        _resolve_sizes(facts, draft, inside, sources)
        if draft.takes_scalars and draft.backend != EAGER:
            _bind_symbols(facts, draft, b, sources)
    _fill_outputs(facts, drafts, block_of)
    order = {n: i for i, n in enumerate(facts.module.graph.nodes)}
    return tuple(
        BlockWiring(
            d.backend, tuple(d.members), tuple(d.inputs), d.sizes,
            tuple(sorted(d.outputs, key=lambda p: (order[p.node], p.item or 0))),
        )
        for d in drafts
    )  # fmt: skip


def takes_symbols(backend: Backend | None) -> bool:
    """Whether blocks of a backend take each size symbol that they use as an input of its own."""
    return bool(getattr(backend, "takes_symbols", False))


def _need(facts: Facts, draft: _Draft, node: Node, shared: set[str]) -> None:
    """Note that a block uses the value of a node outside it."""
    i = facts.index.get(node)
    if i is not None and facts.recomputable[i]:
        draft.again[node] = None
        return
    if node.op == "get_attr" and node.name not in shared:
        return  # held by the block itself
    draft.inputs.update(dict.fromkeys(ports_of(node) or ()))


def _resolve_sizes(facts: Facts, draft: _Draft, inside: set[Node], sources: _Sources) -> None:
    """Decide where each size that the block needs comes from."""
    at_hand: dict[Any, tuple[Port, int]] = {}
    for port in draft.inputs:
        if kind_of_port(port) is Kind.TENSOR and has_value(port.node):
            for dim, size in enumerate(port.value.shape):
                expression = expression_of(size)
                if expression is not None:
                    at_hand.setdefault(expression, (port, dim))
    pending = list(draft.again)
    while pending:
        node = pending.pop()
        found = at_hand.get(expression_of(value_of(node))) if has_value(node) else None
        if found is not None:
            draft.sizes[node] = found
            continue
        for source in node.all_input_nodes:
            i = facts.index.get(source)
            if source in inside or source.op == "get_attr":
                continue
            if i is not None and facts.recomputable[i]:
                if source not in draft.again:
                    draft.again[source] = None
                    pending.append(source)
                continue
            symbol = symbol_of(value_of(node)) if has_value(node) else None
            port = Port(source)
            from_parent = draft.takes_scalars and node not in draft.own
            if reads_sizes(node) and port not in draft.inputs and from_parent:
                size = sources.input_size(symbol)
                if size is not None:
                    draft.inputs[size] = None
                    draft.sizes[node] = (size, -1)
                    continue
            draft.inputs.update(dict.fromkeys(ports_of(source) or ()))


class _Sources:
    """Where the parent can read the size that a symbol stands for."""

    def __init__(self, facts: Facts, block_of: Sequence[int]) -> None:
        self._inputs: dict[Any, Port] = {}
        self._values: dict[Any, tuple[int, Port]] = {}
        for node in facts.module.graph.nodes:
            for dim, size in enumerate(_symbolic_sizes(node)):
                symbol = symbol_of(size)
                if symbol is None:
                    continue
                if node.op == "placeholder":
                    self._inputs.setdefault(symbol, Port(node, dim=dim))
                elif node in facts.index:
                    block = block_of[facts.index[node]]
                    self._values.setdefault(symbol, (block, Port(node, dim=dim)))

    def input_size(self, symbol: Any) -> Port | None:
        """Return the port of a size of a graph input, if some input has that size."""
        return self._inputs.get(symbol) if symbol is not None else None

    def before(self, symbol: Any, block: int) -> Port | None:
        """Return a port that gives the symbol from an input or from a block before ``block``."""
        if symbol in self._inputs:
            return self._inputs[symbol]
        made, port = self._values.get(symbol, (block, None))
        return port if made < block else None


def _symbolic_sizes(node: Node) -> Sequence[Any]:
    value = value_of(node)
    if isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides:
        return tuple(value.shape)
    return ()


def _bind_symbols(facts: Facts, draft: _Draft, block: int, sources: _Sources) -> None:
    """Hand in each size symbol that the block uses and no plain dimension of an input gives.

    Compilers of single blocks need every symbol as an input or as a plain dimension of one.
    """
    used: dict[Any, None] = {}
    for value in _values_of(facts, draft):
        used.update(dict.fromkeys(symbols_in(value)))
    if not used:
        return
    bound = set()
    for port in draft.inputs:
        if not has_value(port.node):
            continue
        value = port.value
        if isinstance(value, torch.Tensor) and draft.takes_symbols:
            continue
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        bound |= {s for s in map(symbol_of, sizes) if s is not None}
    for i in draft.members:
        bound |= set((facts.nodes[i].meta.get("unbacked_bindings") or {}).keys())
    for symbol in sorted((s for s in used if s not in bound), key=str):
        found = sources.before(symbol, block)
        if found is not None:
            draft.inputs[found] = None


def _values_of(facts: Facts, draft: _Draft) -> Iterator[Any]:
    for port in draft.inputs:
        if has_value(port.node):
            yield port.value
    members = (facts.nodes[i] for i in draft.members if not facts.floating[i])
    for node in (*members, *draft.again):
        value = value_of(node)
        if not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides:
            yield value


def _fill_outputs(facts: Facts, drafts: Sequence[_Draft], block_of: Sequence[int]) -> None:
    """Give each block the outputs that other blocks and the caller read, and nothing else."""
    wanted = [port for draft in drafts for port in draft.inputs]
    output = next(n for n in reversed(facts.module.graph.nodes) if n.op == "output")
    wanted += [port for node in output.all_input_nodes for port in ports_of(node) or ()]
    for port in wanted:
        i = facts.index.get(port.node)
        if i is not None:
            whole = port if port.dim is None else Port(port.node)
            drafts[block_of[i]].outputs[whole] = None
