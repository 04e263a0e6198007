"""Fuzz of bad input: an error of the right family or a right result, never anything else.

Malformed graphs, hostile options and damaged files are made from numbers, one input a number, so
that any of them can be made again. What may come of one is an error of the families
``HierpartError``, ``ValueError`` and ``TypeError``, or a result that does what the input does.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

import hierpart
from hierpart.errors import HierpartError
from hierpart.testing.contract import ContractViolation
from hierpart.testing.generate import malformed
from hierpart.testing.generate.choice import SeededChoice
from hierpart.testing.generate.choose_options import choose_options
from hierpart.testing.generate.graphs import inputs_for, random_graph_module
from hierpart.testing.generate.malformed import CHANGES, broken, damaged, hostile_options
from hierpart.testing.oracle.expected import Expected
from hierpart.testing.oracle.observe import state_kept, state_of
from hierpart.testing.reading.blocks import callable_nodes

FAMILIES = (HierpartError, ValueError, TypeError)
"""What may be raised for a bad input."""
METADATA = ("wrong val", "stale val")
"""Changes to recorded values; those of functions without a schema have to be believed."""
LIMIT = 60
"""Seconds after which an input counts as a hang."""
GRAPHS = 16
"""How many valid graphs the malformed ones are made from."""


@dataclass
class BadInputs:
    """What came of a number of bad inputs.

    Attributes:
        refused: How many ended with an error of the right family, by the kind of input.
        right: How many gave a result that does what the input does.
        late: How many with wrong metadata gave a result that raises when it is run.
        faults: Anything else, in words, by the number of the input; one for each kind.
    """

    refused: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many inputs were tried."""
        counts = (self.refused, self.right, self.late)
        return sum(count.total() for count in counts) + len(self.faults)

    def summary(self) -> str:
        """Return the counts in a line."""
        return (
            f"{self.inputs} bad inputs: {self.refused.total()} refused, {self.right.total()} right "
            f"all the same, {self.late.total()} raise when run, {len(self.faults)} faults"
        )


def fuzz_bad_input(
    inputs: int, start: int = 0, progress: Callable[[BadInputs], None] | None = None
) -> BadInputs:
    """Try bad inputs ``start`` to ``start + inputs - 1``.

    Args:
        inputs: How many.
        start: Number of the first.
        progress: Called after every hundred with what was found so far.
    """
    done = BadInputs()
    for number in range(start, start + inputs):
        kind, fault = try_input(number)
        if fault is None:
            done.right[kind] += 1
        elif fault in ("refused", "late"):
            (done.refused if fault == "refused" else done.late)[kind] += 1
        else:
            done.faults[number] = f"{kind}: {fault}"
        if progress is not None and (number - start) % 100 == 99:
            progress(done)
    return done


def try_input(number: int) -> tuple[str, str | None]:
    """Make bad input ``number``, hand it to hierpart, and judge what comes.

    Returns:
        The kind of input, and ``None`` for a right result, ``"refused"`` for an error of the right
        family, ``"late"`` for a result of wrong metadata that raises, else what was wrong.
    """
    kinds: list[str] = [*CHANGES, "options", "options", "options", "file"]
    kind = kinds[number % len(kinds)]
    tries = {"options": _try_options, "file": _try_file}
    try:
        with _time_limit(LIMIT), _quiet():
            if kind in tries:
                return kind, tries[kind](number)
            return kind, _try_graph(number, kind)
    except FAMILIES:
        return kind, "refused"
    except ContractViolation as error:
        if kind in METADATA and error.detail.endswith("instead of ''"):
            return kind, "late"
        return kind, f"wrong result: {error.detail}"
    except Exception as error:  # the judge of all of them
        frames = traceback.extract_tb(error.__traceback__)
        if frames[-1].filename == malformed.__file__:
            return kind, "refused"  # of the user's own predicate: it reaches the user
        where = next((f for f in reversed(frames) if "hierpart" in f.filename), frames[-1])
        return (
            kind,
            f"{type(error).__name__} from {Path(where.filename).name}:{where.name}: {error}",
        )


@cache
def _good(number: int) -> GraphModule:
    """Return a valid graph of at least two callable nodes, so that there is something to break."""
    # What a value says of an input is believed, also that it is none that could share a storage.
    left_out = {"control_flow", "prints", "shared_inputs"}
    seeds = itertools.count(number, GRAPHS)
    graphs = (random_graph_module(seed, size=6, without=left_out) for seed in seeds)
    return next(gm for gm in graphs if len(callable_nodes(gm)) > 1)


def _legal(gm: GraphModule, number: int) -> dict[str, Any]:
    return choose_options(SeededChoice(number), gm)


def _try_graph(number: int, change: str) -> str | None:
    valid = _good(number % GRAPHS)
    gm, options = broken(valid, change, number), _legal(valid, number)
    options.pop("torch_executed_ops", None)  # the change may have taken the op out
    result, _ = hierpart.hierarchical_adjacency_partition(gm, **options)
    return _compared(gm, result, inputs_for(valid))


def _compared(gm: GraphModule, result: GraphModule, call: tuple[Any, ...]) -> str | None:
    """Compare with what the input does; where it does not run, nothing is promised."""
    try:
        expected = Expected(copy.deepcopy(gm), [call])
    except Exception:  # whatever a broken graph raises when it is run, or copied
        return None
    if expected.runs[0].error:
        return None
    with state_kept(gm):
        expected.check(result, state_of(gm))
    return None


def _try_options(number: int) -> str | None:
    gm = _good(number % GRAPHS)
    options = hostile_options(_legal(gm, number), number)
    result, _ = hierpart.hierarchical_adjacency_partition(gm, **options)
    return _compared(gm, result, inputs_for(gm))


@cache
def _saved() -> bytes:
    """Return the bytes of a saved module that runs eagerly."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    made = hierpart.compile(model, (torch.ones(2, 3),), backend_priority=[])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        made.save(path)
        return path.read_bytes()


def _try_file(number: int) -> str | None:
    data = _saved()
    bad = damaged(data, number)
    if bad == data:
        return "refused"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged"
        path.write_bytes(bad)
        hierpart.load(path)
    return "a damaged file was loaded"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep logs, warnings and what torch prints of broken graphs to itself."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` in the main thread after so many seconds, where signals exist."""

    def over(number: int, frame: Any) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
