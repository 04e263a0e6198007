"""Pictures of a plan: DOT by torch's own drawer, coloured by block; node data for Model Explorer.

Model Explorer (Google AI Edge) lays "custom node data" over a graph: by node a number and colours.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierpart.errors import HierpartError, MissingExtraError
from hierpart.plan import Plan
from hierpart.report.palette import colour

if TYPE_CHECKING:
    from hierpart.partition import Result

TEXT, OVERLAY, PICTURES = ".dot", ".json", (".png", ".svg", ".pdf")


class DrawingError(HierpartError, ValueError):
    """A picture cannot be made as it was asked for; the message says what can."""


def draw(result: Result, path: Path) -> tuple[Path, ...]:
    """Write a picture and return the files that were written.

    Args:
        result: What the line found out about the graph.
        path: ``.dot`` for DOT text, ``.png``, ``.svg`` or ``.pdf`` for a picture by Graphviz, and
            ``.json`` for an overlay of the whole graph. Each branch that has a plan of its own gets
            a file of its own beside it, named with op and branch; overlays have none.

    Raises:
        DrawingError: The suffix is another, or Graphviz is not installed.
        MissingExtraError: pydot is not installed.
    """
    if path.suffix == OVERLAY:
        path.write_text(json.dumps(overlay(result.plan), indent=1), encoding="utf-8")
        return (path,)
    if path.suffix not in (TEXT, *PICTURES):
        legal = ", ".join((TEXT, *PICTURES, OVERLAY))
        raise DrawingError(f"{path}: pictures are written to files that end in one of {legal}")
    if path.suffix in PICTURES and shutil.which("dot") is None:
        raise DrawingError(
            f"{path}: the program dot is not installed; install Graphviz, or write a .dot file"
        )
    written = []
    for name, picture in graphs(result):
        target = path.with_name(path.stem + name + path.suffix)
        if path.suffix == TEXT:
            target.write_text(picture.to_string(), encoding="utf-8")
        else:
            target.write_bytes(picture.create(format=path.suffix[1:]))
        written.append(target)
    return tuple(written)


def graphs(result: Result, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the DOT graph (``pydot.Dot``) of a plan and those of its branches, each with a name.

    Raises:
        MissingExtraError: pydot is not installed.
    """
    try:
        pydot: Any = importlib.import_module("pydot")
    except ImportError:
        raise MissingExtraError("drawing", "pydot", "viz") from None
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    drawer = FxGraphDrawer(result.facts.module, "hierpart", ignore_getattr=True)
    picture = drawer.get_dot_graph()
    owners = result.plan.owner
    for node in picture.get_nodes():
        owner = owners.get(node.get_name().strip('"'))
        if owner is not None:
            node.set("fillcolor", f'"{colour(owner, result.plan, pale=True)}"')
    for block in result.plan.blocks:
        label = f"block {block.index}: {block.backend}"
        cluster = pydot.Cluster(
            f"block_{block.index}", label=f'"{label}"', style='"rounded"',
            color=f'"{colour(block.backend, result.plan)}"', penwidth="2",
        )  # fmt: skip
        for inside in block.nodes:
            cluster.add_node(pydot.Node(inside))
        picture.add_subgraph(cluster)
    yield name, picture
    for branch in result.branches:
        yield from graphs(branch.result, f"{name}.{branch.node}.{branch.target}")


def overlay(plan: Plan) -> dict[str, Any]:
    """Return Model Explorer's custom node data: the number of its block and the owner's colour.

    Nodes are named as in the captured graph; those in branches are left out.
    """
    block_of = plan.block_of()
    return {
        "results": {
            name: {
                "value": block_of[name],
                "bgColor": colour(owner, plan, pale=True),
                "textColor": "#000000",
            }
            for name, owner in plan.owner.items()
        }
    }
