"""The demonstration: one small network, split three ways, compiled, checked and timed.

Nothing is printed here: :func:`demo` is handed a function that says a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hierpart.cli.compare import Check, compare
from hierpart.demo import build

TENSORRT_OPS = tuple(
    f"torch.ops.aten.{name}"
    for name in (
        "conv2d.default",
        "_native_batch_norm_legit_no_training.default",
        "relu.default",
        "gelu.default",
        "linear.default",
        "matmul.default",
        "layer_norm.default",
        "add.Tensor",
        "sub.Tensor",
        "mul.Tensor",
        "mean.dim",
        "view.default",
        "_unsafe_view.default",
        "transpose.int",
        "split.Tensor",
        "clone.default",
    )
)
"""What the demonstration lets ``"tensorrt"`` take: softmax, sum and division are left out."""

EAGER_OPS = ("torch.ops.aten.topk.default",)
"""What the demonstration keeps in eager, as a user might."""

MINIMUM = {"tensorrt": 4, "inductor": 1}


def demo(say: Callable[[str], None]) -> Check:
    """Plan, compile, check and time the network, saying each result as it comes to be.

    Args:
        say: Called with text of one or more lines.
    """
    import hierpart

    model, args = build()
    settings: Mapping[str, Any] = {
        "backend_priority": ["tensorrt", "inductor"],
        "backend_support_map": {"tensorrt": TENSORRT_OPS},
        "min_block_size": MINIMUM,
        "torch_executed_ops": EAGER_OPS,
    }
    threads = torch.get_num_threads()
    say(f"A small vision network on the CPU, torch {torch.__version__}, {threads} threads.\n")
    say("1. The plan (hierpart.explain), nothing compiled yet\n")
    say(f"{hierpart.explain(model, args, **settings)}\n")
    say("2. Compiling (hierpart.compile); a block that a backend cannot build goes to the next\n")
    compiled = hierpart.compile(model, args, **settings)
    say(f"{compiled.report.compiled_text()}\n")
    say("3. Against eager, outputs and buffers of three calls\n")
    check = compare(model, compiled, args)
    say(str(check))
    return check
