"""Text and snapshots of modules: to see that nothing changed, or that two are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

Snapshot = dict[str, object]
"""Facts by where they were found; two snapshots are compared with :func:`difference`."""


def snapshot(gm: GraphModule) -> Snapshot:
    """Return everything about ``gm`` that a partitioner must leave as it is (C10).

    Tensors and modules are kept by identity, tensors with their version, metadata by identity of
    its values, nested graph modules in full.
    """
    facts: Snapshot = {}
    for path, module in gm.named_modules(remove_duplicate=False):
        facts.update(_module_facts(path or "the module", module))
        if isinstance(module, GraphModule):
            facts.update(_graph_facts(path or "the module", module))
    return facts


def difference(before: Snapshot, after: Snapshot) -> str:
    """Return the first difference in words, or an empty string."""
    for where in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(where, "nothing"), after.get(where, "nothing")
        if old is not new and old != new:
            return f"{where} was {_shown(old)}, is {_shown(new)}"
    return ""


def describe(gm: GraphModule) -> str:
    """Return every graph of ``gm`` as text that is the same in every process.

    Modules come by name: a copy of a module does not keep their order.
    """
    lines = []
    for path, module in sorted(gm.named_modules(remove_duplicate=False), key=lambda m: m[0]):
        if isinstance(module, GraphModule):
            lines.append(f"module {path or '(top)'}:")
            lines.extend("  " + node_text(node) for node in module.graph.nodes)
    return "\n".join(lines)


def node_text(node: Node) -> str:
    """Return one node as text without addresses."""
    return f"{node.name} = {node.op} {target_text(node.target)} {node.args} {node.kwargs}"


def target_text(target: Any) -> str:
    """Return a target's name: as text, or with the module that it comes from."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", str(target))
    return f"{module}.{name}" if module else name


def _module_facts(path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    yield f"{path}: training flag", module.training
    yield f"{path}: attributes", sorted(vars(module))
    yield f"{path}: submodules", {k: id(v) for k, v in module._modules.items()}
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        yield f"{path}.{name}: identity", id(tensor)
        yield f"{path}.{name}: version", _version(tensor)
    for name, value in vars(module).items():
        if isinstance(value, dict) and (name.endswith("_hooks") or name == "meta"):
            yield f"{path}: {name}", {k: id(v) for k, v in value.items()}
        elif isinstance(value, Tensor):
            yield f"{path}.{name}: identity", (id(value), _version(value))


def _version(tensor: Tensor | None) -> object:
    return None if tensor is None else (tensor._version, tensor.shape, tensor.stride())


def _graph_facts(path: str, gm: GraphModule) -> Iterator[tuple[str, object]]:
    yield f"{path}: code", gm.code
    yield f"{path}: graph", id(gm.graph)
    yield f"{path}: order of nodes", [node.name for node in gm.graph.nodes]
    for node in gm.graph.nodes:
        where = f"{path}: node {node.name}"
        yield f"{where}", node_text(node)
        yield f"{where}: identity", id(node)
        yield f"{where}: users", [user.name for user in node.users]
        yield f"{where}: metadata", {k: id(v) for k, v in node.meta.items()}
        yield f"{where}: type", node.type
        yield f"{where}: attributes hung on it", sorted(getattr(node, "__dict__", {}))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."
