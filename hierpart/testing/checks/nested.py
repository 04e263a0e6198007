"""Which branch of a partition was made from which branch of its input, at every level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hierpart.plan import EAGER, Plan
from hierpart.testing.contract import require
from hierpart.testing.oracle.record import Access
from hierpart.testing.reading.blocks import block_calls, branches, callable_nodes
from hierpart.testing.reading.flow import branch_operands, flow_name


@dataclass(frozen=True)
class Pair:
    """A branch, what became of it, and what it is called with.

    Attributes:
        where: The ops and branches that lead to it, in words.
        branch: The branch of the input.
        result: The branch of the result; the same object where it was not split.
        operands: Values to call it with.
        plan: The branch's plan, where it has one.
    """

    where: str
    branch: GraphModule
    result: GraphModule
    operands: tuple[Any, ...]
    plan: Plan | None


@dataclass
class Seen:
    """The pairs that were checked, and for each branch of the input its forms in the result."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    forms: dict[int, dict[int, str]] = field(default_factory=dict)


def branch_pairs(
    gm: GraphModule,
    result: GraphModule,
    accesses: Mapping[str, Access],
    plan: Plan | None,
    seen: Seen,
    where: str = "",
) -> Iterator[Pair]:
    """Yield the pairs of one level that were not seen before.

    Args:
        gm: The module that was partitioned.
        result: What became of it.
        accesses: What its nodes were seen to do, with their values.
        plan: Its plan, if it has one.
        seen: What other levels have seen; filled in.
        where: What leads to this level.

    Raises:
        ContractViolation: An op is lost, or a branch that ops share is no longer one module (C7).
    """
    places = {n.name: (h, n) for h in _holders(result) for n in callable_nodes(h)}
    split = _split_branches(gm, plan)
    for node in callable_nodes(gm):
        originals = list(branches(gm, node))
        if not originals:
            continue
        holder, found = places.get(node.name, (result, None))
        kept = found is not None and found.target is node.target
        require(kept, "C1", f"{where}{node.name} is not in the result")
        assert found is not None
        mine = list(branches(holder, found))
        text = f"{where}{node.name} has {len(mine)} branches instead of {len(originals)}"
        require(len(mine) == len(originals), "C7", text)
        operands = _operands(node, accesses)
        for (target, branch), (_, new) in zip(originals, mine, strict=True):
            path = f"{where}{node.name}/{target}: "
            _same_form(seen, branch, new, path)
            nested = _nested(plan, node, target)
            if plan is not None:
                _put_in(branch, new, nested, path, id(branch) in split)
            key = (id(branch), id(new))
            if operands is None or key in seen.pairs or (new is branch and nested is None):
                continue
            seen.pairs.add(key)
            yield Pair(path, branch, new, operands, nested)


def _holders(result: GraphModule) -> list[GraphModule]:
    return [result, *(block for _, block in block_calls(result))]


def _nested(plan: Plan | None, node: Node, target: str) -> Plan | None:
    entries = plan.nested if plan is not None else ()
    return next((n.plan for n in entries if n.node == node.name and n.branch == target), None)


def _split_branches(gm: GraphModule, plan: Plan | None) -> set[int]:
    """Return the ``id`` of each branch that some op of ``gm`` has split."""
    every = ((n, target, branch) for n in callable_nodes(gm) for target, branch in branches(gm, n))
    plans = ((branch, _nested(plan, node, target)) for node, target, branch in every)
    return {id(branch) for branch, nested in plans if nested and _is_accelerated(nested)}


def _put_in(
    branch: GraphModule, new: GraphModule, nested: Plan | None, where: str, split: bool
) -> None:
    """A branch with work for some backend is in the result as it was planned, any other as it was.

    One that the caller's own module holds stays as it is, since that module is shared. One that ops
    share is split for all of them in a block if it is for one (``split``).
    """
    if nested is not None and _is_accelerated(nested):
        text = f"{where}is planned for other backends than eager and is not split"
        require(new is not branch or "." in where.rpartition("/")[2], "C4", text)
        if new is not branch:
            text = f"{where}is not split by its plan"
            require(new.meta.get("hierpart") == nested, "C4", text)
    else:
        text = f"{where}has no work for a backend and is another module"
        require(new is branch or split, "C7", text)


def _is_accelerated(plan: Plan) -> bool:
    return any(block.backend != EAGER for block in plan.blocks) or any(
        _is_accelerated(nested.plan) for nested in plan.nested
    )


def _operands(node: Node, accesses: Mapping[str, Access]) -> tuple[Any, ...] | None:
    args = map_arg(node.args, lambda n: accesses[n.name].value)
    operands: Sequence[Any] | None = branch_operands(flow_name(node), args)
    if operands is None:
        return None
    return tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in operands)


def _same_form(seen: Seen, branch: GraphModule, new: GraphModule, where: str) -> None:
    """A branch is in the result as it was, or split, and then every op has the same split one."""
    if new is branch:
        return
    forms = seen.forms.setdefault(id(branch), {})
    forms.setdefault(id(new), where.removesuffix(": "))
    text = f"one branch became several modules, at {' and '.join(forms.values())}"
    require(len(forms) == 1, "C7", text)
