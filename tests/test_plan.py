"""The plan: frozen, equal where it says the same, JSON in and out (``plan.py``), and checked."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import pickle
import time

import pytest
import torch
from torch import nn

import hierpart
from hierpart.errors import HierpartError, PlanError
from hierpart.graph.facts import Facts, analyse
from hierpart.partition.verification import verify
from hierpart.plan import EAGER, Attribute, Block, Move, Nested, Plan, Reason, Step, Verdict
from tests.cases.harness import export, vector

aten = torch.ops.aten


class Model(nn.Module):
    """Attributes of every kind, a block that is too small, an op that nobody takes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        h = torch.relu(self.linear(x))
        h = torch.cumsum(h, 0) * torch.sin(h)
        self.count.add_(1)
        return torch.neg(h) + self.count, self.linear.bias


@functools.cache
def graph() -> torch.fx.GraphModule:
    return export(Model(), (vector(2, 3),), decompose=False)


def real_plan() -> Plan:
    everything = {
        n.target for n in graph().graph.nodes
        if n.op == "call_function" and n.target is not aten.cumsum.default
    }  # fmt: skip
    return hierpart.make_plan(
        graph(), backend_support_map={"inductor": everything, "mine": {aten.sin}},
        backend_priority=["mine", "inductor"], min_block_size=2,
    )  # fmt: skip


def handmade(**fields: object) -> Plan:
    """A plan with every field filled in, by hand."""
    verdicts = (Verdict("a", True), Verdict("b", False, Reason.RANK, "rank 9"))
    inner = Plan((Block(0, EAGER, ("x",), 1),), {"x": EAGER}, {"x": "torch.relu"}, {"x": ()})
    made = Plan(
        blocks=(Block(0, "a", ("n",), 1, ("in",), ("n",), "_run_on_acc_a_0"),),
        owner={"n": "a"}, ops={"n": "torch.sin"}, verdicts={"n": verdicts},
        attributes=(Attribute("w", "layer.w", "parameter", (0,), True),),
        priority=("a", "b", EAGER), min_block_size={"a": 1, "b": 2}, lower_bound=1, proved=True,
        boundary_bytes=7, peak_bytes=8, original_peak_bytes=9,
        steps=(Step("merge", 1, (Move(("n",), "b", "a", Reason.TOO_SMALL, "why"),), 0.25),),
        nested=(Nested("cond", "branch_0", inner),),
    )  # fmt: skip
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [real_plan, handmade], ids=["real", "by hand"])
def test_json_round_trip(made):
    """Every field comes back as it was, the steps' times too."""
    plan = made()
    text = plan.to_json()
    back = Plan.from_json(text)

    assert back == plan
    assert back.fingerprint() == plan.fingerprint()
    assert [s.seconds for s in back.steps] == [s.seconds for s in plan.steps]
    assert back.to_json() == text
    for field in dataclasses.fields(Plan):
        assert type(getattr(back, field.name)) is type(getattr(plan, field.name)), field.name


def test_json_is_plain_data():
    """Any reader can use it: names, numbers, text; reasons in words; a format number."""
    data = json.loads(handmade().to_json(indent=2))
    assert data["format"] == 1
    assert data["verdicts"]["n"][1] == {
        "backend": "b", "supported": False, "reason": "rank", "detail": "rank 9",
    }  # fmt: skip
    assert data["nested"][0]["plan"]["owner"] == {"x": "eager"}
    assert data == json.loads(json.dumps(handmade().to_dict()))


@pytest.mark.parametrize("change", [{"format": 2}, {"format": None}])
def test_another_format_is_refused(change):
    data = handmade().to_dict() | change
    with pytest.raises(ValueError, match="expected 1"):
        Plan.from_dict(data)


