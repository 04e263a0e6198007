"""Seeded workloads: graphs that say nothing but what they are, of any size, with their op maps.

Every graph is an aten ``GraphModule`` with a fake tensor of its own as ``meta["val"]`` on each
node, as ``torch.export`` leaves it. The timing graphs are never run; their values are vectors of
``WIDTH`` floats. Three owners share the ops: see ``SUPPORT``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten
WIDTH = 16
SIZES = (1_000, 5_000, 20_000, 100_000)

UNARY = (aten.relu.default, aten.sin.default, aten.neg.default)
BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor)
LISTED = 240
"""Ops that each backend lists: the size of torch_tensorrt's own table of converters."""


def _support() -> dict[str, set[str]]:
    """Return the op map of the timing graphs: owner 0 TensorRT, 1 Inductor, 2 in no list.

    Besides its ops of the graphs each backend lists others that exist, as real tables do.
    """
    used = {f"torch.ops.{op}" for op in (*UNARY, *BINARY)}
    names = sorted(
        f"torch.ops.aten.{name.removeprefix('aten::')}.default"
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and "." not in name and not name.endswith("_out")
    )
    others = [n for n in names if n not in used]
    step = len(others) // (LISTED - 2)
    return {
        backend: {f"torch.ops.{UNARY[owner]}", f"torch.ops.{BINARY[owner]}"}
        | set(others[owner::step][: LISTED - 2])
        for owner, backend in enumerate(("tensorrt", "inductor"))
    }


SUPPORT = _support()


class _Builder:
    """Adds nodes with fake values to a graph."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode()

    def value(self) -> FakeTensor:
        meta = torch.empty(WIDTH, device="meta")
        return FakeTensor(self.mode, meta, torch.device("cpu"))

    def input(self, name: str) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = self.value()
        return node

    def op(self, target: Callable[..., Any], *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = self.value()
        return node

    def module(self, outputs: Sequence[Node]) -> GraphModule:
        self.graph.output(tuple(outputs))
        return GraphModule(torch.nn.Module(), self.graph)


def chain(n: int) -> GraphModule:
    """One chain of ``n`` unary ops, the owner changing after every eighth.

    x -> relu x8 -> sin x8 -> neg x8 -> relu x8 -> ...    (n / 8 blocks, whatever is done)
    """
    build = _Builder()
    at = build.input("x")
    for i in range(n):
        at = build.op(UNARY[i // 8 % 3], at)
    return build.module([at])


def wide(n: int, window: int = 256, seed: int = 0) -> GraphModule:
    """``n`` ops of random owners; each reads one or two of the ``window`` values before it.

    Many independent ops of each owner are ready at any time, so an order that takes them as they
    come makes a block of nearly every node, and few blocks suffice.
    """
    rng = random.Random(seed)
    build = _Builder()
    recent = [build.input("x")]
    for _ in range(n):
        owner = rng.randrange(3)
        reads = [rng.choice(recent) for _ in range(rng.randint(1, 2))]
        recent.append(build.op((UNARY if len(reads) == 1 else BINARY)[owner], *reads))
        recent = recent[-window:]
    return build.module(_unread(build.graph))


def residual(n: int) -> GraphModule:
    """A chain of residual units of eight ops, each unit's inside of another owner than its add.

    x -> (seven unary ops of one owner, the owner changing from unit to unit) -> + x -> ...
    """
    build = _Builder()
    at, ops, unit = build.input("x"), 0, 0
    while ops < n:
        inside = at
        for _ in range(min(7, n - ops)):
            inside = build.op(UNARY[(unit + 1) % 3], inside)
            ops += 1
        if ops < n:
            at = build.op(BINARY[unit % 3], at, inside)
            ops += 1
        else:
            at = inside
        unit += 1
    return build.module([at])


WORKLOADS: dict[str, Callable[[int], GraphModule]] = {
    "chain": chain,
    "wide": wide,
    "residual": residual,
}


def _unread(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if not n.users]


@dataclass(frozen=True)
class MutationCase:
    """One graph with writes, views and random ops, arguments for it, and a support map."""

    gm: GraphModule
    args: tuple[torch.Tensor, ...]
    support: dict[str, set[str]]


PURE = (
    aten.relu.default,
    aten.sin.default,
    aten.neg.default,
    aten.clone.default,
    aten.cumsum.default,
)
VIEWS = {aten.slice.Tensor: (0, 0, 2), aten.select.int: (0, 0), aten.t.default: ()}
WRITES = (aten.fill_.Scalar, aten.add_.Scalar, aten.mul_.Scalar, aten.relu_.default)
DRAWS = (aten.rand_like.default, aten.bernoulli.p)


def mutation_case(seed: int, ops: int = 14) -> MutationCase:
    """A random 4x4 graph of ``ops`` ops with in-place writes to intermediates, inputs and views.

    Each op reads one or two earlier values. About a quarter are in-place, a fifth are views, a
    tenth draw from the random stream. All values that nothing reads are outputs, and each distinct
    op goes to one of three owners at random.
    """
    rng = random.Random(seed)
    build = _Builder()
    values = [build.input("x"), build.input("y")]
    rank = {values[0]: 2, values[1]: 2}
    for _ in range(ops):
        at = rng.choice(values[-6:])
        node = _mutation_op(rng, build, at, rank, values)
        rank.setdefault(node, rank[at])
        values.append(node)
    gm = build.module(_unread(build.graph))
    generator = torch.Generator().manual_seed(seed)
    args = tuple(torch.randn(4, 4, generator=generator) for _ in range(2))
    _propagate(gm, args)
    return MutationCase(gm, args, _random_map(rng, gm))


def _mutation_op(
    rng: random.Random, build: _Builder, at: Node, rank: dict[Node, int], values: list[Node]
) -> Node:
    kind = rng.random()
    if kind < 0.25:
        target = rng.choice(WRITES)
        return build.op(target, at, *([] if target is aten.relu_.default else [rng.randint(2, 5)]))
    if kind < 0.45 and rank[at] == 2:
        target = rng.choice(list(VIEWS))
        node = build.op(target, at, *VIEWS[target])
        rank[node] = 1 if target is aten.select.int else 2
        return node
    if kind < 0.55:
        target = rng.choice(DRAWS)
        return build.op(target, at, *((0.5,) if target is aten.bernoulli.p else ()))
    if kind < 0.75:
        other = rng.choice(values[-6:])
        return build.op(aten.add.Tensor, at, build.op(aten.sum.default, other))
    target = rng.choice(PURE)
    return build.op(target, at, *((0,) if target is aten.cumsum.default else ()))


def _propagate(gm: GraphModule, args: tuple[torch.Tensor, ...]) -> None:
    """Write true fake values, views and their shared storage included, into ``meta``."""
    mode = FakeTensorMode()

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n.op != "output":
                n.meta["val"] = value
            return value

    with mode:
        Recorder(gm).run(*(mode.from_tensor(a) for a in args))


def _random_map(rng: random.Random, gm: GraphModule) -> dict[str, set[str]]:
    support: dict[str, set[str]] = {"tensorrt": set(), "inductor": set()}
    for name in sorted(
        {f"torch.ops.{n.target}" for n in gm.graph.nodes if n.op == "call_function"}
    ):
        owner = rng.choice(("tensorrt", "inductor", "eager"))
        if owner != "eager":
            support[owner].add(name)
    return support


MUTATIONS = 200
"""How many mutation cases the set has: seeds from 0."""
