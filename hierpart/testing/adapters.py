"""One call for every partitioner, so that the same checks judge them all.

An adapter takes a graph module and, by keyword, what :func:`hierpart.testing.options` draws, and
returns the partitioned module. What a partitioner has no use for it leaves aside.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node


class Unavailable(RuntimeError):  # noqa: N818 -- says what it is
    """The partitioner cannot be imported here; the message says why."""


def hierpart(gm: GraphModule, **options: Any) -> GraphModule:
    """Split with :func:`hierpart.hierarchical_adjacency_partition`."""
    from hierpart.api import hierarchical_adjacency_partition

    return hierarchical_adjacency_partition(gm, **options)[0]


def one_block(gm: GraphModule, **options: Any) -> GraphModule:
    """Put the whole graph into one block with torch's ``split_module``.

    It hangs marks on the nodes that it is given, so it is given a copy that shares the attributes.
    """
    from torch.fx.passes.split_module import split_module

    copied = GraphModule(gm, _copy(gm))
    return split_module(copied, copied, lambda node: 0)


def capability(
    gm: GraphModule,
    backend_support_map: Mapping[str, Collection[Any]] | None = None,
    backend_priority: Sequence[str] | None = None,
    **options: Any,
) -> GraphModule:
    """Fuse the first backend's ops with torch's ``CapabilityBasedPartitioner``.

    It changes the module that it is given, so it is given a copy that shares the attributes.
    """
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

    copied = GraphModule(gm, _copy(gm))
    return CapabilityBasedPartitioner(
        copied, _support(backend_support_map, backend_priority), allows_single_node_partition=True
    ).partition_and_fuse()


def splitter_base(
    gm: GraphModule,
    backend_support_map: Mapping[str, Collection[Any]] | None = None,
    backend_priority: Sequence[str] | None = None,
    min_block_size: int | Mapping[str, int] = 5,
    skip_fusion: bool = False,
    **options: Any,
) -> GraphModule:
    """Split with torch's ``_SplitterBase``; the first backend is the accelerator.

    It tags the module that it is given, so it is given a copy that shares the attributes. It runs
    the graph for metadata of its own, so inputs are made for it, and prints how it went.
    """
    from torch.fx.passes.splitter_base import _SplitterBase

    from hierpart.partition.splitter import (
        SplitterSettings,  # torch's own class reads the command line
    )
    from hierpart.testing.generate.graphs import inputs_for

    settings = SplitterSettings(_smallest(min_block_size), skip_fusion)
    support = _support(backend_support_map, backend_priority)
    copied, inputs = GraphModule(gm, _copy(gm)), inputs_for(gm)
    with contextlib.redirect_stdout(io.StringIO()):
        return _SplitterBase(copied, inputs, support, settings)()  # type: ignore[arg-type]


def torch_tensorrt_hierarchical(gm: GraphModule, **options: Any) -> GraphModule:
    """Split with torch_tensorrt's hierarchical partitioner.

    It tags the module that it is given, so it is given a copy that shares the attributes.

    Raises:
        Unavailable: torch_tensorrt cannot be imported here.
    """
    return _hierarchical(GraphModule(gm, _copy(gm)), **options)


def torch_tensorrt_hierarchical_again(gm: GraphModule, **options: Any) -> GraphModule:
    """Split one copy twice with torch_tensorrt's hierarchical partitioner, and return the second.

    Raises:
        Unavailable: torch_tensorrt cannot be imported here.
    """
    copied = GraphModule(gm, _copy(gm))
    _hierarchical(copied, **options)
    return _hierarchical(copied, **options)


def torch_tensorrt_adjacency(
    gm: GraphModule,
    backend_support_map: Mapping[str, Collection[Any]] | None = None,
    backend_priority: Sequence[str] | None = None,
    min_block_size: int | Mapping[str, int] = 5,
    skip_fusion: bool = False,
    **options: Any,
) -> GraphModule:
    """Split with torch_tensorrt's adjacency partitioner; the first backend stands for TensorRT.

    It tags the module that it is given, so it is given a copy that shares the attributes.

    Raises:
        Unavailable: torch_tensorrt cannot be imported here.
    """
    _peer()
    from torch_tensorrt.dynamo.partitioning._adjacency_partitioner import TRTPartitioner

    partitioner = TRTPartitioner(
        GraphModule(gm, _copy(gm)),
        _support(backend_support_map, backend_priority),
        min_block_size=_smallest(min_block_size),
        skip_fusion=skip_fusion,
    )
    module: GraphModule = partitioner.partition_graph()
    return module


ADAPTERS = {
    "hierpart": hierpart,
    "one_block": one_block,
    "capability": capability,
    "splitter_base": splitter_base,
    "torch_tensorrt_hierarchical": torch_tensorrt_hierarchical,
    "torch_tensorrt_hierarchical_again": torch_tensorrt_hierarchical_again,
    "torch_tensorrt_adjacency": torch_tensorrt_adjacency,
}
"""The adapters by name."""


def _hierarchical(
    gm: GraphModule,
    backend_support_map: Mapping[str, Collection[Any]] | None = None,
    backend_priority: Sequence[str] | None = None,
    min_block_size: int | Mapping[str, int] = 5,
    torch_executed_ops: Collection[Any] = (),
    skip_fusion: bool = False,
    **options: Any,
) -> GraphModule:
    partition = _peer()
    support = {
        name: {op if isinstance(op, str) else _name(op) for op in ops}
        for name, ops in (backend_support_map or {}).items()
    }
    result: Any = partition(
        gm,
        min_block_size=_smallest(min_block_size),
        torch_executed_ops={op if isinstance(op, str) else _name(op) for op in torch_executed_ops},
        backend_support_map=support,
        backend_priority=list(backend_priority or support),
        skip_fusion=skip_fusion,
    )
    module: GraphModule = result[0] if isinstance(result, tuple) else result
    return module


def _smallest(sizes: int | Mapping[str, int]) -> int:
    return sizes if isinstance(sizes, int) else min(sizes.values())


def _support(
    support_map: Mapping[str, Collection[Any]] | None, priority: Sequence[str] | None
) -> Any:
    """Return what torch asks about nodes: whether the first backend lists their op."""
    from torch.fx.passes.operator_support import OperatorSupportBase

    support = dict(support_map or {})
    first = next(iter(priority or support), None)
    wanted = support.get(first, ()) if first is not None else ()
    names = {name if isinstance(name, str) else _name(name) for name in wanted}

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
            return node.op.startswith("call_") and _name(node.target) in names

    return Support()


def _copy(gm: GraphModule) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(gm.graph, {}))
    return copied


def _name(target: Any) -> str:
    from hierpart.testing.reading.snapshot import target_text

    return target_text(target)


def _peer() -> Any:
    from hierpart.backends.tensorrt.library import library
    from hierpart.errors import BackendUnavailableError

    try:
        library()  # imports it on a machine without a GPU too
        from torch_tensorrt.dynamo.partitioning import hierarchical_adjacency_partition
    except (BackendUnavailableError, ImportError) as error:
        raise Unavailable(f"torch_tensorrt cannot be imported: {error}") from error
    logging.getLogger("torch_tensorrt").setLevel(logging.ERROR)
    return hierarchical_adjacency_partition
