"""One flat Python function that runs a split module.

An FX parent that calls a module for each block costs about ten microseconds a block. Here the
nodes of eager blocks are written out in line, compiled blocks are called with one list that they
may empty, and every value is dropped at its last use. The function holds no tensor of its own:
parameters and buffers are its first inputs.

Source: the boxed calling convention of AOTAutograd, ``torch.fx``'s code generation.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg
from torch.nn import Module

from hierpart.graph import has_value, is_getitem, resolve_attribute, restrider, value_of

_serial = itertools.count()


@dataclass(frozen=True)
class Call:
    """How the flat function calls a compiled block.

    Attributes:
        function: Takes one list of inputs, which it may empty; returns a flat sequence.
        attributes: Qualified names of the tensors that follow the block's placeholders.
        exact_inputs: Whether its inputs need the layout that they were recorded with, and its
            results have theirs. A block that writes its inputs has to get them as they are.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    attributes: tuple[str, ...] = ()
    exact_inputs: bool = True


@dataclass(frozen=True)
class Flat:
    """A split module as one function.

    Attributes:
        function: Takes ``root`` and one list of inputs, which it empties: the tensors named in
            ``attributes``, then the placeholders; returns what the module's graph returns.
        root: Holds the compiled blocks, called modules and branch modules that the code names.
        attributes: Qualified names of the tensors that are the first inputs.
        code: The source of the function.
    """

    function: Callable[[Any, list[Any]], Any]
    root: SimpleNamespace
    attributes: tuple[str, ...]
    code: str = field(repr=False)

    def run(self, args: list[Any]) -> Any:
        """Run once; ``args`` is emptied."""
        return self.function(self.root, args)

    def with_modules(self, memo: dict[int, Any]) -> Flat:
        """Return this with the called modules copied (as in ``deepcopy``) and all code shared."""
        held = vars(self.root).items()
        root = {k: copy.deepcopy(v, memo) if isinstance(v, Module) else v for k, v in held}
        return replace(self, root=SimpleNamespace(**root))


def flatten(
    parent: GraphModule,
    calls: Mapping[str, Call],
    *,
    exact_inputs: bool,
    branches: Mapping[int, Module] | None = None,
) -> Flat:
    """Return the function that runs ``parent``.

    Args:
        parent: What ``split_module`` returns; not changed.
        calls: The compiled blocks by the name of their submodule; all other blocks run eagerly.
        exact_inputs: Whether the caller sees to it that inputs have the layout of their ``val``.
        branches: What stands for a branch module of a control-flow op, by the module's ``id``.
    """
    writer = _Writer(parent, calls, exact_inputs, branches or {})
    graph = writer.write()
    graph.set_codegen(_Boxed())
    source = graph.python_code("self")
    function = _define(source.src, source.globals)
    return Flat(function, writer.root, tuple(writer.tensors), source.src)


def pack(*values: Any) -> list[Any]:
    """Return the values as a list that a boxed callee may empty."""
    return list(values)


