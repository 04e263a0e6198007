"""What a report says of each node and value besides the plan: shapes, bytes, FLOPs, source lines.

Everything is text and numbers, so that it outlives the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from hierpart.graph import bytes_of, bytes_of_value, has_value, value_of
from hierpart.report.flops import FlopTable

if TYPE_CHECKING:
    from hierpart.partition import Result

_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+)')


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a node makes or that crosses a boundary.

    Attributes:
        shape: ``2x64x32``, with the symbols of open sizes; one after the other for a tuple; empty
            where nothing was recorded.
        dtype: ``float32`` and the like, ``int`` and the like for a scalar.
        bytes: Its size, 0 where unknown; a symbolic size counts with its hint.
    """

    shape: str = ""
    dtype: str = ""
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}".strip()


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One callable node.

    Attributes:
        value: What it makes.
        flops: Estimated floating-point operations; ``None`` where torch has no formula for the op.
        source: ``file:line`` of the user's code that made it, where it was recorded.
        module: Qualified name of the ``nn.Module`` that it was traced in.
    """

    value: Value
    flops: int | None = None
    source: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """The details of one plan.

    Attributes:
        nodes: By name of the node.
        values: What crosses a boundary, by the name in ``Block.inputs`` and ``Block.outputs``.
        nested: Those of the plans in ``Plan.nested``, in that order.
    """

    nodes: Mapping[str, NodeDetail] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    nested: tuple[Details, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serialisable data; :meth:`from_dict` reads it back."""
        return {
            "nodes": {name: asdict(detail) for name, detail in self.nodes.items()},
            "values": {name: asdict(value) for name, value in self.values.items()},
            "nested": [inner.to_dict() for inner in self.nested],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Details:
        """Read what :meth:`to_dict` returned."""
        nodes = {
            n: NodeDetail(**{**d, "value": Value(**d["value"])}) for n, d in data["nodes"].items()
        }
        values = {name: Value(**value) for name, value in data["values"].items()}
        return cls(nodes, values, tuple(cls.from_dict(inner) for inner in data["nested"]))


def details_of(result: Result) -> Details:
    """Return the details of what the line planned, branches included."""
    return _details(result, FlopTable(), {})


def _details(result: Result, flops: FlopTable, done: dict[int, Details]) -> Details:
    """Describe a result; ``done`` holds those of branches that several ops share."""
    key = id(result)
    if key not in done:
        nodes = {n.name: _node(n, flops) for n in result.facts.nodes}
        values: dict[str, Value] = {}
        for wires in result.wiring:
            for port in (*wires.inputs, *wires.outputs):
                if port.name not in values:
                    known = has_value(port.node)
                    values[port.name] = value(port.value) if known else _recorded(port.node)
        nested = tuple(_details(branch.result, flops, done) for branch in result.branches)
        done[key] = Details(nodes, values, nested)
    return done[key]


def _node(node: Node, flops: FlopTable) -> NodeDetail:
    made = value(value_of(node)) if has_value(node) else _recorded(node)
    return NodeDetail(made, flops.of(node), source_of(node), module_of(node))


def value(recorded: Any) -> Value:
    """Describe an example value."""
    if isinstance(recorded, torch.Tensor):
        return Value(_shape(recorded.shape), _dtype(recorded.dtype), bytes_of_value(recorded))
    if isinstance(recorded, (tuple, list)):
        items = [value(item) for item in recorded]
        shapes = ", ".join(i.shape or "-" for i in items)
        dtypes = ", ".join(dict.fromkeys(i.dtype for i in items))
        return Value(f"({shapes})", dtypes, bytes_of_value(recorded))
    if recorded is None:
        return Value("", "None", 0)
    kind = type(recorded).__name__
    if isinstance(recorded, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Value(str(recorded), kind, bytes_of_value(recorded))
    return Value("", kind, bytes_of_value(recorded))


def _recorded(node: Node) -> Value:
    """Describe what ``ShapeProp`` recorded, if it did."""
    meta = node.meta.get("tensor_meta")
    if type(meta).__name__ != "TensorMetadata" or meta is None:
        return Value()
    return Value(_shape(meta.shape), _dtype(meta.dtype), bytes_of(node))


def _shape(sizes: Any) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def source_of(node: Node) -> str:
    """Return ``file:line`` of the innermost recorded frame, empty where none was recorded.

    Frames in torch itself, as those of ``nn.Linear``, are passed over where there are others.
    """
    frames = list(_FRAME.finditer(str(node.meta.get("stack_trace") or "")))
    own = [frame for frame in frames if not frame["file"].startswith(_TORCH)] or frames
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""


def module_of(node: Node) -> str:
    """Return the path of the innermost ``nn.Module`` that the node was traced in."""
    paths = list(_paths(node.meta.get("nn_module_stack") or {}))
    return paths[-1] if paths else ""


def _paths(stack: Mapping[str, Any]) -> Iterator[str]:
    for entry in stack.values():
        path = entry[0] if isinstance(entry, tuple) else entry
        if isinstance(path, str) and path:
            yield path.removeprefix("L['self'].")
