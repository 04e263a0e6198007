"""What each node of a graph does to storages, seen by running it: the oracle for orders.

Nothing here reads what a graph says about itself beyond its order: reads and writes are seen at
the dispatcher and by comparing the bytes of every storage before and after a node, draws from the
random stream by comparing the generator's state, modes by asking for them.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hierpart.testing.generate.graph_builder import undisturbed
from hierpart.testing.oracle.observe import state_kept
from hierpart.testing.reading.blocks import branches, is_size_work
from hierpart.testing.reading.flow import branch_operands, flow_name

aten = torch.ops.aten

OBSERVABLE = frozenset(
    {
        builtins.print,
        torch._assert,
        torch._check,
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten._assert_tensor_metadata.default,
        aten._print.default,
    }
)
"""Calls whose order among each other can be seen from outside."""
PRINTS = (builtins.print, aten._print.default)


INDEXING = frozenset(
    {
        aten.index.Tensor,
        aten.index_select.default,
        aten.gather.default,
        aten.take.default,
        aten.embedding.default,
    }
)
"""Operators that fail where a whole number that they are given is out of range."""


def asks_for_type_only(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call asserts what no write can change: a tensor's dtype, device or layout."""
    if target is not aten._assert_tensor_metadata.default:
        return False
    sizes = (*args[1:3], kwargs.get("size"), kwargs.get("stride"))
    return all(given is None for given in sizes)


