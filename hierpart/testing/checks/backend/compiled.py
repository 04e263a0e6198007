"""Checks of one compiled block against the same block run eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter

from hierpart.backends import Backend
from hierpart.testing.checks.backend.rules import BackendViolation, require
from hierpart.testing.checks.backend.samples import Sample
from hierpart.testing.oracle.observe import Shot, shot_of

Call = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Tolerance:
    """How far values may be from eager's, as in ``torch.testing.assert_close``."""

    rtol: float | None = None
    atol: float | None = None

    def differ(self, mine: Tensor, theirs: Tensor) -> str:
        """Return in words how values differ, or an empty string."""
        try:
            torch.testing.assert_close(
                theirs, mine, rtol=self.rtol, atol=self.atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())
        return ""


@dataclass(frozen=True)
class Wanted:
    """What eager does in one call: outputs, the inputs afterwards, and who shares with whom."""

    outputs: tuple[Any, ...]
    inputs: tuple[Any, ...]
    shares: tuple[int, ...]

    @classmethod
    def of(cls, sample: Sample, call: Sequence[Any]) -> Wanted:
        """Run the block of ``sample`` with ``fx.Interpreter``."""
        given = copy.deepcopy(tuple(call))
        with torch.no_grad():
            made = Interpreter(sample.prepare()[0]).run(*given)
        return cls(tuple(map(shot_of, made)), tuple(map(shot_of, given)), _shares(made, given))


def check_block(
    backend: Backend, sample: Sample, options: Mapping[str, Any], close: Tolerance
) -> str | None:
    """Compile one block and check what was made of it.

    Returns:
        Why it cannot run on this machine, ``None`` where it ran.

    Raises:
        BackendViolation: A rule is broken.
    """
    block, inputs = sample.prepare()
    if getattr(backend, "bakes_weights", False) and sample.weights:
        inputs[-sample.weights :] = sample.calls[0][-sample.weights :]
    made = _tried("honest", "compiling what it said yes to", sample, lambda: backend.compile(
        block, inputs, options
    ))  # fmt: skip
    require(callable(made), "result", f"compile returned {made!r}, which cannot be called")
    if (idle := getattr(made, "idle", None)) is not None:
        require(isinstance(idle, str), "result", f"idle is {idle!r}, not text")
        return str(idle)
    wanted = [Wanted.of(sample, call) for call in sample.calls]
    judge = _Judge(backend, sample, close)
    judge.calls(lambda args: made(*args), wanted)
    if (boxed := getattr(made, "boxed", None)) is not None:
        judge.once(boxed, sample.calls[0], wanted[0], "boxed")
    _check_saved(backend, made, sample, judge, wanted[0])
    return None


def _tried(rule: str, doing: str, sample: Sample, attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except KeyboardInterrupt:
        raise
    except Exception as error:
        text = f"{doing} raised {type(error).__name__}: {error}\n{sample.text()}"
        raise BackendViolation(rule, text) from error
    except BaseException as error:
        text = f"{doing} raised {type(error).__name__}, which is no Exception: it ends the process"
        raise BackendViolation("errors", text) from error


def _check_saved(backend: Any, made: Any, sample: Sample, judge: _Judge, wanted: Wanted) -> None:
    if not hasattr(backend, "dump"):
        return
    try:
        data = backend.dump(made)
    except Exception:  # a backend may not be able to write every block; saving then says so
        return
    require(isinstance(data, bytes), "save", f"dump returned {type(data).__name__}, not bytes")
    again = _tried("save", "restoring what dump wrote", sample, lambda: backend.restore(
        data, sample.prepare()[0]
    ))  # fmt: skip
    judge.once(lambda args: again(*args), sample.calls[0], wanted, "save")
    try:
        broken = backend.restore(data[: len(data) // 2], sample.prepare()[0])
    except Exception:  # as it should
        return
    judge.once(lambda args: broken(*args), sample.calls[0], wanted, "save")


class _Judge:
    """Calls a compiled block and compares with eager."""

    def __init__(self, backend: Any, sample: Sample, close: Tolerance) -> None:
        self.sample, self.close = sample, close
        self.keeps = backend.keeps_aliases
        self.exact = self.keeps or getattr(backend, "exact_strides", False)

    def calls(self, run: Call, wanted: Sequence[Wanted]) -> None:
        """Make every call; then what the first ones returned has to be what it was."""
        results, shots = [], []
        for number, (call, want) in enumerate(zip(self.sample.calls, wanted, strict=True)):
            rule = "dynamic" if number and self.sample.dynamic else "values"
            results.append(self.once(run, call, want, rule))
            shots.append([shot_of(value) for value in results[-1]])
        for number, (result, before) in enumerate(zip(results, shots, strict=True)):
            for i, (value, shot) in enumerate(zip(result, before, strict=True)):
                text = shot.differs(shot_of(value)) if isinstance(shot, Shot) else ""
                detail = f"output {i} of call {number} after all calls: {text}"
                self._require(not text, "calls", detail)

    def once(self, run: Call, call: Sequence[Any], want: Wanted, rule: str) -> Sequence[Any]:
        """Make one call and compare; ``rule`` is what a wrong value breaks."""
        given = copy.deepcopy(list(call))
        kept = list(given)  # a boxed function may empty the list
        with torch.no_grad():
            made = _tried(rule, "a call", self.sample, lambda: run(given))
        flat = isinstance(made, (tuple, list)) and len(made) == len(want.outputs)
        self._require(flat, "result", f"{len(want.outputs)} outputs were to come: {made!r}")
        for i, (mine, theirs) in enumerate(zip(want.outputs, made, strict=True)):
            self._value(i, mine, theirs, rule)
        for i, (mine, theirs) in enumerate(zip(want.inputs, kept, strict=True)):
            text = self._differs(mine, theirs)
            self._require(not text, "inputs", f"input {i} after the call: {text}")
        if self.keeps:
            same = _shares(made, kept) == want.shares
            self._require(same, "aliases", "outputs share other inputs than in eager")
        result: Sequence[Any] = made
        return result

    def _value(self, i: int, mine: Any, theirs: Any, rule: str) -> None:
        if not isinstance(mine, Shot):
            same = not isinstance(theirs, Tensor) and theirs == mine
            self._require(same, rule, f"output {i} is {theirs!r} instead of {mine!r}")
            return
        right = isinstance(theirs, Tensor)
        self._require(right, "result", f"output {i} is a {type(theirs).__name__}")
        for name in ("dtype", "shape"):
            want, got = getattr(mine, name), getattr(theirs, name)
            broken = "result" if name == "dtype" or rule == "values" else rule
            self._require(want == got, broken, f"output {i} has {name} {got}, not {want}")
        text = self._differs(mine, theirs)
        self._require(not text, rule, f"output {i}: {text}")
        if self.exact and mine.data.numel() > 1:
            detail = f"output {i} has strides {theirs.stride()}, not {mine.stride}"
            self._require(theirs.stride() == mine.stride, "strides", detail)

    def _differs(self, mine: Any, theirs: Any) -> str:
        if not isinstance(mine, Shot):
            return ""
        return self.close.differ(mine.data, theirs.detach())

    def _require(self, holds: object, rule: str, detail: str) -> None:
        if not holds:  # the block's code is made only then
            raise BackendViolation(rule, f"{detail}\n{self.sample.text()}")


def _shares(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return for each output the first input that has the same storage, -1 for none."""
    keys = [_storage(value) for value in inputs]
    found = [_storage(value) for value in outputs]
    return tuple(keys.index(key) if key is not None and key in keys else -1 for key in found)


def _storage(value: Any) -> int | None:
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
