"""A split made again from a plan, without asking any backend."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from hierpart.backends import Backend, entry_point_backends, get_backend
from hierpart.errors import PlanError
from hierpart.graph import Facts, Known, analyse
from hierpart.partition.plan_assembly import is_accelerated
from hierpart.partition.splitting.parent_module import split_graph
from hierpart.partition.splitting.wiring import takes_symbols, wire
from hierpart.partition.verification import verify
from hierpart.plan import EAGER, Plan


def replay(module: GraphModule, plan: Plan) -> GraphModule:
    """Return the split module that ``plan`` describes.

    Args:
        module: A graph with the nodes that were planned; not changed.
        plan: Its plan.

    Raises:
        PlanError: The plan is not one of this graph.
    """
    return _replay(module, plan, Known(), {})


def _replay(
    module: GraphModule, plan: Plan, known: Known, done: dict[int, GraphModule]
) -> GraphModule:
    facts = analyse(module, known)
    block_of = _blocks(facts, plan)
    backends = [block.backend for block in plan.blocks]
    wiring = wire(
        facts, block_of, backends, _takes_scalars, lambda b: takes_symbols(_registered(b))
    )
    verify(plan, facts)
    by_name = {node.name: i for node, i in zip(facts.nodes, block_of, strict=True)}
    bodies = {
        (facts.nodes[i].name, str(source.target)): body
        for i, branches in facts.branches.items()
        for source, body in branches
    }
    split: dict[int, dict[str, GraphModule]] = {}
    for entry in plan.nested:
        body = bodies.get((entry.node, entry.branch))
        if body is None:
            raise PlanError(f"the plan names branch {entry.branch} of {entry.node}: not there")
        if id(body) not in done:
            done[id(body)] = _replay(body, entry.plan, known, done)
        if is_accelerated(entry.plan):
            split.setdefault(by_name[entry.node], {})[entry.branch] = done[id(body)]
    return split_graph(facts, wiring, plan, split)


def _blocks(facts: Facts, plan: Plan) -> Sequence[int]:
    block_of = plan.block_of()
    names = [node.name for node in facts.nodes]
    if set(names) != set(block_of) or len(names) != len(block_of):
        other = sorted(set(names) ^ set(block_of))[:5]
        raise PlanError(f"the plan is one of another graph; they differ in {', '.join(other)}")
    return [block_of[name] for name in names]


def _takes_scalars(name: str) -> bool:
    backend = _registered(name)
    return backend is None or backend.takes_scalars


def _registered(name: str) -> Backend | None:
    known = name != EAGER and name in entry_point_backends()
    return get_backend(name) if known else None
