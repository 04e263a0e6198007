"""The plan, put together from what the steps found."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierpart.graph import Facts, names_of
from hierpart.options import Options
from hierpart.partition.clustering.merging import Solution
from hierpart.partition.owners.assignment import Assignment
from hierpart.partition.splitting.parent_module import block_names
from hierpart.partition.splitting.wiring import BlockWiring
from hierpart.plan import EAGER, Attribute, Block, Nested, Plan, Step


def assemble(
    facts: Facts,
    options: Options,
    assignment: Assignment,
    solution: Solution,
    block_of: Sequence[int],
    wiring: Sequence[BlockWiring],
    steps: tuple[Step, ...],
    nested: tuple[Nested[Plan], ...],
) -> Plan:
    """Return the plan; every argument is what the step of that name returned."""
    names = block_names([w.backend for w in wiring], facts.module)
    blocks = tuple(
        Block(
            index=b,
            backend=w.backend,
            nodes=tuple(facts.nodes[i].name for i in w.members),
            compute_ops=sum(facts.compute[i] for i in w.members),
            inputs=tuple(p.name for p in w.inputs),
            outputs=tuple(p.name for p in w.outputs),
            name=names[b],
        )
        for b, w in enumerate(wiring)
    )
    return Plan(
        blocks=blocks,
        owner={n.name: wiring[block_of[i]].backend for i, n in enumerate(facts.nodes)},
        ops={n.name: names_of(n, facts.resolve)[0] for n in facts.nodes},
        verdicts={n.name: assignment.verdicts[i] for i, n in enumerate(facts.nodes)},
        attributes=_attributes(facts, block_of),
        priority=(*options.backend_priority, EAGER),
        min_block_size={b: options.size_of(b) for b in options.backend_priority},
        lower_bound=solution.clustering.lower_bound,
        proved=solution.clustering.proved and len(blocks) == solution.clustering.lower_bound,
        boundary_bytes=solution.placement.boundary_bytes,
        peak_bytes=solution.placement.peak_bytes,
        original_peak_bytes=solution.original_peak,
        steps=steps,
        nested=nested,
    )


def _attributes(facts: Facts, block_of: Sequence[int]) -> tuple[Attribute, ...]:
    found = []
    for node in facts.module.graph.nodes:
        if node.op != "get_attr":
            continue
        users = [u for u in node.users if u in facts.index]
        blocks = tuple(sorted({block_of[facts.index[u]] for u in users}))
        in_parent = node.name in facts.written_attributes or len(users) < len(node.users)
        kind = attribute_kind(facts, str(node.target))
        found.append(Attribute(node.name, str(node.target), kind, blocks, in_parent))
    return tuple(found)


def attribute_kind(facts: Facts, target: str) -> str:
    """Return what an attribute is: parameter, buffer, constant, module, treespec or object."""
    value = facts.resolve(target)
    if isinstance(value, torch.nn.Parameter):
        return "parameter"
    if isinstance(value, torch.Tensor):
        path, _, name = target.rpartition(".")
        owner = facts.module.get_submodule(path)
        return "buffer" if name in getattr(owner, "_buffers", {}) else "constant"
    if isinstance(value, torch.nn.Module):
        return "module"
    return "treespec" if isinstance(value, torch.utils._pytree.TreeSpec) else "object"


def is_accelerated(plan: Plan) -> bool:
    """Whether some block of the plan, branches included, is not eager."""
    return any(b.backend != EAGER for b in plan.blocks) or any(
        is_accelerated(n.plan) for n in plan.nested
    )
