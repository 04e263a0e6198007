"""Compile time and memory of a model of repeated layers, each measurement in a new process.

The model is a transformer whose softmax and GELU run eagerly, so that each layer has two blocks.
It is exported first: that is ``torch.export``'s time, cold or warm. Caches of Inductor's are
in a folder of their own: empty, or filled by the process before. What Inductor does once a folder,
before it compiles anything (asking the compiler for vector instructions), is timed by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn

way, layers, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)

class Layer(nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

model = nn.Sequential(*(Layer() for _ in range(layers))).eval()
x = torch.randn(2, 32, 128)
import torch._inductor.compile_fx, torch._inductor.standalone_compile, torch.export
import hierpart, hierpart.build.block_builder as builder
from hierpart.build import compile_model
with torch.no_grad():
    graph = torch.export.export(model, (x,), strict=False).run_decompositions().module()
    small = torch.export.export(nn.ReLU(), (x,), strict=False).run_decompositions().module()
if way == "each block":
    # No two blocks are equal, and Inductor's caches, which would find them so, are off.
    import dataclasses, itertools
    serial, same = itertools.count(), builder.canonical
    builder.canonical = lambda b: dataclasses.replace(same(b), key=str(next(serial)))
    torch._inductor.config.force_disable_caches = True
before = peak()
start = time.perf_counter()
with torch.no_grad():
    hierpart.compile(small, backend_priority=["inductor"], min_block_size=1)
told = {"start": time.perf_counter() - start}
start = time.perf_counter()
with torch.no_grad():
    if way == "torch.compile":
        compiled = torch.compile(model)
        compiled(x)
    else:
        compiled = hierpart.compile(
            graph, backend_priority=["inductor"], min_block_size=1,
            torch_executed_ops=["torch.ops.aten.gelu", "torch.ops.aten._softmax"],
            options={"compile_workers": workers},
        )
        outcomes = compiled.report.outcomes
        told |= {
            "blocks": sum(o.planned == "inductor" for o in outcomes),
            "distinct": sum(o.status == "compiled" for o in outcomes),
        }
    seconds = time.perf_counter() - start
    result = compiled(x)
    gap = float((result - model(x)).abs().max())
told |= {"seconds": seconds, "gap": gap, "peak": peak(), "grown": peak() - before}
print(json.dumps(told))
"""


def run(way: str, layers: int, folder: str, workers: int = 1) -> dict[str, Any]:
    """Compile in a new process and return what it measured."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, str(layers), str(workers)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(layers: int) -> dict[str, Any]:
    """Compile the model in every way and return plain data."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as root:
        folders = {
            name: str(Path(root) / name) for name in ("warm-up", "one", "two", "three", "four")
        }
        run("sharing", 1, folders["warm-up"])  # file caches of the system; thrown away
        rows["sharing"] = run("sharing", layers, folders["one"])
        rows["sharing, warm cache"] = run("sharing", layers, folders["one"])
        rows["sharing, all cores"] = run("sharing", layers, folders["two"], os.cpu_count() or 1)
        rows["torch.compile"] = run("torch.compile", layers, folders["three"])
        rows["each block"] = run("each block", layers, folders["four"])
    return {"layers": layers, "cores": os.cpu_count(), "rows": rows}


def markdown(data: dict[str, Any]) -> str:
    """Return the tables of one measurement."""
    rows = data["rows"]
    lines = [
        f"A transformer of {data['layers']} layers with other weights in each, {data['cores']} "
        "cores. Wall seconds of what Inductor does once, before the first block, and of the "
        "compile call on the exported model; the peak of resident memory, compile and run.",
        "",
        "| way | Inductor's start | compile | blocks | distinct | peak MiB | from eager |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['start']:.1f} | {row['seconds']:.2f} | {row.get('blocks', '')} | "
            f"{row.get('distinct', '')} | {row['peak'] / 2**20:.0f} | {row['gap']:.1e} |"
        )
    first, warm = rows["sharing"], rows["sharing, warm cache"]
    ratios = {
        "compile to compiling each block": first["seconds"] / rows["each block"]["seconds"],
        "compile to compiling each block, start included": _whole(first)
        / _whole(rows["each block"]),
        "compile in a second process to the first": warm["seconds"] / first["seconds"],
        "compile in a second process to the first, start included": _whole(warm) / _whole(first),
        "compile on all cores to on one": rows["sharing, all cores"]["seconds"] / first["seconds"],
        "peak memory to torch.compile's": first["peak"] / rows["torch.compile"]["peak"],
        "memory grown to torch.compile's": first["grown"] / rows["torch.compile"]["grown"],
    }
    lines += ["", "| ratio | |", "|---|---|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in ratios.items()]
    return "\n".join(lines) + "\n"


def _whole(row: dict[str, Any]) -> float:
    """Return the seconds of a process: Inductor's start and the compile call."""
    return float(row["start"] + row["seconds"])
