"""Whether a result is what its plan says: blocks, their nodes, what they take and give."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch.fx import GraphModule, Node

from hierpart.plan import Block, Plan
from hierpart.testing.contract import require
from hierpart.testing.oracle.record import Access
from hierpart.testing.reading.blocks import block_calls, callable_nodes, is_size_work


def check_planned(
    plan: Plan, gm: GraphModule, result: GraphModule, accesses: Mapping[str, Access]
) -> None:
    """C1, C6, C9: blocks are those of the plan, and take their inputs in order of first use.

    Args:
        plan: The plan.
        gm: The module that was planned.
        result: What became of it.
        accesses: What the nodes of ``gm`` were seen to do.

    Raises:
        ContractViolation: They are not.
    """
    calls = block_calls(result)
    called, wanted = [str(call.target) for call, _ in calls], [b.name for b in plan.blocks]
    require(called == wanted, "C1", f"the result calls {called}, the plan has {wanted}")
    nodes = {node.name: node for node in callable_nodes(gm)}
    fixed = {
        name
        for name, node in nodes.items()
        if not is_size_work(node, accesses[name].value) and node.target is not operator.getitem
    }
    for block, (_, module) in zip(plan.blocks, calls, strict=True):
        run = [node.name for node in callable_nodes(module) if node.name in fixed]
        wanted = [name for name in block.nodes if name in fixed]
        require(run == wanted, "C1", f"{block.name} runs {run}, the plan says {wanted}")
        given = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        text = f"{block.name} takes {given}, the plan says {list(block.inputs)}"
        require(given == list(block.inputs), "C6", text)
        returned = next(n for n in module.graph.nodes if n.op == "output").args[0]
        text = f"{block.name} returns {returned}, the plan says {list(block.outputs)}"
        require(len(returned) == len(block.outputs), "C6", text)
        _first_use(block, nodes, fixed)


def _first_use(block: Block, nodes: Mapping[str, Node], fixed: set[str]) -> None:
    """Inputs that no work on sizes reads come in the order in which the block's nodes read them."""
    used: dict[str, None] = {}
    for name in block.nodes:
        for source in nodes[name].all_input_nodes:
            if source.name in block.inputs and all(u.name in fixed for u in source.users):
                used[source.name] = None
    given = [name for name in block.inputs if name in used]
    text = f"{block.name} takes {given}, which it uses in the order {list(used)}"
    require(given == list(used), "C9", text)
