"""Calls of a compiled GraphModule, by the module's own signature.

A GraphModule's code generator knows its arguments, defaults and pytrees.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch.fx import Graph, GraphModule

from hierpart.capture.input_check import InputCheck
from hierpart.graph import Evaluate, evaluator, has_value, value_of


class Owner(Protocol):
    """The compiled module, as the classes here use it."""

    @property
    def is_compiled(self) -> bool:
        """Whether any block runs compiled code."""

    def run_flat(self, values: Sequence[Any], fits: bool) -> Any:
        """Run on the values of the graph's inputs; eagerly unless compiled code ``fits`` them."""

    def tensor(self, name: str) -> Any:
        """Return the tensor of that qualified name."""


class GraphCall:
    """Calls the compiled function of a GraphModule as that module is called.

    The signature (argument names, defaults, ``*args``, keyword-only arguments, pytrees) is made by
    the graph's own code generator around a graph that only calls the compiled function; hooks of
    the original module run around it.

    Args:
        graph: The module; not changed.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        nodes = graph.graph.find_nodes(op="placeholder")
        known = [(i, n) for i, n in enumerate(nodes) if has_value(n)]
        self.positions = [i for i, _ in known]
        self.check = InputCheck.of(
            [str(n.target) for _, n in known], [value_of(n) for _, n in known], restride=False
        )
        self.conditions: Evaluate | None = None
        self.shell: Any = None

    def under(self, conditions: Sequence[Any]) -> GraphCall:
        """Return this with conditions on size symbols; where they fail, all runs eagerly."""
        made = copy.copy(self)
        made.conditions = conditions_on(conditions, self.check)
        return made

    def bound_to(self, owner: Owner) -> GraphCall:
        """Return the convention for calls of ``owner``."""
        bound = copy.copy(self)
        bound.shell = _shell(self.graph, lambda *values: bound.run(owner, values))
        return bound

    def run(self, owner: Owner, values: Sequence[Any]) -> Any:
        """Check the placeholders' values, where compiled code relies on them, and run."""
        if not owner.is_compiled:
            return owner.run_flat(values, True)
        known = self.check([values[i] for i in self.positions])
        fits = self.conditions is None or all(self.conditions(known))
        return owner.run_flat(values, fits)

    def __call__(self, owner: Owner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run with the arguments of the original module."""
        return self.shell(*args, **kwargs)


def conditions_on(conditions: Sequence[Any], check: InputCheck) -> Evaluate:
    """Return the conditions on the checked inputs; never met where inputs do not tell them."""
    found = evaluator(conditions, [e.value for e in check.expected])
    return found or (lambda values: (False,))


def _shell(source: GraphModule, run: Any) -> GraphModule:
    """Return a module with the signature, pytrees and hooks of ``source`` that calls ``run``."""
    graph = Graph()
    inputs = []
    for node in source.graph.find_nodes(op="placeholder"):
        inputs.append(graph.node_copy(node))
        inputs[-1].meta = dict(node.meta)
    result = graph.create_node("call_module", "run", tuple(inputs), name="results")
    graph.output(result)
    graph.set_codegen(copy.copy(source.graph._codegen))
    shell = GraphModule({"run": run}, graph)
    for name, value in vars(source).items():
        mine = vars(shell).get(name)
        if name.endswith(("_hooks", "_with_kwargs", "_always_called")) and isinstance(mine, dict):
            mine.update(value)
        elif name not in vars(shell):
            vars(shell)[name] = value
    return shell