class _Boxed(CodeGen):
    """Generates ``forward(self, args)`` that empties ``args`` so that inputs can be freed."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
        lines = [f"def {self._func_name}(self, args):"]
        if names:
            lines += [f"    {', '.join(names)}, = args", "    args.clear()"]
        return "\n".join(lines)


class _Writer:
    """Writes the nodes of all blocks into one graph, in the parent's order."""

    def __init__(
        self,
        parent: GraphModule,
        calls: Mapping[str, Call],
        exact_inputs: bool,
        branches: Mapping[int, Module],
    ) -> None:
        self.parent, self.calls, self.exact_inputs = parent, calls, exact_inputs
        self.branches = branches
        self.graph, self.root = Graph(), SimpleNamespace()
        self.tensors: dict[str, Node] = {}
        self.names: dict[tuple[str, int], str] = {}

    def write(self) -> Graph:
        for name in dict.fromkeys(self._tensor_names()):
            self.tensors[name] = self._placeholder(name.replace(".", "_"))
        env: dict[Node, Any] = {}
        results: dict[Node, Sequence[Any]] = {}
        for node in self.parent.graph.nodes:
            if node.op == "placeholder":
                env[node] = self._placeholder(str(node.target).lstrip("*"))
                env[node].meta = {"exact": self.exact_inputs}
                if has_value(node):
                    env[node].meta["val"] = value_of(node)
            elif node.op == "call_module" and self._is_block(str(node.target)):
                args = map_arg(node.args, env.__getitem__)
                results[node] = self._block(str(node.target), args)
                env[node] = results[node]
            elif is_getitem(node) and node.args[0] in results:
                env[node] = results[node.args[0]][int(node.args[1])]
            else:
                env[node] = self._copy(self.parent, node, env)
        return self.graph

    def _is_block(self, name: str) -> bool:
        return name in self.calls or isinstance(self.parent.get_submodule(name), GraphModule)

    def _tensor_names(self) -> Iterator[str]:
        for node in self.parent.graph.nodes:
            if node.op == "get_attr" and _is_tensor(self.parent, node):
                yield str(node.target)
            if node.op == "call_module" and self._is_block(str(node.target)):
                block: Any = self.parent.get_submodule(str(node.target))
                yield from (str(n.target) for n in block.graph.nodes if _is_tensor(block, n))

    def _placeholder(self, name: str) -> Node:
        node = self.graph.create_node("placeholder", name, name=name)
        node.target = node.name  # one name in the code, also where ``name`` is a builtin's
        return node

    def _block(self, name: str, args: Sequence[Any]) -> Sequence[Any]:
        if name in self.calls:
            return self._compiled(name, self.calls[name], args)
        block: Any = self.parent.get_submodule(name)
        inputs = iter(args)
        env: dict[Node, Any] = {}
        for node in block.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "output":
                outputs: Sequence[Any] = map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = self._copy(block, node, env)
        return outputs

    def _compiled(self, name: str, call: Call, args: Sequence[Any]) -> Sequence[Any]:
        setattr(self.root, name, call.function)
        given = [self._in_layout(a) if call.exact_inputs else a for a in args]
        given += [self.tensors[attribute] for attribute in call.attributes]
        packed = self.graph.call_function(pack, tuple(given))
        result = self.graph.create_node("call_module", name, (packed,), name=f"{name}_results")
        block: Any = self.parent.get_submodule(name)
        outputs = block.graph.output_node().args[0]
        items = [
            self.graph.call_function(operator.getitem, (result, i)) for i in range(len(outputs))
        ]
        for item, output in zip(items, outputs, strict=True):
            if isinstance(output, Node) and has_value(output):
                item.meta = {"val": value_of(output), "exact": call.exact_inputs}
        return items

    def _in_layout(self, value: Any) -> Any:
        """Return the input of a compiled block in the layout that the block was compiled for.

        Kernels sometimes lay their results out otherwise than their fakes say; the output of a
        compiled block is known to be right.
        """
        if not isinstance(value, Node) or value.meta.get("exact"):
            return value
        restride = restrider(value_of(value)) if has_value(value) else None
        if restride is None:
            return value
        return self.graph.create_node("call_module", self._hold(restride, "layout"), (value,))

    def _copy(self, owner: GraphModule, node: Node, env: Mapping[Node, Any]) -> Any:
        if _is_tensor(owner, node):
            return self.tensors[str(node.target)]
        copy = self.graph.node_copy(node, env.__getitem__)
        if node.op in ("get_attr", "call_module"):
            value = resolve_attribute(owner, str(node.target))
            copy.target = self._hold(self.branches.get(id(value), value), str(node.target))
        return copy

    def _hold(self, value: Any, target: str) -> str:
        """Return the attribute of the root under which the code finds ``value``."""
        key = (target, id(value))
        if key not in self.names:
            self.names[key] = f"_{len(self.names)}_{target.replace('.', '_')}"
            setattr(self.root, self.names[key], value)
        return self.names[key]


def _is_tensor(owner: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and isinstance(
        resolve_attribute(owner, str(node.target)), torch.Tensor
    )


def _define(source: str, names: Mapping[str, Any]) -> Callable[[Any, list[Any]], Any]:
    """Compile generated source; tracebacks show its lines."""
    file = f"<hierpart {next(_serial)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(names)
    exec(compile(source, file, "exec"), namespace)
    function: Callable[[Any, list[Any]], Any] = namespace["forward"]
    return function


@dataclass(frozen=True)
class Pieces:
    """The split module and its compiled blocks.

    Attributes:
        parent: The split module.
        calls: How to call each compiled block, by name.
        exact_inputs: Whether inputs come in the layout of their ``val``.
        branches: What stands for branches of control-flow ops, by their ``id``.
    """

    parent: GraphModule
    calls: Mapping[str, Call]
    exact_inputs: bool = True
    branches: Mapping[int, Module] = field(default_factory=dict)

    def flat(self, eager: Collection[str] = ()) -> Flat:
        """Return the function that runs all blocks.

        Args:
            eager: Names of compiled blocks to run eagerly all the same.
        """
        calls = {name: call for name, call in self.calls.items() if name not in eager}
        return flatten(self.parent, calls, exact_inputs=self.exact_inputs, branches=self.branches)
