"""What the original of a partition does in a number of calls, and the comparison with it (C8)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from hierpart.testing.contract import ContractViolation, require
from hierpart.testing.oracle.observe import Run, Shot, observe, shot_of, state_of
from hierpart.testing.reading.blocks import argument_names


class Expected:
    """What the original does in a number of calls, to compare with."""

    def __init__(self, reference: GraphModule, calls: Sequence[Sequence[Any]]) -> None:
        original = copy.deepcopy(reference)
        state = state_of(original)
        self.signature, self.names = _signature(original), argument_names(original)
        self.calls = [copy.deepcopy(tuple(call)) for call in calls]
        self.attributes = list(state)
        self.runs = [
            observe(Interpreter(original).run, copy.deepcopy(call), {}, state, seed=number)
            for number, call in enumerate(self.calls)
        ]

    def check(self, result: GraphModule, state: Mapping[str, Any]) -> None:
        """Make the same calls on ``result`` and raise on the first difference (C8)."""
        given = _signature(result)
        text = f"the arguments are {given} instead of {self.signature}"
        require(given == self.signature, "C8", text)
        names = argument_names(result)
        text = f"a call takes {names} instead of {self.names}"
        require(names == self.names, "C8", text)
        shared = {name: state[name] for name in self.attributes}
        got = []
        for number, wanted in enumerate(self.runs):
            args, kwargs = self._arguments(number)
            got.append(observe(result, args, kwargs, shared, seed=number))
            contract, text = wanted.differs(got[-1])
            if contract:
                raise ContractViolation(contract, f"call {number}: {text}")
        _check_later(self.runs, got)

    def _arguments(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = copy.deepcopy(self.calls[number])
        if number == 1:
            return (), dict(zip(self.names, values, strict=True))
        return values, {}


def check_moved(
    reference: GraphModule, result: GraphModule, calls: Sequence[Sequence[Any]]
) -> None:
    """C8: both still give the same once their attributes were moved, as ``.to(device)`` does it.

    Each tensor is replaced by another one wherever a module holds it, so that what two modules held
    together is two tensors afterwards. Only copies are moved.

    Args:
        reference: The original.
        result: The partitioned module.
        calls: Arguments of the calls to compare.

    Raises:
        ContractViolation: They differ.
    """
    original, moved = copy.deepcopy(reference), copy.deepcopy(result)
    for module in (original, moved):
        module._apply(torch.clone)  # type: ignore[no-untyped-call]
    state = state_of(original)
    known = state_of(moved)
    held = {name: known[name] for name in state if name in known}
    for number, call in enumerate(calls):
        wanted = observe(
            Interpreter(original).run, copy.deepcopy(tuple(call)), {}, state, seed=number
        )
        got = observe(moved, copy.deepcopy(tuple(call)), {}, held, seed=number)
        # What is only read may be held by several blocks, so what shares storages is another thing.
        mine = {name: shot for name, shot in wanted.state.items() if name in held}
        contract, text = replace(wanted, state=mine, aliases=got.aliases).differs(got)
        if contract:
            text = f"call {number} after the attributes were moved: {text}"
            raise ContractViolation(contract, text)


def _signature(gm: GraphModule) -> list[tuple[str, tuple[Any, ...]]]:
    """Return names and defaults of the placeholders."""
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    return [(str(node.target), node.args) for node in placeholders]


def _check_later(wanted: Sequence[Run], got: Sequence[Run]) -> None:
    """Results of earlier calls must not have changed where those of the original did not."""
    for number, (mine, theirs) in enumerate(zip(wanted, got, strict=True)):
        for position, (a, b) in enumerate(zip(mine.live, theirs.live, strict=True)):
            was, now = shot_of(a), shot_of(b)
            if isinstance(was, Shot) and was.differs(now):
                detail = f"output {position} of call {number} after all calls: {was.differs(now)}"
                raise ContractViolation("C8", detail)
