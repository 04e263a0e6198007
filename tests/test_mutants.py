"""The kit finds faults planted in copies of the steps; every fault is still there to plant."""

from __future__ import annotations

import pytest

import hierpart.partition.pipeline
from benchmarks.mutants.__main__ import MUTANTS, attack
from benchmarks.mutants.plant import Mutant, MutantLostError, planted

SAMPLE = (
    "regions may be left by their nodes",
    "a unit runs as early as its first input",
    "groups forget all but one predecessor",
    "the plan names its blocks' nodes in reverse",
    "undersized blocks stay",
)


def test_every_fault_can_be_planted_and_none_stays():
    verify = hierpart.partition.pipeline.verify
    for mutant in MUTANTS:
        assert mutant.source()
        assert mutant.old != mutant.new
    assert planted(MUTANTS[0]).__module__ == "benchmarks.mutants.plant"
    assert hierpart.partition.pipeline.verify is verify
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len(MUTANTS) >= 40


def test_a_fault_whose_text_is_gone_fails_loudly():
    with pytest.raises(
        MutantLostError, match=r"0 times in hierpart\.partition\.clustering\.merging"
    ):
        planted(Mutant("gone", "partition.clustering.merging", "no such text", ""))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_found(name):
    mutant = next(m for m in MUTANTS if m.name == name)
    outcome = attack(mutant, examples=60)
    assert outcome.killer is not None


def test_no_fault_no_finding():
    same = Mutant("none", "graph.hazards", "before.append(guard)", "before.append(guard) ")
    assert attack(same, examples=5).killer is None
