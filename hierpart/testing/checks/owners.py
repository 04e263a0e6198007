"""Who may own a node, by the options alone (C4): what a plan's verdicts and moves have to be.

Knows the options that :func:`hierpart.testing.options` draws, and shares no logic with the library.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hierpart.backends import entry_point_backends
from hierpart.plan import EAGER, Plan, Reason, Verdict
from hierpart.testing.contract import require
from hierpart.testing.oracle.record import Access, asks_for_type_only
from hierpart.testing.reading.blocks import branches, callable_nodes, is_size_work
from hierpart.testing.reading.flow import flow_name
from hierpart.testing.reading.snapshot import target_text

SPLIT = ("cond", "switch", "while_loop", "map_impl", "scan", "invoke_subgraph")
"""Ops whose branches are split where the op runs eagerly."""
OF_BACKENDS = (Reason.MUTATES, Reason.EFFECT, Reason.NON_TENSOR_BOUNDARY, Reason.RANK)
"""Why a registered backend's blocks cannot hold a node whose op is listed."""
KNOWN = (
    *("backend_priority", "backend_support_map", "min_block_size", "torch_executed_ops"),
    *("exclude_nodes", "demote", "skip_fusion", "control_flow"),
)


@dataclass(frozen=True)
class Asked:
    """What the caller asked for.

    Attributes:
        priority: The backends, best first.
        support: Ops of each backend, as targets, types of modules or names.
        least: Minimum block size of each backend.
        executed: Ops that run eagerly.
        excluded: Names of nodes that run eagerly.
        cascade: Whether a block that is too small goes to the next backend, not to eager.
        modes: Modes of higher-order ops, by op or by op and backend.
    """

    priority: tuple[str, ...]
    support: Mapping[str, Collection[Any]]
    least: Mapping[str, int]
    executed: Collection[Any]
    excluded: Collection[str]
    cascade: bool
    modes: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Asked | None:
        """Read ``options``; ``None`` where they say what is not known here."""
        priority = tuple(options.get("backend_priority") or ())
        support = options.get("backend_support_map") or {}
        executed = options.get("torch_executed_ops", ())
        plain = all(_is_plain(support.get(name)) for name in priority) and _is_plain(executed)
        if not priority or not plain or any(name not in KNOWN for name in options):
            return None
        least = options.get("min_block_size", 5)
        sizes = least if isinstance(least, Mapping) else dict.fromkeys(priority, least)
        if any(name not in sizes for name in priority):
            return None
        return cls(
            priority, support, sizes, executed, options.get("exclude_nodes", ()),
            options.get("demote", "cascade") == "cascade", options.get("control_flow", {}),
        )  # fmt: skip

    def mode(self, op: str, backend: str = "") -> str:
        """Return the mode of a higher-order op, for a backend or for all."""
        return self.modes.get(f"{op}:{backend}", self.modes.get(op, "auto"))

    def refusal(self, gm: GraphModule, node: Node, backend: str) -> Reason | None:
        """Return why a backend does not take a node, ``None`` if it does."""
        if node.name in self.excluded or _is_among(gm, node, self.executed):
            return Reason.EXCLUDED_BY_USER
        mode = self.mode(flow_name(node), backend) if flow_name(node) else "auto"
        if mode == "auto":
            return None if _is_among(gm, node, self.support[backend]) else Reason.NOT_LISTED
        takes = mode == "whole" or (
            mode == "whole_if_supported" and self._takes_branches(gm, node, backend)
        )
        return None if takes else Reason.CONTROL_FLOW

    def _takes_branches(self, gm: GraphModule, node: Node, backend: str) -> bool:
        """Whether a backend takes every op in the branches of an op, at every depth."""
        return all(
            inner.target is operator.getitem
            or (
                self.refusal(branch, inner, backend) is None
                and self._takes_branches(branch, inner, backend)
            )
            for _, branch in branches(gm, node)
            for inner in callable_nodes(branch)
        )


def _is_plain(ops: Any) -> bool:
    """Whether ``ops`` are ops, or names that can only be written one way."""
    if not isinstance(ops, (list, tuple, set, frozenset)):
        return False
    names = [op for op in ops if isinstance(op, str)]
    return all(name.startswith("torch.ops.") or name.isidentifier() for name in names)


def _is_among(gm: GraphModule, node: Node, ops: Collection[Any]) -> bool:
    target: Any = node.target
    if node.op == "call_module":
        target = type(gm.get_submodule(str(target)))
    known = [target]
    if isinstance(target, torch._ops.OpOverload):
        name = target_text(target)
        known += [target.overloadpacket, name, name.rpartition(".")[0]]
    return any(name in ops for name in known)


