"""Options for a partitioner, made by any source of choices."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.testing.generate.choice import Choice
from hierpart.testing.reading.blocks import branches, callable_nodes
from hierpart.testing.reading.snapshot import target_text

BACKENDS = ("tensorrt", "inductor", "third")
"""Names of backends; what each one supports is drawn, so none of them has to be there."""


def ops_of(gm: GraphModule) -> list[Any]:
    """Return the targets of ``gm``, for submodules their types, each once, in graph order."""
    found: dict[Any, None] = {}
    for node in callable_nodes(gm):
        target = node.target
        if node.op == "call_module":
            target = type(gm.get_submodule(str(target)))
        found[target] = None
        for _, branch in branches(gm, node):
            found.update(dict.fromkeys(ops_of(branch)))
    return list(found)


def names_in(gm: GraphModule) -> list[str]:
    """Return the names of the callable nodes of ``gm`` and its branches, each once."""
    found: dict[str, None] = {}
    for node in callable_nodes(gm):
        found[node.name] = None
        for _, branch in branches(gm, node):
            found.update(dict.fromkeys(names_in(branch)))
    return list(found)


def choose_priority(choice: Choice, backends: Sequence[str] = BACKENDS) -> list[str]:
    """Return some of ``backends``, at least one, in any order."""
    left, order = list(backends), []
    for _ in range(choice.number(1, len(left))):
        order.append(choice.pick(left))
        left.remove(order[-1])
    return order


def choose_support(
    choice: Choice, gm: GraphModule, backends: Sequence[str] = BACKENDS
) -> dict[str, list[Any]]:
    """Return for each backend a part of the ops of ``gm``, as targets or by name.

    Which part hangs on the ops' names and one drawn number, not on their positions, so that a
    backend keeps what it supports while the graph shrinks.
    """
    ops = ops_of(gm)
    support: dict[str, list[Any]] = {}
    for backend in backends:
        named, salt = choice.flag(), choice.number(0, 255)
        share = choice.pick((4, 6, 2, 8))
        support[backend] = [_shown(op, named) for op in ops if _eighth(op, salt) < share]
    return support


def _eighth(op: Any, salt: int) -> int:
    return zlib.crc32(f"{target_text(op)} {salt}".encode()) % 8


def choose_options(choice: Choice, gm: GraphModule) -> dict[str, Any]:
    """Return keyword arguments for ``hierarchical_adjacency_partition`` on ``gm``."""
    priority = choose_priority(choice)
    ops = ops_of(gm)
    options: dict[str, Any] = {
        "backend_priority": priority,
        "backend_support_map": choose_support(choice, gm, priority),
        "min_block_size": choice.pick((1, 0, 2, 3, 5)),
    }
    if choice.flag() and ops:
        # Owners that differ from node to node give a planner the most reason to reorder.
        salt, share = choice.number(0, 255), choice.pick((4, 2, 6))
        options["exclude_nodes"] = [n for n in names_in(gm) if _eighth(n, salt) < share]
        options["backend_support_map"][priority[0]] = ops
        options["min_block_size"] = choice.pick((1, 1, 0, 2))
    if choice.number(0, 3) == 3:
        options["min_block_size"] = {name: choice.pick((1, 0, 2, 5)) for name in priority}
    if choice.number(0, 3) == 3 and ops:
        options["torch_executed_ops"] = [choice.pick(ops)]
    if choice.number(0, 3) == 3:
        options["demote"] = choice.pick(("cascade", "eager"))
    if choice.number(0, 3) == 3:
        options["skip_fusion"] = True
    if flows := [op.__name__ for op in ops if isinstance(op, torch._ops.HigherOrderOperator)]:
        options["control_flow"] = _modes(choice, flows, priority)
    return options


def scattered(gm: GraphModule, options: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return ``options`` with owners that differ from node to node, in another pattern each time.

    The first backend takes every op but some nodes by name, so that two owners alternate.
    """
    first = options["backend_priority"][0]
    share, every = (4, 2, 6)[number % 3], names_in(gm)
    return {
        **options,
        "backend_priority": [first],
        "backend_support_map": {first: ops_of(gm)},
        "exclude_nodes": [name for name in every if _eighth(name, number) < share],
        "min_block_size": 1,
        "control_flow": {},
    }


def _modes(choice: Choice, flows: Sequence[str], priority: Sequence[str]) -> dict[str, str]:
    """Return a mode for some of the ops, for all backends or for one."""
    modes = {}
    for name in flows:
        mode = choice.pick(("auto", "recurse", "whole_if_supported", "whole", "opaque"))
        key = f"{name}:{choice.pick(priority)}" if choice.flag() else name
        if mode != "auto":
            modes[key] = mode
    return modes


def _shown(op: Any, named: bool) -> Any:
    return target_text(op) if named and isinstance(op, torch._ops.OpOverload) else op
