"""Runs a module and writes down everything about the run that can be seen from outside."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from hierpart.testing.generate.graph_builder import undisturbed


@dataclass(frozen=True, slots=True)
class Shot:
    """A tensor as it was at one moment."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool
    data: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Shot:
        """Take a copy of ``value``."""
        return cls(
            value.dtype,
            tuple(value.shape),
            value.stride(),
            int(value.storage_offset()),
            value.requires_grad,
            value.detach().clone(),
        )

    def differs(self, other: Shot) -> str:
        """Return in words how ``other`` differs, or an empty string."""
        for name in ("dtype", "shape", "stride", "offset", "requires_grad"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {theirs} instead of {mine}"
        if not _same_bits(self.data, other.data):
            return f"values {_flat(other.data)} instead of {_flat(self.data)}"
        return ""


@dataclass(frozen=True, slots=True)
class Run:
    """What a call did, as seen from outside.

    Attributes:
        error: Type and text of the exception that ended the call, or an empty string.
        structure: The pytree of the result.
        leaves: Its leaves, tensors as :class:`Shot`.
        live: Its leaves themselves.
        inputs: The tensors among the arguments after the call.
        state: The attributes after the call, by name.
        aliases: For each tensor of result, arguments and state, the first one of them that has the
            same storage.
        stream: State of the random generator after the call.
        text: What was printed.
        modes: Grad mode and autocast after the call.
    """

    error: str
    structure: Any
    leaves: tuple[Any, ...]
    live: tuple[Any, ...]
    inputs: tuple[Shot, ...]
    state: dict[str, Shot]
    aliases: tuple[int, ...]
    stream: Tensor
    text: str
    modes: tuple[bool, bool]

    def differs(self, other: Run) -> tuple[str, str]:
        """Return which contract ``other`` breaks and how, or two empty strings."""
        if self.error != other.error:
            return "C8", f"the call ended with {other.error!r} instead of {self.error!r}"
        if self.text != other.text:
            return "C3", f"printed {other.text!r} instead of {self.text!r}"
        if self.structure != other.structure:
            return "C8", f"result of structure {other.structure} instead of {self.structure}"
        for position, (mine, theirs) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            if text := _leaf_differs(mine, theirs):
                return "C8", f"output {position}: {text}"
        for position, (mine, theirs) in enumerate(zip(self.inputs, other.inputs, strict=True)):
            if text := mine.differs(theirs):
                return "C8", f"tensor {position} of the arguments after the call: {text}"
        for name, mine in self.state.items():
            if text := mine.differs(other.state[name]):
                return "C8", f"attribute {name} after the call: {text}"
        if self.aliases != other.aliases:
            return "C8", (
                f"storages shared by outputs, arguments and attributes: {other.aliases} instead "
                f"of {self.aliases} (for each tensor the first one with the same storage)"
            )
        if not torch.equal(self.stream, other.stream):
            return "C8", "the random stream is in another state after the call"
        if self.modes != other.modes:
            return "C8", f"grad mode and autocast are {other.modes} instead of {self.modes}"
        return "", ""


def observe(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    state: Mapping[str, Tensor],
    seed: int = 0,
) -> Run:
    """Call and write down everything that can be seen; what it leaves behind is put back."""
    text, error, result = io.StringIO(), "", None
    with undisturbed():
        torch.default_generator.manual_seed(seed)
        with contextlib.redirect_stdout(text):
            try:
                result = call(*args, **kwargs)
            except Exception as raised:
                error = f"{type(raised).__name__}: {_first_line(raised)}"
        stream = torch.get_rng_state()
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    leaves, structure = pytree.tree_flatten(_plain(result))
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return Run(
        error=error,
        structure=structure,
        leaves=tuple(shot_of(leaf) for leaf in leaves),
        live=tuple(leaves),
        inputs=tuple(Shot.of(leaf) for leaf in given),
        state={name: Shot.of(tensor) for name, tensor in state.items()},
        aliases=_aliases([*tensors, *given, *state.values()]),
        stream=stream,
        text=text.getvalue(),
        modes=modes,
    )


def state_of(gm: GraphModule) -> dict[str, Tensor]:
    """Return every tensor attribute of ``gm`` by its qualified name, branches included."""
    found: dict[str, Tensor] = {}
    for path, module in gm.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, value in _attributes(module):
            if isinstance(value, Tensor):
                found.setdefault(prefix + name, value)
    return found


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module._parameters.items()
    yield from module._buffers.items()
    yield from ((name, value) for name, value in vars(module).items())


@contextlib.contextmanager
def state_kept(gm: GraphModule) -> Iterator[None]:
    """Put the contents of all tensor attributes of ``gm`` back at the end."""
    saved = [(value, value.detach().clone()) for value in state_of(gm).values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for value, content in saved:
                value.detach().copy_(content)


def shot_of(leaf: Any) -> Any:
    """Return a :class:`Shot` of a tensor, and anything else as it is."""
    return Shot.of(leaf) if isinstance(leaf, Tensor) else leaf


def _plain(value: Any) -> Any:
    """Return ``value`` with the lists and dicts that FX keeps in a graph as ordinary ones."""
    if type(value) in (list, immutable_list):
        return [_plain(item) for item in value]
    if type(value) in (dict, immutable_dict):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(_plain(item) for item in value) if type(value) is tuple else value


def _leaf_differs(mine: Any, theirs: Any) -> str:
    if isinstance(mine, Shot) and isinstance(theirs, Shot):
        return mine.differs(theirs)
    if type(mine) is not type(theirs) or mine != theirs:
        return f"{theirs!r} instead of {mine!r}"
    return ""


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare bit for bit; any NaN equals any other."""
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        return _same_bits(torch.view_as_real(a), torch.view_as_real(b))
    if not a.is_floating_point():
        return torch.equal(a, b)
    same = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((same | (torch.isnan(a) & torch.isnan(b))).all())


def _flat(data: Tensor) -> str:
    values = data.reshape(-1).tolist()
    return str(values if len(values) <= 12 else [*values[:12], "..."])


def _aliases(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(int(tensor.untyped_storage()._cdata), position)
        for position, tensor in enumerate(tensors)
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
