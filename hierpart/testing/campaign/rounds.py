"""Fuzzing a partitioner for a given time: many rounds of Hypothesis, one finding of each kind.

Each round draws graphs and options, checks the partition, and stops at the first fault of a kind
that is not known yet, which Hypothesis then shrinks. A kind is a rule of the contract or a type of
error with the place that raised it, and what it is about, so that one fault does not hide the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase
from hypothesis.errors import FlakyFailure
from torch.fx import GraphModule

from hierpart.backends import Backend
from hierpart.testing.campaign.judges import AnyJudge, BackendJudge, Fault, Finding, Judge
from hierpart.testing.contract import CONTRACT

ROUND = 50
"""Graphs of a round; time is looked at between graphs too."""


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


def fuzz(
    partition: Callable[..., GraphModule],
    *,
    name: str = "hierpart",
    seconds: float = 60.0,
    graphs: int | None = None,
    start: int = 0,
    size: int = 12,
    rules: Collection[str] = tuple(CONTRACT),
    features: Collection[str] | None = None,
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
        features: What may occur in the graphs (see ``FEATURES``); ``None`` for everything.
        database: Folder in which Hypothesis keeps faults, tried first in the next campaign.
        progress: Called after each round with graphs, seconds and findings so far.
        enough: Stop when so many kinds of faults were found; ``None`` for no limit.
        shrink: Make the graph of each finding small, which takes most of the time.

    Raises:
        Unavailable: The partitioner cannot be imported here.
    """
    some = None if features is None else frozenset(features)
    judge = Judge(partition, name, frozenset(rules), some)
    return campaign(
        judge, seconds=seconds, graphs=graphs, start=start, size=size, database=database,
        progress=progress, enough=enough, shrink=shrink,
    )  # fmt: skip


def fuzz_backend(
    backend: Backend, *, options: Mapping[str, Any] | None = None, **limits: Any
) -> Campaign:
    """Fuzz a backend by the rules of :func:`hierpart.testing.check_backend`.

    Args:
        backend: The backend object.
        options: The backend's own options.
        limits: ``seconds``, ``graphs``, ``start``, ``size``, ``database``, ``progress``, ``enough``
            and ``shrink``, as for :func:`fuzz`.

    Raises:
        BackendUnavailableError: The backend says that it cannot be used here.
    """
    return campaign(BackendJudge(backend, options or {}), **limits)


def campaign(
    judge: AnyJudge,
    *,
    seconds: float = 60.0,
    graphs: int | None = None,
    start: int = 0,
    size: int = 12,
    database: Path | None = None,
    progress: Callable[[int, float, Sequence[Finding]], None] | None = None,
    enough: int | None = None,
    shrink: bool = True,
) -> Campaign:
    """Draw cases for ``judge`` and collect one finding of each kind; see :func:`fuzz`."""
    clock = _Clock(seconds, graphs)
    found: dict[tuple[str, str], Finding] = {}
    kept = DirectoryBasedExampleDatabase(database) if database else InMemoryExampleDatabase()
    phases = (Phase.reuse, Phase.generate, *((Phase.shrink,) if shrink else ()))
    number = start
    while not clock.over() and (enough is None or len(found) < enough):
        finding = _round(judge, number, size, clock, found, kept, phases)
        if finding is not None:
            found[finding.key] = finding
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
    judge: AnyJudge,
    number: int,
    size: int,
    clock: _Clock,
    known: Mapping[tuple[str, str], Finding],
    database: Any,
    phases: Sequence[Phase],
) -> Finding | None:
    """Return a finding of a new kind, on the smallest graph, if there is one."""
    seen: list[Finding] = []
    graphs = judge.graphs(size)

    @settings(
        max_examples=ROUND, deadline=None, database=database, derandomize=False, print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=phases, report_multiple_bugs=False,
    )  # fmt: skip
    @seed(number)  # below the settings: it turns the database off
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        gm = data.draw(graphs)
        chosen = data.draw(judge.options(gm))
        if clock.over() and not seen:
            return  # after drawing: Hypothesis wants the same draws each time
        clock.graphs += 1
        fault = judge(gm, chosen)
        if fault is not None and fault.key not in known:
            seen.append(replace(fault, after=seen[0].after if seen else clock.graphs))
            raise Fault(seen[-1])

    try:
        attempt()
    except Fault as fault:
        return fault.finding
    except FlakyFailure:
        # The same graph is right the next time: what hangs on addresses comes and goes.
        return min(seen, key=lambda finding: finding.nodes)
    return None


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
