"""Metadata as capture leaves it: values, and where each node comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils import _pytree as pytree

from hierpart.testing.generate.graph_builder import undisturbed
from hierpart.testing.generate.tensors import BATCH, OTHER, SPECS, SharedSpec, TensorSpec
from hierpart.testing.reading.flow import branch_operands, flow_name

RECORDED = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
"""What is written down as a node's value."""


def annotate(
    gm: GraphModule, inputs: Sequence[Any], specs: Sequence[Any] | None = None
) -> GraphModule:
    """Give every node of ``gm`` its ``val`` and ``tensor_meta``, in place, and return ``gm``.

    A node that says nothing of where it comes from gets a stack trace and a module stack as well.

    The graph runs once on fake tensors, so neither its attributes nor the random stream change.

    Args:
        gm: The module to annotate, branches of control-flow ops included.
        inputs: One value per placeholder.
        specs: How the inputs were made, kept in ``gm.meta``; sizes given as ``BATCH`` become one
            symbolic size, those given as ``OTHER`` another.
    """
    if specs is not None:
        gm.meta[SPECS] = tuple(specs)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with undisturbed():
        flat = gm.graph.process_inputs(*inputs)
        fakes: list[Any] = []
        for value, spec in zip(flat, specs or [None] * len(flat), strict=True):
            shared = isinstance(spec, SharedSpec)
            fakes.append(spec.make(fakes[spec.of]) if shared else _fake(mode, value, spec))
        with mode:
            _Annotator(gm, mode).run(*fakes, enable_io_processing=False)
    return gm


def _fake(mode: FakeTensorMode, value: Any, spec: Any = None) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not isinstance(spec, TensorSpec) or not spec.varies:
        return mode.from_tensor(value, static_shapes=True)
    # DUCK gives equal sizes one symbol: every BATCH of the graph is the same size.
    open_sizes = (BATCH, OTHER)
    sizes = [DimDynamic.DUCK if size in open_sizes else DimDynamic.STATIC for size in spec.shape]
    context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(value, symbolic_context=context)


class _Annotator(Interpreter):
    """Runs a graph on fake tensors and writes down what each node gives."""

    def __init__(self, module: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode = mode
        self.held: dict[int, Any] = {}

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        return self.held.setdefault(id(value), _fake(self.mode, value))

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(str(target))
        state = {
            name: self.held.setdefault(id(value), _fake(self.mode, value))
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        return torch.func.functional_call(module, state, args, kwargs)

    def run_node(self, n: Node) -> Any:
        if n.target is torch._assert:  # it asks for the value, which a fake tensor does not have
            return None
        value = super().run_node(n)
        leaves = pytree.tree_leaves(value)
        if n.op == "get_attr" and isinstance(value, GraphModule):
            return value
        self._annotate_branches(n)
        _trace(n)
        whole = isinstance(value, torch.Size)  # a tree map would make it a plain tuple
        nothing = value is None or not leaves  # unbind of no rows is an empty list
        if whole or nothing or any(isinstance(leaf, RECORDED) for leaf in leaves):
            n.meta["val"] = value if whole else pytree.tree_map(_snapshot, value)
        if isinstance(value, Tensor):
            n.meta["tensor_meta"] = _extract_tensor_metadata(value)
        return value

    def _annotate_branches(self, n: Node) -> None:
        if not flow_name(n):
            return
        values: Any = self.map_nodes_to_values(n.args, n)
        operands = branch_operands(flow_name(n), values)
        for source in n.all_input_nodes:
            if operands is not None and isinstance(self.env[source], GraphModule):
                _Annotator(self.env[source], self.mode).run(*operands)


def _trace(n: Node) -> None:
    """Say where a node comes from, each another place, as tracing does."""
    n.meta.setdefault("stack_trace", f'  File "graph.py", line 1, in {n.name}')
    n.meta.setdefault("nn_module_stack", {n.name: (n.name, "torch.nn.Module")})


def _snapshot(value: Any) -> Any:
    """Return a fake tensor that later in-place changes of sizes do not reach."""
    return value.detach() if isinstance(value, Tensor) else value
