"""Undersized blocks move down the priority list, smallest first, until none is left (C4, C5)."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from hierpart import make_plan
from hierpart.plan import EAGER, Plan, Reason
from tests.cases.harness import export, vector

OPS = {
    "A": torch.sin,  # each letter stands for one op
    "B": torch.cos,
    "C": torch.exp,
    "E": torch.neg,
}
aten = torch.ops.aten


def chain(letters: str) -> GraphModule:
    """A chain of one op a letter."""
    graph = Graph()
    value = graph.placeholder("x")
    for letter in letters:
        value = graph.call_function(OPS[letter], (value,))
    graph.output(value)
    return GraphModule(nn.Module(), graph)


def plan(
    letters: str | GraphModule,
    support: Mapping[str, str],
    min_block_size: int | Mapping[str, int] = 1,
    **options: Any,
) -> Plan:
    """Plan a chain; ``support`` says by letter what each backend takes, in order of priority."""
    gm = chain(letters) if isinstance(letters, str) else letters
    tables = {b: {OPS[letter] for letter in letters} for b, letters in support.items()}
    return make_plan(
        gm, backend_support_map=tables, backend_priority=list(support),
        min_block_size=min_block_size, **options,
    )  # fmt: skip


def shape(made: Plan) -> str:
    """Owner and size of each block, as ``a3 b1``."""
    return " ".join(f"{b.backend}{b.compute_ops}" for b in made.blocks)


def replay(made: Plan) -> None:
    """Check that the recorded moves lead each node from its first yes to its owner (C4)."""
    at = {
        name: next((v.backend for v in verdicts if v.supported), EAGER)
        for name, verdicts in made.verdicts.items()
    }
    rank = {backend: i for i, backend in enumerate(made.priority)}
    for move in made.moves():
        assert move.nodes, "a move of nothing"
        for name in move.nodes:
            assert at[name] == move.source
            if move.reason is Reason.TOO_SMALL:
                assert rank[move.target] > rank[move.source], "a node moved up"
                yes = {v.backend for v in made.verdicts[name] if v.supported} | {EAGER}
                assert move.target in yes, f"{name} moved to {move.target}, which refused it"
            at[name] = move.target
    assert at == dict(made.owner)


def moved(made: Plan) -> list[tuple[int, str, str]]:
    """Number of nodes, source and target of each move of an undersized block, in order."""
    return [
        (len(m.nodes), m.source, m.target) for m in made.moves() if m.reason is Reason.TOO_SMALL
    ]


# ------------------------------------------------------------------ where blocks go

TABLE = {
    "nothing is too small": ("AAAEAAA", {"a": "A"}, 3, "a3 eager1 a3"),
    "too small": ("AAEA", {"a": "A"}, 3, "eager4"),
    "one side too small": ("AAAEA", {"a": "A"}, 3, "a3 eager2"),
    "to the next backend": ("EAAAB", {"b": "B", "a": "ABC"}, 2, "eager1 a4"),
    "between two blocks of the next backend": (
        "EAAABAAA", {"b": "B", "a": "AB"}, 2, "eager1 a7",
    ),
    "before a block that alone is large enough": (
        "BAAAAAE", {"b": "B", "a": "AB"}, 5, "a6 eager1",
    ),
    "all three too small, together large enough": (
        "EAABBAA", {"b": "B", "a": "AB"}, 3, "eager1 a6",
    ),
    "past a backend that refuses it": ("CBCE", {"b": "B", "a": "A", "c": "BC"}, 3, "c3 eager1"),
    "two steps down": ("CBACE", {"a": "A", "b": "AB", "c": "ABC"}, 4, "c4 eager1"),
    "to eager where no other takes it": ("EBAAA", {"b": "B", "a": "A"}, 3, "eager2 a3"),
    "eager joins eager": ("EBE", {"b": "B"}, 2, "eager3"),
    "sizes of 0 and 1 mean nothing is too small": ("ABE", {"a": "A", "b": "B"}, 0, "a1 b1 eager1"),
}  # fmt: skip


@pytest.mark.parametrize(("letters", "support", "size", "wanted"), TABLE.values(), ids=TABLE)
def test_where_undersized_blocks_go(letters, support, size, wanted):
    """C5: to the next backend that takes them, joined there with their neighbours."""
    made = plan(letters, support, size)
    assert shape(made) == wanted
    replay(made)


def test_the_smallest_block_moves_first():
    """A3 B2 A3 at minimum 4: when B moves, A is large enough; the other way all end in eager."""
    made = plan("EAAABBAAAE", {"b": "B", "a": "AB"}, 4)
    assert shape(made) == "eager1 a8 eager1"
    assert moved(made) == [(2, "b", "a")]


def test_after_each_move_everything_is_solved_again():
    """C5: a block that was too small and has grown stays where it is."""
    made = plan("EBAAE", {"b": "B", "a": "AB"}, 3)
    assert shape(made) == "eager1 a3 eager1"
    assert moved(made) == [(1, "b", "a")]


def test_each_move_says_how_small_and_what_the_minimum_is():
    """C4: the record names the size, the minimum and the nodes."""
    made = plan("EBAAE", {"b": "B", "a": "AB"}, {"b": 2, "a": 2})
    (move,) = (m for m in made.moves() if m.reason is Reason.TOO_SMALL)
    assert move.nodes == ("cos",)
    assert (move.source, move.target) == ("b", "a")
    assert move.detail == "1 compute ops, minimum 2"


def test_demote_eager_goes_straight_to_eager():
    """``demote="eager"``: no other backend is asked."""
    support = {"b": "B", "a": "AB"}
    assert shape(plan("EBAAAE", support, 2)) == "eager1 a4 eager1"
    made = plan("EBAAAE", support, 2, demote="eager")
    assert shape(made) == "eager2 a3 eager1"
    assert moved(made) == [(1, "b", EAGER)]
    replay(made)


# ------------------------------------------------------------------ the minimum of each backend


def test_each_backend_has_a_minimum_of_its_own():
    """C5: 1 for one backend and 4 for the other; a backend that is not named has the default."""
    letters, support = "EAABBBBE", {"a": "A", "b": "B"}
    assert shape(plan(letters, support, {"a": 2, "b": 4})) == "eager1 a2 b4 eager1"
    assert shape(plan(letters, support, {"a": 3, "b": 4})) == "eager3 b4 eager1"
    assert shape(plan(letters, support, {"a": 2})) == "eager1 a2 eager5"
    assert plan(letters, support, {"a": 2}).min_block_size == {"a": 2, "b": 5}


def test_the_default_minimum_is_five():
    four, five = "EAAAAE", "EAAAAAE"
    tables = {"backend_support_map": {"a": {torch.sin}}, "backend_priority": ["a"]}
    assert shape(make_plan(chain(four), **tables)) == "eager6"
    assert shape(make_plan(chain(five), **tables)) == "eager1 a5 eager1"


# ------------------------------------------------------------------ exemptions


def test_a_graph_that_is_taken_whole_and_is_large_enough_is_exempt():
    """C5: nothing would be gained; the blocks of a fully supported graph stay."""
    assert shape(plan("AABAA", {"b": "B", "a": "A"}, 3)) == "a2 b1 a2"
    assert shape(plan("AABAAE", {"b": "B", "a": "A"}, 3)) == "eager6"


def test_one_op_alone_is_below_the_default_minimum():
    """C5: a graph of one supported op gives no accelerated block."""
    assert shape(plan("A", {"a": "A"}, 5)) == "eager1"


def test_full_compilation_knows_no_minimum():
    """C5: what has to run on a backend runs there, however small."""
    assert shape(plan("A", {"a": "A"}, 5, require_full_compilation=True)) == "a1"
    full = plan("ABA", {"a": "A", "b": "B"}, 5, require_full_compilation=True)
    assert shape(full) == "a1 b1 a1"
    assert not moved(full)


@pytest.mark.parametrize("op", [torch.cos, "torch.cos"])
def test_blocks_that_hold_an_allowed_op_may_be_small(op):
    """C5: ``allowed_single_node_partition_ops``."""
    support = {"a": "AB"}
    assert shape(plan("EABEAE", support, 3)) == "eager6"
    made = plan("EABEAE", support, 3, allowed_single_node_partition_ops=[op])
    assert shape(made) == "eager1 a2 eager3"


def test_an_allowed_packet_stands_for_its_overloads():
    class Model(nn.Module):
        def forward(self, x):
            return torch.cumsum(torch.sin(x), 0)

    gm = export(Model(), (vector(3),))
    made = make_plan(
        gm, backend_support_map={"a": {aten.sin}}, backend_priority=["a"],
        allowed_single_node_partition_ops=[aten.sin],
    )  # fmt: skip
    assert shape(made) == "a1 eager1"


# ------------------------------------------------------------------ what counts


def unpacking(parts: int) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    pieces = graph.call_function(torch.ops.aten.split.Tensor, (x, 1))
    taken = [graph.call_function(operator.getitem, (pieces, i)) for i in range(parts)]
    last = graph.call_function(torch.neg, (taken[0],))
    graph.output((*taken, last))
    return GraphModule(nn.Module(), graph)


def test_unpacking_does_not_make_a_block_larger():
    """C5: a split into four is one op."""
    support = {"backend_support_map": {"a": {torch.ops.aten.split}}, "backend_priority": ["a"]}
    assert shape(make_plan(unpacking(4), **support, min_block_size=1)) == "a1 eager1"
    assert shape(make_plan(unpacking(4), **support, min_block_size=2)) == "eager2"


# ------------------------------------------------------------------ many graphs


def random_graph(rng: random.Random, size: int) -> GraphModule:
    """A graph whose ops take one or two of the last values."""
    graph = Graph()
    values = [graph.placeholder("x")]
    ops = list(OPS.values())
    for _ in range(size):
        if rng.random() < 0.3:
            pair = (rng.choice(values[-4:]), rng.choice(values[-4:]))
            values.append(graph.call_function(torch.add, pair))
        else:
            values.append(graph.call_function(rng.choice(ops), (rng.choice(values[-4:]),)))
    graph.output([v for v in values if not v.users] or values[-1])
    return GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("seed", range(40))
def test_no_undersized_block_is_left_and_every_move_is_recorded(seed):
    """C4, C5: on random graphs, maps and sizes; nodes only move down, the record replays."""
    rng = random.Random(seed)
    gm = random_graph(rng, rng.randint(5, 60))
    ops = [*OPS.values(), torch.add]
    backends = ["a", "b", "c"][: rng.randint(1, 3)]
    tables = {b: {op for op in ops if rng.random() < 0.6} for b in backends}
    sizes = {b: rng.randint(1, 5) for b in backends}
    demote = rng.choice(["cascade", "eager"])

    made = make_plan(
        gm, backend_support_map=tables, backend_priority=backends, min_block_size=sizes,
        demote=demote,
    )  # fmt: skip

    replay(made)
    small = [b for b in made.blocks if b.backend != EAGER and b.compute_ops < sizes[b.backend]]
    if small:  # only a graph that is accelerated as a whole is exempt
        assert EAGER not in made.owner.values()
        assert not moved(made)
    if demote == "eager":
        assert {target for _, _, target in moved(made)} <= {EAGER}
    assert len(made.blocks) >= made.lower_bound
    neighbours = itertools.pairwise(b.backend for b in made.blocks)
    assert all(one != other for one, other in neighbours)


def constant_read_by_two_owners() -> GraphModule:
    """``sin(w)`` is read by a sum of one owner and by an op that no backend takes.

    Fewest blocks put it alone in front: it has to run before the eager op, its sum after it.
    """
    graph, root = Graph(), nn.Module()
    root.w = nn.Parameter(torch.ones(2))
    x, w = graph.placeholder("x"), graph.get_attr("w")
    k = graph.call_function(torch.sin, (w,), name="k")
    value = graph.call_function(torch.add, (graph.call_function(torch.neg, (x,)), k))
    value = graph.call_function(torch.add, (value, graph.call_function(torch.neg, (k,))))
    for _ in range(3):
        value = graph.call_function(torch.add, (value, value))
    graph.output(value)
    return GraphModule(root, graph)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("second", ["B", "AB"])
def test_work_on_constants_makes_no_block_of_its_own_and_no_endless_search(
    size, second, monkeypatch
):
    """C5, and constant-only work goes to its consumer: also when its readers differ in owner."""
    from hierpart.partition.clustering import merging as merge

    solve, solved = merge.solve, []

    def limited(*args: Any, **kwargs: Any) -> Any:
        solved.append(1)
        assert len(solved) < 100, "the search goes round in circles"
        return solve(*args, **kwargs)

    monkeypatch.setattr(merge, "solve", limited)
    gm = constant_read_by_two_owners()
    tables = {"a": {torch.sin, torch.add}, "b": {OPS[letter] for letter in second}}
    made = make_plan(
        gm, backend_support_map=tables, backend_priority=["a", "b"], min_block_size=size
    )
    replay(made)
    assert not [b for b in made.blocks if b.backend != EAGER and set(b.nodes) <= {"k", "neg_1"}]


def sizes_of_moves(made: Plan) -> list[int]:
    return [int(m.detail.split()[0]) for m in made.moves() if m.reason is Reason.TOO_SMALL]


def test_sizes_of_independent_undersized_blocks_rise():
    """C5: smallest first, so the first moves are those of the smallest blocks."""
    made = plan("E".join(["AAA", "A", "AA", "A", ""]), {"a": "A"}, 4)
    sizes: Sequence[int] = sizes_of_moves(made)
    assert sorted(sizes) == list(sizes) == [1, 1, 2, 3]


def test_hundreds_of_undersized_blocks_move_in_few_rounds():
    """C12: not one round, each of which solves the whole graph, for each small block."""
    solved = []
    from hierpart.partition.clustering import merging as merge

    solve = merge.solve
    letters = "AE" * 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "solve", lambda *a, **k: solved.append(1) or solve(*a, **k))
        made = plan(letters, {"a": "A"}, 2)
    assert shape(made) == "eager400"
    assert len(solved) < 60
    replay(made)