CHANGES = {
    "blocks": {"blocks": (Block(0, "a", ("n",), 2, ("in",), ("n",), "_run_on_acc_a_0"),)},
    "name of a block": {"blocks": (Block(0, "a", ("n",), 1, ("in",), ("n",), "_run_on_acc_a_1"),)},
    "owner": {"owner": {"n": "b"}},
    "ops": {"ops": {"n": "torch.cos"}},
    "verdicts": {"verdicts": {"n": (Verdict("a", True),)}},
    "attributes": {"attributes": ()},
    "priority": {"priority": ("b", "a", EAGER)},
    "sizes": {"min_block_size": {"a": 1, "b": 3}},
    "bound": {"lower_bound": 0},
    "proved": {"proved": False},
    "bytes": {"boundary_bytes": 1},
    "peak": {"peak_bytes": 1},
    "original peak": {"original_peak_bytes": 1},
    "moves": {"steps": (Step("merge", 1, (), 0.25),)},
    "nested": {"nested": ()},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_fingerprint_covers_every_field(change):
    """C9: equal plans have equal fingerprints, other plans have others."""
    assert handmade(**change).fingerprint() != handmade().fingerprint()
    assert handmade(**change) != handmade()


def test_the_fingerprint_and_equality_leave_times_out():
    """C9: how long a step took says nothing about the plan; nested plans included."""
    slow = tuple(dataclasses.replace(s, seconds=9.0) for s in handmade().steps)
    nested = handmade().nested[0]
    inner = dataclasses.replace(nested.plan, steps=(Step("merge", seconds=1.0),))
    other = dataclasses.replace(nested.plan, steps=(Step("merge", seconds=2.0),))
    plans = [
        handmade(steps=slow, nested=(dataclasses.replace(nested, plan=p),)) for p in (inner, other)
    ]
    assert handmade(steps=slow) == handmade()
    assert handmade(steps=slow).fingerprint() == handmade().fingerprint()
    assert plans[0].fingerprint() == plans[1].fingerprint()


def test_two_splits_of_one_graph_give_one_plan():
    """C9, C10."""
    first, again = real_plan(), real_plan()
    assert first == again
    assert first.fingerprint() == again.fingerprint()


@pytest.mark.parametrize("part", ["plan", "block", "verdict", "step", "move", "attribute"])
def test_nothing_can_be_assigned(part):
    plan = handmade()
    parts = {
        "plan": plan, "block": plan.blocks[0], "verdict": plan.verdicts["n"][0],
        "step": plan.steps[0], "move": plan.steps[0].moves[0], "attribute": plan.attributes[0],
    }  # fmt: skip
    for field in dataclasses.fields(parts[part]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(parts[part], field.name, None)


def test_plans_pickle_copy_and_outlive_their_graph():
    """A plan holds names and numbers, no node, no tensor."""
    plan = real_plan()
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan
        assert other.fingerprint() == plan.fingerprint()
    assert len(pickle.dumps(plan)) < 20_000


def test_a_plan_is_read_like_a_sequence_of_blocks():
    plan = real_plan()
    assert len(plan) == len(plan.blocks)
    assert list(plan) == list(plan.blocks)
    assert plan.block_of() == {n: b.index for b in plan for n in b.nodes}
    assert [m for s in plan.steps for m in s.moves] == list(plan.moves())


def test_printing_a_plan_shows_its_blocks():
    assert "inductor" in str(real_plan())


def test_what_the_plan_of_a_graph_says():
    """C1, C4: every node, its op, each backend's answer; each attribute with kind and blocks."""
    plan, nodes = real_plan(), graph().graph.nodes
    calls = [n.name for n in nodes if n.op.startswith("call_")]
    assert set(plan.owner) == set(plan.ops) == set(plan.verdicts) == set(calls)
    assert all([v.backend for v in vs] == ["mine", "inductor"] for vs in plan.verdicts.values())
    assert plan.priority == ("mine", "inductor", EAGER)
    kinds = {a.target: a.kind for a in plan.attributes}
    assert kinds["linear.weight"] == kinds["linear.bias"] == "parameter"
    assert kinds["count"] == "buffer"
    assert {a.name for a in plan.attributes} == {
        n.name for n in graph().graph.find_nodes(op="get_attr")
    }
    parents = {a.target for a in plan.attributes if a.in_parent}
    assert {"count", "linear.bias"} <= parents
    assert [s.name for s in plan.steps] == ["analyse", "assign", "cluster", "merge", "wire"]
    assert all(0 <= s.seconds < 60 for s in plan.steps)


def test_verdicts_in_words():
    assert str(Verdict("a", True)) == "a: yes"
    assert str(Verdict("a", False, Reason.RANK, "9 > 8")) == "a: rank (9 > 8)"
    assert str(Verdict("a", False)) == "a: no"


# ------------------------------------------------------------------ verify


@functools.cache
def facts() -> Facts:
    return analyse(graph())


def broken(**fields: object) -> Plan:
    return dataclasses.replace(real_plan(), **fields)  # type: ignore[arg-type]


def test_a_real_plan_passes():
    verify(real_plan(), facts())


def tampered() -> dict[str, tuple[Plan, str]]:
    plan = real_plan()
    first, *rest = plan.blocks
    one = dataclasses.replace
    without = one(first, nodes=first.nodes[1:])
    doubled = one(rest[0], nodes=(*rest[0].nodes, first.nodes[0]))
    turned = tuple(one(b, index=i) for i, b in enumerate(reversed(plan.blocks)))
    renamed = one(first, backend="mine")
    no_moves = tuple(one(s, moves=()) for s in plan.steps)
    extra = Move((first.nodes[0],), "mine", EAGER, Reason.TOO_SMALL)
    return {
        "a node is missing": (broken(blocks=(without, *rest)), "C1"),
        "a node is in two blocks": (broken(blocks=(first, doubled, *rest[1:])), "C1"),
        "a wrong index": (broken(blocks=(one(first, index=5), *rest)), "C1"),
        "blocks in the wrong order": (broken(blocks=turned), "C2"),
        "a block of another owner": (broken(blocks=(renamed, *rest)), "C4"),
        "a move is not recorded": (broken(steps=no_moves), "C4"),
        "a move from elsewhere": (
            broken(steps=(*plan.steps, Step("again", 1, (extra,)))), "C4",
        ),
    }  # fmt: skip


TAMPERED = (
    "a node is missing", "a node is in two blocks", "a wrong index", "blocks in the wrong order",
    "a block of another owner", "a move is not recorded", "a move from elsewhere",
)  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED)
def test_broken_plans_are_refused_with_the_number_of_the_rule(case):
    """C1, C2, C4: ``verify`` names the rule and a node."""
    plan, number = tampered()[case]
    with pytest.raises(PlanError, match=number) as caught:
        verify(plan, facts())
    assert isinstance(caught.value, HierpartError)


def test_parted_units_are_refused():
    """C6: an op and the unpacking of its result in two blocks."""

    class Sort(nn.Module):
        def forward(self, x):
            return torch.sort(x)

    gm = export(Sort(), (vector(3),))
    plan = hierpart.make_plan(gm, backend_priority=[])
    (block,) = plan.blocks
    parts = tuple(
        dataclasses.replace(block, index=i, nodes=nodes)
        for i, nodes in enumerate((block.nodes[:1], block.nodes[1:]))
    )
    with pytest.raises(PlanError, match="C6"):
        verify(dataclasses.replace(plan, blocks=parts), analyse(gm))


def test_a_large_plan_is_written_and_read_in_time():
    """C12: ten thousand nodes to JSON and back in about a second."""
    count = 10_000
    names = tuple(f"n{i}" for i in range(count))
    plan = handmade(
        blocks=(Block(0, "a", names, count),), owner=dict.fromkeys(names, "a"),
        ops=dict.fromkeys(names, "op"), verdicts=dict.fromkeys(names, (Verdict("a", True),)),
    )  # fmt: skip
    started = time.process_time()
    assert Plan.from_json(plan.to_json()) == plan
    assert time.process_time() - started < 3
