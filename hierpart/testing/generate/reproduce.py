"""Writes a graph module, its inputs and options as a Python program that stands on its own."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from hierpart.testing.generate.tensors import SPECS, TensorSpec
from hierpart.testing.reading.blocks import attribute
from hierpart.testing.reading.snapshot import target_text

_HEAD = """\
import builtins
import math
import operator

import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from hierpart.testing.generate.tensors import ScalarSpec, SharedSpec, TensorSpec

inf, nan = math.inf, math.nan

"""


def reproduction(
    gm: GraphModule, calls: Sequence[Sequence[Any]], options: Mapping[str, Any] | None = None
) -> str:
    """Return a Python program that builds ``gm``, its inputs and options and checks a partition.

    Attributes come with their values as they are now, arguments with the values given. The check
    at its end is of :func:`hierpart.hierarchical_adjacency_partition`; another partitioner goes in
    its place.
    """
    writer = _Writer()
    writer.module("gm", gm)
    for number, call in enumerate(calls):
        writer.lines.append(f"call_{number} = {writer.call(f'call_{number}', call)}")
    names = "".join(f", call_{number}" for number in range(len(calls)))
    annotated = any("val" in node.meta for node in gm.graph.nodes)
    if annotated and calls:
        writer.lines.append("\nfrom hierpart.testing import annotate")
        writer.lines.append(f"annotate(gm, call_0{_specs(gm)})")
    writer.lines.append(f"options = {_options(options or {})}")
    writer.lines.append("\nfrom hierpart.testing import adapters, check_partitioner\n")
    writer.lines.append(f"check_partitioner(adapters.hierpart, gm{names}, options=options)")
    return _HEAD + "\n".join(writer.lines) + "\n"


def _specs(gm: GraphModule) -> str:
    """Return the argument that makes sizes symbolic, where they were."""
    specs = gm.meta.get(SPECS, ())
    if not any(isinstance(spec, TensorSpec) and spec.varies for spec in specs):
        return ""
    return f", [{', '.join(map(repr, specs))}]"


def _codegen(info: _PyTreeInfo) -> str:
    """Return an expression for the codegen of nested arguments; a leaf is written as 0."""
    parts = [
        "None" if spec is None else f"pytree.tree_structure({_zeros(spec)!r})"
        for spec in (info.in_spec, info.out_spec)
    ]
    return f"_PyTreeCodeGen(_PyTreeInfo({info.orig_args!r}, {', '.join(parts)}))"


def _zeros(spec: pytree.TreeSpec) -> Any:
    return pytree.tree_unflatten([0] * spec.num_leaves, spec)


def _options(options: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key!r}: {_literal(value)}" for key, value in options.items()) + "}"


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        items = ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items())
        return "{" + items + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        inner = ", ".join(_literal(item) for item in value)
        return f"[{inner}]"
    return target(value) if callable(value) else repr(value)


def target(value: Any) -> str:
    """Return an expression for the target of a call."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{value}"
    if isinstance(value, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{value.__name__}"
    name = str(getattr(value, "__name__", value))
    for module, where in ((operator, "operator"), (builtins, "builtins"), (math, "math")):
        if getattr(module, name, None) is value:
            return f"{where}.{name}"
    for module in (torch, torch.nn, torch._C, torch._C._nn):
        if getattr(module, name, None) is value:
            return f"{module.__name__}.{name}"
    return target_text(value)


class _Writer:
    """Collects the lines of the program; storages and branches are written once and shared."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.storages: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        self.kept: list[Any] = []

    def module(self, name: str, gm: GraphModule) -> None:
        root = f"{name}_root"
        self.lines.append(f"{root} = torch.nn.Module()")
        self._attributes(root, gm)
        graph = f"{name}_graph"
        self.lines.append(f"{graph} = Graph()")
        names: dict[Node, str] = {}
        for node in gm.graph.nodes:
            names[node] = f"{graph}_{node.name}" if name != "gm" else f"n_{node.name}"
            self.lines.append(self._node(graph, node, names))
        if isinstance(gm.graph._codegen, _PyTreeCodeGen):
            self.lines.append(f"{graph}.set_codegen({_codegen(gm.graph._codegen.pytree_info)})")
        self.lines.append(f"{name} = GraphModule({root}, {graph})\n")

    def _node(self, graph: str, node: Node, names: dict[Node, str]) -> str:
        args = self._args(node.args, names)
        if node.op == "output":
            return f"{graph}.output({self._arg(node.args[0], names)})"
        made = (
            f"{graph}.create_node({node.op!r}, {target(node.target)}, {args}, "
            f"{self._arg(dict(node.kwargs), names)}, name={node.name!r})"
        )
        return f"{names[node]} = {made}"

    def _args(self, args: tuple[Any, ...], names: dict[Node, str]) -> str:
        inner = ", ".join(self._arg(arg, names) for arg in args)
        return f"({inner}{',' if len(args) == 1 else ''})"

    def _arg(self, arg: Any, names: dict[Node, str]) -> str:
        if isinstance(arg, Node):
            return names[arg]
        if isinstance(arg, tuple) and not isinstance(arg, torch.Size):
            return self._args(arg, names)
        if isinstance(arg, list):
            return "[" + ", ".join(self._arg(item, names) for item in arg) + "]"
        if isinstance(arg, dict):
            inner = ", ".join(f"{key!r}: {self._arg(item, names)}" for key, item in arg.items())
            return "{" + inner + "}"
        if isinstance(arg, slice):
            parts = (arg.start, arg.stop, arg.step)
            return "slice(" + ", ".join(self._arg(part, names) for part in parts) + ")"
        return "..." if arg is Ellipsis else repr(arg)

    def _attributes(self, root: str, gm: GraphModule) -> None:
        made: dict[int, str] = {}
        targets = {
            str(n.target): n.op for n in gm.graph.nodes if n.op in ("get_attr", "call_module")
        }
        for path in targets:
            value = attribute(gm, path)
            for depth in range(1, path.count(".") + 1):
                self._holder(root, ".".join(path.split(".")[:depth]))
            if id(value) in made:
                self.lines.append(f"{root}.{path} = {made[id(value)]}")
                continue
            made[id(value)] = f"{root}.{path}"
            self._attribute(root, path, value)

    def _holder(self, root: str, path: str) -> None:
        line = f"{root}.{path} = torch.nn.Module()"
        if line not in self.lines:
            self.lines.append(line)

    def _attribute(self, root: str, path: str, value: Any) -> None:
        if isinstance(value, GraphModule):
            if id(value) not in self.modules:
                self.modules[id(value)] = f"{root}_{path.replace('.', '_')}"
                self.module(self.modules[id(value)], value)
            self.lines.append(f"{root}.{path} = {self.modules[id(value)]}")
        elif isinstance(value, nn.Parameter):
            text = f"torch.nn.Parameter({self.tensor(value)}, {value.requires_grad})"
            self.lines.append(f"{root}.{path} = {text}")
        elif isinstance(value, Tensor):
            holder, _, leaf = path.rpartition(".")
            owner = f"{root}.{holder}" if holder else root
            self.lines.append(f"{owner}.register_buffer({leaf!r}, {self.tensor(value)})")
        else:
            self._module(f"{root}.{path}", value)

    def _module(self, name: str, module: nn.Module) -> None:
        self.lines.append(f"{name} = torch.nn.{module!r}.train({module.training})")
        for key, tensor in module.state_dict(keep_vars=True).items():
            text = self.tensor(tensor.detach())
            self.lines.append(f"{name}.state_dict()[{key!r}].copy_({text})")

    def call(self, name: str, call: Sequence[Any]) -> str:
        """Return an expression for arguments; a tensor that is given twice gets a name first."""
        self.kept.append(call)
        given = [id(leaf) for leaf in pytree.tree_leaves(tuple(call)) if isinstance(leaf, Tensor)]
        named: dict[int, str] = {}

        def value(item: Any) -> str:
            if isinstance(item, (tuple, list)):
                inner = ", ".join(map(value, item))
                ends = "[]" if isinstance(item, list) else ("(", ",)" if len(item) == 1 else ")")
                return ends[0] + inner + ends[1]
            if isinstance(item, dict):
                return "{" + ", ".join(f"{k!r}: {value(v)}" for k, v in item.items()) + "}"
            if not isinstance(item, Tensor):
                return repr(item)
            if given.count(id(item)) == 1:
                return self.tensor(item)
            if id(item) not in named:
                named[id(item)] = f"{name}_tensor_{len(named)}"
                self.lines.append(f"{named[id(item)]} = {self.tensor(item)}")
            return named[id(item)]

        return value(tuple(call))

    def tensor(self, value: Tensor) -> str:
        storage = value.untyped_storage()
        key = int(storage._cdata)
        if key not in self.storages:
            self.storages[key] = f"storage_{len(self.storages)}"
            with torch.no_grad():
                flat = torch.empty(0, dtype=value.dtype).set_(storage)
            text = f"torch.tensor({flat.tolist()}, dtype={value.dtype})"
            self.lines.append(f"{self.storages[key]} = {text}")
        name = self.storages[key]
        place = f"{tuple(value.shape)}, {value.stride()}, {value.storage_offset()}"
        return f"torch.as_strided({name}, {place})"
