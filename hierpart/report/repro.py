"""One block as a file and a script that times it by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hierpart.backends import entry_point_backends
from hierpart.errors import HierpartError
from hierpart.graph import SYMBOLIC, hint, value_of
from hierpart.page import clip, counted
from hierpart.plan import Block

if TYPE_CHECKING:
    from hierpart.partition import Result

SCRIPT = '''\
"""{title}.

Written by hierpart {version}. Runs by itself: python {name}.py
"""

import statistics
import sys
import time
from pathlib import Path

import torch

BACKEND = {backend!r}
OPS = {ops!r}
CALLS = 30


def median_seconds(call):
    spent = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def distance(one, other):
    """Largest absolute difference over all tensors."""
    pairs = [(a, b) for a, b in zip(one, other) if isinstance(a, torch.Tensor) and a.numel()]
    return max(((a.double() - b.double()).abs().max().item() for a, b in pairs), default=0.0)


def by_hierpart(program):
    import hierpart

    module = hierpart.compile(
        program,
        backend_priority=[BACKEND],
        backend_support_map={{BACKEND: OPS}},
        min_block_size=1,
        fallback=False,
    )
    print(f"hierpart: {{module.report.summary()}}")
    return module


def main():
    program = torch.export.load(Path(__file__).with_name("{name}.pt2"))
    args, kwargs = program.example_inputs
    eager = program.module()
    ways = {{"eager": lambda: eager, "inductor": lambda: torch.compile(eager)}}
    if BACKEND:
        ways[f"hierpart, {{BACKEND}}"] = lambda: by_hierpart(program)
    failed = False
    with torch.no_grad():
        wanted = eager(*args, **kwargs)
        for name, make in ways.items():
            try:
                run = make()
                gap = distance(run(*args, **kwargs), wanted)
                spent = 1e3 * median_seconds(lambda: run(*args, **kwargs))
            except Exception as error:
                failed = True
                print(f"{{name:24}} failed: {{type(error).__name__}}: {{error}}")
                continue
            print(f"{{name:24}} {{spent:9.3f}} ms, largest difference from eager {{gap:.1e}}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
'''


def save_repro(result: Result, index: int, directory: Path) -> Path:
    """Write ``block_<index>.pt2`` and ``block_<index>.py``; see :class:`hierpart.report.Report`.

    Raises:
        HierpartError: There is no such block, or torch cannot export it.
    """
    from hierpart.version import __version__

    plan = result.plan
    if not 0 <= index < len(plan.blocks):
        raise HierpartError(f"there is no block {index}; the last one is {len(plan.blocks) - 1}")
    block = plan.blocks[index]
    child: Any = result.split().get_submodule(block.name)
    program = _exported(child, block)
    directory.mkdir(parents=True, exist_ok=True)
    name = f"block_{index}"
    torch.export.save(program, directory / f"{name}.pt2")
    nodes = counted(len(block.nodes), "node")
    text = SCRIPT.format(
        title=f"Block {index} ({block.backend}, {nodes}) in eager, by Inductor and by its backend",
        version=__version__,
        name=name,
        backend=block.backend if block.backend in entry_point_backends() else "",
        ops=sorted({plan.ops[node] for node in block.nodes}),
    )
    script = directory / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    return script


def _exported(child: GraphModule, block: Block) -> torch.export.ExportedProgram:
    """Return the block as a program with example inputs that are real."""
    generator = torch.Generator().manual_seed(0)
    placeholders = child.graph.find_nodes(op="placeholder")
    try:
        inputs = tuple(example(value_of(node), generator) for node in placeholders)
        with torch.no_grad():
            return torch.export.export(child, inputs, strict=False)
    except Exception as error:  # whatever torch's exporter or an operator makes of the block
        raise HierpartError(
            f"block {block.index} ({block.backend}) cannot be exported by itself: "
            f"{type(error).__name__}: {clip(str(error), 200)}"
        ) from error


def example(value: Any, generator: torch.Generator) -> Any:
    """Return a real value like a recorded one: the same sizes, dtype, layout and device.

    Floats are drawn at random; integers are zero, so that they are legal as indices.
    """
    if not isinstance(value, Tensor):
        return hint(value) if isinstance(value, SYMBOLIC) else value
    sizes = [hint(s) for s in value.shape]
    if value.is_floating_point() or value.is_complex():
        kind = torch.complex64 if value.is_complex() else torch.float32
        drawn = torch.randn(sizes, dtype=kind, generator=generator).to(value.dtype)
    else:
        drawn = torch.zeros(sizes, dtype=value.dtype)
    strides = [hint(s) for s in value.stride()]
    made = torch.empty_strided(sizes, strides, dtype=value.dtype)
    return made.copy_(drawn).to(value.device)
