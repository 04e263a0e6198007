"""The forms of control flow, each the smallest model that has it, with every call that matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

try:
    from torch._higher_order_ops.switch import switch as torch_switch
except ImportError:  # before torch 2.14
    torch_switch = None

ROWS = (3, 5)
"""The sizes that every form is called with; the first one is captured."""
YES, NO = torch.tensor(True), torch.tensor(False)


class Torch:
    """Control flow as higher-order ops."""

    cond, switch, while_loop = torch.cond, torch_switch, torch_while_loop
    scan, map, region = torch_scan, torch_map, torch.compiler.nested_compile_region


class Plain:
    """The same in plain Python: what the ops have to equal."""

    @staticmethod
    def cond(test: Any, yes: Any, no: Any, operands: Any) -> Any:
        return (yes if test else no)(*operands)

    @staticmethod
    def switch(index: Any, branches: Any, operands: Any) -> Any:
        return branches[int(index)](*operands)

    @staticmethod
    def while_loop(test: Any, body: Any, carried: Any) -> Any:
        while test(*carried):
            carried = body(*carried)
        return carried

    @staticmethod
    def scan(step: Any, carry: Any, rows: Any) -> Any:
        results = []
        for row in rows:
            carry, result = step(carry, row)
            results.append(result)
        return carry, torch.stack(results)

    @staticmethod
    def map(body: Any, rows: Any, *more: Any) -> Any:
        return torch.stack([body(row, *more) for row in rows])

    @staticmethod
    def region(function: Any) -> Any:
        return function


class Function(nn.Module):
    """A module around a function, as ``torch.export`` wants one."""

    def __init__(self, function: Callable[..., Any], flow: type) -> None:
        super().__init__()
        self.function, self.flow = function, flow

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.flow, *args)


def matrix(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Form:
    """A form of control flow.

    Attributes:
        op: Name of the higher-order op.
        make: Makes the model, of the ops or in plain Python.
        choices: The first arguments of each call: predicates, indices, starts.
    """

    op: str
    make: Callable[[type], nn.Module]
    choices: tuple[tuple[Tensor, ...], ...] = field(default=((),))

    def model(self, flow: type = Torch) -> nn.Module:
        return self.make(flow)

    def calls(self) -> list[tuple[Tensor, ...]]:
        """Return the arguments of every call; no two are one object, or capture would join them."""
        return [
            (*(c.clone() for c in choice), matrix(rows)) for rows in ROWS for choice in self.choices
        ]


def _cond(flow: Any, p: Tensor, x: Tensor) -> Tensor:
    return flow.cond(p, lambda a: a.sin(), lambda a: a.cos(), (x,))


def _nested(flow: Any, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    def yes(q: Tensor, a: Tensor) -> Tensor:
        return flow.cond(q, lambda b: b.sin(), lambda b: b.cos(), (a,))

    return flow.cond(p, yes, lambda q, a: a * 2, (q, x))


class Weights(nn.Module):
    """Each branch closes over another weight."""

    def __init__(self, flow: type) -> None:
        super().__init__()
        self.flow: Any = flow
        self.left, self.right = (nn.Parameter(matrix(1, seed)[0]) for seed in (1, 2))

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        return self.flow.cond(p, lambda a: a * self.left, lambda a: a.sin() + self.right, (x,))


def _literal(flow: Any, p: Tensor, x: Tensor) -> Tensor:
    return flow.cond(p, lambda a: a * torch.tensor([2.0, 3.0]), lambda a: a.cos(), (x,))


def _without_operands(flow: Any, p: Tensor, x: Tensor) -> Tensor:
    return flow.cond(p, lambda: torch.ones(2), lambda: torch.full((2,), 3.0), ()) * x


def _unequal(flow: Any, p: Tensor, x: Tensor) -> Tensor:
    return flow.cond(p, lambda a: a[:1].sin(), lambda a: a[:2].cos(), (x,)) * 2


def _switch(count: int) -> Callable[..., Tensor]:
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda a: a.sin(), lambda a: a.cos(), lambda a: a * 2, lambda a: a + 1, lambda a: a.exp()
    ]  # fmt: skip
    chosen = functions[:count]
    return lambda flow, i, x: flow.switch(i, chosen, (x,))


def _loop(flow: Any, start: Tensor, x: Tensor) -> Tensor:
    return flow.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v.sin()), (start, x))[1]


def _scan(flow: Any, x: Tensor) -> Tensor:
    last, rows = flow.scan(lambda c, row: (c + row, (c * row).sin()), torch.ones(2), x)
    return last + rows


def _map(flow: Any, x: Tensor) -> Tensor:
    return flow.map(lambda row, scale: row.sin() * scale, x, torch.full((2,), 3.0))


def _shared(flow: Any) -> nn.Module:
    layer = flow.region(lambda a: a.sin() + 1)
    return Function(lambda flow, x: layer(layer(x) * 2), flow)


def _mutated(flow: Any, p: Tensor, x: Tensor) -> Tensor:
    y = x.clone()

    def yes(a: Tensor) -> Tensor:
        a.add_(1)
        return a.sin()

    return flow.cond(p, yes, lambda a: a.cos(), (y,)) + y


def _no_grad(flow: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s = x.sin()
    return s * x


def _autocast(flow: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.T).relu()


def _of(function: Callable[..., Any]) -> Callable[[type], nn.Module]:
    return lambda flow: Function(function, flow)


BOTH = ((YES,), (NO,))
STARTS = tuple((torch.tensor(start),) for start in (4, 3, 0))  # 0, 1 and 4 trips


def _indices(count: int) -> tuple[tuple[Tensor], ...]:
    return tuple((torch.tensor(i),) for i in range(count))


FORMS: dict[str, Form] = {
    "cond": Form("cond", _of(_cond), BOTH),
    "nested cond": Form("cond", _of(_nested), tuple((p, q) for p in (YES, NO) for q in (YES, NO))),
    "cond with weights": Form("cond", Weights, BOTH),
    "cond with literal": Form("cond", _of(_literal), BOTH),
    "cond without operands": Form("cond", _of(_without_operands), BOTH),
    "cond of unequal sizes": Form("cond", _of(_unequal), BOTH),
    "switch of 1": Form("switch", _of(_switch(1)), _indices(1)),
    "switch of 2": Form("switch", _of(_switch(2)), _indices(2)),
    "switch of 5": Form("switch", _of(_switch(5)), _indices(5)),
    "while_loop": Form("while_loop", _of(_loop), STARTS),
    "scan": Form("scan", _of(_scan)),
    "map": Form("map_impl", _of(_map)),
    "invoke_subgraph shared": Form("invoke_subgraph", _shared),
    "mutated cond": Form("cond", _of(_mutated), BOTH),
    "no_grad region": Form("wrap_with_set_grad_enabled", _of(_no_grad)),
    "autocast region": Form("wrap_with_autocast", _of(_autocast)),
}
