"""Advice is planned, not guessed: each row is what the line gives; a diff says what moved and why."""

import dataclasses

import pytest
import torch

import hierpart
from hierpart.errors import HierpartError
from hierpart.plan import Plan, Reason, Verdict
from hierpart.report.advice import refused_pairs
from hierpart.report.report import Report
from tests.doubles import Double
from tests.large_report import large_report
from tests.test_html import Page
from tests.test_report import make_plan

aten = "torch.ops.aten."
LISTED = [aten + name for name in ("relu.default", "neg.default")]


class Sandwich(torch.nn.Module):
    """Three refused ops: tanh parts two blocks, sigmoid two others, cos stands at the end."""

    def forward(self, x):
        y = x.relu().neg().tanh().neg().relu().tanh().relu()
        return y.sigmoid().neg().cos()


def explained(**changes):
    options = {
        "backend_priority": ["mine"], "backend_support_map": {"mine": LISTED}, "min_block_size": 1,
    }  # fmt: skip
    return hierpart.explain(Sandwich(), (torch.randn(3),), **{**options, **changes})


@pytest.fixture(scope="module")
def report():
    return explained()


def test_each_suggestion_is_what_planning_with_the_op_gives(report):
    advice = report.advice()
    assert [(s.op, s.backend, s.count) for s in advice.suggestions] == [
        (aten + "tanh.default", "mine", 2),
        (aten + "sigmoid.default", "mine", 1),
        (aten + "cos.default", "mine", 1),
    ]
    before = report.plan
    for s in advice.suggestions:
        after = explained(backend_support_map={"mine": [*LISTED, s.op]}).plan
        assert s.blocks == len(before) - len(after)
        assert s.eager_ops == s.count
        assert s.accelerated == pytest.approx(1 - (4 - s.count) / 10)
    assert [s.blocks for s in advice.suggestions] == [4, 2, 1]


def test_the_number_of_plans_is_bounded_and_what_is_left_out_is_said(report):
    advice = report.advice(limit=1)
    assert len(advice.suggestions) == 1
    assert advice.left_out == 2
    assert "2 with fewer nodes were not tried" in str(advice)
    assert report.suggestions(1) == advice.suggestions


def test_the_sweep_is_what_planning_with_each_minimum_gives(report):
    rows = report.sweep()
    assert [row.size for row in rows][:3] == [None, 1, 2]
    for row in rows[1:]:
        plan = explained(min_block_size=row.size).plan
        assert row.blocks == len(plan)
        assert row.accelerated_blocks == sum(b.backend == "mine" for b in plan)
        mine = sum(b.compute_ops for b in plan if b.backend == "mine")
        assert dict(row.ops) == {"mine": mine, "eager": 10 - mine}
        assert row.accelerated == pytest.approx(mine / 10)
    assert rows[0].blocks == len(report.plan)
    assert rows[-1].accelerated == 0  # no block has twenty ops


def test_a_backend_is_asked_about_each_node_once():
    asked = []

    class Counting(Double):
        def verdict(self, node):
            asked.append(node.name)
            return super().verdict(node)

    backend = Counting("mine", refuses=("tanh", "cos"))
    report = explained(backend_support_map={"mine": backend})
    asked.clear()
    report.advice()
    assert len(asked) == len(set(asked)) == 10


def test_wishes_of_the_user_and_missing_backends_are_no_suggestions():
    excluded = explained(torch_executed_ops=[aten + "tanh.default"])
    assert aten + "tanh.default" not in {op for (op, _), _ in refused_pairs(excluded.plan)}
    gone = Verdict("tensorrt", False, Reason.BACKEND_UNAVAILABLE, "not installed")
    plan = make_plan(["inductor"])
    away = dataclasses.replace(plan, verdicts=dict.fromkeys(plan.owner, (gone,)))
    assert refused_pairs(away) == []


def test_ops_in_branches_count():
    class Choice(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda t: t.relu().tanh(), lambda t: t.tanh(), (x,))

    report = hierpart.explain(
        Choice(), (torch.randn(3),), backend_priority=["mine"], min_block_size=1,
        backend_support_map={"mine": LISTED},
    )  # fmt: skip
    tanh = next(s for s in report.suggestions() if s.op == aten + "tanh.default")
    assert (tanh.count, tanh.blocks, tanh.eager_ops) == (2, 1, 2)


def test_only_what_explain_returned_can_be_planned_again(report):
    with pytest.raises(HierpartError, match=r"hierpart\.explain"):
        Report(report.plan).advice()


def test_advice_is_told_as_text_and_in_the_page(report):
    advice = report.advice()
    text = str(advice)
    assert "aten.tanh.default" in text
    assert text.splitlines()[0].startswith("if a backend supported an op that it refuses")
    rows = Page(report.to_html(advice=advice)).table("op", "backend", "nodes", "change of blocks")
    assert rows[0] == ["aten.tanh.default", "mine", "2", "-4", "-2", "80.0 %"]
    assert "What would help most" not in report.to_html()


def test_a_diff_says_what_moved_and_why(report):
    before = report.plan
    after = explained(torch_executed_ops=[aten + "neg.default"]).plan
    found = before.diff(after)
    assert found
    assert [(c.nodes, c.source, c.target) for c in found.changes] == [
        (("neg", "neg_1", "neg_2"), "mine", "eager")
    ]
    assert found.changes[0].why == "excluded by the user (torch_executed_ops)"
    back = after.diff(before).changes[0]
    assert (back.source, back.target) == ("eager", "mine")
    assert back.why == "no longer: excluded by the user (torch_executed_ops)"
    text = str(found)
    assert text.splitlines()[0] == "3 nodes moved"
    assert "neg x3" in text


def test_a_diff_of_minima_names_the_minimum(report):
    found = report.plan.diff(explained(min_block_size=2).plan)
    assert {c.why.partition(" (")[0] for c in found.changes} == {"block under the minimum size"}


def test_a_diff_of_priorities():
    one, other = make_plan(["tensorrt"]), make_plan(["inductor"])
    gone = dataclasses.replace(
        other, ops=one.ops, priority=("inductor", "eager"), verdicts={},
        owner=dict.fromkeys(one.owner, "inductor"),
    )  # fmt: skip
    assert [c.why for c in one.diff(gone).changes] == ["tensorrt is no longer in the priority"]
    assert [c.why for c in gone.diff(one).changes] == ["tensorrt was not in the priority"]
    turned = dataclasses.replace(gone, priority=("inductor", "tensorrt", "eager"))
    assert [c.why for c in one.diff(turned).changes] == ["inductor comes before tensorrt"]


def test_equal_plans_do_not_differ_and_other_nodes_are_named():
    plan = large_report(5, 40).plan
    assert not plan.diff(Plan.from_json(plan.to_json()))
    assert str(plan.diff(plan)) == "no difference in owners or blocks"
    other = plan.diff(make_plan(["tensorrt"]))
    assert (len(other.removed), len(other.added)) == (40, 2)
    assert "40 nodes removed" in str(other)


def test_other_blocks_of_the_same_owners_are_a_difference():
    plan = make_plan(["tensorrt", "tensorrt"])
    one, two = plan.blocks
    joined = dataclasses.replace(
        plan, blocks=(dataclasses.replace(one, nodes=one.nodes + two.nodes),)
    )
    found = plan.diff(joined)
    assert found
    assert "2 -> 1" in str(found)
