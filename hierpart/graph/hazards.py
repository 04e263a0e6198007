"""Which storages may be shared, and the order that writes, random draws and effects impose (C3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.graph.node.op_effects import Effect
from hierpart.graph.node.values import Kind, binds_symbols, has_value, kind_of, value_of


@dataclass(frozen=True, slots=True)
class AliasClasses:
    """Classes of values that may share a storage, as far as the graph writes them.

    Two values in different classes never share a storage. A graph without writes has no classes.

    Attributes:
        of_node: Class of each node's value; empty when nothing is written.
        of_tensor: Class of the storage of each attribute, by storage address.
        written: Classes that some node writes.
        reshaped: Classes of which some node changes the shape in place.
    """

    of_node: dict[Node, int]
    of_tensor: dict[int, int]
    written: frozenset[int]
    reshaped: frozenset[int]

    def is_written(self, node: Node) -> bool:
        """Whether some node of the graph writes the storage of this node's value."""
        return self.of_node.get(node) in self.written

    def changes_shape(self, nodes: Iterable[Node]) -> bool:
        """Whether a node changes the shape of one of these values in place."""
        return any(self.of_node.get(n) in self.reshaped for n in nodes)

    def reads(self, node: Node, effect: Effect) -> list[int]:
        """Return the written classes that ``node`` reads or writes, each once, in a fixed order."""
        if not self.written:
            return []
        found = [self.of_node[n] for n in node.all_input_nodes]
        found += [self.of_tensor[storage_key(t)] for t in effect.tensors]
        return [c for c in dict.fromkeys(found) if c in self.written]

    def writes(self, effect: Effect) -> list[int]:
        """Return the classes that a node with this effect writes."""
        found = [self.of_node[n] for n in effect.writes]
        found += [self.of_tensor[storage_key(t)] for t in effect.written_tensors]
        return list(dict.fromkeys(found))

    @classmethod
    def of(
        cls,
        module: GraphModule,
        nodes: Sequence[Node],
        effects: Sequence[Effect],
        resolve: Callable[[str], Any],
    ) -> AliasClasses:
        """Find the classes of ``module``'s graph."""
        if not any(e.writes or e.written_tensors for e in effects):
            return cls({}, {}, frozenset(), frozenset())
        return _Builder(module, nodes, effects, resolve).classes()


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that two tensors share if and only if they share a storage."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


class _Builder:
    def __init__(
        self,
        module: GraphModule,
        nodes: Sequence[Node],
        effects: Sequence[Effect],
        resolve: Callable[[str], Any],
    ) -> None:
        self.nodes, self.effects = nodes, effects
        self.everything = list(module.graph.nodes)
        self.of_node = {n: i for i, n in enumerate(self.everything)}
        self.parent = list(range(len(self.everything)))
        self.of_tensor: dict[int, int] = {}
        for node in self.everything:
            if node.op == "get_attr":
                value = resolve(str(node.target))
                if isinstance(value, torch.Tensor):
                    self.join(self.of_node[node], self.tensor(value))
        for node, effect in zip(nodes, effects, strict=True):
            self.link(node, effect)

    def root(self, i: int) -> int:
        parent = self.parent
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    def join(self, i: int, j: int) -> None:
        a, b = sorted((self.root(i), self.root(j)))
        self.parent[b] = a

    def tensor(self, value: torch.Tensor) -> int:
        key = storage_key(value)
        if key not in self.of_tensor:
            self.of_tensor[key] = len(self.parent)
            self.parent.append(len(self.parent))
        return self.of_tensor[key]

    def link(self, node: Node, effect: Effect) -> None:
        me = self.of_node[node]
        shared = list(effect.aliases)
        if effect.maybe_aliases:
            shared += [n for n in node.all_input_nodes if may_share(node, n)]
        for other in shared:
            self.join(me, self.of_node[other])
        for tensor in effect.tensors:
            slot = self.tensor(tensor)
            if node.op == "call_module" or effect.maybe_aliases or effect.aliases_tensors:
                self.join(me, slot)

    def written(self, metadata_only: bool) -> frozenset[int]:
        found = [
            self.root(self.of_node[n])
            for e in self.effects
            if e.writes_metadata or not metadata_only
            for n in e.writes
        ]
        if not metadata_only:
            found += [self.root(self.tensor(t)) for e in self.effects for t in e.written_tensors]
        return frozenset(found)

    def classes(self) -> AliasClasses:
        inputs = [self.of_node[n] for n in self.everything if _may_be_tensor_input(n)]
        written = self.written(metadata_only=False)
        if any(self.root(i) in written for i in inputs):
            # The caller may pass one tensor, or two views of it, for two inputs.
            for i in inputs[1:]:
                self.join(inputs[0], i)
        return AliasClasses(
            of_node={n: self.root(i) for n, i in self.of_node.items()},
            of_tensor={k: self.root(i) for k, i in self.of_tensor.items()},
            written=self.written(metadata_only=False),
            reshaped=self.written(metadata_only=True),
        )