def check_owners(asked: Asked, plan: Plan, gm: GraphModule, accesses: Mapping[str, Access]) -> None:
    """C4: verdicts, moves and the branches that are planned are those that were asked for.

    Args:
        asked: What was asked for.
        plan: The plan of ``gm``; the plans of its branches are for another call.
        gm: The module that was planned.
        accesses: What its nodes were seen to do.

    Raises:
        ContractViolation: They are not.
    """
    wanted = (*asked.priority, EAGER)
    require(plan.priority == wanted, "C4", f"the priority is {plan.priority}, not {wanted}")
    sizes = dict(plan.min_block_size)
    text = f"the plan's minimum sizes are {sizes}, not {dict(asked.least)}"
    require(all(sizes.get(b) == asked.least[b] for b in asked.priority), "C5", text)
    block_of = {name: block.nodes for block in plan.blocks for name in block.nodes}
    for node in callable_nodes(gm):
        verdicts = plan.verdicts[node.name]
        named = tuple(verdict.backend for verdict in verdicts)
        require(named == asked.priority, "C4", f"{node.name} has verdicts of {named}")
        for verdict in verdicts if not _goes_along(node, accesses) else ():
            refusal = asked.refusal(gm, node, verdict.backend)
            mates = [plan.verdicts[name] for name in block_of[node.name] if name != node.name]
            _check_verdict(node.name, verdict, refusal, mates)
        owner = plan.owner[node.name]
        takes = owner == EAGER or any(v.supported for v in verdicts if v.backend == owner)
        require(takes, "C4", f"{node.name} is owned by {owner}, which refuses it")
    _check_moves(asked, plan)
    _check_planned_branches(asked, plan, gm)


def _goes_along(node: Node, accesses: Mapping[str, Access]) -> bool:
    """Whether a node goes where another one is, listed or not.

    Work on sizes goes to its readers, what takes a tuple apart to the op that makes it, and an
    assertion on a dtype, device or layout to the value that it is about.
    """
    if is_size_work(node, accesses[node.name].value):
        return True
    if node.target in (operator.getitem, getattr):
        source = node.args[0]
        return isinstance(source, Node) and not isinstance(accesses[source.name].value, Tensor)
    return asks_for_type_only(node.target, node.args, node.kwargs)


def _check_verdict(
    name: str, verdict: Verdict, refusal: Reason | None, mates: Collection[Collection[Verdict]]
) -> None:
    if refusal is not None:
        right = not verdict.supported and verdict.reason is refusal
        require(right, "C4", f"{name} has the verdict '{verdict}': it is {refusal.value}")
    elif not verdict.supported:
        registered = verdict.backend in entry_point_backends()
        why = OF_BACKENDS if registered else (Reason.EFFECT,)
        refused = any(
            v.backend == verdict.backend and not v.supported and v.reason is not Reason.UNIT
            for mate in mates
            for v in mate
        )
        right = verdict.reason in why or (verdict.reason is Reason.UNIT and refused)
        require(right, "C4", f"{name} has the verdict '{verdict}': it was asked to take it")


def _check_moves(asked: Asked, plan: Plan) -> None:
    """A block that is too small goes to the next backend, other work anywhere below."""
    for move in (move for step in plan.steps for move in step.moves):
        for name in move.nodes:
            takes = [v.backend for v in plan.verdicts[name] if v.supported]
            known = move.source in takes
            require(known, "C4", f"{name} is moved from {move.source}, which does not take it")
            below = (*takes[takes.index(move.source) + 1 :], EAGER)
            if move.reason is Reason.TOO_SMALL:
                below = below[:1] if asked.cascade else (EAGER,)
            text = f"{name} is moved from {move.source} to {move.target}: {move.reason.value}"
            require(move.target in below, "C4", f"{text}; it could go to {', '.join(below)}")


def _check_planned_branches(asked: Asked, plan: Plan, gm: GraphModule) -> None:
    """The branches of an op are planned if it runs eagerly and is not to be left as it is."""
    planned = [(nested.node, nested.branch) for nested in plan.nested]
    for node in callable_nodes(gm):
        op = flow_name(node)
        if op not in SPLIT:
            continue
        wanted = plan.owner[node.name] == EAGER and asked.mode(op) != "opaque"
        for target, _ in branches(gm, node):
            text = f"{node.name} of {plan.owner[node.name]}, mode {asked.mode(op)}: {target} is"
            found = (node.name, target) in planned
            require(found or not wanted, "C4", f"{text} not planned")
            require(wanted or not found, "C4", f"{text} planned")