@dataclass(slots=True)
class Access:
    """What one node did while it ran.

    Attributes:
        reads: Storages whose content it read; for an op with branches, also those of attributes
            that a branch reads, taken or not.
        writes: Storages that it wrote.
        views: Storages of which it made another view or read the sizes, not the content.
        reshapes: Storages of tensors whose sizes or strides it changed in place.
        draws: Whether it took numbers from the random stream.
        observable: Whether it asserts or prints.
        asserts: Whether it asserts something that hangs on values or sizes.
        indexes: Whether it fails on whole numbers that an assertion before it may rule out.
        switches: Whether it changed grad mode or autocast.
        dispatched: Whether it ran any operator.
        value: Its value.
    """

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    views: set[int] = field(default_factory=set)
    reshapes: set[int] = field(default_factory=set)
    draws: bool = False
    observable: bool = False
    asserts: bool = False
    indexes: bool = False
    switches: bool = False
    dispatched: bool = False
    value: Any = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two nodes, by name, that have to keep their order, and why."""

    first: str
    second: str
    why: str


def record(gm: GraphModule, inputs: Sequence[Any]) -> dict[str, Access]:
    """Run an independent copy of ``gm`` and return what each node did, by name, in order."""
    twin = copy.deepcopy(gm)
    with undisturbed():
        recorder = _Recorder(twin)
        recorder.run(*copy.deepcopy(tuple(inputs)))
    return recorder.accesses


def conflicts(gm: GraphModule, accesses: dict[str, Access]) -> Iterator[Conflict]:
    """Yield the pairs of callable nodes of ``gm`` that must not change places (C3)."""
    names = [node.name for node in gm.graph.nodes if node.op.startswith("call_")]
    for position, second in enumerate(names):
        for first in names[:position]:
            why = _why(accesses[first], accesses[second])
            if why:
                yield Conflict(first, second, why)


def _why(a: Access, b: Access) -> str:
    if a.writes & (b.reads | b.writes):
        return "the second one uses a storage that the first one writes"
    if a.reads & b.writes:
        return "the second one writes a storage that the first one reads"
    if a.reshapes & (b.reads | b.writes | b.views | b.reshapes):
        return "the first one changes the sizes of a tensor that the second one uses"
    if (a.reads | a.writes | a.views) & b.reshapes:
        return "the second one changes the sizes of a tensor that the first one uses"
    if a.draws and b.draws:
        return "both draw from the random stream"
    if a.observable and b.observable:
        return "both assert or print"
    if a.asserts and b.indexes:
        return "the first one asserts what the second one's index may rely on"
    if (a.switches and (b.switches or b.dispatched)) or (a.dispatched and b.switches):
        return "one of them changes the mode that the other one runs in"
    return ""


class _Recorder(Interpreter):
    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.accesses: dict[str, Access] = {}
        self.holders: dict[int, Tensor] = {}
        self.kept: list[Any] = []
        for tensor in (*module.parameters(), *module.buffers()):
            self._hold(tensor)

    def run_node(self, n: Node) -> Any:
        access = self.accesses[n.name] = Access()
        if n.op in ("output", "placeholder", "get_attr"):
            value = super().run_node(n)
        else:
            value = self._watched(n, access)
        for leaf in pytree.tree_leaves(value):
            self._hold(leaf)
        access.value = value
        return value

    def _watched(self, n: Node, access: Access) -> Any:
        access.reads.update(self._read_in_branches(n))
        before, modes, stream = self._contents(), _modes(), torch.get_rng_state()
        if isinstance(n.target, torch._ops.HigherOrderOperator):
            value = super().run_node(n)  # such an op does not run under a dispatch mode
            access.reads.update(_key(leaf) for leaf in self._operands(n))
            access.dispatched = True
        else:
            with _Watch(access, self.kept):
                value = super().run_node(n)
            if is_size_work(n, value):
                access.views.update(_key(leaf) for leaf in self._operands(n))
        access.draws = not torch.equal(stream, torch.get_rng_state())
        access.switches = _modes() != modes
        type_only = asks_for_type_only(n.target, n.args, n.kwargs)
        access.observable = n.target in OBSERVABLE and not type_only
        access.asserts = access.observable and n.target not in PRINTS
        access.indexes = n.target in INDEXING
        after = self._contents()
        access.writes.update(key for key in before if _differs(before[key], after[key]))
        return value

    def _operands(self, n: Node) -> list[Tensor]:
        leaves = pytree.tree_leaves(self.map_nodes_to_values((n.args, n.kwargs), n))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _read_in_branches(self, n: Node) -> Iterator[int]:
        """Run each branch by itself and yield the attributes' storages that it reads."""
        assert isinstance(self.module, GraphModule)
        found = list(branches(self.module, n))
        args: Any = self.map_nodes_to_values(n.args, n) if found else ()
        operands = branch_operands(flow_name(n), args)
        for _, branch in found if operands is not None else ():
            inner = _Recorder(branch)
            with undisturbed(), state_kept(branch):
                inner.run(*copy.deepcopy([_detached(value) for value in operands or ()]))
            for access in inner.accesses.values():
                yield from access.reads & self.holders.keys()

    def _hold(self, leaf: Any) -> None:
        if isinstance(leaf, Tensor):
            self.holders.setdefault(_key(leaf), leaf)

    def _contents(self) -> dict[int, tuple[int, Tensor]]:
        return {key: (tensor._version, _bytes(tensor)) for key, tensor in self.holders.items()}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8).set_(storage).clone()


def _differs(a: tuple[int, Tensor], b: tuple[int, Tensor]) -> bool:
    return a[0] != b[0] or not torch.equal(a[1], b[1])


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _modes() -> tuple[bool, bool, torch.dtype]:
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down which storages the operators of one node read, write and view."""

    def __init__(self, access: Access, kept: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.access = access
        self.kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        access = self.access
        if asks_for_type_only(func, args, kwargs):
            return func(*args, **kwargs)
        access.dispatched = True
        returns = func._schema.returns
        makes_view = bool(returns) and all(
            out.alias_info is not None and not out.alias_info.is_write for out in returns
        )
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, Tensor):
                    if torch.Tag.inplace_view in func.tags and written:
                        access.reshapes.add(_key(leaf))
                    elif written:
                        access.writes.add(_key(leaf))
                    else:
                        (access.views if makes_view else access.reads).add(_key(leaf))
        value = func(*args, **kwargs)
        self.kept.append((args, kwargs, value))  # a freed storage's number would be used again
        return value
