"""CPU time of the whole call by size of the graph, beside the peers and ``split_module``.

Every splitter gets the same graph and op map; the calls take turns. ``split_module`` is handed
hierpart's own blocks, so it does the last step only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from benchmarks import peers
from benchmarks.graphs import SIZES, SUPPORT, WORKLOADS
from benchmarks.timing import Timing, exponent, interleaved
from hierpart.options import Options
from hierpart.partition.pipeline import run_line
from tests.models import twin

PEERS_AT = {1_000: tuple(peers.PEERS), 5_000: tuple(peers.PEERS)[:2]}
"""Which peers run at which size: at 5,000 nodes the last two take minutes."""
OURS, SAME_BLOCKS, BY_TAGS = "hierpart", "split_module, same blocks", "split_by_tags, same blocks"
BUILDING = "hierpart, building alone"
"""The last step of hierpart's own call: what would be left if planning took no time."""


def measure(sizes: Sequence[int], rounds: Callable[[int], int]) -> dict[str, Any]:
    """Time every workload at every size and return plain data.

    Args:
        sizes: Numbers of callable nodes, ascending.
        rounds: Repetitions for a size.
    """
    rows = [_measure_one(name, size, rounds(size)) for size in sizes for name in WORKLOADS]
    return {"rows": rows, "exponents": {name: _exponent(rows, name) for name in WORKLOADS}}


def _measure_one(workload: str, size: int, rounds: int) -> dict[str, Any]:
    gm = WORKLOADS[workload](size)
    plan = peers.hierpart(gm, SUPPORT).meta["hierpart"]
    found = peers.available()
    calls = _calls(gm, plan.block_of(), {})
    timings = interleaved(calls, rounds)
    slow = {name: found[name] for name in PEERS_AT.get(size, ()) if name in found}
    timings |= interleaved(_peer_calls(gm, slow), 2, warm_up=size == SIZES[0])
    return {
        "workload": workload,
        "nodes": size,
        "blocks": len(plan.blocks),
        "lower_bound": plan.lower_bound,
        "seconds": {name: t.seconds for name, t in timings.items()},
        "steps": {s.name: round(s.seconds, 4) for s in plan.steps},
    }


def _calls(
    gm: GraphModule, block_of: dict[str, int], extra: dict[str, Any]
) -> dict[str, Callable[[], Callable[[], Any]]]:
    def ours() -> Callable[[], Any]:
        return lambda: peers.hierpart(gm, SUPPORT)

    options = Options.from_mapping(
        {"min_block_size": 1, "backend_priority": peers.PRIORITY, "backend_support_map": SUPPORT}
    )
    planned = run_line(gm, options)

    def building() -> Callable[[], Any]:
        return planned.split

    def same_blocks() -> Callable[[], Any]:
        return lambda: peers.torch_split_module(gm, block_of)

    def by_tags() -> Callable[[], Any]:
        copy = twin(gm)
        return lambda: peers.torch_split_by_tags(copy, block_of)

    return {OURS: ours, BUILDING: building, SAME_BLOCKS: same_blocks, BY_TAGS: by_tags, **extra}


def _peer_calls(
    gm: GraphModule, found: dict[str, peers.Splitter]
) -> dict[str, Callable[[], Callable[[], Any]]]:
    def prepare(split: peers.Splitter) -> Callable[[], Any]:
        copy = twin(gm)
        return lambda: split(copy, SUPPORT)

    return {name: (lambda split=split: prepare(split)) for name, split in found.items()}


def _exponent(rows: Sequence[dict[str, Any]], workload: str) -> float:
    mine = [r for r in rows if r["workload"] == workload]
    medians = [Timing(tuple(r["seconds"][OURS])).median for r in mine]
    return exponent([r["nodes"] for r in mine], medians)


def markdown(data: dict[str, Any]) -> str:
    """Return the tables of one measurement."""
    names = list(dict.fromkeys(n for r in data["rows"] for n in r["seconds"]))
    lines = [
        "CPU seconds of the whole call: median (least to most).",
        "",
        "| graph | nodes | blocks | " + " | ".join(names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for row in data["rows"]:
        cells = [
            str(Timing(tuple(row["seconds"][n]))) if n in row["seconds"] else "" for n in names
        ]
        lines.append(
            f"| {row['workload']} | {row['nodes']} | {row['blocks']} | " + " | ".join(cells) + " |"
        )
    lines += ["", "Ratios of medians to hierpart's.", ""]
    others = [n for n in names if n != OURS]
    lines.append("| graph | nodes | " + " | ".join(others) + " |")
    lines.append("|---|---|" + "---|" * len(others))
    for row in data["rows"]:
        ours = Timing(tuple(row["seconds"][OURS])).median
        ratios = [
            f"{Timing(tuple(row['seconds'][n])).median / ours:.2f}" if n in row["seconds"] else ""
            for n in others
        ]
        lines.append(f"| {row['workload']} | {row['nodes']} | " + " | ".join(ratios) + " |")
    sizes = sorted({r["nodes"] for r in data["rows"]})
    lines += ["", f"Growth exponent of hierpart's call from {sizes[0]} to {sizes[-1]} nodes.", ""]
    lines += ["| graph | exponent |", "|---|---|"]
    lines += [f"| {name} | {value:.3f} |" for name, value in data["exponents"].items()]
    return "\n".join(lines) + "\n"
