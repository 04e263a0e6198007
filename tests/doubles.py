"""Backends that stand in for compilers: they run eagerly and do one thing wrong, or count."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.backends.eager import EagerBackend
from hierpart.graph.node.values import has_value
from hierpart.options import Options
from hierpart.plan import Reason, Verdict

_library = torch.library.Library("doubles", "FRAGMENT")
_library.define("turned(Tensor x) -> Tensor")
_library.impl("turned", lambda x: x.t().contiguous().t() + 0, "CPU")
_library.impl("turned", lambda x: torch.empty_like(x.contiguous()), "Meta")

turned = torch.ops.doubles.turned
"""Copies a matrix; the kernel lays the result out otherwise than its fake says."""


class Double(EagerBackend):
    """Takes every function with recorded values but those named in ``refuses``; counts compiles."""

    keeps_aliases = False

    def __init__(self, name: str, refuses: Collection[str] = ()) -> None:
        self.name = name
        self.refuses = tuple(refuses)
        self.compiled: list[GraphModule] = []

    def verdict(self, node):
        takes = node.op in ("call_function", "call_method") and has_value(node)
        if not takes or any(op in str(node.target) for op in self.refuses):
            return Verdict(self.name, False, Reason.NOT_LISTED, str(node.target))
        return Verdict(self.name, True)

    def compile(self, block, inputs, options):
        self.compiled.append(block)
        return super().compile(block, inputs, options)


class Raising(Double):
    """Fails to compile every block with ``error``."""

    def __init__(self, name: str, error: BaseException, refuses: Collection[str] = ()) -> None:
        super().__init__(name, refuses)
        self.error = error

    def compile(self, block, inputs, options):
        self.compiled.append(block)
        raise self.error


class Wrapping(Double):
    """Hands each compiled block to ``wrap`` with its example inputs."""

    def __init__(self, name: str, wrap: Callable[[Any, Any], Any], refuses=()) -> None:
        super().__init__(name, refuses)
        self.wrap = wrap

    def compile(self, block, inputs, options):
        return self.wrap(super().compile(block, inputs, options), inputs)


def in_layout(seen: list[bool]) -> Callable[[Any, Any], Any]:
    """Return a wrap that notes whether inputs come in the strides of the example inputs."""

    def wrap(function, inputs):
        def run(*args):
            pairs = [(a, i) for a, i in zip(args, inputs, strict=True) if hasattr(i, "stride")]
            seen.append(all(a.stride() == i.stride() for a, i in pairs))
            return function(*args)

        return run

    return wrap


def options_for(*backends: Double, **fields: Any) -> Options:
    """Return options with these backends in this order and no minimum size."""
    settings = {
        "backend_priority": [b.name for b in backends],
        "backend_support_map": {b.name: b for b in backends},
        "min_block_size": 1,
    }
    return Options.from_mapping(settings | fields)


def same(left: Any, right: Any) -> None:
    """Check that two results are the same bit for bit: structure, dtypes, strides, values."""
    leaves, spec = torch.utils._pytree.tree_flatten(left)
    others, other_spec = torch.utils._pytree.tree_flatten(right)
    assert spec == other_spec
    for a, b in zip(leaves, others, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            assert a == b
            continue
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
