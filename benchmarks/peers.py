"""Adapters that give every splitter one signature: ``split(gm, support) -> GraphModule``.

``gm`` has to be the caller's to spend: most peers write tags on it and drop dead nodes. Where a
peer has a notion of a minimum block size it is set to 1, and torch_tensorrt's search for fusion
groups is off (``skip_fusion=True``), which makes it about twice as fast.
"""

from __future__ import annotations

import functools
import importlib
import logging
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends.tensorrt.library import library
from hierpart.errors import BackendUnavailableError

Support = Mapping[str, set[str]]
Splitter = Callable[[GraphModule, Support], GraphModule]

PRIORITY = ("tensorrt", "inductor")


def hierpart(gm: GraphModule, support: Support) -> GraphModule:
    """Split with hierpart, minimum block size 1."""
    from hierpart import hierarchical_adjacency_partition

    return hierarchical_adjacency_partition(gm, **_options(support))[0]


def torch_tensorrt_hierarchical(gm: GraphModule, support: Support) -> GraphModule:
    """Split with torch_tensorrt's hierarchical partitioner, minimum block size 1."""
    with _own_argv():
        split = _partitioning("_hierarchical_partitioner").hierarchical_adjacency_partition
        return split(gm, skip_fusion=True, **_options(support))[0]


def torch_tensorrt_adjacency(gm: GraphModule, support: Support) -> GraphModule:
    """Split with torch_tensorrt's adjacency ("fast") partitioner: accelerated or not, no more."""
    module = _partitioning("_adjacency_partitioner")
    with _own_argv(), _asks(module, "OpSupportTester", support):
        return module.partition(gm, min_block_size=1, skip_fusion=True)[0]


def torch_tensorrt_global(gm: GraphModule, support: Support) -> GraphModule:
    """Split with torch_tensorrt's global partitioner: accelerated or not, no more."""
    module = _partitioning("_global_partitioner")
    with _asks(module, "TorchTensorRTOperatorSupport", support):
        return module.partition(gm, min_block_size=1)[0]


def capability_based(gm: GraphModule, support: Support) -> GraphModule:
    """Split with ``torch.fx``'s CapabilityBasedPartitioner: accelerated or not, no more."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

    tester = _any_backend(support)
    return CapabilityBasedPartitioner(
        gm, tester, allows_single_node_partition=True
    ).partition_and_fuse()


def torch_split_module(gm: GraphModule, block_of: Mapping[str, int]) -> GraphModule:
    """Let ``torch.fx``'s ``split_module`` make the blocks that a plan names.

    Args:
        gm: Graph to split; it is not changed.
        block_of: Index of the block of each callable node, by node name.
    """
    from torch.fx.passes.split_module import split_module

    return split_module(gm, gm, lambda node: block_of[node.name])


def torch_split_by_tags(gm: GraphModule, block_of: Mapping[str, int]) -> GraphModule:
    """Let ``torch.fx``'s ``split_by_tags`` make the blocks that a plan names.

    Args:
        gm: Graph to split; tags are written on its nodes.
        block_of: Index of the block of each callable node, by node name.
    """
    from torch.fx.passes.split_utils import split_by_tags

    for node in gm.graph.nodes:
        if node.name in block_of:
            node.tag = f"block_{block_of[node.name]}"
    return split_by_tags(gm, [f"block_{i}" for i in range(max(block_of.values()) + 1)])


PEERS: dict[str, Splitter] = {
    "torch_tensorrt hierarchical": torch_tensorrt_hierarchical,
    "torch_tensorrt adjacency": torch_tensorrt_adjacency,
    "torch_tensorrt global": torch_tensorrt_global,
    "torch CapabilityBased": capability_based,
}


def missing() -> str | None:
    """Return ``None`` if torch_tensorrt's partitioners can be imported here, else why not."""
    try:
        _partitioning("_hierarchical_partitioner")
    except (BackendUnavailableError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def available() -> dict[str, Splitter]:
    """Return the peers that can be imported here, by name."""
    return {
        name: split
        for name, split in PEERS.items()
        if not name.startswith("torch_tensorrt") or missing() is None
    }


def blocks(parent: GraphModule) -> list[str]:
    """Return the targets of the submodules that a split module calls, in order of the calls.

    The nodes that ``CapabilityBasedPartitioner`` leaves in the parent are counted as one block
    for each run of them.
    """
    found: list[str] = []
    for node in parent.graph.nodes:
        if node.op == "call_module":
            found.append(str(node.target))
        elif node.op == "call_function" and not _unpacks(node) and found[-1:] != [""]:
            found.append("")
    return found


def _unpacks(node: Node) -> bool:
    first = node.args[0] if node.args else None
    return node.name.startswith("getitem") and getattr(first, "op", "") == "call_module"


def _options(support: Support) -> dict[str, Any]:
    return {
        "min_block_size": 1,
        "backend_support_map": {name: set(support.get(name, ())) for name in PRIORITY},
        "backend_priority": list(PRIORITY),
    }


@functools.cache
def _partitioning(module: str) -> Any:
    """Import a partitioner of torch_tensorrt; what asks for a GPU meanwhile is answered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library()
        found = importlib.import_module(f"torch_tensorrt.dynamo.partitioning.{module}")
    logging.getLogger("torch_tensorrt").setLevel(logging.ERROR)
    return found


def _any_backend(support: Support) -> Any:
    from torch.fx.passes.operator_support import create_op_support

    ops = frozenset().union(*support.values())

    def supported(_: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return f"torch.ops.{node.target}" in ops or node.name.startswith("getitem")

    return create_op_support(supported)


@contextmanager
def _asks(module: Any, tester: str, support: Support) -> Iterator[None]:
    """Make a partitioner of one backend ask ``support`` in place of its converter registry."""
    ours = _any_backend(support)
    ours.print_support_overview = lambda *a, **k: None
    with unittest.mock.patch.object(module, tester, return_value=ours):
        yield


@contextmanager
def _own_argv() -> Iterator[None]:
    """Hide this program's arguments, which torch's splitter settings would parse as theirs."""
    with unittest.mock.patch("sys.argv", ["benchmark"]):
        yield
