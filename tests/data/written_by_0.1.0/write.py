"""Writes the files beside it; run with hierpart 0.1.0, torch 2.14.1 and torch-tensorrt-rtx 2.14.0.

    python write.py FOLDER

Stack traces are taken out of the graphs first, for they hold the paths of the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim
from torch.fx import GraphModule

import hierpart


class Wide(nn.Module):
    """State of every kind, branches, tuples, sizes, a mapping as argument."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.tied = nn.Linear(2, 2)
        self.also = self.tied
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)

    def forward(self, x, extra):
        y = self.norm(x)
        top, _ = y.topk(2, dim=1)
        _, right = torch.split(y, 2, 1)
        z = torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + torch.ones(1), (y,))
        out = self.also(self.tied(y))
        return {"top": top, "z": z, "right": right}, out, y.shape[0], self.scale + extra["add"]


class Dynamic(nn.Module):
    """A mean over a batch of any size from 2 to 64."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).relu().sum(1) / x.shape[0]


def write(folder, name, model, args, dynamic_shapes=None, **options):
    program = torch.export.export(model.eval(), args, dynamic_shapes=dynamic_shapes)
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    hierpart.compile(program, args, **options).save(folder / f"{name}.hierpart")
    torch.save((args, model(*args)), folder / f"{name}.pt")


def main(folder):
    torch.manual_seed(0)
    wide = (torch.randn(4, 4, 2, 2), {"add": torch.randn(3)})
    write(folder, "wide_inductor", Wide(), wide, backend_priority=["inductor"])
    write(
        folder, "dynamic_inductor", Dynamic(), (torch.randn(6, 4),),
        ({0: Dim("n", min=2, max=64)},), backend_priority=["inductor"], min_block_size=1,
    )  # fmt: skip
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    write(
        folder, "engine", network, (torch.randn(3, 4),), backend_priority=["tensorrt"],
        min_block_size=1, options={"tensorrt": {"target": "sm_89"}},
    )  # fmt: skip


main(Path(sys.argv[1]))
