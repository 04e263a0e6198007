"""What the TensorRT tests share: nodes to ask about, networks, and why the tests are skipped."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

import hierpart
from hierpart.backends.tensorrt import TensorRTBackend, library

TARGET = {"target": "sm_89"}
WHY_NOT = library.problem() or (None if library.is_rtx() else "torch-tensorrt-rtx is not installed")
needs_rtx = pytest.mark.skipif(WHY_NOT is not None, reason=f"no engines here: {WHY_NOT}")


def backend(**options: Any) -> TensorRTBackend:
    """Return the backend for a target, with further options."""
    return TensorRTBackend().configured({**TARGET, **options})


def node_of(target, *args, uses=(0,), **kwargs) -> Node:
    """Return a node with fake inputs for the tensors in its arguments and its value recorded.

    Args:
        target: An operator.
        args: Its arguments, with real tensors.
        uses: Which items of a tuple-valued result are read.
        kwargs: Its keyword arguments.
    """
    mode, graph = FakeTensorMode(), Graph()
    env: dict[int, Node] = {}

    def placeholder(value):
        if id(value) in env:
            return env[id(value)]
        node = graph.placeholder(f"x{len(env)}")
        node.meta["val"] = mode.from_tensor(value)
        env[id(value)] = node
        return node

    nodes = pytree.tree_map_only(torch.Tensor, placeholder, (args, kwargs))
    fakes = pytree.tree_map_only(Node, lambda n: n.meta["val"], nodes)
    with mode:
        value = target(*fakes[0], **fakes[1])
    made = graph.create_node("call_function", target, *nodes)
    made.meta["val"] = value
    outputs = [made]
    if isinstance(value, (tuple, list)):
        outputs = []
        for i in uses:
            outputs.append(graph.call_function(operator.getitem, (made, i)))
            outputs[-1].meta["val"] = value[i]
    graph.output(tuple(outputs))
    GraphModule({}, graph)
    return made


class Tokens(nn.Module):
    """A dynamic batch of int64 indices with bool masks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.scale = nn.Linear(16, 16)

    def forward(self, ids, mask):
        h = self.scale(self.embed(ids))
        h = torch.where(mask.unsqueeze(-1), h, torch.zeros_like(h))
        known = mask & (ids > 3)
        return h.softmax(-1), (ids + 1).argmax(1), known, h.topk(3, dim=-1), h.flatten(1)


def compiled(model, args, *, options=None, priority=("tensorrt",), **kwargs):
    """Compile for the target with no minimum size."""
    return hierpart.compile(
        model, args, backend_priority=list(priority), min_block_size=1,
        options={"tensorrt": {**TARGET, **(options or {})}}, **kwargs,
    )  # fmt: skip


def engines_of(module):
    """Return the engines in a compiled module, in block order."""
    return [kept.made.engine for kept in module._origin.kept.values()]


def programs_of(module, *args):
    """Return what is the same for eager and compiled: all results of a call."""
    with torch.no_grad():
        return module(*args)
