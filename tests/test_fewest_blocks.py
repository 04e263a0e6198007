"""The fewest blocks: real networks against the certified bound, small graphs against brute force."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from hierpart import make_plan
from hierpart.partition.clustering.search import cluster
from hierpart.plan import EAGER, Plan
from tests.models import MODELS, OWNERS, PACKAGE, SEEDS, exported, op_map

aten = torch.ops.aten
JOINERS = {
    "tensorrt": aten.cat.default,
    "inductor": aten.stack.default,
    "third": aten.hstack.default,
    EAGER: aten.vstack.default,
}
"""One pure op of any number of inputs for each of four owners."""

SUPPORT = {name: {f"torch.ops.{op}"} for name, op in JOINERS.items() if name != EAGER}


@dataclass(frozen=True)
class Dag:
    """Nodes 0, 1, ... in topological order: the owner and the predecessors of each."""

    owners: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]


def random_dag(rng: random.Random, most: int) -> Dag:
    """Draw 2 to ``most`` nodes, 2 to 4 owners and any density of edges."""
    n, density = rng.randint(2, most), rng.choice((0.1, 0.2, 0.35, 0.6))
    names = list(JOINERS)[: rng.randint(2, 4)]
    rng.shuffle(names)
    owners = tuple(rng.choice(names) for _ in range(n))
    reads = tuple(tuple(j for j in range(i) if rng.random() < density) for i in range(n))
    return Dag(owners, reads)


def fewest_by_brute_force(dag: Dag) -> int:
    """Return the fewest runs of one owner over all topological orders.

    Every order is a path through the states (nodes that have run, owner of the last one); the
    fewest changes from a state on do not depend on the path to it, so each state is solved once.
    """
    n = len(dag.owners)
    needs = [sum(1 << j for j in reads) for reads in dag.reads]

    @cache
    def rest(done: int, last: str) -> int:
        if done == (1 << n) - 1:
            return 0
        ready = [i for i in range(n) if not done >> i & 1 and needs[i] & ~done == 0]
        return min(rest(done | 1 << i, dag.owners[i]) + (dag.owners[i] != last) for i in ready)

    return rest(0, "")


def as_graph(dag: Dag) -> GraphModule:
    """Return an aten graph with these dependencies; ops of one kind belong to one owner."""
    graph = Graph()
    x = _with_value(graph.placeholder("x"))
    nodes: list[Node] = []
    for owner, reads in zip(dag.owners, dag.reads, strict=True):
        inputs = [nodes[j] for j in reads] or [x]
        nodes.append(_with_value(graph.call_function(JOINERS[owner], (inputs,))))
    graph.output(tuple(n for n in nodes if not n.users))
    return GraphModule(torch.nn.Module(), graph)


def _with_value(node: Node) -> Node:
    node.meta["val"] = torch.empty(4, device="meta")
    return node


def plan_of(gm: GraphModule, support: dict[str, set[str]]) -> Plan:
    return make_plan(
        gm, min_block_size=1, backend_support_map=support, backend_priority=list(support)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MODELS)
def test_real_networks_are_proved_optimal(name: str, seed: int):
    pytest.importorskip(PACKAGE[name])
    gm = exported(name)
    got = plan_of(gm, op_map(gm, seed))
    assert got.proved
    assert len(got.blocks) == got.lower_bound
    assert {b.backend for b in got.blocks} <= set(OWNERS)
    assert all(a.backend != b.backend for a, b in zip(got.blocks, got.blocks[1:], strict=False))


@pytest.mark.parametrize("owners", [("tensorrt", "inductor"), ("inductor", EAGER)])
@pytest.mark.parametrize("pattern", ["alternating", "random"])
def test_independent_ops_of_two_owners_give_two_blocks(owners: tuple[str, str], pattern: str):
    rng = random.Random(5)
    pick = (lambda i: i % 2) if pattern == "alternating" else (lambda i: rng.randrange(2))
    dag = Dag(tuple(owners[pick(i)] for i in range(60)), ((),) * 60)
    got = plan_of(as_graph(dag), SUPPORT)
    assert sorted(b.backend for b in got.blocks) == sorted(owners)
    assert got.lower_bound == 2
    assert got.proved


def test_two_owners_in_either_start():
    # x -> b -> a and x -> a: starting with b needs 2 blocks, starting with a needs 3.
    dag = Dag(("tensorrt", "inductor", "tensorrt"), ((), (), (1,)))
    got = plan_of(as_graph(dag), SUPPORT)
    assert [b.backend for b in got.blocks] == ["inductor", "tensorrt"]


def test_three_owners_where_greed_loses():
    # Two chains a c b and b a c: four blocks (b a c b), but taking what is ready first needs more.
    a, b, c = "tensorrt", "inductor", "third"
    dag = Dag((a, c, b, b, a, c), ((), (0,), (1,), (), (3,), (4,)))
    assert fewest_by_brute_force(dag) == 4
    got = plan_of(as_graph(dag), SUPPORT)
    assert len(got.blocks) == 4
    assert got.proved


def check_against_brute_force(seed: int, count: int, most: int) -> None:
    """Cluster ``count`` random graphs and compare with the fewest blocks of all orders."""
    rng, names = random.Random(seed), list(JOINERS)
    for _ in range(count):
        dag = random_dag(rng, most)
        optimum, owners = fewest_by_brute_force(dag), [names.index(o) for o in dag.owners]
        for thorough in (True, False):
            got = cluster(dag.reads, owners, thorough=thorough)
            for word in got.words:
                assert runs_everything(dag, [names[c] for c in word]), (dag, word)
                assert got.lower_bound <= optimum <= len(word), dag
                assert len(word) == optimum or not (got.proved or thorough), dag
            assert got.proved or not thorough, dag


def runs_everything(dag: Dag, word: list[str]) -> bool:
    """Whether blocks of these owners, each running all that is ready, run the whole graph."""
    done: set[int] = set()
    for owner in word:
        for i in range(len(dag.owners)):  # numbers are topological, so one pass finds all
            if dag.owners[i] == owner and done.issuperset(dag.reads[i]):
                done.add(i)
    return len(done) == len(dag.owners)


def test_small_graphs_against_brute_force():
    check_against_brute_force(seed=0, count=300, most=9)


@pytest.mark.slow
def test_more_graphs_against_brute_force():
    check_against_brute_force(seed=1, count=3000, most=11)


def test_plans_of_small_graphs_against_brute_force():
    rng = random.Random(2)
    for _ in range(60):
        dag = random_dag(rng, 9)
        got, optimum = plan_of(as_graph(dag), SUPPORT), fewest_by_brute_force(dag)
        assert list(got.owner.values()) == list(dag.owners)
        assert got.lower_bound == len(got.blocks) == optimum, dag
        assert got.proved


def test_the_brute_force_itself():
    chain = Dag(("tensorrt", "inductor", "tensorrt"), ((), (0,), (1,)))
    fork = Dag(("tensorrt", "inductor", "tensorrt"), ((), (0,), ()))
    assert fewest_by_brute_force(chain) == 3
    assert fewest_by_brute_force(fork) == 2
