"""The backend protocol: what hierpart asks of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch.fx import GraphModule, Node

from hierpart.plan import Verdict

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
