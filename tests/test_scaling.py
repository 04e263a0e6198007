"""C12: the CPU time of the whole call grows linearly and stays below torch's own splitter's.

The fast guards use small sizes and loose limits, since the machine that runs them is shared; the
measurement that the limits come from is ``python -m benchmarks.run --full``.
"""

from __future__ import annotations

import pytest

from benchmarks import peers
from benchmarks.graphs import SUPPORT, WORKLOADS
from benchmarks.timing import cpu_seconds, exponent, interleaved


def least_seconds(workload: str, nodes: int, rounds: int) -> float:
    """Return the CPU seconds of the fastest of ``rounds`` calls."""
    gm = WORKLOADS[workload](nodes)
    return min(cpu_seconds(lambda: peers.hierpart(gm, SUPPORT)) for _ in range(rounds))


def growth(workload: str, sizes: tuple[int, int], rounds: int) -> float:
    return exponent(sizes, [least_seconds(workload, n, rounds) for n in sizes])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_eight_times_the_nodes_take_about_eight_times_the_time(workload):
    least_seconds(workload, 200, 1)  # imports and caches
    assert growth(workload, (500, 4_000), rounds=3) <= 1.25


@pytest.mark.parametrize("workload", WORKLOADS)
def test_never_slower_than_split_module_with_the_same_blocks(workload):
    gm = WORKLOADS[workload](2_000)
    block_of = peers.hierpart(gm, SUPPORT).meta["hierpart"].block_of()
    calls = {
        "ours": lambda: lambda: peers.hierpart(gm, SUPPORT),
        "theirs": lambda: lambda: peers.torch_split_module(gm, block_of),
    }
    timings = interleaved(calls, rounds=4)  # a core may be half as fast for a second
    assert min(timings["ours"].seconds) <= min(timings["theirs"].seconds)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_growth_from_one_thousand_to_a_hundred_thousand_nodes(workload):
    least_seconds(workload, 500, 1)
    assert growth(workload, (1_000, 100_000), rounds=3) <= 1.1


def test_the_exponent_itself():
    assert exponent((10, 1_000), (0.5, 50.0)) == pytest.approx(1.0)
    assert exponent((10, 1_000), (0.5, 5_000.0)) == pytest.approx(2.0)
