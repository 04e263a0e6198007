"""The backend protocol and the registry of backends.

A backend is one object that meets :class:`Backend`. Third parties register theirs through the
``hierpart.backends`` entry-point group (name to class); a backend can also be passed in directly
as a value of ``backend_support_map``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from torch.fx import GraphModule, Node

from hierpart.errors import OptionError, nearest
from hierpart.plan import Verdict

ENTRY_POINT_GROUP = "hierpart.backends"
_BUILT_IN = (
    EntryPoint("inductor", "hierpart.backends.inductor:InductorBackend", ENTRY_POINT_GROUP),
    EntryPoint("tensorrt", "hierpart.backends.tensorrt:TensorRTBackend", ENTRY_POINT_GROUP),
)

CompiledBlock = Callable[..., Any]
"""A compiled block: takes the block's placeholders in order, returns a flat tuple or list."""


@runtime_checkable
class Backend(Protocol):
    """What hierpart asks of a backend.

    Attributes:
        name: The backend's name in priorities, reports and submodule names.
        takes_scalars: Whether symbolic scalars (SymInt, SymFloat, SymBool) may enter and leave its
            blocks. Where not, sizes are recomputed inside the block from a tensor.
        keeps_aliases: Whether a block's outputs may be views of its inputs and its in-place ops
            reach the caller's tensors, as in eager. Where not, nodes that write or view a storage
            that the graph writes are refused.
        max_rank: The highest rank of a tensor in its blocks, or None for no limit.
        keep_ops: Qualified names of ops that it takes whole and that capture must not decompose.
    """

    name: str
    takes_scalars: bool
    keeps_aliases: bool
    max_rank: int | None
    keep_ops: frozenset[str]

    def available(self) -> str | None:
        """Return ``None`` if the backend can be used here, else why not, in words."""

    def verdict(self, node: Node) -> Verdict:
        """Return whether the backend runs ``node`` (a callable node with ``meta['val']``)."""

    def compile(
        self, block: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> CompiledBlock:
        """Compile ``block`` and return its callable.

        Args:
            block: Placeholders first, no ``get_attr`` of tensors, a flat tuple as output; every
                node has ``meta['val']``. It is the backend's own copy and may be changed.
            inputs: One value a placeholder: fake tensors and symbolic scalars.
            options: The backend's own options.
        """

    def fingerprint(self) -> str:
        """Return text that changes whenever compiled blocks would: versions, device, settings."""


@cache
def entry_point_backends() -> dict[str, EntryPoint]:
    """Return the built-in and the registered backends by name, sorted; nothing is imported.

    Raises:
        OptionError: Two packages register different backends under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted((*_BUILT_IN, *entry_points(group=ENTRY_POINT_GROUP)), key=_order):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise OptionError(
                f"two packages register the backend {point.name!r}: {other.value} and {point.value}"
            )
    return found


def _order(point: EntryPoint) -> tuple[str, str]:
    return point.name, point.value


@cache
def get_backend(name: str) -> Backend:
    """Return the backend registered as ``name``.

    Raises:
        OptionError: No backend has that name; the nearest one is named.
    """
    points = entry_point_backends()
    if name not in points:
        raise OptionError(
            f"no backend is registered as {name!r}" + nearest(name, [*points, "eager"])
        )
    backend: Backend = points[name].load()()
    return backend
