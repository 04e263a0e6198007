"""How fast models run on the CPU, and how long they take to compile, in a cold and a warm process.

Each way of compiling a model gets a folder of its own for Inductor's caches, and everything is
measured in two processes, one after the other: the first compiles, the second finds it compiled.
Calls take turns. TensorRT runs nothing on a CPU, so the blocks that are planned for it are compiled
by Inductor, each on its own: what is measured is what cutting costs.
"""

from __future__ import annotations

import json
import operator
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir
from torch.fx import GraphModule, Interpreter, Node

from hierpart.backends.inductor import InductorBackend
from hierpart.plan import Reason, Verdict

MODELS = ("resnet18", "bert")
ROUNDS = 40
OURS_WHOLE, OURS_SPLIT = "hierpart, all Inductor", "hierpart, three owners"
PEER_SPLIT = "torch_tensorrt's split, same backends"


def model_of(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network with random weights, in eval mode, and its arguments."""
    torch.manual_seed(0)
    if name == "resnet18":
        from torchvision.models import resnet18

        return resnet18(weights=None).eval(), (torch.randn(1, 3, 112, 112),)
    from tests.models import example

    return example(name)


def measure() -> dict[str, Any]:
    """Measure every model in processes of its own and return plain data."""
    return {"rows": [row for name in MODELS for row in _two_processes(name)], "imports": imports()}


def _two_processes(name: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.end_to_end", name, folder]
        found = []
        for cache in ("cold", "warm"):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(
                {"model": name, "cache": cache, **json.loads(done.stdout.splitlines()[-1])}
            )
        return found


def measure_one(name: str, caches: pathlib.Path) -> dict[str, Any]:
    """Compile one model in every way and time calls in turn; seconds.

    Args:
        name: The model.
        caches: Folder for Inductor's caches.
    """
    from tests.models import exported, op_map

    model, args = model_of(name)
    if name == "resnet18":
        program = torch.export.export(model, args, strict=False).run_decompositions()
        graph: GraphModule = program.module()  # type: ignore[assignment]
    else:
        graph = exported(name)
    support = op_map(graph, 0)
    ways: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: model,
        "torch.compile": lambda: torch.compile(model),
        OURS_WHOLE: lambda: _compiled(graph, args, ["inductor"], None),
        OURS_SPLIT: lambda: _compiled(graph, args, ["tensorrt", "inductor"], support),
        PEER_SPLIT: lambda: _peer(graph, args, support),
    }
    calls, compile_seconds, blocks = {}, {}, {}
    with torch.no_grad():
        torch.compile(torch.neg)(torch.ones(64))  # what Inductor does once a process
        for i, (way, make) in enumerate(ways.items()):
            with temporary_cache_dir(str(caches / str(i))):  # code in memory is forgotten, too
                started = time.perf_counter()
                calls[way] = make()
                calls[way](*args)
                compile_seconds[way] = time.perf_counter() - started
            blocks[way] = _blocks(calls[way])
        seconds = _in_turn(calls, args)
    return {"compile_seconds": compile_seconds, "seconds": seconds, "blocks": blocks}


class InductorAs(InductorBackend):
    """Inductor under another backend's name, for the ops of that one."""

    def __init__(self, name: str, ops: Collection[str]) -> None:
        self.name, self._ops = name, ops

    def verdict(self, node: Node) -> Verdict:
        """Return Inductor's answer for the ops that are listed."""
        if node.target is not operator.getitem and f"torch.ops.{node.target}" not in self._ops:
            return Verdict(self.name, False, Reason.NOT_LISTED)
        return replace(super().verdict(node), backend=self.name)


def _compiled(
    graph: GraphModule, args: tuple[Any, ...], priority: list[str], support: Any
) -> Callable[..., Any]:
    import hierpart

    if "tensorrt" in priority:
        support = {**support, "tensorrt": InductorAs("tensorrt", support["tensorrt"])}
    return hierpart.compile(
        graph, args, backend_priority=priority, backend_support_map=support, min_block_size=1
    )


def _peer(graph: GraphModule, args: tuple[Any, ...], support: Any) -> Callable[..., Any]:
    """Return the peer's split with each accelerated block compiled by Inductor, as ours are."""
    from benchmarks import peers
    from tests.models import twin

    split = peers.torch_tensorrt_hierarchical(twin(graph), support)
    given: dict[str, tuple[Any, ...]] = {}

    class Recorder(Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            given[str(target)] = args
            return super().call_module(target, args, kwargs)

    Recorder(split).run(*args)
    for name, block_args in given.items():
        if name.startswith("_run_on_acc"):
            block = split.get_submodule(name)
            made = _compiled(block, block_args, ["inductor"], None)  # type: ignore[arg-type]
            split._modules[name] = made  # type: ignore[assignment]
    return split


def _blocks(call: Any) -> int | None:
    if hasattr(call, "plan"):
        return len(call.plan.blocks)
    if isinstance(call, GraphModule):
        nodes: list[Node] = list(call.graph.nodes)
        return sum(n.op == "call_module" for n in nodes)
    return None


def _in_turn(calls: dict[str, Callable[..., Any]], args: tuple[Any, ...]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {way: [] for way in calls}
    for turn in range(ROUNDS + 5):
        for way, call in calls.items():
            started = time.perf_counter()
            call(*args)
            if turn >= 5:
                taken[way].append(time.perf_counter() - started)
    return taken


def imports(rounds: int = 5) -> dict[str, list[float]]:
    """Return the CPU seconds of fresh processes that import torch, and torch with hierpart."""
    taken: dict[str, list[float]] = {"import torch": [], "import torch, hierpart": []}
    for _ in range(rounds):
        for statement, seconds in taken.items():
            code = f"import time; {statement}; print(time.process_time())"
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True,
                check=True, cwd=pathlib.Path(__file__).parent.parent,
            )  # fmt: skip
            seconds.append(float(done.stdout))
    return taken


def markdown(data: dict[str, Any]) -> str:
    """Return the tables of one measurement."""
    lines = [
        "Milliseconds a call: median (middle half of the calls), calls in turn. Compile: seconds "
        "of wall time to the end of the first call, with cold and warm caches of Inductor; what "
        "Inductor does once a process is left out, and for the splits and hierpart torch.export.",
        "",
        "| model | | blocks | ms a call | of torch.compile | compile, cold | compile, warm |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = {(row["model"], row["cache"]): row for row in data["rows"]}
    for name in dict.fromkeys(row["model"] for row in data["rows"]):
        cold, warm = rows[name, "cold"], rows[name, "warm"]
        base = statistics.median(warm["seconds"]["torch.compile"])
        for way, seconds in warm["seconds"].items():
            low, middle, high = statistics.quantiles(seconds, n=4)
            lines.append(
                f"| {name} | {way} | {warm['blocks'][way] or ''} | {middle * 1e3:.2f} "
                f"({low * 1e3:.2f} to {high * 1e3:.2f}) | {middle / base:.2f} | "
                f"{cold['compile_seconds'][way]:.1f} | {warm['compile_seconds'][way]:.1f} |"
            )
    lines += ["", "CPU seconds of a fresh process: median (least to most).", ""]
    for statement, seconds in data["imports"].items():
        middle = statistics.median(seconds)
        lines.append(f"- `{statement}`: {middle:.2f} ({min(seconds):.2f} to {max(seconds):.2f})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(json.dumps(measure_one(sys.argv[1], pathlib.Path(sys.argv[2]))))
