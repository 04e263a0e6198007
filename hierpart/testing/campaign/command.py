"""What ``python -m hierpart fuzz`` does, and its line of progress."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierpart.backends import get_backend
from hierpart.errors import OptionError, nearest
from hierpart.testing.adapters import ADAPTERS, Unavailable
from hierpart.testing.contract import CONTRACT

if TYPE_CHECKING:
    from hierpart.testing.campaign.judges import AnyJudge

COMPARABLE = ("C8", "C9", "C10")
"""Rules that any partitioner has to keep: values, the same plan again, the caller's module."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fuzz`` to a parser."""
    add = parser.add_argument
    add("--partitioner", default="hierpart", metavar="NAME", help=f"one of {', '.join(ADAPTERS)}")
    add("--backend", metavar="NAME", help="fuzz a backend in place of a partitioner")
    add(
        "--bad-input", action="store_true",
        help="hand hierpart malformed graphs, hostile options and damaged files (--graphs of them, "
        "default 1000)",
    )  # fmt: skip
    add("--seconds", type=float, default=60.0, help="how long new graphs are drawn (default 60)")
    add("--graphs", type=int, metavar="N", help="stop after so many graphs, if that is sooner")
    add("--seed", type=int, default=0, help="the same seed draws the same graphs (default 0)")
    add("--size", type=int, default=12, help="most nodes of a graph, about (default 12)")
    add(
        "--rules", metavar="C8,C9",
        help="rules of the contract to judge (default: all for hierpart, "
        f"{','.join(COMPARABLE)} for others)",
    )  # fmt: skip
    add("--save", type=Path, metavar="DIR", help="write each finding there as a program of its own")
    add(
        "--database", type=Path, default=Path(".hypothesis/hierpart"), metavar="DIR",
        help="where faults are kept, to be tried first next time (default %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Fuzz and tell; return whether nothing was found.

    Raises:
        OptionError: There is no such partitioner or rule, it cannot be imported here, or the
            extra ``testing`` is not installed.
    """
    try:
        from hierpart.testing.campaign.judges import Finding
        from hierpart.testing.campaign.rounds import campaign, save
    except ModuleNotFoundError as error:
        raise OptionError(f"fuzzing needs {error.name}: pip install 'hierpart[testing]'") from error
    if arguments.bad_input:
        return _bad_input(arguments, say)
    name = arguments.backend or arguments.partitioner

    def progress(graphs: int, seconds: float, findings: Sequence[Finding]) -> None:
        say(f"{seconds:6.0f} s  {graphs:6d} graphs  {len(findings)} kinds of faults")

    try:
        done = campaign(
            _judge(arguments), seconds=arguments.seconds, graphs=arguments.graphs,
            start=arguments.seed, size=arguments.size, database=arguments.database / name,
            progress=progress,
        )  # fmt: skip
    except Unavailable as error:
        raise OptionError(f"{name}: {error}") from error
    if not done.findings:
        say(f"{name}: nothing found in {done.graphs} graphs")
        return True
    say(f"\n{name}: {len(done.findings)} kinds of faults in {done.graphs} graphs")
    for number, finding in enumerate(done.findings):
        say(f"\n{number}. {finding.kind} ({finding.nodes} nodes): {finding.message}")
        if not arguments.save:
            say(finding.program)
    if arguments.save:
        for path in save(done.findings, arguments.save):
            say(f"written: {path}")
    return False


def _bad_input(arguments: argparse.Namespace, say: Callable[[str], None]) -> bool:
    from hierpart.testing.campaign.bad_input import fuzz_bad_input

    count = arguments.graphs or 1000
    done = fuzz_bad_input(count, arguments.seed, lambda so_far: say(so_far.summary()))
    say(done.summary())
    for number, fault in done.faults.items():
        say(f"\ninput {number} ({count} from {arguments.seed}): {fault}")
    return not done.faults


def _judge(arguments: argparse.Namespace) -> AnyJudge:
    from hierpart.testing.campaign.judges import BackendJudge, Judge

    rules, name = _rules(arguments), arguments.partitioner
    if arguments.backend is None:
        if name not in ADAPTERS:
            raise OptionError(f"no partitioner is called {name!r}" + nearest(name, ADAPTERS))
        return Judge(ADAPTERS[name], name, frozenset(rules))
    from hierpart.testing.checks.backend.members import check_members

    backend = get_backend(arguments.backend)
    if (why := backend.available()) is not None:
        raise OptionError(f"{backend.name} cannot be fuzzed here: {why}")
    check_members(backend)
    return BackendJudge(backend, {})


def _rules(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.rules is None:
        return tuple(CONTRACT) if arguments.partitioner == "hierpart" else COMPARABLE
    rules = tuple(rule.strip() for rule in arguments.rules.split(",") if rule.strip())
    for rule in rules:
        if rule not in CONTRACT:
            raise OptionError(f"no rule is called {rule!r}; there are {', '.join(CONTRACT)}")
    return rules
