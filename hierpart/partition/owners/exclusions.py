"""Nodes that the user keeps off every backend: by name, by module, by predicate."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from hierpart.options import Options


def exclusion(options: Options) -> Callable[[Node], bool] | None:
    """Return the predicate that the options describe, None if they exclude nothing."""
    names, modules, predicate = options.exclude_nodes, options.exclude_modules, options.exclude
    if not (names or modules or predicate):
        return None

    def excluded(node: Node) -> bool:
        if node.name in names or any(_is_inside(node, m) for m in modules):
            return True
        return predicate is not None and bool(predicate(node))

    return excluded


def _is_inside(node: Node, module: str) -> bool:
    """Whether the node was traced in the ``nn.Module`` of that qualified name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    if node.op == "call_module":
        paths.append(str(node.target))
    plain = [p.removeprefix("L['self'].").removeprefix("self.") for p in paths]
    return any(p == module or p.startswith(f"{module}.") for p in plain)
