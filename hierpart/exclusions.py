"""Nodes that the user keeps off every backend: by name, by module, by predicate."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from hierpart.errors import OptionError
from hierpart.options import Options


def exclusion(options: Options) -> Callable[[Node], bool] | None:
    """Return the predicate that the options describe, None if they exclude nothing."""
    names, modules, predicate = options.exclude_nodes, options.exclude_modules, options.exclude
    if not (names or modules or predicate):
        return None

    def excluded(node: Node) -> bool:
        if node.name in names or any(_is_inside(node, m) for m in modules):
            return True
        return predicate is not None and _asked(predicate, node)

    return excluded


def _asked(predicate: Callable[[Node], bool], node: Node) -> bool:
    try:
        return bool(predicate(node))
    except Exception as error:
        raise OptionError(
            f"exclude raised {type(error).__name__} for the node {node.name!r}: {error}"
        ) from error


def _is_inside(node: Node, module: str) -> bool:
    """Whether the node was traced in the ``nn.Module`` of that qualified name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    if node.op == "call_module":
        paths.append(str(node.target))
    plain = [p.removeprefix("L['self'].").removeprefix("self.") for p in paths]
    return any(p == module or p.startswith(f"{module}.") for p in plain)
