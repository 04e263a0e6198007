"""What crosses a block's boundary (C6): single tensors and scalars; a tuple as its items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from hierpart.graph import Kind, can_flatten, kind_of, kind_of_value, value_of


@dataclass(frozen=True, slots=True)
class Port:
    """A value that enters a block or leaves one.

    Attributes:
        node: Node of the original graph whose value it is.
        item: Position in a tuple-valued node, None for the whole value.
        dim: For a size handed in by the parent, the dimension of ``node``'s value.
    """

    node: Node
    item: int | None = None
    dim: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the node's value crosses as it is."""
        return self.item is None and self.dim is None

    @property
    def name(self) -> str:
        """Name of the placeholder."""
        if self.dim is not None:
            return f"{self.node.name}_size_{self.dim}"
        return self.node.name if self.item is None else f"{self.node.name}_item_{self.item}"

    @property
    def value(self) -> Any:
        """The example value of what crosses; raises ``KeyError`` where none was recorded."""
        value = value_of(self.node)
        if self.dim is not None:
            return value.shape[self.dim]
        return value if self.item is None else value[self.item]


def ports_of(node: Node) -> tuple[Port, ...] | None:
    """Return how a value crosses: as itself, item by item, or (``None``) not at all.

    Items that are ``None`` do not cross: the reader writes them down.
    """
    kind = kind_of(node)
    if kind is Kind.NONE:
        return None
    if kind in (Kind.TUPLE, Kind.SIZES) and can_flatten(node):
        items = enumerate(value_of(node))
        return tuple(Port(node, item=i) for i, item in items if item is not None)
    return (Port(node),)


def kind_of_port(port: Port) -> Kind:
    """Return the kind of what crosses at a port."""
    if port.dim is not None:
        return Kind.SCALAR
    return kind_of(port.node) if port.item is None else kind_of_value(port.value)
