"""README's figures, made from ``benchmarks/results``: ``python -m benchmarks.readme``."""

from __future__ import annotations

import math
import pathlib
import statistics
from typing import Any

from benchmarks.end_to_end import OURS_SPLIT, OURS_WHOLE, PEER_SPLIT
from benchmarks.plots import OURS, PEER, load

README = pathlib.Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- measured: python -m benchmarks.readme -->", "<!-- end of measured -->"


def section() -> str:
    """Return the text between the marks."""
    times, blocks = load("partition_time"), load("blocks")
    nodes = max(row["nodes"] for row in times["rows"] if PEER in row["seconds"])
    rows = [row for row in times["rows"] if row["nodes"] == nodes]
    about = times["about"]
    lines = [
        BEGIN,
        f"Measured by `{about['command']}` with torch {about['torch']} and torch_tensorrt "
        f"{about['torch_tensorrt']}; all figures and how they are taken are in "
        "[benchmarks](benchmarks/README.md).",
        "",
        "| | hierpart | torch_tensorrt's function of that name |",
        "|---|---|---|",
        f"| CPU time of a split of {nodes:,} nodes ({_names(rows)}) | {_seconds(rows, OURS)} | "
        f"{_seconds(rows, PEER)} |",
        f"| the same, `split_module` on finished blocks | | "
        f"{_seconds(rows, 'split_module, same blocks')} |",
        f"| blocks over the lower bound, {len(blocks['real networks'])} plans of real networks | "
        f"{_over(blocks, OURS)} | {_over(blocks, PEER)} |",
        f"| distinct results of {_runs(blocks)} splits of one graph | {_distinct(blocks, OURS)} | "
        f"{_distinct(blocks, PEER)} |",
        f"| wrong results on {blocks['wrong results']['graphs']} graphs with writes and random ops "
        f"| {blocks['wrong results']['wrong'][OURS]} | {blocks['wrong results']['wrong'][PEER]} |",
        "",
        *_running(),
        "",
        "![CPU time of a split by splitter and graph](benchmarks/results/partition_time.svg)",
        "",
        "![Blocks of real networks beside the lower bound](benchmarks/results/blocks.svg)",
        END,
    ]
    return "\n".join(lines)


def _running() -> list[str]:
    """Return the table of what compiled models take, each beside what it is compared with."""
    calls = load("end_to_end")
    shared = load("sharing")
    rows, kept = shared["rows"], load("overhead")
    compile_ratio = rows["sharing"]["seconds"] / rows["each block"]["seconds"]
    models = ", ".join(dict.fromkeys(row["model"] for row in calls["rows"]))
    return [
        "How fast it runs on the CPU, in times of `torch.compile`'s call; Inductor compiles what",
        "is planned for TensorRT:",
        "",
        f"| | {models} |",
        "|---|---|",
        f"| hierpart, all ops in Inductor | {_to_compile(calls, OURS_WHOLE)} |",
        f"| hierpart, split over three owners | {_to_compile(calls, OURS_SPLIT)} |",
        f"| torch_tensorrt's split over the same | {_to_compile(calls, PEER_SPLIT)} |",
        "",
        f"{shared['layers']} layers of a transformer in {rows['sharing']['blocks']} blocks, "
        f"{rows['sharing']['distinct']} of them distinct, compile in",
        f"{compile_ratio:.2f} of the time of compiling each block. A module of {kept['blocks']} "
        "blocks of one tiny op each takes",
        f"{_overhead(kept):.2f} times as long as the same calls in one function written by hand.",
    ]


def _to_compile(calls: dict[str, Any], way: str) -> str:
    ratios = []
    for row in calls["rows"]:
        if row["cache"] == "warm":
            base = statistics.median(row["seconds"]["torch.compile"])
            ratios.append(f"{statistics.median(row['seconds'][way]) / base:.2f}")
    return ", ".join(ratios)


def _overhead(kept: dict[str, Any]) -> float:
    pairs = zip(kept["seconds"]["compiled module"], kept["seconds"]["by hand"], strict=True)
    return statistics.median(mine / base for mine, base in pairs)


def _names(rows: list[dict[str, Any]]) -> str:
    return ", ".join(row["workload"] for row in rows)


def _seconds(rows: list[dict[str, Any]], name: str) -> str:
    return ", ".join(f"{statistics.median(row['seconds'][name]):.2f}" for row in rows) + " s"


def _over(blocks: dict[str, Any], name: str) -> str:
    ratios = [row[name] / row["lower bound"] for row in blocks["real networks"]]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return f"{mean:.2f} times (at worst {max(ratios):.2f})"


def _runs(blocks: dict[str, Any]) -> str:
    return "/".join(sorted({str(row["runs"]) for row in blocks["distinct results"]}))


def _distinct(blocks: dict[str, Any], name: str) -> str:
    return ", ".join(str(row[name]) for row in blocks["distinct results"])


def replaced(text: str) -> str:
    """Return README's text with the part between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(replaced(README.read_text()))
