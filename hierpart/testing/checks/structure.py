"""Checks of a partitioned module that need no run: C1, C3, C6, C7 and C11."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from hierpart.testing.contract import require
from hierpart.testing.oracle.observe import state_of
from hierpart.testing.oracle.record import Access, conflicts
from hierpart.testing.reading.blocks import (
    attribute,
    block_calls,
    branches,
    callable_nodes,
    is_size_work,
    placed,
)
from hierpart.testing.reading.snapshot import target_text

MAY_CROSS = (
    *(Tensor, int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool),
    torch.autocast,  # what leaves an autocast region that was entered in another block
)


def check_cover(gm: GraphModule, result: GraphModule, accesses: dict[str, Access]) -> None:
    """C1: every callable node runs exactly once.

    Exempt are sizes, which may be computed again, and ``getitem``, which also takes the outputs of
    blocks apart.
    """
    wanted, got = Counter[str](), Counter[str]()
    # Sequences are taken apart where they leave a block and made again outside of it; a size is
    # read where a block takes it in place of the tensor.
    made = (operator.getitem, torch.Size, torch.ops.aten.sym_size.int)
    again = {f"call_function {target_text(target)}" for target in made}
    for node in callable_nodes(gm):
        wanted[_kind(node)] += 1
        if is_size_work(node, accesses[node.name].value):
            again.add(_kind(node))
    for place in placed(result):
        got[_kind(place.node)] += 1
    for kind, count in wanted.items():
        enough = kind in again or got[kind] == count
        require(enough, "C1", f"{kind} runs {got[kind]} times instead of {count}")
    for kind in got:
        text = f"{kind} runs in the result and not in the input"
        require(kind in wanted or kind in again, "C1", text)


def check_nested_cover(gm: GraphModule, result: GraphModule) -> None:
    """C1 for branches: together the branches run the same ops, at every depth, but for sizes."""
    wanted, got = _branch_ops(gm), _branch_ops(result)
    for counted in (wanted, got):
        counted.pop(f"call_function {target_text(torch.ops.aten.sym_size.int)}", None)
    require(wanted == got, "C1", f"branches run {dict(got)} instead of {dict(wanted)}")


def _branch_ops(gm: GraphModule) -> Counter[str]:
    found = Counter[str]()
    holders = [gm, *(module for _, module in block_calls(gm))]
    for holder in holders:
        for node in callable_nodes(holder):
            for _, branch in branches(holder, node):
                found.update(_kind(place.node) for place in placed(branch))
                found.update(_branch_ops(branch))
    return found


def _kind(node: Node) -> str:
    return f"{node.op} {target_text(node.target)}"


def check_order(gm: GraphModule, result: GraphModule, accesses: dict[str, Access]) -> None:
    """C3: pairs of nodes that conflict keep their order. Nodes are matched by name and target."""
    originals = {node.name: node for node in callable_nodes(gm)}
    positions: dict[str, list[int]] = {}
    for position, place in enumerate(placed(result)):
        original = originals.get(place.node.name)
        if original is not None and _kind(original) == _kind(place.node):
            positions.setdefault(original.name, []).append(position)
    for pair in conflicts(gm, accesses):
        before, after = positions.get(pair.first), positions.get(pair.second)
        if before and after:
            kept = max(before) < min(after)
            require(kept, "C3", f"{pair.second} runs before {pair.first}: {pair.why}")


def check_blocks(gm: GraphModule, result: GraphModule) -> None:
    """C6 and C7 as far as they show in the graphs of the blocks."""
    result.graph.lint()
    for call, block in block_calls(result):
        block.graph.lint()
        kinds = [node.op for node in block.graph.nodes]
        inputs = kinds.count("placeholder")
        first = all(kind == "placeholder" for kind in kinds[:inputs])
        require(first, "C7", f"placeholders of {call.target} do not come first: {kinds}")
        output = next(node for node in block.graph.nodes if node.op == "output")
        flat = isinstance(output.args[0], tuple) and all(
            isinstance(value, Node) for value in output.args[0]
        )
        require(flat, "C6", f"{call.target} returns {output.args[0]}, not a flat tuple")
        for value in (*call.args, *call.kwargs.values()):
            alone = isinstance(value, Node)
            require(alone, "C6", f"{call.target} is called with {value!r}, which is not a value")


def check_crossings(gm: GraphModule, result: GraphModule, inputs: tuple[Any, ...]) -> None:
    """C6: run the parent and look at what goes in and out of each block.

    Without metadata nobody knows how many values a tuple holds; then a block may hand one to the
    parent's output.
    """
    known = any("val" in node.meta for node in gm.graph.nodes)
    _Border(result, known).run(*inputs)


class _Border(Interpreter):
    def __init__(self, module: GraphModule, known: bool) -> None:
        super().__init__(module)
        self.known = known

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_module" and isinstance(self.fetch_attr(str(n.target)), GraphModule):
            if self.known:
                for item in value if isinstance(value, (tuple, list)) else (value,):
                    _crosses(item, f"{n.target} gives out a {type(item).__name__}")
            for source in n.all_input_nodes:
                if source.op != "placeholder":
                    item = self.env[source]
                    _crosses(item, f"{n.target} takes {source.name}, a {type(item).__name__}")
        return value


def _crosses(item: Any, text: str) -> None:
    require(isinstance(item, MAY_CROSS), "C6", text)


def check_attributes(gm: GraphModule, result: GraphModule) -> None:
    """C7: tensors are the input's own, names are kept, nothing dangles, blocks train if it does."""
    originals = state_of(gm)
    known = {id(value): name for name, value in originals.items()}
    for name, value in state_of(result).items():
        require(id(value) in known, "C7", f"{name} of the result is not one of the input's tensors")
    holders = [result, *(module for _, module in block_calls(result))]
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.users:
            target = str(node.target)
            wanted = attribute(gm, target)
            if isinstance(wanted, Tensor):
                found = any(attribute(holder, target) is wanted for holder in holders)
                require(found, "C7", f"{target} is not to be had under its own name")
    _check_dangling(result)
    for holder in holders:
        text = f"a {type(holder).__name__} has training={holder.training}, the input {gm.training}"
        require(holder.training == gm.training, "C7", text)


def _check_dangling(result: GraphModule) -> None:
    for holder in (result, *(module for _, module in block_calls(result))):
        used = {str(n.target) for n in holder.graph.nodes if n.op in ("get_attr", "call_module")}
        own = {*holder._parameters, *holder._buffers, *holder._modules}
        for name in own:
            needed = any(target == name or target.startswith(f"{name}.") for target in used)
            require(needed, "C7", f"{type(holder).__name__} keeps {name}, which nothing uses")
