"""Check and time hierpart on a GPU: ``python -m benchmarks.gpu``.

One command, under eight minutes. Every case is compiled with every set of backends that can be used
here, its results are compared with eager, and eager, ``torch.compile``, torch_tensorrt (where it
runs) and hierpart are timed in turn with CUDA events. Without a GPU the cases are compiled for and
compared on the CPU, and nothing is timed or written. Ends with exit code 1 if a result differs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import Dim

import hierpart
from hierpart.backends.registry import get_backend
from hierpart.plan import EAGER

RESULTS = pathlib.Path(__file__).parent / "results"
BUDGET = 420.0
"""Seconds after which no new case is begun."""


@dataclass(frozen=True)
class Case:
    """A model, its example inputs, further inputs of other sizes, and its dynamic shapes."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    sizes: tuple[int, ...]
    shapes: Any = None


@dataclass
class Outcome:
    """What became of one case with one set of backends."""

    case: str
    priority: str
    status: str
    compile_seconds: float = 0.0
    blocks: list[str] = field(default_factory=list)
    worst: float = 0.0
    detail: str = ""


class Convolutions(nn.Module):
    """Convolutions with batch norm, a residual and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, 32, 3, padding=1) for c in (3, 32))
        self.norm, self.head = nn.BatchNorm2d(32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class probabilities."""
        y = torch.relu(self.norm(self.first(x)))
        y = torch.nn.functional.silu(self.second(y)) + y
        return self.head(y.mean((2, 3))).softmax(-1)


