"""What nodes carry from the input into the result: names and metadata (C11)."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.testing.contract import require
from hierpart.testing.oracle.record import Access
from hierpart.testing.reading.blocks import block_calls, callable_nodes, is_size_work, placed
from hierpart.testing.reading.snapshot import target_text

TRACES = ("stack_trace", "nn_module_stack")
_CROSSING = re.compile(r"_(item|size)_\d+(_\d+)?$")
KEPT = ("val", "tensor_meta", *TRACES)


def check_names(gm: GraphModule, result: GraphModule, accesses: Mapping[str, Access]) -> None:
    """C11: a node is called in the result what it is called in the input, unless that is taken.

    Sizes may be computed anywhere, and what takes a tuple apart may be left to the parent. Taken is
    what a splitter names ``<node>_item_<i>`` or ``<node>_size_<i>`` for what crosses.
    """
    kinds = {(place.node.name, _kind(place.node)) for place in placed(result)}
    for node in callable_nodes(gm):
        free = is_size_work(node, accesses[node.name].value) or node.target is operator.getitem
        taken = _CROSSING.search(node.name)
        kept = free or taken or (node.name, _kind(node)) in kinds
        require(kept, "C11", f"{node.name} has another name in the result")


def check_metadata(gm: GraphModule, result: GraphModule) -> None:
    """C11: nodes of blocks, placeholders, calls and getitems carry what the input's nodes did."""
    originals = {node.name: node for node in gm.graph.nodes}
    for place in placed(result):
        original = originals.get(place.node.name)
        if original is not None and _stands_for(place.node, original):
            _same_meta(original, place.node, place.block)
    for call, block in block_calls(result):
        inner = [node for node in block.graph.nodes if node.op == "placeholder"]
        for node, fed in zip(inner, call.args, strict=False):
            if isinstance(fed, Node):
                _carries(node, fed, f"{node.name}, an input of {call.target},")
        _check_returned(call, block)
    for holder in (result, *(block for _, block in block_calls(result))):
        for node, source, item in _made(holder, originals):
            _check_made(node, source, item)


def _kind(node: Node) -> str:
    return f"{node.op} {target_text(node.target)}"


def _stands_for(node: Node, original: Node) -> bool:
    """Whether ``node``, of the same name, is ``original`` or reads the size that it computes."""
    return _kind(node) == _kind(original) or node.target is torch.ops.aten.sym_size.int


def _same_meta(original: Node, node: Node, block: str) -> None:
    for key in KEPT:
        if key in original.meta:
            text = f"{key} of {original.name} in {block or 'the parent'} is lost"
            require(_is_same(node.meta.get(key), original.meta[key]), "C11", text)


def _carries(node: Node, source: Node, what: str) -> None:
    """``node`` stands for the value of ``source`` on the other side of a border."""
    for key in ("val", *TRACES):
        if key in source.meta:
            text = f"{what} has not the {key} of {source.name}"
            require(_is_same(node.meta.get(key), source.meta[key]), "C11", text)


def _check_returned(call: Node, block: GraphModule) -> None:
    """The call and what takes its value apart carry what the block's outputs do."""
    returned = next(n for n in block.graph.nodes if n.op == "output").args[0]
    if not isinstance(returned, tuple):
        return
    for user in call.users:
        index = user.args[1] if len(user.args) > 1 else None
        if isinstance(index, int) and isinstance(inside := returned[index], Node):
            _carries(user, inside, f"{user.name} in the parent")
    if all(isinstance(node, Node) and "val" in node.meta for node in returned):
        require("val" in call.meta, "C11", f"the call of {call.target} has no val")


def _made(holder: GraphModule, originals: Mapping[str, Node]) -> Iterator[tuple[Node, Node, int]]:
    """Yield what a splitter made to hand on an item or a size, with source and position."""
    for node in holder.graph.nodes:
        if node.target not in (operator.getitem, torch.ops.aten.sym_size.int):
            continue
        original = originals.get(node.name)
        own = original is not None and _stands_for(node, original)
        source, item = node.args
        if own or not isinstance(source, Node) or not isinstance(item, int):
            continue
        if source.op != "call_module":  # of blocks, see _check_returned
            yield node, source, item


def _check_made(node: Node, source: Node, item: int) -> None:
    value = source.meta.get("val")
    whole = value.shape if isinstance(value, torch.Tensor) else value
    if isinstance(whole, (tuple, list)):
        text = f"{node.name}, made from {source.name}, has not the val of its item"
        require(_is_same(node.meta.get("val"), whole[item]), "C11", text)
        for key in TRACES:
            if key in source.meta:
                text = f"{node.name}, made from {source.name}, has not its {key}"
                require(_is_same(node.meta.get(key), source.meta[key]), "C11", text)


def _is_same(mine: Any, theirs: Any) -> bool:
    if mine is theirs or type(mine) is not type(theirs):
        return mine is theirs
    if isinstance(mine, (tuple, list)):
        return len(mine) == len(theirs) and all(map(_is_same, mine, theirs))
    return not isinstance(mine, torch.Tensor) and bool(mine == theirs)
