"""Modules that hold a model's tensors under their original names, and notice when one changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule


class Watch:
    """Whether a tensor of a compiled module may have been replaced since it was last checked."""

    def __init__(self) -> None:
        self.stale = True


class Part(nn.Module):
    """Holds the tensors of one submodule of the original model under their original names."""

    _watch: Watch

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.__dict__["_watch"] = watch

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._watch.stale = True

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._watch.stale = True
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class Owner(Part):
    """The outermost of them: finds a place for each tensor by its qualified name.

    No public names of its own: those belong to the model's parts.
    """

    def __init__(self) -> None:
        super().__init__(Watch())

    def _own_graph(self, graph: GraphModule) -> None:
        """Take all tensors of a graph module, and the modules that it calls."""
        for node in graph.graph.find_nodes(op="call_module"):
            self._adopt(str(node.target), graph.get_submodule(str(node.target)))
        for name, value in _tensors_of(graph):
            path, _, last = name.rpartition(".")
            owner = graph.get_submodule(path)
            self._own(name, value, last not in owner._non_persistent_buffers_set)

    def _own(self, name: str, value: Any, persistent: bool = True) -> None:
        """Take a tensor under its qualified name."""
        path, _, last = name.rpartition(".")
        part = self._part(path)
        if not isinstance(part, Part):
            return  # a tensor of a module that was adopted whole
        if isinstance(value, nn.Parameter):
            part._parameters[last] = value
            return
        part._buffers[last] = value
        if not persistent:
            part._non_persistent_buffers_set.add(last)

    def _adopt(self, name: str, module: nn.Module) -> None:
        """Take a module that the graph calls, with its tensors, under its own name."""
        path, _, last = name.rpartition(".")
        part = self._part(path)
        if isinstance(part, Part):
            part._modules[last] = module

    def _part(self, path: str) -> nn.Module:
        """Return the module at a dotted path, made where there is none yet."""
        part: Any = self
        for step in filter(None, path.split(".")):
            if step not in part._modules:
                part._modules[step] = Part(self._watch)
            part = part._modules[step]
        found: nn.Module = part
        return found

    def _home(self, name: str) -> dict[str, Any] | None:
        """Return the dictionary that holds a parameter or buffer, ``None`` for a constant."""
        path, _, last = name.rpartition(".")
        part: Any = self
        for step in filter(None, path.split(".")):
            part = part._modules.get(step)
            if part is None:
                return None
        homes: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        return next((home for home in homes if last in home), None)


def _tensors_of(graph: GraphModule) -> Iterator[tuple[str, Tensor]]:
    yield from graph.named_parameters(remove_duplicate=False)
    yield from graph.named_buffers(remove_duplicate=False)