def _may_be_tensor_input(node: Node) -> bool:
    return node.op == "placeholder" and kind_of(node) in (Kind.TENSOR, Kind.TUPLE, Kind.UNKNOWN)


def may_share(node: Node, source: Node) -> bool:
    """Whether the value of ``node`` may share a storage with that of ``source``.

    Recorded example values tell, since tracing keeps the storages of views in common; without
    them the answer is yes.
    """
    if not (has_value(node) and has_value(source)):
        return kind_of(source) not in (Kind.SCALAR, Kind.SIZES, Kind.NONE)
    mine = _tensors(value_of(node))
    theirs = [storage_key(t) for t in _tensors(value_of(source))]
    return any(storage_key(t) in theirs for t in mine)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _tensors(v)]
    return []


def ordering_edges(
    nodes: Sequence[Node],
    index: dict[Node, int],
    effects: Sequence[Effect],
    classes: AliasClasses,
    recomputable: Sequence[bool],
) -> list[tuple[int, ...]]:
    """Return for each node the earlier nodes that it must stay behind, besides its inputs.

    Reads and writes of a storage keep their order (read after write, write after read, write after
    write); side effects keep their order among themselves; a node whose success depends on data
    stays behind the assertions before it; nothing crosses a barrier. The number of edges is linear
    in nodes plus inputs.
    """
    edges: list[tuple[int, ...]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    effect_before = guard = barrier = -1
    since_barrier: list[int] = []
    for i, (node, effect) in enumerate(zip(nodes, effects, strict=True)):
        if recomputable[i] or effect.proved:
            edges.append(())
            continue
        before = [barrier] if barrier >= 0 else []
        writes = classes.writes(effect) if classes.written else []
        touched = (*classes.reads(node, effect), *writes) if classes.written else ()
        for c in dict.fromkeys(touched):
            if c in writer:
                before.append(writer[c])
            if c in writes:
                before += readers.pop(c, ())
                writer[c] = i
            else:
                readers.setdefault(c, []).append(i)
        if effect.is_effect:
            if effect_before >= 0:
                before.append(effect_before)
            effect_before = i
        if guard >= 0 and (effect.is_effect or depends_on_data(node, index, recomputable)):
            before.append(guard)
        if effect.guard:
            guard = i
        if effect.barrier:
            before += since_barrier
            since_barrier, barrier = [], i
        else:
            since_barrier.append(i)
        edges.append(tuple(dict.fromkeys(b for b in before if b != i)))
    return edges


def depends_on_data(node: Node, index: dict[Node, int], recomputable: Sequence[bool]) -> bool:
    """Whether the node may fail or change its shape with the values it gets (an index, a size)."""
    target = node.target
    if not has_value(node) or binds_symbols(node):
        return True
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        return _has_unbacked(node)
    for source in node.all_input_nodes:
        value = value_of(source)
        if isinstance(value, torch.Tensor) and not (
            value.dtype.is_floating_point or value.dtype.is_complex
        ):
            return True
        scalar = kind_of(source) is Kind.SCALAR
        if scalar and not (source in index and recomputable[index[source]]):
            return True
    return _has_unbacked(node)


def _has_unbacked(node: Node) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    values = [value_of(n) for n in (node, *node.all_input_nodes) if has_value(n)]
    return any(
        free_unbacked_symbols(v)
        for v in values
        if isinstance(v, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))
    )
