"""``python -m benchmarks.mutants``: plant every fault, fuzz each, write the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.facts import FACTS
from benchmarks.mutants.plant import Mutant, planted
from benchmarks.mutants.splits import SPLITS
from hierpart.testing.campaign.rounds import Finding, fuzz

MUTANTS = (*FACTS, *SPLITS)
EXAMPLES = 200
RESULTS = Path(__file__).parent.parent / "results" / "mutants.md"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: what killed it, ``None`` if it survived."""

    mutant: Mutant
    killer: Finding | None


def attack(mutant: Mutant, seed: int = 0, examples: int = EXAMPLES) -> Outcome:
    """Fuzz a mutant until the kit finds something or ``examples`` graphs were judged."""
    done = fuzz(
        planted(mutant), name="mutant", graphs=examples, seconds=600, start=seed, enough=1,
        shrink=False, features=mutant.features.split() or None,
    )  # fmt: skip
    return Outcome(mutant, next(iter(done.findings), None))


def table(outcomes: Sequence[Outcome], seed: int) -> str:
    """Return the table as Markdown."""
    killed = sum(o.killer is not None for o in outcomes)
    rows = [
        f"| {o.mutant.name} | `{o.mutant.module}` | {_killer(o)} | {_after(o)} | "
        f"{o.mutant.features or 'all'} |"
        for o in outcomes
    ]
    head = [
        "# Mutants",
        "",
        f"Of {len(outcomes)} small faults, planted one at a time in copies of the steps, {killed} "
        f"are found within {EXAMPLES} random graphs (seed {seed}). The copies do not verify their "
        "own plans.",
        f"Made by `python -m benchmarks.mutants --seed {seed}`.",
        "",
        "| fault | planted in | found by | after graphs | features of the graphs |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _killer(outcome: Outcome) -> str:
    if outcome.killer is None:
        return "**nothing**"
    message = " ".join(outcome.killer.message.split()).replace("|", "\\|")
    return f"{outcome.killer.kind}: {message[:90]}{'...' if len(message) > 90 else ''}"


def _after(outcome: Outcome) -> str:
    return "" if outcome.killer is None else str(outcome.killer.after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--out", type=Path, help=f"default: {RESULTS.name}, if all were tried")
    given = parser.parse_args(arguments)
    outcomes = []
    for mutant in MUTANTS:
        if given.only in mutant.name:
            outcomes.append(attack(mutant, given.seed))
            print(f"{mutant.name}: {_killer(outcomes[-1])} {_after(outcomes[-1])}", flush=True)
    if out := given.out or (None if given.only else RESULTS):
        out.write_text(table(outcomes, given.seed))
        print(f"written: {out}")
    survivors = [o.mutant.name for o in outcomes if o.killer is None]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} killed", *survivors, sep="\n  ")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
