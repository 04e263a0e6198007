"""Pictures of the results: ``python -m benchmarks.plots`` (extra ``plots``).

Reads ``benchmarks/results/*.json`` and writes SVG files beside them. Axes start at zero or say that
they are logarithmic, and every repetition's spread is drawn.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
OURS, PEER = "hierpart", "torch_tensorrt hierarchical"
COLOURS = {
    OURS: "#2f6fde",
    "hierpart, building alone": "#9dbbf2",
    "split_module, same blocks": "#8a8fa3",
    "split_by_tags, same blocks": "#b9bdcc",
    PEER: "#d1495b",
    "torch_tensorrt adjacency": "#e39c2f",
    "torch_tensorrt global": "#7a9e3b",
    "torch CapabilityBased": "#8d5fb0",
}
STYLE = {
    "svg.hashsalt": "hierpart", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "figure.facecolor": "white",
}  # fmt: skip


def load(name: str) -> dict[str, Any]:
    """Return one benchmark's results."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def partition_time(data: dict[str, Any]) -> Any:
    """Draw CPU seconds of the whole call, one panel a size, one group of bars a workload."""
    from matplotlib import pyplot

    sizes = sorted({row["nodes"] for row in data["rows"]})
    figure, panels = pyplot.subplots(1, len(sizes), figsize=(4.6 * len(sizes), 3.2), squeeze=False)
    for panel, nodes in zip(panels[0], sizes, strict=True):
        rows = [row for row in data["rows"] if row["nodes"] == nodes]
        names = [n for n in COLOURS if any(n in row["seconds"] for row in rows)]
        width = 0.8 / len(names)
        for k, name in enumerate(names):
            for at, row in enumerate(rows):
                _bar(panel, at - 0.4 + (k + 0.5) * width, width, row["seconds"].get(name), name)
        panel.set_xticks(range(len(rows)), [row["workload"] for row in rows])
        panel.set_title(f"{nodes:,} nodes")
        panel.set_ylim(bottom=0)
        panel.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel("CPU seconds of the whole call")
    _legend(figure, [n for n in COLOURS if any(n in row["seconds"] for row in data["rows"])])
    return figure


def _bar(panel: Any, x: float, width: float, seconds: list[float] | None, name: str) -> None:
    if not seconds:
        return
    middle = statistics.median(seconds)
    spread = [[middle - min(seconds)], [max(seconds) - middle]]
    panel.bar(x, middle, width * 0.92, color=COLOURS[name])
    panel.errorbar(x, middle, spread, color="#333333", linewidth=0.8, capsize=1.5)


def blocks(data: dict[str, Any]) -> Any:
    """Draw the blocks of each network and op map beside the lower bound."""
    from matplotlib import pyplot

    rows = data["real networks"]
    figure, panel = pyplot.subplots(figsize=(9.2, 3.4))
    names = {"original order": "#b9bdcc", PEER: COLOURS[PEER], OURS: COLOURS[OURS]}
    for k, (name, colour) in enumerate(names.items()):
        heights = [row[name] for row in rows]
        panel.bar([i - 0.27 + 0.27 * k for i in range(len(rows))], heights, 0.25, color=colour)
    bounds = [row["lower bound"] for row in rows]
    panel.scatter(range(len(rows)), bounds, marker="_", s=260, color="#1f2547", zorder=3)
    labels = [f"{row['model']} {row['map']}" for row in rows]
    panel.set_xticks(range(len(rows)), labels, rotation=55, ha="right")
    panel.set_ylabel("blocks")
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", alpha=0.3)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()]
    handles.append(pyplot.Line2D([], [], color="#1f2547"))
    figure.legend(
        handles, [*names, "lower bound"], ncols=4, loc="upper center", frameon=False
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def _legend(figure: Any, names: list[str]) -> None:
    from matplotlib import pyplot

    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in names]
    figure.legend(handles, names, ncols=4, loc="upper center", frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.84))


PLOTS = {"partition_time": partition_time, "blocks": blocks}


def draw(name: str, folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """Draw one benchmark's picture into ``folder``; the same results give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    path = folder / f"{name}.svg"
    with matplotlib.rc_context(STYLE):
        figure = PLOTS[name](load(name))
        figure.savefig(path, metadata={"Date": None})
        matplotlib.pyplot.close(figure)
    return path


if __name__ == "__main__":
    for benchmark in PLOTS:
        print(draw(benchmark))
