"""Which compiled block makes a compiled module wrong: ``hierpart.bisect(compiled, args)``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from hierpart.build import distance, guilty_items, tolerance_of
from hierpart.debug.walk import REFERENCES, Finding, Walk
from hierpart.errors import HierpartError, InputTypeError, OptionError, nearest
from hierpart.page import counted
from hierpart.runtime import CompiledModule, Pieces


@dataclass(frozen=True)
class Bisection:
    """What :func:`bisect` found.

    Attributes:
        first: The first block that is beyond the tolerance by itself, if any.
        guilty: Indices of the blocks that have to run eagerly for the results to agree.
        findings: How far each compiled block is from eager on the values of this run, in order;
            empty where blocks were not run by themselves.
        runs: How often the model was run.
        backends: Who runs the guilty blocks, by index.
    """

    first: Finding | None
    guilty: tuple[int, ...]
    findings: tuple[Finding, ...]
    runs: int
    backends: Mapping[int, str]

    def __str__(self) -> str:
        if not self.guilty:
            return f"no block is guilty ({counted(self.runs, 'run')})"
        names = ", ".join(f"block {i} ({self.backends[i]})" for i in self.guilty)
        text = f"guilty: {names} ({counted(self.runs, 'run')})"
        return text if self.first is None else f"{text}; first: {self.first}"


def bisect(
    compiled: CompiledModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    reference: str = "original",
    blockwise: bool = True,
) -> Bisection:
    """Find the compiled blocks that make a compiled module wrong.

    In one run each compiled block gets the values that eager computes and is compared with eager
    by itself. Blocks beyond the tolerance move to eager; if the results are then still not those of
    eager, or no block was beyond it, halves of the others move to eager until the guilty ones are
    left. One guilty block among n takes at most ``2 + ceil(log2 n)`` runs. The module, its buffers
    and the arguments are left as they were.

    Args:
        compiled: What ``hierpart.compile`` or ``hierpart.load`` returned.
        args: Positional arguments to run it with.
        kwargs: Keyword arguments.
        tolerance: Largest relative distance of floats; ``None`` for what is usual for the dtype.
        reference: What a block is compared with: eager in the ``"original"`` dtypes, or in
            ``"float64"``, where a block may be as far off as four times eager's own error.
        blockwise: Whether to run the blocks by themselves first; ``False`` halves only.

    Raises:
        InputTypeError: ``compiled`` is something else.
        HierpartError: No block of the module is compiled.
        OptionError: ``reference`` is not known.
        InputMismatchError: The arguments are not what the module was compiled for.
    """
    if reference not in REFERENCES:
        raise OptionError(f"reference={reference!r} is not legal" + nearest(reference, REFERENCES))
    if not isinstance(compiled, CompiledModule):
        raise InputTypeError(
            f"bisect takes what hierpart.compile returns, not a {type(compiled).__name__}"
        )
    pieces = compiled._pieces
    if pieces is None or not pieces.calls:
        raise HierpartError("no block of this module is compiled, so all of it runs eagerly")
    runs = _Runs(compiled, pieces, tuple(args), dict(kwargs or {}), tolerance)
    numbers = {b.name: b.index for b in compiled.plan.blocks}
    findings = runs.walk(reference) if blockwise else runs.eagerly()
    wrong = tuple(f.name for f in findings if f.is_wrong)
    names = tuple(n for n in numbers if n in pieces.calls)
    guilty = _guilty(runs, names, wrong)
    first = next((f for f in findings if f.is_wrong), None)
    indices = tuple(numbers[n] for n in names if n in guilty)
    backends = {o.block: o.backend for o in compiled.report.outcomes if o.block in indices}
    return Bisection(first, indices, findings, runs.count, backends)


def _guilty(runs: _Runs, names: Sequence[str], wrong: tuple[str, ...]) -> tuple[str, ...]:
    if wrong and runs.agrees(wrong):
        return wrong
    rest = [n for n in names if n not in wrong]
    found = guilty_items(rest, lambda aside: runs.agrees((*wrong, *aside)))
    if not runs.differed and runs.agrees(()):
        return ()
    return (*wrong, *found)


class _Runs:
    """Runs of the model on the same arguments and state, counted.

    Attributes:
        count: How many there were.
        differed: Whether any gave other results than eager.
    """

    def __init__(
        self,
        compiled: CompiledModule,
        pieces: Pieces,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tolerance: float | None,
    ) -> None:
        self.compiled, self.pieces, self.tolerance = compiled, pieces, tolerance
        self.given = (args, kwargs)
        self.count, self.differed = 0, False
        self.expected: list[Any] = []

    def walk(self, reference: str) -> tuple[Finding, ...]:
        """Run eagerly, each compiled block beside it; keep the results to compare with."""
        backends = {b.name: b for b in self.compiled.plan.blocks}
        walk = Walk(self.pieces, self.compiled._flat, backends, self.tolerance, reference)
        self.expected = self._run(walk)
        return tuple(walk.findings)

    def eagerly(self) -> tuple[Finding, ...]:
        """Run eagerly and keep the results to compare with."""
        self.expected = self._run(self.pieces.flat(self.pieces.calls))
        return ()

    def agrees(self, eager: Collection[str]) -> bool:
        """Whether the results are eager's with these blocks run eagerly."""
        try:
            found = self._run(self.pieces.flat(eager))
        except Exception:  # compiled code raises whatever it likes; eager has not
            self.differed = True
            return False
        same = len(found) == len(self.expected) and all(
            distance(a, b) <= _allowed(b, self.tolerance)
            for a, b in zip(found, self.expected, strict=True)
        )
        self.differed |= not same
        return same

    def _run(self, flat: Any) -> list[Any]:
        """Return the results, then the arguments and the buffers as the run left them."""
        self.count += 1
        args, kwargs = tree_map_only(Tensor, torch.clone, self.given)
        buffers = dict(self.compiled.named_buffers())
        before = {name: value.clone() for name, value in buffers.items()}
        with torch.random.fork_rng(), torch.no_grad():
            try:
                torch.manual_seed(0)
                result = self.compiled.running(flat)(*args, **kwargs)
                after = {name: value.clone() for name, value in buffers.items()}
            finally:
                for name, value in buffers.items():
                    value.copy_(before[name])
        leaves = tree_leaves((result, args, kwargs, after))
        return [v.clone() if isinstance(v, Tensor) else v for v in leaves]


def _allowed(right: Any, tolerance: float | None) -> float:
    return tolerance_of(right.dtype, tolerance) if isinstance(right, Tensor) else 0.0
