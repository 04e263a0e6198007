"""Control flow as the kit knows it: the ops that this torch runs, what their branches are given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def branch_operands(name: str, args: Sequence[Any]) -> list[Any] | None:
    """Return what every branch of an op is called with, or ``None`` for an op not known here.

    Args:
        name: The op's name; see :func:`flow_name`.
        args: Its arguments as values; branches may be anything.
    """
    if name == "cond":
        return list(args[3])
    if name == "switch":
        return list(args[2])
    if name == "while_loop":
        return [*args[2], *args[3]]
    if name == "map_impl":
        return [*(rows.select(0, 0) for rows in args[1]), *args[2]]
    if name == "scan":
        return [*args[1], *(rows.select(0, 0) for rows in args[2]), *args[3]]
    return list(args[2:]) if name == "invoke_subgraph" else None


def flow_name(node: Node) -> str:
    """Return the name of a higher-order op, or an empty string."""
    target = node.target
    return target.__name__ if isinstance(target, torch._ops.HigherOrderOperator) else ""


@functools.cache
def runs(name: str) -> bool:
    """Whether this torch runs the op in eager and on fake tensors with symbolic sizes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    op = getattr(torch.ops.higher_order, name, None)
    if op is None:
        return False
    try:
        _try(op, name, torch.ones(3, 2))
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        with mode:
            _try(op, name, mode.from_tensor(torch.ones(3, 2)))
    except Exception:  # whatever an op raises that is not ready on this torch
        return False
    return True


def _try(op: Any, name: str, x: Tensor) -> None:
    row = aten.clone.default(x.select(0, 0))
    one = aten.full.default([], 1, dtype=torch.int64)
    body, flag = _graph(1, lambda g, a: (_sin(g, a),)), aten.any.default(x)
    test = _graph(2, lambda g, i, a: g.call_function(aten.lt.Scalar, (i, 2)))
    step = _graph(2, lambda g, i, a: (_add(g, i, 1), _sin(g, a)))
    combine = _graph(2, lambda g, c, a: [_add(g, c, a), _add(g, c, a)])
    calls: dict[str, Callable[[], Any]] = {
        "cond": lambda: op(flag, body, body, (x,)),
        "switch": lambda: op(one, [body, body], (x,)),
        "while_loop": lambda: op(test, step, (one, x), ()),
        "map_impl": lambda: op(body, [x], []),
        "scan": lambda: op(combine, [row], [x], []),
        "invoke_subgraph": lambda: op(body, "probe", x),
    }
    calls[name]()


def _graph(inputs: int, build: Callable[..., Any]) -> GraphModule:
    graph = Graph()
    graph.output(build(graph, *(graph.placeholder(f"arg{i}") for i in range(inputs))))
    return GraphModule({}, graph)


def _sin(graph: Graph, x: Node) -> Node:
    return graph.call_function(aten.sin.default, (x,))


def _add(graph: Graph, x: Node, y: Any) -> Node:
    op = aten.add.Tensor if isinstance(y, Node) else aten.add.Scalar
    return graph.call_function(op, (x, y))
