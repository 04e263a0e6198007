"""Who judges a random graph in a campaign: a partitioner's judge and a backend's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hypothesis import strategies as st
from torch.fx import GraphModule

from hierpart.backends import Backend
from hierpart.testing.adapters import Unavailable
from hierpart.testing.checks.backend.check import (
    backend_features,
    calls_of,
    check_backend_on,
    program_for,
)
from hierpart.testing.checks.backend.rules import BackendViolation
from hierpart.testing.checks.partition import check_partitioner
from hierpart.testing.checks.patterns import check_patterns
from hierpart.testing.contract import CONTRACT, ContractViolation
from hierpart.testing.generate.features import FEATURES
from hierpart.testing.generate.graphs import inputs_for
from hierpart.testing.generate.reproduce import reproduction
from hierpart.testing.generate.strategies import graph_modules, options

BATCHES = (5, 7)
"""Sizes of the first dimension in the two calls of each graph."""


TOPICS = (
    *("dead_code", "the call ended", "printed", "of structure", "arguments after", "attribute"),
    *("shared by", "random stream", "grad mode", "the arguments are", "changed", "same module"),
    *("copy", "values", "dtype", "shape", "stride", "offset", "requires_grad"),
)
"""What a broken rule may be about, in the order in which a message is searched for it."""


@dataclass(frozen=True)
class Finding:
    """A fault, on the smallest graph that shows it.

    Attributes:
        kind: Rule of the contract, or type of the error and where it was raised.
        message: What was wrong.
        nodes: Number of nodes of the graph.
        program: A Python program that shows it again.
        topic: What it is about, apart from this graph.
        after: How many graphs had been checked when a fault of this kind was first seen.
    """

    kind: str
    message: str
    nodes: int
    program: str
    topic: str = ""
    after: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The kind, and what it is about: two faults of one key are taken for one."""
        return self.kind, self.topic


def topic_of(kind: str, message: str, gm: GraphModule) -> str:
    """Return what a message is about: a known topic, or its first words, less the nodes' names."""
    if kind in CONTRACT:
        return next((topic for topic in TOPICS if topic in message), "")
    names = {node.name for node in gm.graph.nodes}
    words = (word for word in message.split() if re.fullmatch(r"[A-Za-z']+", word))
    return " ".join([word for word in words if word not in names][:3])


class Fault(Exception):  # noqa: N818 -- never leaves a campaign
    """Carries a finding through Hypothesis, which re-raises that of the smallest graph."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.kind)


class AnyJudge(Protocol):
    """What a campaign asks of a judge."""

    def graphs(self, size: int) -> st.SearchStrategy[GraphModule]:
        """Return the graphs to judge."""

    def options(self, gm: GraphModule) -> st.SearchStrategy[dict[str, Any]]:
        """Return the options to judge a graph with."""

    def __call__(self, gm: GraphModule, chosen: Mapping[str, Any]) -> Finding | None:
        """Return what is wrong, ``None`` if nothing is."""


@dataclass(frozen=True)
class Judge:
    """Checks a partition of one graph.

    Attributes:
        partition: An adapter.
        name: Its name, for the programs.
        rules: Rules of the contract that are judged.
        features: What may occur in the graphs; ``None`` for everything.
    """

    partition: Callable[..., GraphModule]
    name: str
    rules: frozenset[str]
    features: frozenset[str] | None = None

    def graphs(self, size: int) -> st.SearchStrategy[GraphModule]:
        """Return the graphs; with all features, symbolic sizes are in half of them."""
        if self.features is not None:
            return graph_modules(size, features=self.features)
        symbolic = graph_modules(size, features=FEATURES, metadata="fake")
        return st.one_of(graph_modules(size), symbolic)

    def options(self, gm: GraphModule) -> st.SearchStrategy[dict[str, Any]]:
        """Return keyword arguments for the partitioner."""
        return options(gm)

    def __call__(self, gm: GraphModule, chosen: Mapping[str, Any]) -> Finding | None:
        """Return what is wrong with the partition of ``gm``, ``None`` if nothing is."""
        calls = [inputs_for(gm, call=i, batch=b) for i, b in enumerate(BATCHES)]
        try:
            result = check_partitioner(
                self.partition, gm, *calls, options=dict(chosen), judge=self.rules
            )
            if "hierpart" in result.meta and chosen:
                check_patterns(self.partition, gm, *calls, options=chosen, judge=self.rules)
        except ContractViolation as violation:
            kind, message, program = violation.contract, violation.detail, violation.reproduction
        except Unavailable:
            raise
        except Exception as error:  # partitioners raise whatever they like: faults as well
            kind, message = _kind(error), _first_line(error)
            program = reproduction(gm, calls, chosen)
        else:
            return None
        return _finding(kind, message, gm, self._named(program))

    def _named(self, program: str) -> str:
        """Let a program judge this partitioner by these rules."""
        program = program.replace("adapters.hierpart", f"adapters.{self.name}")
        if self.rules == frozenset(CONTRACT):
            return program
        return program.replace("options=options)", f"options=options, judge={sorted(self.rules)})")


@dataclass(frozen=True)
class BackendJudge:
    """Checks a backend on one graph.

    Attributes:
        backend: The backend object.
        own: Its own options.
    """

    backend: Backend
    own: Mapping[str, Any]

    def graphs(self, size: int) -> st.SearchStrategy[GraphModule]:
        """Return graphs with what says something about a backend."""
        features = backend_features(self.backend)
        plain = graph_modules(size, features=features - {"dynamic"}, metadata="fake")
        return st.one_of(plain, graph_modules(size, features=features, metadata="fake"))

    def options(self, gm: GraphModule) -> st.SearchStrategy[dict[str, Any]]:
        """Return nothing: a backend's options are its author's."""
        return st.just({})

    def __call__(self, gm: GraphModule, chosen: Mapping[str, Any]) -> Finding | None:
        """Return what is wrong with the blocks that the backend takes, ``None`` if nothing is."""
        calls = calls_of(gm)
        try:
            check_backend_on(self.backend, gm, calls, self.own)
        except BackendViolation as error:
            kind, message, program = error.rule, _first_line(error), error.reproduction
        except Exception as error:  # backends raise whatever they like: faults as well
            kind, message = _kind(error), _first_line(error)
            program = program_for(self.backend, gm, calls)
        else:
            return None
        return _finding(kind, message, gm, program)


def _finding(kind: str, message: str, gm: GraphModule, program: str) -> Finding:
    return Finding(kind, message, len(gm.graph.nodes), program, topic_of(kind, message, gm))


def _kind(error: Exception) -> str:
    """Return the type of an error and the function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{where}"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
