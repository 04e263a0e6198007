"""Blocks for a backend to compile, cut out of graphs, with values to call them with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.utils import _pytree as pytree

from hierpart.backends import Backend
from hierpart.testing.generate.graph_builder import undisturbed
from hierpart.testing.oracle.observe import state_kept
from hierpart.testing.reading.blocks import attribute, block_calls, callable_nodes


@dataclass(frozen=True)
class Sample:
    """A block that a backend says it takes.

    Attributes:
        name: Name of the block in the split module.
        prepare: Makes the block anew as a compiler gets it: a copy of its own, with weights as
            inputs, and one example value a placeholder.
        calls: For each call one value a placeholder, weights included.
        weights: How many of the last placeholders stand for weights.
        exact: Whether the recorded values have a stride for each output.
    """

    name: str
    prepare: Callable[[], tuple[GraphModule, list[Any]]]
    calls: tuple[tuple[Any, ...], ...]
    weights: int

    @property
    def dynamic(self) -> bool:
        """Whether a size of the block's inputs is symbolic."""
        values = pytree.tree_leaves(self.prepare()[1])
        return any(
            isinstance(v, torch.SymInt)
            or (isinstance(v, Tensor) and any(isinstance(s, torch.SymInt) for s in v.shape))
            for v in values
        )

    def text(self) -> str:
        """Return the block's code."""
        return str(self.prepare()[0].code).strip()


def samples(backend: Backend, gm: GraphModule, calls: Sequence[Sequence[Any]]) -> list[Sample]:
    """Return the blocks of ``gm`` that ``backend`` takes, none where it takes no node.

    Args:
        backend: The backend; it is asked for its verdicts by hierpart itself.
        gm: A graph with ``meta["val"]`` on its nodes.
        calls: Arguments of ``gm``, call by call.
    """
    from hierpart.api import hierarchical_adjacency_partition

    name = backend.name
    split, _ = hierarchical_adjacency_partition(
        gm, backend_priority=[name], backend_support_map={name: backend}, min_block_size=1
    )
    values = [_seen(gm, split, call) for call in calls]
    found = []
    for node, block in block_calls(split):
        if str(node.target).startswith(f"_run_on_acc_{name}_") and callable_nodes(block):
            found.append(_sample(str(node.target), block, values))
    return found


def _sample(name: str, block: GraphModule, values: Sequence[dict[str, tuple[Any, ...]]]) -> Sample:
    from hierpart.graph import canonical

    def prepare() -> tuple[GraphModule, list[Any]]:
        prepared = canonical(block)
        return prepared.block, list(prepared.inputs)

    held = [attribute(block, path) for path in canonical(block).attributes]
    weights = tuple(tensor.detach().clone() for tensor in held)
    return Sample(name, prepare, tuple((*v[name], *weights) for v in values), len(weights))


def _seen(gm: GraphModule, split: GraphModule, call: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    with undisturbed(), state_kept(gm), torch.no_grad():
        watch = _Watch(split)
        watch.run(*copy.deepcopy(tuple(call)))
    return watch.seen


class _Watch(Interpreter):
    """Runs a split module and keeps copies of what each block is called with."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, tuple[Any, ...]] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen[str(target)] = tuple(copy.deepcopy(_plain(a)) for a in args)
        return super().call_module(target, args, kwargs)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
