"""A branch of a control-flow op whose blocks are compiled.

The op runs eagerly and calls its branch with real tensors, but autograd, ``torch.export`` and the
op's own shape inference call it with stand-ins, which no compiled block takes. Then the branch's
graph runs as it was split, and so it does where a gradient is asked for, or in another autocast
region than the blocks were compiled for.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hierpart.graph import resolve_attribute
from hierpart.runtime.autocast import Autocast, fits
from hierpart.runtime.flat_function import Flat


class BranchModule(nn.Module):
    """Runs the compiled blocks of a split branch where that is possible, else its graph.

    Args:
        graph: The split branch.
        flat: The function that runs its compiled blocks.
        region: The autocast region that these were compiled for.
    """

    def __init__(self, graph: GraphModule, flat: Flat, region: Autocast | None = None) -> None:
        super().__init__()
        self.graph_module = graph
        self._flat, self._region = flat, region
        self._paths = tuple(_path(graph, name) for name in flat.attributes)

    def forward(self, *operands: Any) -> Any:
        """Return what the branch's graph returns."""
        tensors = [resolve_attribute(self.graph_module, path) for path in self._paths]
        if not (fits(self._region) and are_plain((*tensors, *operands))):
            return self.graph_module(*operands)
        return self._flat.run([*tensors, *operands])

    def __deepcopy__(self, memo: dict[int, Any]) -> BranchModule:
        graph = copy.deepcopy(self.graph_module, memo)
        twin = BranchModule(graph, self._flat.with_modules(memo), self._region)
        memo[id(self)] = twin
        return twin


def _path(graph: GraphModule, name: str) -> str:
    """Return where the split branch holds the attribute: itself, or the block that reads it."""
    paths = (name, *(f"{child}.{name}" for child, _ in graph.named_children()))
    return next(path for path in paths if _has(graph, path))


def _has(module: nn.Module, name: str) -> bool:
    path, _, last = name.rpartition(".")
    try:
        return hasattr(module.get_submodule(path), last)
    except AttributeError:  # no such part
        return False


def are_plain(values: Sequence[Any]) -> bool:
    """Whether all tensors are real ones that no mode traces and that need no gradient now."""
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    wants_gradient = torch.is_grad_enabled()
    for value in values:
        if not isinstance(value, Tensor):
            continue
        if type(value) not in (Tensor, nn.Parameter) or (wants_gradient and value.requires_grad):
            return False
        if torch._is_functional_tensor(value) or torch._C._functorch.is_functorch_wrapped_tensor(
            value
        ):
            return False
    return True
