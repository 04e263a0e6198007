"""Builds a graph node by node, running each node as it is added, so that only valid ones stay."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.node import map_arg

from hierpart.testing.generate.choice import Choice

REFUSALS = (
    *(RuntimeError, TypeError, ValueError, IndexError, AttributeError),
    *(ArithmeticError, NotImplementedError),
)
"""What eager raises when it refuses an operation on the values at hand."""

Test = Callable[[Any], bool]


class Refused(Exception):  # noqa: N818 -- a signal between builder and emitter, not a failure
    """Eager refuses the operation, or no value fits: the step adds nothing more."""


@dataclass
class World:
    """One call of the graph under construction: its own attributes, the value of every node."""

    attributes: nn.Module
    batch: int
    call: int
    values: dict[Node, Any] = field(default_factory=dict)


class GraphBuilder:
    """A graph under construction.

    Every node runs in each of the worlds, which differ in values and, where sizes are dynamic, in
    sizes. A node that eager refuses in one of them is taken out again, so the graph is valid at
    every moment.

    Attributes:
        root: Holds the attributes, parameters and submodules that the graph reads, untouched.
        graph: The graph so far.
        worlds: The calls that it was tried with.
        scope: The node names that are free to pick as operands, in order.
        outer: Holds the attributes of the graph around this one, which a branch may share.
    """

    def __init__(
        self, calls: Sequence[tuple[int, int]], width: int = 8, outer: nn.Module | None = None
    ) -> None:
        """Start an empty graph tried with ``calls``: pairs of batch size and number of the call."""
        self.outer = outer
        self.root = nn.Module()
        self.graph = Graph()
        self.worlds = [World(nn.Module(), batch, call) for batch, call in calls]
        self.width = width
        self.scope: list[Node] = []

    # ------------------------------------------------------------------ what is there to pick

    def value(self, node: Node) -> Any:
        """Return the value of ``node`` in the first world."""
        return self.worlds[0].values[node]

    def tensors(self, test: Test = lambda value: True) -> list[Node]:
        """Return the nodes in scope whose value is a tensor that passes ``test``, newest first."""
        return self.nodes(lambda value: isinstance(value, Tensor) and test(value))

    def nodes(self, test: Test) -> list[Node]:
        """Return the nodes in scope whose value passes ``test``: the last ``width``, newest first.

        Counted from the newest, a choice means the same node when an earlier step is taken out.
        """
        found = [node for node in self.scope if test(self.value(node))]
        return found[-self.width :][::-1]

    def pick(self, choice: Choice, test: Test = lambda value: True) -> Node:
        """Return one of the tensors that pass ``test``, or refuse the step."""
        return self.pick_of(choice, self.tensors(test))

    def pick_of(self, choice: Choice, nodes: Sequence[Node]) -> Node:
        """Return one of ``nodes``, or refuse the step when there is none."""
        if not nodes:
            raise Refused("no value fits")
        return choice.pick(nodes)

    # ------------------------------------------------------------------ adding nodes

    def placeholder(self, name: str, make: Callable[[World], Any], **default: Any) -> Node:
        """Add an input; ``default_value=...`` gives it a default."""
        node = self.graph.placeholder(name, **default)
        for world in self.worlds:
            world.values[node] = make(world)
        self._enter(node)
        return node

    def attribute(self, target: str, make: Callable[[nn.Module], Any]) -> Node:
        """Add a ``get_attr`` of ``target``; ``make`` creates it where it is not there yet.

        ``make`` is given the module that holds all attributes, so that it can return one that
        shares storage with another. An attribute that the graph around has is that one.
        """
        if not _has(self.root, target):
            shared = self.outer is not None and _has(self.outer, target)
            for holder in (self.root, *(world.attributes for world in self.worlds)):
                _put(holder, target, _get(self.outer, target) if shared else make(holder))
        node = self.graph.get_attr(target)
        for world in self.worlds:
            world.values[node] = _get(world.attributes, target)
        self._enter(node)
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a ``call_function`` of ``target`` or refuse the step."""
        return self._add("call_function", target, args, kwargs)

    def method(self, target: str, *args: Any, **kwargs: Any) -> Node:
        """Add a ``call_method`` of ``target`` or refuse the step."""
        return self._add("call_method", target, args, kwargs)

    def module(self, target: str, make: Callable[[], nn.Module], *args: Any) -> Node:
        """Add a ``call_module`` of ``target``, made by ``make`` where it is not there yet."""
        if not _has(self.root, target):
            made = make()
            for holder in (self.root, *(world.attributes for world in self.worlds)):
                _put(holder, target, copy.deepcopy(made))
        return self._add("call_module", target, args, {})

    def drop(self, node: Node) -> None:
        """Take out a node that nothing uses."""
        self.graph.erase_node(node)
        if node in self.scope:
            self.scope.remove(node)

    def finish(self, output: Any, convention: _PyTreeInfo | None = None) -> GraphModule:
        """Close the graph and return the module, with only the attributes that it reads.

        Args:
            output: What it returns.
            convention: How nested arguments and results are made of flat ones, if they are.
        """
        self.graph.output(output)
        if convention is not None:
            self.graph.set_codegen(_PyTreeCodeGen(convention))
        self.graph.lint()
        module = GraphModule(self.root, self.graph)
        module.meta["made_by"] = "hierpart.testing"
        return module

    def _add(self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node:
        node = self.graph.create_node(op, target, args, dict(kwargs))
        try:
            for world in self.worlds:
                world.values[node] = run_node(node, world.values, world.attributes)
        except REFUSALS as error:
            for world in self.worlds:
                world.values.pop(node, None)
            self.graph.erase_node(node)
            raise Refused(str(target)) from error
        self._enter(node)
        return node

    def _enter(self, node: Node) -> None:
        position = len(self.graph.nodes)
        if node.op.startswith("call_"):
            node.meta["stack_trace"] = f'  File "model.py", line {position}, in forward\n'
            node.meta["nn_module_stack"] = {"L__self__": (f"part{position % 3}", "Part")}
        self.scope.append(node)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the random stream, grad mode, autocast and standard output as they were."""
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.set_rng_state(state)
        torch._C._set_grad_enabled(grad)
        torch.set_autocast_enabled("cpu", autocast[0])
        torch.set_autocast_dtype("cpu", autocast[1])
        torch.autocast_increment_nesting()
        while torch.autocast_decrement_nesting() > depth:
            pass
        torch.clear_autocast_cache()


def run_node(node: Node, values: Mapping[Node, Any], attributes: nn.Module) -> Any:
    """Run one callable node on the values of the nodes before it."""
    args = map_arg(node.args, values.__getitem__)
    kwargs = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_module":
        return attributes.get_submodule(str(node.target))(*args, **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _holder(root: Any, target: str) -> tuple[nn.Module, str]:
    *path, name = target.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    return root, name


def _has(root: nn.Module, target: str) -> bool:
    holder, name = _holder(root, target)
    return hasattr(holder, name)


def _get(root: Any, target: str) -> Any:
    holder, name = _holder(root, target)
    return getattr(holder, name)


def _put(root: nn.Module, target: str, value: Any) -> None:
    holder, name = _holder(root, target)
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        holder.register_buffer(name, value)
    else:
        setattr(holder, name, value)
