"""Hypothesis strategies for graphs, their inputs, and what to partition them with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from torch.fx import GraphModule

from hierpart.testing.generate.choice import DrawnChoice
from hierpart.testing.generate.choose_options import (
    BACKENDS,
    choose_options,
    choose_priority,
    choose_support,
)
from hierpart.testing.generate.features import METADATA, chosen_features
from hierpart.testing.generate.graphs import inputs_for, make_graph_module

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def graph_modules(
    size: int = 12,
    width: int = 8,
    features: Collection[str] | None = None,
    without: Collection[str] = (),
    metadata: str | None = None,
) -> SearchStrategy[GraphModule]:
    """Return a strategy for graph modules that run.

    Every graph passes ``lint`` and runs under ``fx.Interpreter`` with :func:`example_inputs`. It
    shrinks node by node. Take failing ones apart with :func:`hierpart.testing.reproduction`.

    Args:
        size: Most steps; a step adds one to about six nodes.
        width: Operands are picked among the last so many values that fit: 1 makes chains.
        features: What may occur, by the names in ``FEATURES``; default: all but ``dynamic``.
        without: Features to leave out.
        metadata: ``"fake"`` gives every node ``val`` and ``tensor_meta``, ``"none"`` neither;
            default: either.

    Raises:
        ValueError: A feature or kind of metadata does not exist.
    """
    chosen = chosen_features(features, without)
    if metadata is not None and metadata not in METADATA:
        raise ValueError(f"metadata is one of {METADATA}, not {metadata!r}")

    @st.composite
    def graph_module(draw: DrawFn) -> GraphModule:
        kind = draw(st.sampled_from(METADATA)) if metadata is None else metadata
        return make_graph_module(DrawnChoice(draw), size, width, chosen, kind)

    return graph_module()


def example_inputs(gm: GraphModule, batch: int | None = None) -> SearchStrategy[tuple[Any, ...]]:
    """Return a strategy for the arguments of a call of ``gm``, one value per placeholder.

    Args:
        gm: A random graph module, or any whose placeholders have metadata.
        batch: The size that differs from call to call; default: one of several.
    """
    batches = st.sampled_from((5, 7)) if batch is None else st.just(batch)
    return st.builds(lambda call, size: inputs_for(gm, call, size), st.integers(0, 9), batches)


@st.composite
def support_maps(
    draw: DrawFn, gm: GraphModule, backends: Sequence[str] = BACKENDS
) -> dict[str, list[Any]]:
    """Draw what each backend supports: a part of the ops of ``gm``, by name or by target."""
    return choose_support(DrawnChoice(draw), gm, backends)


@st.composite
def priorities(draw: DrawFn, backends: Sequence[str] = BACKENDS) -> list[str]:
    """Draw an order of some of ``backends``, at least one."""
    return choose_priority(DrawnChoice(draw), backends)


@st.composite
def options(draw: DrawFn, gm: GraphModule) -> dict[str, Any]:
    """Draw keyword arguments for ``hierarchical_adjacency_partition`` on ``gm``."""
    return choose_options(DrawnChoice(draw), gm)