class Attention(nn.Module):
    """Two pre-norm transformer layers with a bool mask."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                 "out": nn.Linear(width, width), "up": nn.Linear(width, 4 * width),
                 "down": nn.Linear(4 * width, width)}
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the hidden states."""
        for layer in self.layers:
            parts = layer["qkv"](layer["norm"](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
            x = x + layer["down"](torch.nn.functional.gelu(layer["up"](x)))
        return x


class Mixed(nn.Module):
    """What no single backend takes whole: indices, masks, sorts, a branch, a counter, an fft."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return values of several dtypes and layouts."""
        self.calls.add_(1)
        h = torch.where(mask.unsqueeze(-1), self.embed(ids), 0.0)
        h = torch.cond(self.calls > 1, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (h,))
        best, place = h.sum(-1).topk(2, dim=-1)
        return torch.fft.rfft(h).abs(), best, place, h.transpose(1, 2), mask & (ids > 3), h.shape[0]


def cases(width: int) -> list[Case]:
    """Return the cases; ``width`` is the batch of the example inputs."""
    batch = {0: Dim("batch", min=2, max=4 * width)}

    def images(n: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(n, 3, 32, 32),)

    def states(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(n, 16, 128), torch.rand(n, 1, 16, 16) > 0.2

    def tokens(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randint(0, 64, (n, 12)), torch.rand(n, 12) > 0.3

    sizes = (width, 2, 2 * width)
    return [
        Case("convolutions", Convolutions, images, (width,)),
        Case("convolutions, dynamic", Convolutions, images, sizes, (batch,)),
        Case("attention", Attention, states, (width,)),
        Case("attention, dynamic", Attention, states, sizes, (batch, batch)),
        Case("mixed, dynamic", Mixed, tokens, sizes, (batch, batch)),
    ]


def priorities() -> list[tuple[str, ...]]:
    """Return the sets of backends to try: all that can be used, each alone, and none."""
    usable = [n for n in ("tensorrt", "inductor") if get_backend(n).available() is None]
    alone = [(name,) for name in usable]
    return [*([tuple(usable)] if len(usable) > 1 else []), *alone, ()]


def placed(values: Sequence[Any], device: str) -> tuple[Any, ...]:
    """Return the tensors on the device."""
    return tuple(v.to(device) for v in values)


def difference(module: Any, model: nn.Module, case: Case, size: int, device: str) -> float:
    """Return the greatest difference to eager of results and updated buffers at one size.

    Raises:
        AssertionError: They are not close.
    """
    given = placed(case.inputs(size), device)
    with torch.no_grad():
        state = {name: value.clone() for name, value in model.state_dict().items()}
        wanted = torch.utils._pytree.tree_leaves(model(*given))
        wanted += [value.clone() for value in model.state_dict().values()]
        model.load_state_dict(state)
        module.load_state_dict(state)  # the same tensors as the model's, if it was not loaded
        found = torch.utils._pytree.tree_leaves(module(*given))
        found += [value.clone() for value in module.state_dict().values()]
        model.load_state_dict(state)
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel():
            worst = max(worst, (a - b).abs().max().item())
    return worst


def check(case: Case, priority: tuple[str, ...], device: str) -> tuple[Outcome, Any, nn.Module]:
    """Compile a case, compare it with eager at every size, and return what became of it."""
    torch.manual_seed(0)
    model = case.model().eval().to(device)
    args = placed(case.inputs(case.sizes[0]), device)
    outcome = Outcome(case.name, "+".join(priority) or EAGER, "failed")
    started = time.perf_counter()
    module = hierpart.compile(
        model, args, dynamic_shapes=case.shapes, backend_priority=list(priority), min_block_size=2
    )
    outcome.compile_seconds = time.perf_counter() - started
    outcome.blocks = [f"{o.backend}: {o.status}" for o in module.report.outcomes]
    outcome.worst = max(difference(module, model, case, size, device) for size in case.sizes)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "module"
        module.save(file)
        loaded = hierpart.load(file, allow_pickle=True)  # written by this process
    difference(loaded, model, case, case.sizes[-1], device)
    errors = [o.error for o in module.report.outcomes if o.error]
    outcome.status = "fell back" if errors else "same"
    outcome.detail = (errors[0] or "").splitlines()[0] if errors else ""
    return outcome, module, model


def milliseconds(calls: Mapping[str, Callable[[], Any]], rounds: int = 30) -> dict[str, float]:
    """Return the median time of each call in milliseconds on the GPU; calls take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 5):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= 5:
                taken[name].append(start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in taken.items()}


def rivals(case: Case, model: nn.Module, args: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Return eager, ``torch.compile`` and torch_tensorrt as calls; those that fail are left out."""
    calls: dict[str, Callable[[], Any]] = {EAGER: lambda: model(*args)}
    compiled = torch.compile(model)
    ways: dict[str, Callable[[], Any]] = {"torch.compile": lambda: compiled(*args)}
    if get_backend("tensorrt").available() is None:
        theirs = torch.compile(model, backend="torch_tensorrt")
        ways["torch_tensorrt"] = lambda: theirs(*args)
    for name, call in ways.items():
        why = _failure(call)
        if why is None:
            calls[name] = call
        else:
            print(f"  {name}: {why}")
    return calls


def _failure(call: Callable[[], Any]) -> str | None:
    """Return why a call fails, ``None`` where it does not."""
    try:
        call()
    except Exception as error:  # a rival's failure is a result, not ours
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def run(seconds: float, device: str) -> tuple[list[Outcome], dict[str, dict[str, float]]]:
    """Check and, on a GPU, time every case until the time is up."""
    started, outcomes = time.perf_counter(), []
    times: dict[str, dict[str, float]] = {}
    for case in cases(16 if device == "cuda" else 4):
        calls: dict[str, Callable[[], Any]] = {}
        args = placed(case.inputs(case.sizes[0]), device)
        for priority in priorities():
            if time.perf_counter() - started > seconds:
                outcomes.append(Outcome(case.name, "+".join(priority) or EAGER, "no time left"))
                continue
            try:
                outcome, module, model = check(case, priority, device)
            except Exception as error:  # noted, and the next case is tried
                traceback.print_exc()
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                outcome = Outcome(case.name, "+".join(priority) or EAGER, "failed", detail=text)
            else:
                calls[f"hierpart {outcome.priority}"] = partial(module, *args)
            outcomes.append(outcome)
            print(f"{outcome.case:24} {outcome.priority:20} {outcome.status:10} {outcome.detail}")
        if calls and device == "cuda" and time.perf_counter() - started < seconds:
            with torch.no_grad():
                times[case.name] = milliseconds(calls | rivals(case, model, args))
    return outcomes, times


def markdown(
    about: Mapping[str, Any], outcomes: Sequence[Outcome], times: Mapping[str, Any]
) -> str:
    """Return the page of results."""
    lines = [f"# On {about['device']}", "", f"torch {about['torch']}, {about['tensorrt']}", ""]
    lines += [
        "| case | backends | result | blocks | compile s | worst |",
        "|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        blocks = "; ".join(o.blocks)
        row = (o.case, o.priority, o.detail or o.status, blocks, f"{o.compile_seconds:.1f}")
        lines.append(f"| {' | '.join(row)} | {o.worst:.1e} |")
    for case, taken in times.items():
        lines += ["", f"{case}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in taken.items())]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and, on a GPU, write ``results/gpu.json`` and ``results/gpu.md``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=BUDGET, help="begin no case after these")
    seconds = parser.parse_args(argv).seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    why = get_backend("tensorrt").available()
    about = {
        "device": name, "torch": torch.__version__, "python": platform.python_version(),
        "tensorrt": "TensorRT runs here" if why is None else f"no TensorRT: {why}",
        "command": "python -m benchmarks.gpu",
    }  # fmt: skip
    print(f"{name}; {about['tensorrt']}")
    outcomes, times = run(seconds, device)
    page = markdown(about, outcomes, times)
    print(page)
    if device == "cuda":
        data = {"about": about, "outcomes": [asdict(o) for o in outcomes], "ms": times}
        RESULTS.joinpath("gpu.json").write_text(json.dumps(data, indent=1))
        RESULTS.joinpath("gpu.md").write_text(page)
    else:
        print("There is no GPU here: results were compared on the CPU and nothing was timed.")
    return 1 if any(o.status == "failed" for o in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
