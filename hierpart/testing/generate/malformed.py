"""Graphs that are not valid and options that are not legal, each from a seed.

A graph is made by one change to a small valid one, so that everything else about it is in order.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

Change = Callable[[GraphModule, random.Random], None]

CHANGES: dict[str, Change] = {}
"""The ways to break a graph, by name."""


def _change(name: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CHANGES[name] = change
        return change

    return register


def _calls(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.op.startswith("call_")]


def _some(gm: GraphModule, chance: random.Random) -> Node:
    return chance.choice(_calls(gm))


@_change("cycle")
def _cycle(gm: GraphModule, chance: random.Random) -> None:
    nodes = _calls(gm)
    first, second = sorted(chance.choices(range(len(nodes)), k=2))
    nodes[first].args = (nodes[second], *nodes[first].args[1:])


@_change("no output")
def _no_output(gm: GraphModule, chance: random.Random) -> None:
    gm.graph.erase_node(next(iter(reversed(gm.graph.nodes))))


@_change("two outputs")
def _two_outputs(gm: GraphModule, chance: random.Random) -> None:
    gm.graph.output(_some(gm, chance))


@_change("output in the middle")
def _early_output(gm: GraphModule, chance: random.Random) -> None:
    _some(gm, chance).append(next(iter(reversed(gm.graph.nodes))))


@_change("dangling attribute")
def _dangling(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    with gm.graph.inserting_before(node):
        path = chance.choice(("gone", "gone.weight", "", ".", "_modules", "training", "forward"))
        found = gm.graph.create_node("get_attr", path, (), {})
    node.args = (found, *node.args[1:])


@_change("called module that is none")
def _no_module(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    node.op = "call_module"
    node.target = chance.choice(("gone", "gone.layer", "", "training", "graph"))


@_change("placeholder after calls")
def _late_placeholder(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    with gm.graph.inserting_after(node):
        late = gm.graph.create_node("placeholder", "late", (), {}, name="late")
    for user in list(node.users):
        if user is not late and chance.random() < 0.5:
            user.replace_input_with(node, late)


@_change("unknown target")
def _unknown_target(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    op, target = chance.choice((
        ("call_method", "no_such_method"), ("call_method", ""), ("call_method", 3),
        ("call_function", "relu"), ("call_function", None), ("call_function", 3),
        ("call_function", _raises),
        ("call_function", torch.ops.aten), ("call_function", torch.ops.aten.add),
    ))  # fmt: skip
    node.op, node.target = op, target  # type: ignore[assignment]


def _raises(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("the graph's own function")


@_change("unknown opcode")
def _unknown_op(gm: GraphModule, chance: random.Random) -> None:
    _some(gm, chance).op = chance.choice(("call", "", "output", "root", "get_attr", "placeholder"))


@_change("wrong arguments")
def _wrong_arguments(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    node.args = chance.choice((
        (), (*node.args, 1, 2, 3), (None,), ("x",), ([[]],), ({"a": node.args},),
        (float("nan"),), node.args[::-1],
    ))  # fmt: skip
    if chance.random() < 0.3:
        node.kwargs = {"no_such_argument": 1}


@_change("node of another graph")
def _foreign(gm: GraphModule, chance: random.Random) -> None:
    node, other = _some(gm, chance), Graph()
    node._args = (other.placeholder("foreign"), *node.args[1:])
    node._input_nodes.clear()
    for value in node._args:
        if isinstance(value, Node):
            node._input_nodes[value] = None


@_change("two nodes of one name")
def _same_name(gm: GraphModule, chance: random.Random) -> None:
    nodes = _calls(gm)
    chance.choice(nodes).name = chance.choice(nodes).name


@_change("item that is not there")
def _no_item(gm: GraphModule, chance: random.Random) -> None:
    node = _some(gm, chance)
    with gm.graph.inserting_after(node):
        item = gm.graph.call_function(operator.getitem, (node, chance.choice((99, -99, "a", None))))
    output = next(iter(reversed(gm.graph.nodes)))
    output.args = ((output.args[0], item),)


@_change("wrong val")
def _wrong_value(gm: GraphModule, chance: random.Random) -> None:
    node = chance.choice(list(gm.graph.nodes))
    node.meta["val"] = chance.choice((
        None, 3, 2.5, "text", (), [None], (1, 2), torch.Size([2]), object(), torch.float32,
        torch.empty(7, dtype=torch.int8, device="meta"), torch.empty(0), [torch.empty(2), "x"],
    ))  # fmt: skip


@_change("stale val")
def _stale_value(gm: GraphModule, chance: random.Random) -> None:
    nodes = [node for node in gm.graph.nodes if "val" in node.meta]
    values = [node.meta["val"] for node in nodes]
    for node in chance.sample(nodes, min(3, len(nodes))):
        node.meta["val"] = chance.choice(values)


@_change("no val on some nodes")
def _some_values(gm: GraphModule, chance: random.Random) -> None:
    for node in gm.graph.nodes:
        if chance.random() < 0.5:
            node.meta.pop("val", None)


@_change("other metadata")
def _other_metadata(gm: GraphModule, chance: random.Random) -> None:
    key = chance.choice(("tensor_meta", "stack_trace", "nn_module_stack", "unbacked_bindings"))
    for node in gm.graph.nodes:
        if chance.random() < 0.5:
            node.meta[key] = chance.choice((None, 3, "text", {}, [], {"a": 1}, object()))


@_change("no graph module")
def _no_graph_module(gm: GraphModule, chance: random.Random) -> None:
    vars(gm)["hierpart_stand_in"] = chance.choice(
        (None, 3, torch.nn.Linear(2, 2), gm.graph, "model", print)
    )


def broken(gm: GraphModule, name: str, seed: int) -> Any:
    """Return a copy of ``gm`` with the change ``name``, or what stands there in its place."""
    made = copy.deepcopy(gm)
    CHANGES[name](made, random.Random(seed))
    return vars(made).pop("hierpart_stand_in", made)


# ---------------------------------------------------------------------- options

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2.5, float("nan"), "", "relu", "torch.ops.aten.relu.default", b"x", (),
    [], {}, set(), ["gone"], [None], [3], {"gone": 1}, {"other": -1}, {"other": None}, {3: 4},
    {"other": ["torch.ops.aten.no_such_op"]}, {"other": 3}, {"other": object()}, object(), print,
    lambda: None, lambda node: 1 / 0, ["other", "other"], ["a b"], ["eager"], ["other", "eager"],
    {"other": lambda node: True}, ["aten::relu"], [torch.relu], {"cond": "whole"}, {"cond": 3},
    {"no_such_op": "opaque"}, {"cond:gone": "opaque"}, 10**30, "cascade", ["other", None],
)  # fmt: skip
OPTIONS = (
    "backend_priority", "backend_support_map", "min_block_size", "torch_executed_ops",
    "require_full_compilation", "skip_fusion", "allowed_single_node_partition_ops", "demote",
    "exclude_nodes", "exclude_modules", "exclude", "control_flow",
)  # fmt: skip


def hostile_options(legal: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return ``legal`` with one or two options replaced by junk, or with one that is none."""
    chance, chosen = random.Random(seed), dict(legal)
    for _ in range(chance.randint(1, 2)):
        chosen[chance.choice(OPTIONS)] = chance.choice(JUNK)
    if chance.random() < 0.05:
        chosen["no_such_option"] = 1
    return chosen


# ---------------------------------------------------------------------- files


def damaged(data: bytes, seed: int) -> bytes:
    """Return the bytes of a file cut short, with bits flipped, zeroed, doubled or shuffled."""
    chance, changed = random.Random(seed), bytearray(data)
    kind, at = chance.randrange(5), chance.randrange(len(data))
    if kind == 0:
        return bytes(changed[:at])
    if kind == 1:
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 2:
        end = min(len(data), at + chance.randint(1, 200))
        changed[at:end] = bytes(end - at)
    elif kind == 3:
        return bytes(changed[:at] + changed[at : at + 100] + changed[at:])
    else:
        changed[at : at + 64] = chance.randbytes(len(changed[at : at + 64]))
    return bytes(changed)
