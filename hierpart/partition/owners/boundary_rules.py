"""What no table of ops says: effects, aliases, ranks and scalars that some blocks cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends import Backend
from hierpart.graph import Facts, Kind, kind_of, symbol_of, value_of
from hierpart.plan import Reason

SCALARS = (Kind.SCALAR, Kind.SIZES)


class BoundaryRules:
    """What no table of ops says: effects, aliases and scalars that some blocks cannot hold."""

    def __init__(self, facts: Facts, traits: Mapping[str, Backend | None]) -> None:
        self.facts = facts
        self.copying = [b for b, t in traits.items() if t is not None and not t.keeps_aliases]
        self.tensors_only = [b for b, t in traits.items() if t is not None and not t.takes_scalars]
        self.every = list(traits)
        highest = max((_rank_of(n) for n in facts.module.graph.nodes), default=0)
        self.rank_limit = {
            b: t.max_rank
            for b, t in traits.items()
            if t is not None and t.max_rank is not None and t.max_rank < highest
        }
        scalars = any(k in SCALARS for k in facts.kinds) or any(
            n.op == "placeholder" and kind_of(n) is Kind.SCALAR for n in facts.module.graph.nodes
        )
        if not scalars:
            self.tensors_only = []  # nothing to refuse
        self.sizes_at_hand = _input_symbols(facts.module) if self.tensors_only else frozenset()
        self.scalar_roots: dict[int, bool] = {}

    def refusals(self, i: int) -> dict[str, tuple[Reason, str]]:
        """Return the backends that cannot hold node ``i`` with reason and detail."""
        effect = self.facts.effects[i]
        if effect.barrier:
            return dict.fromkeys(self.every, (Reason.EFFECT, "nothing may move across it"))
        refused: dict[str, tuple[Reason, str]] = {}
        views = effect.aliases or effect.maybe_aliases or effect.aliases_tensors
        views_written = self.facts.written[i] and views
        if effect.writes or effect.written_tensors or views_written:
            refused |= dict.fromkeys(self.copying, (Reason.MUTATES, ""))
        elif effect.ordered or effect.guard:
            refused |= dict.fromkeys(self.copying, (Reason.EFFECT, ""))
        if self.tensors_only and (why := self._scalar_at_edge(i)):
            refused |= dict.fromkeys(self.tensors_only, (Reason.NON_TENSOR_BOUNDARY, why))
        for backend, limit in self.rank_limit.items():
            if (rank := self._rank(i)) > limit:
                refused[backend] = (Reason.RANK, f"rank {rank}, at most {limit}")
        return refused

    def _rank(self, i: int) -> int:
        """Return the highest rank among the node's value and its inputs, 0 where unknown."""
        node = self.facts.nodes[i]
        return max(map(_rank_of, (node, *node.all_input_nodes)))

    def _scalar_at_edge(self, i: int) -> str:
        node = self.facts.nodes[i]
        if self.facts.kinds[i] in SCALARS:
            return "its value is a scalar that leaves the block"
        for source in node.all_input_nodes:
            if self._is_foreign_scalar(source):
                return f"takes the scalar {source.name}, which no tensor's size gives"
        return ""

    def _is_foreign_scalar(self, node: Node) -> bool:
        i = self.facts.index.get(node)
        if i is None:
            if node.op != "placeholder" or kind_of(node) is not Kind.SCALAR:
                return False
            return symbol_of(value_of(node)) not in self.sizes_at_hand
        if not self.facts.recomputable[i]:
            return self.facts.kinds[i] in SCALARS
        if i not in self.scalar_roots:
            self.scalar_roots[i] = any(map(self._is_foreign_scalar, node.all_input_nodes))
        return self.scalar_roots[i]


def _rank_of(node: Node) -> int:
    value = value_of(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _input_symbols(module: GraphModule) -> frozenset[Any]:
    """Return the size symbols that are a plain dimension of some tensor input."""
    values = [value_of(n) for n in module.graph.nodes if n.op == "placeholder"]
    sizes = [symbol_of(s) for v in values if isinstance(v, torch.Tensor) for s in v.shape]
    return frozenset(s for s in sizes if s is not None)
