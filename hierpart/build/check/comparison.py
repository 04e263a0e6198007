"""A compiled block beside the same block run eagerly, on inputs that are made for it.

Compared are the number of outputs, their dtypes, sizes, devices, strides and values, the memory
that they share, and what was written to the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierpart.build.check.bench import Bench, gpus_of
from hierpart.build.check.tolerance import distance, tolerance_of
from hierpart.errors import BlockFaultError, HierpartError
from hierpart.graph import restrider, same_layout

Run = Callable[[list[Any]], Sequence[Any]]


class NotCheckableError(HierpartError, RuntimeError):
    """A block cannot be run eagerly on inputs that are made up; it was left unchecked."""


@dataclass(frozen=True)
class _Ran:
    """What a run took and gave: the inputs as they are after it."""

    inputs: list[Any]
    outputs: list[Any]


def check(bench: Bench, run: Run) -> None:
    """Compare a compiled block with eager on two sets of inputs.

    The caller's random numbers are not used up. The caller sees to the modes (no gradients, the
    autocast region of the block).

    Args:
        bench: The block.
        run: The compiled block; takes one list, which it may empty.

    Raises:
        BlockFaultError: They do not agree, or the compiled block raised; the message says in what.
        NotCheckableError: Eager raised on all inputs that were made.
    """
    checked, why = 0, "no inputs could be made"
    for seed in (0, 1):
        with torch.random.fork_rng(gpus_of(bench.values)):
            try:
                whole, expected = _eagerly(bench, seed)
            except NotCheckableError as error:
                why = str(error)
                continue
            found = _compiled(bench, run, seed, whole)
            for fault in _faults(bench, found, expected, seed, whole):
                raise BlockFaultError(f"does not agree with eager: {fault}")
            checked += 1
    if not checked:
        raise NotCheckableError(why)


def rehearse(bench: Bench, run: Run) -> None:
    """Run a compiled block once on made-up inputs, for what it does besides giving results.

    Raises:
        Exception: Whatever the block raises, if eager does not raise on the same inputs.
    """
    try:
        whole, _ = _eagerly(bench, 0)
    except NotCheckableError:
        return
    run(bench.inputs(0, whole))


def _eagerly(bench: Bench, seed: int) -> tuple[bool, _Ran]:
    """Return the eager run and which integers it was made with."""
    error: Exception | None = None
    for whole in (True, False):
        try:
            inputs = bench.inputs(seed, whole)
            torch.manual_seed(seed)
            outputs = list(bench.graph(*inputs))
        except Exception as raised:  # whatever an operator says to inputs that it does not like
            error = raised
            continue
        return whole, _Ran(inputs, outputs)
    raise NotCheckableError(
        f"eager raises on inputs that are made up: {type(error).__name__}: {error}"
    ) from error


def _compiled(bench: Bench, run: Run, seed: int, whole: bool) -> _Ran:
    inputs = bench.inputs(seed, whole)
    torch.manual_seed(seed)
    try:
        results = run(list(inputs))
        outputs = list(results)
    except Exception as error:  # backends raise whatever they like
        raise BlockFaultError(f"raised when run: {type(error).__name__}: {error}") from error
    return _Ran(inputs, outputs)


def _faults(bench: Bench, found: _Ran, expected: _Ran, seed: int, whole: bool) -> Iterator[str]:
    """Yield how a run differs from the eager one, the most telling first."""
    if len(found.outputs) != len(expected.outputs):
        yield f"{len(found.outputs)} outputs in place of {len(expected.outputs)}"
        return
    pairs = list(zip(found.outputs, expected.outputs, bench.outputs, strict=True))
    for i, (mine, right, value) in enumerate(pairs):
        yield from (f"output {i} {text}" for text in _look(mine, right, value))
    yield from _shared(bench, found, expected)
    tolerance = bench.tolerance
    for i, (mine, right) in enumerate(zip(found.inputs, expected.inputs, strict=True)):
        gap = distance(mine, right)
        if gap > _allowed(right, tolerance):
            yield f"input {i} is left different, by {gap:.1e}: it was written"
    random: list[bool] | None = None
    for i, (mine, right, _) in enumerate(pairs):
        gap = distance(mine, right)
        if gap > _allowed(right, tolerance):
            random = _random(bench, expected, seed, whole) if random is None else random
            if not random[i]:
                yield f"output {i} differs by {gap:.1e} (tolerance {_allowed(right, tolerance):g})"


def _look(mine: Any, right: Any, value: Any) -> Iterator[str]:
    """Yield what an output looks like and should not."""
    if not isinstance(right, Tensor):
        if isinstance(mine, Tensor):
            yield "is a tensor; eager's is none"
        return
    if not isinstance(mine, Tensor):
        yield f"is of type {type(mine).__name__} in place of a tensor"
    elif mine.dtype is not right.dtype:
        yield f"is {mine.dtype} in place of {right.dtype}"
    elif mine.shape != right.shape:
        yield f"has shape {tuple(mine.shape)} in place of {tuple(right.shape)}"
    elif mine.device != right.device:
        yield f"is on {mine.device} in place of {right.device}"
    elif mine.layout is not right.layout:
        yield f"is {mine.layout} in place of {right.layout}"
    elif right.layout is torch.strided and not _strides_fit(mine, right, value):
        yield f"has strides {mine.stride()} in place of {_promised(right, value)}"


def _strides_fit(mine: Tensor, right: Tensor, value: Any) -> bool:
    """Whether strides are those that the graph promises, or those of eager's own kernel."""
    return same_layout(right.shape, mine.stride(), _promised(right, value)) or same_layout(
        right.shape, mine.stride(), right.stride()
    )


def _promised(right: Tensor, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Tensor) or value.ndim != right.ndim:
        return right.stride()
    restride = restrider(value)
    made: Tensor = right if restride is None else restride(right)
    return made.stride()


def _shared(bench: Bench, found: _Ran, expected: _Ran) -> Iterator[str]:
    """Yield where outputs share memory with an input, or each other, and should not; or should."""
    mine, right = _aliases(found), _aliases(expected)
    for pair in sorted(mine - right):
        yield f"output {pair[0]} shares memory with {pair[1]} {pair[2]}; eager's does not"
    if bench.exact_aliases:
        for pair in sorted(right - mine):
            yield f"output {pair[0]} does not share memory with {pair[1]} {pair[2]} as eager's does"


def _aliases(ran: _Ran) -> set[tuple[int, str, int]]:
    found = set()
    for i, output in enumerate(ran.outputs):
        found |= {(i, "input", j) for j, t in enumerate(ran.inputs) if _overlap(output, t)}
        earlier = enumerate(ran.outputs[:i])
        found |= {(i, "output", j) for j, t in earlier if _overlap(output, t)}
    return found


def _overlap(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided or not one.numel():
        return False
    place = one.untyped_storage().data_ptr()
    return place != 0 and place == other.untyped_storage().data_ptr()


def _random(bench: Bench, expected: _Ran, seed: int, whole: bool) -> list[bool]:
    """Return which outputs eager itself gives otherwise with other random numbers.

    They are drawn, or memory that nobody has written; there is no right value to compare with.
    """
    torch.manual_seed(seed + 1)
    again = list(bench.graph(*bench.inputs(seed, whole)))
    pairs = zip(again, expected.outputs, strict=True)
    return [distance(a, b) > _allowed(b, bench.tolerance) for a, b in pairs]


def _allowed(right: Any, tolerance: float | None) -> float:
    return tolerance_of(right.dtype, tolerance) if isinstance(right, Tensor) else 0.0
