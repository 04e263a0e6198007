"""What an emitter works with: a graph under construction and a source of choices.

An emitter is a small function that adds one idea to a graph (a view, an in-place write, a region,
...). ``@emitter("feature")`` registers it under the feature that switches it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hierpart.testing.generate.choice import Choice
from hierpart.testing.generate.features import FEATURES
from hierpart.testing.generate.graph_builder import GraphBuilder, Refused, Test

T = TypeVar("T")
Emit = Callable[["Maker"], None]

EMITTERS: dict[str, list[Emit]] = {}
"""The emitters by feature, in the order in which they were defined."""


def emitter(feature: str) -> Callable[[Emit], Emit]:
    """Register a function as an emitter of ``feature``."""

    def register(emit: Emit) -> Emit:
        EMITTERS.setdefault(feature, []).append(emit)
        return emit

    return register


@dataclass(frozen=True)
class Body:
    """A branch of a control-flow op.

    Attributes:
        made_for: The kind of branch, and the layouts and dtypes of its inputs.
        module: The branch.
        levels: How many levels of branches it is, itself included.
    """

    made_for: tuple[Any, ...]
    module: GraphModule
    levels: int


@dataclass(frozen=True)
class Maker:
    """A builder, a source of choices, and which features may be used.

    Attributes:
        builder: The graph under construction.
        choice: Where choices come from.
        features: Names of the features that are switched on.
        depth: How much deeper regions and branches may nest.
        bodies: The branches made so far, at all levels of the graph.
        favoured: Features that half of the steps are picked from, so that each of the many is at
            times frequent (swarm testing: Groce et al., ISSTA 2012).
    """

    builder: GraphBuilder
    choice: Choice
    features: frozenset[str]
    depth: int = 3
    bodies: list[Body] = field(default_factory=list)
    favoured: frozenset[str] = frozenset()

    def emitters(self) -> list[list[Emit]]:
        """Return the emitters that are switched on, by feature, simplest first."""
        return [EMITTERS[name] for name in FEATURES if name in self.features & EMITTERS.keys()]

    def swarm(self) -> Maker:
        """Return a maker that favours some features, none in the simplest case."""
        names = [name for name in FEATURES if name in self.features and name in EMITTERS]
        some = frozenset(self.pick(names) for _ in range(self.number(0, 4)))
        return replace(self, favoured=some)

    def steps(self, most: int) -> None:
        """Take at most ``most`` steps; a step that eager refuses adds nothing more."""
        by_feature = self.emitters()
        every = [emit for emits in by_feature for emit in emits]
        favoured = replace(self, features=self.features & self.favoured).emitters() or by_feature

        def step() -> None:
            emitters = self.pick(favoured) if self.flag() else every
            with contextlib.suppress(Refused):  # such a step is not part of a valid graph
                self.pick(emitters)(self)

        self.choice.repeat(step, most)

    def deeper(self, builder: GraphBuilder | None = None) -> Maker:
        """Return a maker one level further down, for the body of a region or a branch."""
        if self.depth == 0:
            raise Refused("nested deep enough")
        return replace(self, builder=builder or self.builder, depth=self.depth - 1)

    # ------------------------------------------------------------------ choices

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``."""
        return self.choice.pick(items)

    def number(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""
        return self.choice.number(low, high)

    def flag(self) -> bool:
        """Return true or false."""
        return self.choice.flag()

    def rarely(self) -> bool:
        """Return true once in eight times."""
        return self.choice.number(0, 7) == 7

    # ------------------------------------------------------------------ operands

    def tensor(self, test: Test = lambda value: True) -> Node:
        """Return a node whose value is a tensor that passes ``test``."""
        return self.builder.pick(self.choice, test)

    def floating(self) -> Node:
        """Return a node whose value is a tensor of a real floating dtype."""
        return self.tensor(lambda value: value.is_floating_point())

    def writable(self, test: Test = lambda value: True) -> Node:
        """Return a tensor that can be written without autograd taking part."""
        return self.tensor(
            lambda value: not value.requires_grad and 0 not in value.stride() and test(value)
        )

    def like(self, node: Node) -> Node:
        """Return a tensor of the same shape and dtype, which takes no part in autograd."""
        want = self.value(node)
        return self.tensor(
            lambda value: (
                value.shape == want.shape and value.dtype == want.dtype and not value.requires_grad
            )
        )

    def fitting(self, node: Node) -> Node:
        """Return a tensor of the same dtype that can be broadcast with ``node``."""
        want = self.value(node)
        return self.tensor(lambda value: value.dtype == want.dtype and _broadcast(value, want))

    def dimension(self, node: Node) -> int:
        """Return a dimension of ``node``, which has at least one."""
        return self.number(0, max(self.value(node).dim() - 1, 0))

    def scalar(self) -> float:
        """Return a small number that every floating dtype holds exactly."""
        return self.pick((2.0, 0.5, -1.0, 0.0, 3.0))

    # ------------------------------------------------------------------ nodes

    def value(self, node: Node) -> Any:
        """Return the value of ``node`` in the first world."""
        return self.builder.value(node)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a ``call_function`` or refuse the step."""
        return self.builder.call(target, *args, **kwargs)

    def method(self, target: str, *args: Any, **kwargs: Any) -> Node:
        """Add a ``call_method`` or refuse the step."""
        return self.builder.method(target, *args, **kwargs)


def has_rank(low: int) -> Test:
    """Return a test for at least ``low`` dimensions."""
    return lambda value: value.dim() >= low


def is_float_of_rank(low: int) -> Test:
    """Return a test for a real floating tensor of at least ``low`` dimensions."""
    return lambda value: value.is_floating_point() and value.dim() >= low


def _broadcast(a: Tensor, b: Tensor) -> bool:
    with contextlib.suppress(RuntimeError):  # the answer for shapes that do not go together
        torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
        return True
    return False
