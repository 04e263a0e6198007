"""A split module run eagerly, with each compiled block run beside it on the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from hierpart.build import distance, tolerance_of
from hierpart.graph import has_value, restrider, value_of
from hierpart.plan import Block
from hierpart.runtime import Call, Flat, Pieces

REFERENCES = ("original", "float64")
LENIENCE = 4
"""How many times eager's own error a block may be off from float64."""


@dataclass(frozen=True)
class Finding:
    """How far a compiled block is from eager.

    Attributes:
        block: Index of the block.
        name: Name of its submodule.
        backend: Who runs it.
        distance: Largest relative distance over its outputs and inputs (see
            :func:`hierpart.build.check.tolerance.distance`).
        allowed: The tolerance for the value that is furthest beyond its own.
        fault: What it raised, empty if nothing.
    """

    block: int
    name: str
    backend: str
    distance: float
    allowed: float
    fault: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it is beyond the tolerance."""
        return bool(self.fault) or self.distance > self.allowed

    def __str__(self) -> str:
        how = self.fault or f"differs by {self.distance:.1e} (tolerance {self.allowed:.1e})"
        return f"block {self.block} ({self.backend}) {how}"


class Walk:
    """Stands for the flat function of a compiled module: runs eagerly and compares.

    Args:
        pieces: What the flat function is made from.
        flat: The flat function.
        blocks: The blocks by name.
        tolerance: Largest distance of floats; ``None`` for what is usual for the dtype.
        reference: One of :data:`REFERENCES`.

    Attributes:
        findings: One a compiled block, in order.
    """

    def __init__(
        self,
        pieces: Pieces,
        flat: Flat,
        blocks: Mapping[str, Block],
        tolerance: float | None,
        reference: str,
    ) -> None:
        self.pieces, self.attributes, self.blocks = pieces, flat.attributes, blocks
        self.tolerance, self.reference = tolerance, reference
        self.findings: list[Finding] = []

    def run(self, args: list[Any]) -> Any:
        """Run once; ``args`` is emptied."""
        count = len(self.attributes)
        tensors = dict(zip(self.attributes, args[:count], strict=True))
        inputs = args[count:]
        args.clear()
        return _Parent(self, tensors).run(*inputs, enable_io_processing=False)

    def compare(
        self, name: str, call: Call, inputs: Sequence[Any], tensors: Mapping[str, Tensor]
    ) -> Any:
        """Return what eager makes of a block's inputs; note how far the compiled block is off."""
        child: Any = self.pieces.parent.get_submodule(name)
        copies = [_copied(v) for v in inputs]
        spare = [_copied(v) for v in inputs]
        draws, state = _draws(child), _states()
        expected = _Eager(child, tensors).run(*inputs)
        after, fault, mine = _states(), "", list[Any]()
        _put_states(state)
        try:
            mine = _called(child, call, copies, tensors)
        except Exception as error:  # compiled code raises whatever it likes
            fault = f"raised {type(error).__name__}: {error}"
        precise = self.reference == "float64" and not draws
        finest = _in_float64(child, spare, tensors) if precise else None
        gap, allowed = self._gap(mine, [*expected, *inputs], finest)
        if gap > allowed and draws:  # other numbers than eager draws are as good
            again = [*_Eager(child, tensors).run(*spare), *spare]
            itself, _ = self._gap(again, [*expected, *inputs], None)
            gap = 0.0 if itself > allowed else gap
        _put_states(after)
        block = self.blocks[name]
        self.findings.append(Finding(block.index, name, block.backend, gap, allowed, fault))
        return expected

    def _gap(
        self, mine: Sequence[Any], right: Sequence[Any], finest: Sequence[Any] | None
    ) -> tuple[float, float]:
        """Return the distance that is furthest beyond its tolerance, and that tolerance."""
        if not mine:
            return 0.0, 0.0
        found = []
        for i, (one, other) in enumerate(zip(mine, right, strict=True)):
            allowed = (
                tolerance_of(other.dtype, self.tolerance) if isinstance(other, Tensor) else 0.0
            )
            gap = distance(one, other)
            if finest is not None and i < len(finest) and _is_float(other):
                gap = distance(one, finest[i])
                allowed = max(allowed, LENIENCE * distance(other, finest[i]))
            found.append((gap, allowed))
        return max(found, key=lambda pair: pair[0] - pair[1])


class _Eager(Interpreter):
    """Runs a graph whose tensor attributes are given by name."""

    def __init__(self, module: GraphModule, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(module)
        self.tensors = tensors

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the tensor that the compiled module has now."""
        if target in self.tensors:
            return self.tensors[target]
        return super().get_attr(target, args, kwargs)


class _Parent(_Eager):
    """Runs the split module; compiled blocks are compared."""

    def __init__(self, walk: Walk, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(walk.pieces.parent, tensors)
        self.walk = walk

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a block eagerly, and beside it what it was compiled to."""
        call = self.walk.pieces.calls.get(target)
        if call is not None:
            return self.walk.compare(target, call, args, self.tensors)
        child: Any = self.fetch_attr(target)
        if isinstance(child, GraphModule):
            return _Eager(child, self.tensors).run(*args)
        return super().call_module(target, args, kwargs)


def _called(
    child: GraphModule, call: Call, inputs: Sequence[Any], tensors: Mapping[str, Tensor]
) -> list[Any]:
    """Return what the compiled block gives, then its inputs as it leaves them."""
    given = list(inputs)
    if call.exact_inputs:
        nodes = child.graph.find_nodes(op="placeholder")
        given = [_laid_out(node, v) for node, v in zip(nodes, given, strict=True)]
    return [*call.function([*given, *(tensors[a] for a in call.attributes)]), *given]


def _laid_out(node: Any, value: Any) -> Any:
    restride = restrider(value_of(node)) if has_value(node) else None
    return value if restride is None else restride(value)


def _in_float64(
    child: GraphModule, inputs: Sequence[Any], tensors: Mapping[str, Tensor]
) -> list[Any] | None:
    """Return the block's outputs computed in float64, ``None`` where it insists on its dtypes."""
    wide = {name: _wide(tensor) for name, tensor in tensors.items()}
    try:
        return list(_Eager(child, wide).run(*map(_wide, inputs)))
    except RuntimeError:  # an operator that wants both of its operands in one dtype, and the like
        return None


def _draws(child: GraphModule) -> bool:
    """Whether an operator of the block draws random numbers."""
    targets = (n.target for n in child.graph.nodes)
    ops = (t for t in targets if isinstance(t, torch._ops.OpOverload))
    return any(torch.Tag.nondeterministic_seeded in op.tags for op in ops)


def _states() -> list[Tensor]:
    """Return the states of the random number generators, the CPU's first."""
    on_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if on_gpus else ())]


def _put_states(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def _wide(value: Any) -> Any:
    return value.double() if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
