"""How many blocks, how repeatable, how right: against the lower bound and the peers.

Three tables: blocks on six real networks with three op maps each; distinct results over repeated
splits of one graph; wrong results on graphs that write in place and draw random numbers.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from benchmarks import peers
from benchmarks.graphs import MutationCase, mutation_case, wide
from benchmarks.peers import Support
from hierpart.graph.node.values import bytes_of
from tests.models import MODELS, OWNERS, SEEDS, exported, op_map, op_name, twin

PEER = "torch_tensorrt hierarchical"


def real_networks(models: tuple[str, ...] = MODELS) -> list[dict[str, Any]]:
    """Count the blocks of every splitter of three owners on the real networks."""
    rows = []
    for name in models:
        gm = exported(name)
        for seed in SEEDS:
            support = op_map(gm, seed)
            ours = peers.hierpart(twin(gm), support)
            plan = ours.meta["hierpart"]
            row = {
                "model": name,
                "map": seed,
                "nodes": len(plan.owner),
                "lower bound": plan.lower_bound,
                "proved": plan.proved,
                "hierpart": len(plan.blocks),
                "original order": _runs_in_order(gm, plan.owner),
            }
            cuts = {"hierpart": _cut(gm, ours, support)}
            if PEER in peers.available():
                theirs = peers.PEERS[PEER](twin(gm), support)
                row[PEER] = len(peers.blocks(theirs))
                cuts[PEER] = _cut(gm, theirs, support)
            rows.append({**row, "cuts": cuts})
    return rows


def _cut(gm: GraphModule, parent: GraphModule, support: Support) -> dict[str, float]:
    """Return what a splitter made of the original graph's ops, which are known by their names.

    ``listed`` is the share of ops in blocks of a backend that lists them, ``unlisted`` the share in
    blocks of a backend that does not, ``bytes`` what leaves blocks; a value counts once however
    many blocks read it.
    """
    block_of = {
        node.name: name
        for name in peers.blocks(parent)
        if name and isinstance(block := parent.get_submodule(name), GraphModule)
        for node in block.graph.nodes
        if node.op.startswith("call_")
    }
    ops = [n for n in gm.graph.nodes if n.name in block_of and n.target is not operator.getitem]
    crossing = sum(
        bytes_of(node)
        for node in ops
        if any(block_of.get(u.name, "") != block_of[node.name] for u in node.users)
    )
    fast = [n for n in ops if block_of[n.name].startswith("_run_on_acc")]
    listed = sum(
        op_name(n) in support[block_of[n.name].removeprefix("_run_on_acc_").rpartition("_")[0]]
        for n in fast
    )
    count = max(len(ops), 1)
    return {"listed": listed / count, "unlisted": (len(fast) - listed) / count, "bytes": crossing}


def _runs_in_order(gm: GraphModule, owner: dict[str, str]) -> int:
    owners = [owner[n.name] for n in gm.graph.nodes if n.name in owner]
    return sum(a != b for a, b in zip(["", *owners], owners, strict=False))


def distinct_results(runs: int = 20) -> list[dict[str, Any]]:
    """Count the distinct splits of one graph, made over and over with the heap in disorder."""
    graphs = {"llama, map 0": _llama, "wide, 300 nodes": _wide}
    splitters = {"hierpart": peers.hierpart, **peers.available()}
    return [
        {"graph": graph, "runs": runs}
        | {name: _distinct(make, split, runs) for name, split in splitters.items()}
        for graph, make in graphs.items()
    ]


def _llama() -> tuple[GraphModule, Support]:
    gm = exported("llama")
    return twin(gm), op_map(gm, 0)


def _wide() -> tuple[GraphModule, Support]:
    from benchmarks.graphs import SUPPORT

    return wide(300), SUPPORT


def _distinct(
    make: Callable[[], tuple[GraphModule, Support]], split: peers.Splitter, runs: int
) -> int:
    rng, kept, found = random.Random(0), [], set()
    for run in range(runs):
        kept.append([bytearray(rng.randint(1, 4000)) for _ in range(100 * run)])
        rng.shuffle(kept[-1])
        del kept[-1][::2]
        parent = split(*make())
        found.add(tuple(_contents(parent, name) for name in peers.blocks(parent) if name))
        kept.append(parent)
    return len(found)


def _contents(parent: GraphModule, name: str) -> tuple[str, ...]:
    module = parent.get_submodule(name)
    if not isinstance(module, GraphModule):
        return (name,)
    return tuple(n.name for n in module.graph.nodes if n.op != "output")


def wrong_results(count: int) -> dict[str, Any]:
    """Count wrong values, and failures to split or run, over ``count`` mutation cases."""
    splitters = {"hierpart": peers.hierpart, **peers.available()}
    wrong, failed = dict.fromkeys(splitters, 0), dict.fromkeys(splitters, 0)
    for seed in range(count):
        case = mutation_case(seed)
        want = _run(case.gm, case)
        for name, split in splitters.items():
            try:
                got = _run(split(twin(case.gm), case.support), case)
            except Exception as error:  # a peer may raise anything; it is counted and shown
                failed[name] += 1
                print(f"{name} on mutation case {seed}: {type(error).__name__}: {error}"[:200])
                continue
            wrong[name] += not _equal(got, want)
    return {"graphs": count, "wrong": wrong, "failed": failed}


def _run(gm: GraphModule, case: MutationCase) -> list[torch.Tensor]:
    """Return the results and, after them, the arguments as the call left them."""
    args = [a.clone() for a in case.args]
    torch.manual_seed(0)
    results = [t.clone() for t in tree_leaves(gm(*args)) if isinstance(t, torch.Tensor)]
    return [*results, *args]


def _equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return len(got) == len(want) and all(
        g.shape == w.shape and torch.equal(g.nan_to_num(), w.nan_to_num())
        for g, w in zip(got, want, strict=True)
    )


def measure(mutations: int) -> dict[str, Any]:
    """Make all three tables as plain data."""
    return {
        "owners": list(OWNERS),
        "real networks": real_networks(),
        "distinct results": distinct_results(),
        "wrong results": wrong_results(mutations),
    }


def markdown(data: dict[str, Any]) -> str:
    """Return the three tables and the mean ratios to the lower bound."""
    rows = data["real networks"]
    parts = ["Blocks on exported networks, three seeded op maps each, minimum block size 1.\n"]
    parts.append(_table([{k: v for k, v in r.items() if k != "cuts"} for r in rows]))
    for name in ("hierpart", "original order", PEER):
        ratios = [r[name] / r["lower bound"] for r in rows if name in r]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            parts.append(
                f"- {name}: {mean:.2f} times the lower bound on average (geometric), "
                f"{max(ratios):.2f} at worst, {len(ratios)} cases"
            )
    parts.append(
        "\nShare of ops in blocks of a backend that lists them, share in blocks of a backend that "
        "does not, and KiB of values that leave a block.\n"
    )
    parts.append(_table([_cut_row(r) for r in rows if "cuts" in r]))
    parts.append("\nDistinct results of one graph split over and over in one process.\n")
    parts.append(_table(data["distinct results"]))
    wrong = data["wrong results"]
    parts.append(f"\nWrong results over {wrong['graphs']} graphs with writes and random ops.\n")
    parts.append(
        _table(
            [
                {"splitter": name, "wrong": n, "failed to split or run": wrong["failed"][name]}
                for name, n in wrong["wrong"].items()
            ]
        )
    )
    return "\n".join(parts) + "\n"


def _cut_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {"model": row["model"], "map": row["map"]}
    for name, cut in row["cuts"].items():
        shown[f"{name}, listed"] = f"{cut['listed']:.1%}"
        shown[f"{name}, not listed"] = f"{cut['unlisted']:.1%}"
        shown[f"{name}, KiB"] = f"{cut['bytes'] / 1024:,.0f}"
    return shown


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(k for r in rows for k in r))
    head = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(
        head + ["| " + " | ".join(str(r.get(k, "")) for k in names) + " |" for r in rows]
    )
