"""Checks of a plan against the graph that it was made for: C1 to C7 as far as a plan shows."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hierpart.plan import EAGER, Attribute, Plan
from hierpart.testing.contract import require
from hierpart.testing.generate.graphs import inputs_for
from hierpart.testing.oracle.record import OBSERVABLE, Access, conflicts, record
from hierpart.testing.reading.blocks import branches, callable_nodes, is_size_work

ASSERTS = OBSERVABLE - {builtins.print}
PLAN_RULES = ("C1", "C2", "C3", "C4", "C5", "C6", "C7")


def check_plan(
    plan: Plan,
    gm: GraphModule,
    inputs: Sequence[Any] | None = None,
    rules: Collection[str] = PLAN_RULES,
    accesses: dict[str, Access] | None = None,
) -> None:
    """Check a plan against the graph that it was made for.

    Args:
        plan: The plan.
        gm: The module that was planned. A copy of it runs once, to see what its nodes do.
        inputs: One value per placeholder; by default made from the placeholders' metadata.
        rules: The rules to judge, by number.
        accesses: What the nodes were seen to do, where that is known already.

    Raises:
        ContractViolation: The plan breaks a rule.
        ValueError: ``inputs`` is not given and the placeholders have no metadata.
    """
    if accesses is None:
        accesses = record(gm, inputs_for(gm) if inputs is None else inputs)
    judges: dict[str, Callable[[Plan, GraphModule, dict[str, Access]], None]] = {
        "C1": _cover,
        "C2": _data_order,
        "C3": _effect_order,
        "C4": _owners,
        "C5": _sizes,
        "C6": _boundary,
        "C7": _attributes,
    }
    for rule in PLAN_RULES:
        if rule in rules:
            judges[rule](plan, gm, accesses)


# ---------------------------------------------------------------------- C1: every node once


def _cover(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    wanted = [node.name for node in callable_nodes(gm)]
    places = {name: position for position, name in enumerate(wanted)}
    seen: dict[str, int] = {}
    for position, block in enumerate(plan.blocks):
        require(block.index == position, "C1", f"block {position} has the index {block.index}")
        require(block.nodes, "C1", f"block {position} is empty")
        for name in block.nodes:
            require(name in places, "C1", f"block {position} names {name}, which is not a node")
            require(name not in seen, "C1", f"{name} is in blocks {seen.get(name)} and {position}")
            seen[name] = position
        ordered = sorted(block.nodes, key=places.__getitem__)
        require(list(block.nodes) == ordered, "C1", f"block {position} is not in graph order")
    missing = [name for name in wanted if name not in seen]
    require(not missing, "C1", f"in no block: {missing}")
    _listed(plan, gm, seen)


def _listed(plan: Plan, gm: GraphModule, block_of: dict[str, int]) -> None:
    listed = {attribute.name: attribute for attribute in plan.attributes}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            found = listed.get(node.name)
            require(found is not None, "C1", f"get_attr {node.name} is not listed")
            if isinstance(found, Attribute):
                users = sorted(
                    {block_of[user.name] for user in node.users if user.name in block_of}
                )
                text = f"get_attr {node.name} is used by blocks {users}, not {found.blocks}"
                require(list(found.blocks) == users, "C1", text)
    for nested in plan.nested:
        holder = next(n for n in gm.graph.nodes if n.name == nested.node)
        branch = dict(branches(gm, holder)).get(nested.branch)
        require(branch is not None, "C1", f"{nested.branch} is no branch of {nested.node}")
        if branch is not None:
            inner = [node.name for node in callable_nodes(branch)]
            planned = sorted(name for block in nested.plan.blocks for name in block.nodes)
            require(planned == sorted(inner), "C1", f"branch {nested.branch} is not covered")


# ---------------------------------------------------------------------- C2, C3: order


def _places(plan: Plan) -> dict[str, tuple[int, int]]:
    return {
        name: (block.index, position)
        for block in plan.blocks
        for position, name in enumerate(block.nodes)
    }


def _data_order(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    places = _places(plan)
    for node in callable_nodes(gm):
        for source in node.all_input_nodes:
            # What only computes with sizes may be computed again where it is read.
            if source.name in places and not is_size_work(source, accesses[source.name].value):
                kept = places[source.name] < places[node.name]
                require(kept, "C2", f"{node.name} is planned before {source.name}, which it reads")


def _effect_order(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    places = _places(plan)
    for pair in conflicts(gm, accesses):
        kept = places[pair.first] < places[pair.second]
        require(kept, "C3", f"{pair.second} is planned before {pair.first}: {pair.why}")


# ---------------------------------------------------------------------- C4: owners


def _owners(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    moves = [move for step in plan.steps for move in step.moves]
    for block in plan.blocks:
        for name in block.nodes:
            owner = plan.owner[name]
            require(
                owner == block.backend, "C4", f"{name} of {owner} is in a {block.backend} block"
            )
            verdicts = plan.verdicts[name]
            for verdict in verdicts:
                said_why = verdict.supported or verdict.reason is not None
                require(said_why, "C4", f"{verdict.backend} refuses {name} without a reason")
            at = next((verdict.backend for verdict in verdicts if verdict.supported), EAGER)
            for move in moves:
                if name in move.nodes:
                    text = f"{name} is moved from {move.source}, but was at {at}"
                    require(move.source == at, "C4", text)
                    at = move.target
            require(at == owner, "C4", f"{name} is owned by {owner}; verdicts and moves say {at}")


# ---------------------------------------------------------------------- C5: sizes


def _sizes(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    nodes = {node.name: node for node in callable_nodes(gm)}
    exempt = _all_supported(plan, gm, accesses)
    known = any("val" in node.meta for node in nodes.values())  # else a number may be anything
    for block in plan.blocks:
        counted = sum(_compute_ops(gm, nodes[name], accesses) for name in block.nodes)
        text = (
            f"block {block.index} counts {counted} compute ops, the plan says {block.compute_ops}"
        )
        require(counted == block.compute_ops or not known, "C5", text)
        least = plan.min_block_size.get(block.backend, 0) if block.backend != EAGER else 0
        text = f"block {block.index} of {block.backend} has {counted} compute ops, under {least}"
        require(exempt or max(counted, block.compute_ops) >= least, "C5", text)


def _all_supported(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> bool:
    """Return whether some backend says yes to every compute op: no minimum applies then.

    Without metadata nobody knows what the branches of an op count, so it is left out.
    """
    return all(
        any(verdict.supported for verdict in plan.verdicts[node.name])
        for node in callable_nodes(gm)
        if _compute_ops(gm, node, accesses) and _is_known(gm, node)
    )


def _is_known(gm: GraphModule, node: Node) -> bool:
    inside = [inner for _, branch in branches(gm, node) for inner in callable_nodes(branch)]
    return not inside or any("val" in inner.meta for inner in inside)


def _compute_ops(gm: GraphModule, node: Node, accesses: dict[str, Access]) -> int:
    inside = [
        (branch, inner) for _, branch in branches(gm, node) for inner in callable_nodes(branch)
    ]
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return sum(_inner_ops(branch, inner) for branch, inner in inside)
    if node.target is operator.getitem and not _indexes_tensor(node, accesses):
        return 0
    if node.target in ASSERTS:
        return 0
    return 0 if is_size_work(node, accesses[node.name].value) else 1


def _inner_ops(gm: GraphModule, node: Node) -> int:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return sum(
            _inner_ops(branch, inner)
            for _, branch in branches(gm, node)
            for inner in callable_nodes(branch)
        )
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return int(isinstance(node.args[0].meta.get("val"), Tensor))
    return 0 if node.target in ASSERTS or is_size_work(node, node.meta.get("val")) else 1


def _indexes_tensor(node: Node, accesses: dict[str, Access]) -> bool:
    source = node.args[0]
    return isinstance(source, Node) and isinstance(accesses[source.name].value, Tensor)


# ---------------------------------------------------------------------- C6, C7: the border


def _boundary(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    given = {node.name for node in gm.graph.nodes if node.op == "placeholder"}
    # Without metadata nobody knows what a value is; then only what another block reads is judged.
    known = any("val" in node.meta for node in gm.graph.nodes)
    for block in plan.blocks:
        for name in (*block.inputs, *(block.outputs if known else ())):
            if name in accesses and name not in given:
                value = accesses[name].value
                crosses = not isinstance(value, (tuple, list, torch.nn.Module, type(None)))
                text = f"{name}, a {type(value).__name__}, crosses block {block.index}"
                require(crosses, "C6", text)
    _values_named(plan, gm, accesses)


def _values_named(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    """Every tensor that a block reads from elsewhere has to be among its inputs.

    Where only its sizes are read, these may come in its place.
    """
    nodes = {node.name: node for node in gm.graph.nodes}
    for block in plan.blocks:
        for name in block.nodes:
            if is_size_work(nodes[name], accesses[name].value):
                continue
            for source in nodes[name].all_input_nodes:
                tensor = isinstance(accesses[source.name].value, Tensor)
                if source.op != "get_attr" and tensor and source.name not in block.nodes:
                    text = f"block {block.index} reads {source.name} and does not take it in"
                    require(source.name in block.inputs, "C6", text)


def _attributes(plan: Plan, gm: GraphModule, accesses: dict[str, Access]) -> None:
    for attribute in plan.attributes:
        node = next((n for n in gm.graph.nodes if n.name == attribute.name), None)
        known = node is not None and node.op == "get_attr" and str(node.target) == attribute.target
        require(known, "C7", f"{attribute.name} is not the get_attr of {attribute.target}")
