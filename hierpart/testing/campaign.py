"""Fuzzing a partitioner for a given time: many rounds of Hypothesis, one finding of each kind.

Each round draws graphs and options, checks the partition, and stops at the first fault of a kind
that is not known yet, which Hypothesis then shrinks. A kind is a rule of the contract or a type of
error with the place that raised it, so that one fault does not hide the next.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase
from torch.fx import GraphModule

from hierpart.testing.adapters import Unavailable
from hierpart.testing.checks import check_partitioner
from hierpart.testing.contract import CONTRACT, ContractViolation
from hierpart.testing.features import FEATURES
from hierpart.testing.make import inputs_for
from hierpart.testing.reproduce import reproduction
from hierpart.testing.strategies import graph_modules, options

ROUND = 50
"""Graphs of a round; time is looked at between graphs too."""
BATCHES = (5, 7)
"""Sizes of the first dimension in the two calls of each graph."""


@dataclass(frozen=True)
class Finding:
    """A fault, on the smallest graph that shows it.

    Attributes:
        kind: Rule of the contract, or type of the error and where it was raised.
        message: What was wrong.
        nodes: Number of nodes of the graph.
        program: A Python program that shows it again.
        after: How many graphs had been checked when a fault of this kind was first seen.
    """

    kind: str
    message: str
    nodes: int
    program: str
    after: int = 0


@dataclass(frozen=True)
class Campaign:
    """What a campaign found.

    Attributes:
        graphs: How many graphs were partitioned and checked, those of shrinking included.
        seconds: Wall time that it took.
        findings: One of each kind, in the order in which they were found.
    """

    graphs: int
    seconds: float
    findings: tuple[Finding, ...]


class _Fault(Exception):  # noqa: N818 -- never leaves this module
    """Carries a finding through Hypothesis, which re-raises that of the smallest graph."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.kind)


def fuzz(
    partition: Callable[..., GraphModule],
    *,
    name: str = "hierpart",
    seconds: float = 60.0,
    graphs: int | None = None,
    start: int = 0,
    size: int = 12,
    rules: Collection[str] = tuple(CONTRACT),
    database: Path | None = None,
    progress: Callable[[int, float, Sequence[Finding]], None] | None = None,
    enough: int | None = None,
    shrink: bool = True,
) -> Campaign:
    """Fuzz a partitioner for about ``seconds``; shrinking a late finding may take longer.

    Args:
        partition: An adapter (see :mod:`hierpart.testing.adapters`).
        name: Its name in :data:`hierpart.testing.adapters.ADAPTERS`, for the programs.
        seconds: Wall time after which no new graph is checked.
        graphs: Number of graphs after which no new one is checked; ``None`` for no limit.
        start: Seed; the same seed draws the same graphs as long as nothing is found.
        size: Most nodes of a graph, about.
        rules: Rules of the contract that are judged.
        database: Folder in which Hypothesis keeps faults, tried first in the next campaign.
        progress: Called after each round with graphs, seconds and findings so far.
        enough: Stop when so many kinds of faults were found; ``None`` for no limit.
        shrink: Make the graph of each finding small, which takes most of the time.

    Raises:
        Unavailable: The partitioner cannot be imported here.
    """
    judge = Judge(partition, name, frozenset(rules))
    clock = _Clock(seconds, graphs)
    found: dict[str, Finding] = {}
    kept = DirectoryBasedExampleDatabase(database) if database else InMemoryExampleDatabase()
    phases = (Phase.reuse, Phase.generate, *((Phase.shrink,) if shrink else ()))
    number = start
    while not clock.over() and (enough is None or len(found) < enough):
        finding = _round(judge, number, size, clock, found, kept, phases)
        if finding is not None:
            found[finding.kind] = finding
        if progress is not None:
            progress(clock.graphs, clock.seconds(), tuple(found.values()))
        number += 1
    return Campaign(clock.graphs, clock.seconds(), tuple(found.values()))


class _Clock:
    def __init__(self, limit: float, most: int | None) -> None:
        self.limit, self.most = limit, most
        self.started, self.graphs = time.monotonic(), 0

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def over(self) -> bool:
        enough = self.most is not None and self.graphs >= self.most
        return enough or self.seconds() > self.limit


def _round(
    judge: Judge,
    number: int,
    size: int,
    clock: _Clock,
    known: Mapping[str, Finding],
    database: Any,
    phases: Sequence[Phase],
) -> Finding | None:
    """Return a finding of a new kind, on the smallest graph, if there is one."""
    first: list[int] = []
    symbolic = graph_modules(size, features=FEATURES, metadata="fake")
    graphs = st.one_of(graph_modules(size), symbolic)

    @settings(
        max_examples=ROUND, deadline=None, database=database, derandomize=False, print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=phases, report_multiple_bugs=False,
    )  # fmt: skip
    @seed(number)  # below the settings: it turns the database off
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        gm = data.draw(graphs)
        chosen = data.draw(options(gm))
        if clock.over() and not first:
            return  # after drawing: Hypothesis wants the same draws each time
        clock.graphs += 1
        fault = judge(gm, chosen)
        if fault is not None and fault.kind not in known:
            first.append(clock.graphs)
            raise _Fault(replace(fault, after=first[0]))

    try:
        attempt()
    except _Fault as fault:
        return fault.finding
    return None


@dataclass(frozen=True)
class Judge:
    """Checks a partition of one graph.

    Attributes:
        partition: An adapter.
        name: Its name, for the programs.
        rules: Rules of the contract that are judged.
    """

    partition: Callable[..., GraphModule]
    name: str
    rules: frozenset[str]

    def __call__(self, gm: GraphModule, chosen: Mapping[str, Any]) -> Finding | None:
        """Return what is wrong with the partition of ``gm``, ``None`` if nothing is."""
        calls = [inputs_for(gm, call=i, batch=b) for i, b in enumerate(BATCHES)]
        try:
            check_partitioner(self.partition, gm, *calls, options=dict(chosen), judge=self.rules)
        except ContractViolation as violation:
            kind, message, program = violation.contract, violation.detail, violation.reproduction
        except Unavailable:
            raise
        except Exception as error:  # partitioners raise whatever they like: faults as well
            kind, message = _kind(error), _first_line(error)
            program = reproduction(gm, calls, chosen)
        else:
            return None
        return Finding(kind, message, len(gm.graph.nodes), self._named(program))

    def _named(self, program: str) -> str:
        """Let a program judge this partitioner by these rules."""
        program = program.replace("adapters.hierpart", f"adapters.{self.name}")
        if self.rules == frozenset(CONTRACT):
            return program
        return program.replace("options=options)", f"options=options, judge={sorted(self.rules)})")


def save(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Write each finding as a program of its own and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, finding in enumerate(findings):
        path = folder / f"finding_{number}.py"
        head = "\n".join(f"# {line}" for line in f"{finding.kind}: {finding.message}".splitlines())
        path.write_text(f"{head}\n\n{finding.program}")
        paths.append(path)
    return paths


def _kind(error: Exception) -> str:
    """Return the type of an error and the function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{where}"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
