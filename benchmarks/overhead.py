"""What a call of a compiled module costs besides the blocks: fifty blocks of one tiny op each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import interleaved
from hierpart.build.compiling import build_graph, compile_model
from hierpart.capture.captured import capture
from hierpart.runtime.flat_function import Pieces
from tests.doubles import Double, options_for

BLOCKS, CALLS = 50, 200


class Tiny(nn.Module):
    """Blocks of one ``neg`` each; between them a ``sin`` that belongs to another backend."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the ops in turn."""
        for _ in range(BLOCKS // 2):
            x = x.neg().sin()
        return x


def measure(rounds: int) -> dict[str, Any]:
    """Time the compiled function, the module, and the same calls in other forms."""
    one, two = Double("one", ["sin"]), Double("two", ["neg"])
    x = torch.randn(4)
    options = options_for(one, two)
    program = torch.export.export(Tiny(), (x,), strict=False)
    graph = capture(program, options=options).graph
    pieces = build_graph(graph, options).pieces
    module = compile_model(program, options=options)
    flat, parent, hand = pieces.flat(), pieces.parent, by_hand(pieces)
    calls: Mapping[str, Callable[[], object]] = {
        "by hand": lambda: hand(x),
        "flat function": lambda: flat.run([x]),
        "compiled module": lambda: module(x),
        "split GraphModule": lambda: parent(x),
        "eager": lambda: Tiny.forward(module, x),
    }
    with torch.no_grad():
        timings = interleaved({n: (lambda c=c: _many(c)) for n, c in calls.items()}, rounds)
    seconds = {n: [s / CALLS for s in t.seconds] for n, t in timings.items()}
    return {"blocks": len(pieces.calls), "seconds": seconds}


def by_hand(pieces: Pieces) -> Callable[[Tensor], Tensor]:
    """Return one function that calls the blocks as a person would write it."""
    names = {f"f{i}": call.function for i, call in enumerate(pieces.calls.values())}
    lines = "".join(f"    x, = f{i}([x])\n" for i in range(len(names)))
    exec(f"def hand(x):\n{lines}    return x\n", names)
    made: Callable[[Tensor], Tensor] = names["hand"]
    return made


def _many(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def markdown(data: dict[str, Any]) -> str:
    """Return the table of one measurement."""
    medians = {name: statistics.median(s) for name, s in data["seconds"].items()}
    eager = medians["eager"]
    lines = [
        f"A module of {data['blocks']} blocks of one tiny op each; the blocks run eagerly. CPU "
        "microseconds a call: median (least to most). Calls take turns: the ratio is the median "
        "over the turns. Overhead is what a call takes beyond eager.",
        "",
        "| form | a call | to by hand | overhead a block |",
        "|---|---|---|---|",
    ]
    for name, seconds in data["seconds"].items():
        low, high = min(seconds) * 1e6, max(seconds) * 1e6
        pairs = zip(seconds, data["seconds"]["by hand"], strict=True)
        ratio = statistics.median(mine / base for mine, base in pairs)
        over = (medians[name] - eager) / data["blocks"] * 1e6
        lines.append(
            f"| {name} | {medians[name] * 1e6:.0f} ({low:.0f} to {high:.0f}) | "
            f"{ratio:.2f} | {over:.2f} |"
        )
    return "\n".join(lines) + "\n"
