"""The report says what the plan holds: counts, reasons, moves, branches, and no more lines than fit."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys

import pytest
import torch

from hierpart.options import Options
from hierpart.page import Page, capped, clip, listed, seconds, share, size, tallied, to_text
from hierpart.plan import Attempt, Block, Move, Nested, Outcome, Plan, Reason, Step, Verdict
from hierpart.plan.tables import plan_text
from hierpart.report.report import Report, explain, log_plan, summary

OPS = {
    "tensorrt": ("torch.ops.aten.convolution.default", "torch.ops.aten.relu.default"),
    "inductor": ("torch.ops.aten._softmax.default", "torch.ops.aten.mul.Tensor"),
    "eager": ("torch.ops.aten.topk.default", "_operator.getitem"),
}
RANK = tuple(OPS)
REFUSAL = {"inductor": Reason.NOT_LISTED, "eager": Reason.EXCLUDED_BY_USER}


def make_plan(owners, **changes):
    """Return a chain of two-node blocks with these owners, each reading the one before."""
    blocks, owner, ops, verdicts = [], {}, {}, {}
    for index, backend in enumerate(owners):
        nodes = tuple(f"n{index}_{op.split('.')[-2]}" for op in OPS[backend])
        for node, op in zip(nodes, OPS[backend], strict=True):
            owner[node], ops[node] = backend, op
            verdicts[node] = tuple(
                Verdict(name, True)
                if RANK.index(name) >= RANK.index(backend)
                else Verdict(name, False, REFUSAL[backend], f"by {backend} rule")
                for name in RANK[:-1]
            )
        taken = blocks[-1].outputs if blocks else ("x",)
        count = 1 if backend == "eager" else 2
        blocks.append(Block(index, backend, nodes, count, taken, nodes[-1:], f"block_{index}"))
    defaults = {
        "priority": RANK,
        "min_block_size": {"tensorrt": 5, "inductor": 2},
        "lower_bound": len(blocks),
        "proved": True,
        "boundary_bytes": 2048,
        "peak_bytes": 4096,
        "original_peak_bytes": 5120,
    }
    return Plan(tuple(blocks), owner, ops, verdicts, **(defaults | changes))


def rows(text, title):
    """Return the rows of one table of a text, header first, split at runs of blanks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == title)
    body = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        body.append(re.split(r"\s{2,}", line.strip()))
    return body


def test_the_headline_counts_and_grades_the_blocks():
    plan = make_plan(["tensorrt", "inductor", "eager"])
    first = plan_text(plan).splitlines()[0]
    assert first == "6 nodes in 3 blocks, the fewest possible with these owners (proved)"
    open_plan = dataclasses.replace(plan, lower_bound=2, proved=False)
    first = plan_text(open_plan).splitlines()[0]
    assert first == "6 nodes in 3 blocks; with these owners 2 or more are needed (gap not closed)"


def test_what_runs_where_adds_up():
    plan = make_plan(["tensorrt", "eager", "tensorrt", "eager", "tensorrt"])
    header, *body = rows(plan_text(plan), "what runs where")
    assert header == ["backend", "blocks", "nodes", "compute ops", "share", "minimum"]
    assert body == [
        ["tensorrt", "3", "6", "6", "75.0 %", "5"],
        ["inductor", "0", "0", "0", "0.0 %", "2"],
        ["eager", "2", "4", "2", "25.0 %"],
    ]
    assert sum(int(row[2]) for row in body) == len(plan.owner)


def test_boundary_values_are_counted_once_a_reading_block():
    plan = make_plan(["tensorrt", "inductor", "eager"])
    assert "between blocks: 2 values, 2 KiB;" in plan_text(plan)
    first, second, third = plan.blocks
    third = dataclasses.replace(third, inputs=(*third.inputs, *first.outputs))
    wider = dataclasses.replace(plan, blocks=(first, second, third))
    assert "between blocks: 3 values" in plan_text(wider)
    assert "between blocks" not in plan_text(make_plan(["tensorrt"]))  # x is the caller's


def test_blocks_are_listed_in_order_with_what_they_hold():
    text = plan_text(make_plan(["tensorrt", "eager"]))
    assert rows(text, "blocks, in the order in which they run")[1:] == [
        ["0", "tensorrt", "2", "2", "1", "1", "convolution, relu"],
        ["1", "eager", "2", "1", "1", "1", "topk, getitem"],
    ]


def test_refusals_have_count_backend_and_reason_with_eager_ones_first():
    plan = make_plan(["inductor", "inductor", "inductor", "eager"])
    header, *body = rows(plan_text(plan), "refused ops")
    assert header == ["count", "op", "refused by", "runs on", "why"]
    both, listed_ = "excluded by the user (by eager rule)", "not listed (by inductor rule)"
    assert body == [
        ["1", "aten.topk.default", "tensorrt, inductor", "eager", both],
        ["3", "aten._softmax.default", "tensorrt", "inductor", listed_],
        ["3", "aten.mul.Tensor", "tensorrt", "inductor", listed_],
    ]


def test_refusals_of_backends_below_the_owner_are_not_shown():
    plan = make_plan(["tensorrt"])
    below = {
        name: (Verdict("tensorrt", True), Verdict("inductor", False, Reason.DTYPE))
        for name in plan.owner
    }
    assert "refused ops" not in plan_text(dataclasses.replace(plan, verdicts=below))


def test_a_detail_that_only_names_the_op_is_left_out():
    plan = make_plan(["inductor"])
    named = {
        name: (Verdict("tensorrt", False, Reason.NOT_LISTED, plan.ops[name]),)
        for name in plan.owner
    }
    body = rows(plan_text(dataclasses.replace(plan, verdicts=named)), "refused ops")[1:]
    assert [row[-1] for row in body] == ["not listed", "not listed"]


def test_a_backend_that_is_not_available_is_one_line():
    plan = make_plan(["inductor", "inductor", "eager"])
    why = (Verdict("tensorrt", False, Reason.BACKEND_UNAVAILABLE, "not installed"),)
    away = dataclasses.replace(
        plan, verdicts={name: why + verdicts[1:] for name, verdicts in plan.verdicts.items()}
    )
    text = plan_text(away)
    assert text.splitlines()[2] == "not available: tensorrt, asked for 6 nodes (not installed)"
    assert [row[1:3] for row in rows(text, "refused ops")[1:]] == [
        ["aten.topk.default", "inductor"]
    ]


def test_undersized_blocks_and_where_they_went():
    small = Move(("n0__softmax", "n0_mul"), "tensorrt", "inductor", Reason.TOO_SMALL, "2 of 5")
    other = Move(("n0_mul",), "inductor", "eager", Reason.NON_TENSOR_BOUNDARY)
    steps = (Step("boundary", 2, (other,)), Step("merge", 1, (small,), 0.5))
    text = plan_text(make_plan(["inductor"], steps=steps))
    assert rows(text, "moved to another backend")[1:] == [
        ["2", "tensorrt -> inductor", "softmax, mul", "block under the minimum size (2 of 5)"],
        ["1", "inductor -> eager", "mul", "non-tensor boundary"],
    ]


def test_branches_are_indented_pages_of_their_own():
    inner = make_plan(["inductor", "eager"])
    outer = make_plan(["tensorrt"], nested=(Nested("cond", "true_graph_0", inner),))
    lines = plan_text(outer).splitlines()
    title, *body = plan_text(inner).splitlines()
    at = lines.index(f"  branch true_graph_0 of cond: {title}")
    # the same page but for the table that the outer plan's covers
    start = body.index("blocks, in the order in which they run") - 1
    assert lines[at + 1 :] == [("  " + line).rstrip() for line in [body[0], *body[start:]]]


def test_ops_of_branches_count_where_they_run():
    # the control-flow op is all of the outer eager block and counts its branches' 3 + 2 ops
    branches = make_plan(["tensorrt", "eager"]), make_plan(["inductor"])
    nested = tuple(Nested("n1_topk", f"graph_{i}", p) for i, p in enumerate(branches))
    plan = make_plan(["tensorrt", "eager"], nested=nested)
    frame = dataclasses.replace(plan.blocks[1], compute_ops=5)
    plan = dataclasses.replace(plan, blocks=(plan.blocks[0], frame))
    assert rows(plan_text(plan), "what runs where, branches included")[1:] == [
        ["tensorrt", "2", "4", "4", "57.1 %", "5"],
        ["inductor", "1", "2", "2", "28.6 %", "2"],
        ["eager", "2", "4", "1", "14.3 %"],
    ]
    assert summary(plan) == (
        "4 nodes in 2 blocks (tensorrt 2, inductor 1, eager 2, branches included); "
        "1 of 7 compute ops run eagerly: topk"
    )


def test_a_real_cond_is_told_as_a_tree():
    report = explain(Choice(), (torch.randn(2, 4),), options=Options.from_mapping(TAKES_RELU))
    assert rows(str(report), "what runs where, branches included")[1:] == [
        ["mine", "1", "1", "1", "25.0 %", "1"],
        ["eager", "2", "5", "3", "75.0 %"],
    ]
    assert "  branch true_graph_0 of cond: 1 node in 1 block" in str(report)
    assert Plan.from_json(report.to_json()) == report.plan


@pytest.mark.parametrize("count", [3, 25, 26, 300])
def test_long_lists_are_capped_with_a_count(count):
    owners = [RANK[i % 2] for i in range(count)]
    plan = make_plan(owners)
    body = rows(plan_text(plan), "blocks, in the order in which they run")[1:]
    shown = [row for row in body if row[0].isdigit()]
    gaps = [row[0] for row in body if not row[0].isdigit()]
    assert len(body) <= 25
    assert gaps == ([f"... {count - 24} more in plan.blocks"] if count > 25 else [])
    assert len(shown) + (count - 24 if gaps else 0) == count
    assert [row[0] for row in body[:3]] == ["0", "1", "2"]
    assert body[-1][0] == str(count - 1)
    if gaps:
        before, after = body[17][0], body[19][0]  # the gap stands between them
        assert int(after) - int(before) == count - 24 + 1
    everything = rows(plan_text(plan, limit=0), "blocks, in the order in which they run")
    assert len(everything) == count + 1


def test_lines_stay_legible():
    ops = "torch.ops.aten." + "very_" * 40 + "long.default"
    plan = make_plan(["tensorrt", "inductor"])
    plan = dataclasses.replace(plan, ops=dict.fromkeys(plan.owner, ops))
    lines = plan_text(plan).splitlines()
    assert max(map(len, lines)) < 200
    assert all(line == line.rstrip() for line in lines)


def test_text_depends_on_the_plan_alone():
    plan = make_plan(["tensorrt"], steps=(Step("cluster", 1, (), 0.25),))
    slower = dataclasses.replace(plan, steps=(Step("cluster", 1, (), 99.0),))
    assert plan_text(plan) == plan_text(slower) == str(plan)


def test_an_empty_plan_has_a_report():
    plan = Plan((), {}, {}, {}, priority=RANK)
    assert plan_text(plan).startswith("0 nodes in 0 blocks\n")
    assert summary(plan) == "0 nodes in 0 blocks"


def test_json_holds_the_report_and_reads_back_as_the_plan():
    move = Move(("n0_relu",), "tensorrt", "inductor", Reason.TOO_SMALL)
    plan = make_plan(["tensorrt", "eager"], steps=(Step("merge", 2, (move,), 0.1),))
    report = Report(plan, notes=("A note.",), seconds={"plan": 0.5})
    assert Plan.from_json(report.to_json()) == plan
    extra = json.loads(report.to_json(indent=2))["report"]
    assert extra == {"outcomes": [], "notes": ["A note."], "seconds": {"plan": 0.5}}


def test_notes_and_times_are_the_last_lines():
    report = Report(make_plan(["tensorrt"]), notes=("A note.",), seconds={"plan": 0.5})
    assert str(report).splitlines()[-2:] == ["time: plan 500 ms", "note: A note."]


def test_what_became_of_each_block():
    plan = make_plan(["tensorrt", "inductor", "inductor", "eager"])
    failed = Attempt("tensorrt", 0.5, "RuntimeError: no engine\nand a long log")
    outcomes = (
        Outcome(0, "tensorrt", "inductor", 2.5, "fell back", failed.error, (failed,)),
        Outcome(1, "inductor", "inductor", 1.5, "compiled", None, (Attempt("inductor", 1.5),)),
        Outcome(2, "inductor", "inductor", 0.0, "shared", shared_with=1),
        Outcome(3, "eager", "eager", 0.0, "eager"),
    )
    report = Report(plan, outcomes)
    header, *body = rows(str(report), "compiled")
    assert header == ["#", "planned", "ran on", "status", "shared with", "time", "error"]
    assert body == [
        ["0", "tensorrt", "inductor", "fell back", "2.5 s", "RuntimeError: no engine"],
        ["1", "inductor", "inductor", "compiled", "1.5 s"],
        ["2", "inductor", "inductor", "shared", "block 1", "0 ms"],
        ["3", "eager", "eager", "eager"],
    ]
    assert rows(report.compiled_text(), "compiled") == [header, *body]
    bare = rows(str(Report(plan, (Outcome(0, "a", "a", 1.0, "compiled"),))), "compiled")
    assert bare == [
        ["#", "planned", "ran on", "status", "time"],
        ["0", "a", "a", "compiled", "1.0 s"],
    ]
    assert Plan.from_json(report.to_json()) == plan
    told = json.loads(report.to_json())["report"]["outcomes"]
    assert told[0]["attempts"] == [dataclasses.asdict(failed)]
    assert [o["shared_with"] for o in told] == [None, None, 1, None]


def test_the_summary_is_one_line_that_names_what_runs_eagerly():
    line = summary(make_plan(["tensorrt", "eager", "eager"]))
    assert line == (
        "6 nodes in 3 blocks (tensorrt 1, eager 2); 2 of 4 compute ops run eagerly: topk x2"
    )
    assert summary(make_plan(["tensorrt"])) == "2 nodes in 1 block (tensorrt 1)"


def test_rich_shows_the_same_cells():
    console = pytest.importorskip("rich.console")
    report = Report(make_plan(["tensorrt", "inductor", "eager"]), notes=("A note.",))
    screen = console.Console(width=200, file=None, record=True, quiet=False)
    with screen.capture() as caught:
        screen.print(report)
    words = set(caught.get().split())
    missing = [w for w in str(report).split() if w not in words]
    assert missing == []


@pytest.mark.parametrize(
    ("owners", "infos"),
    [(["tensorrt", "inductor"], 0), (["tensorrt", "eager", "inductor", "eager"], 1)],
)
def test_one_info_line_when_something_ended_in_eager(caplog, owners, infos):
    with caplog.at_level(logging.INFO, logger="hierpart"):
        log_plan(make_plan(owners))
    assert [(r.name, r.levelname) for r in caplog.records] == [("hierpart", "INFO")] * infos
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_eager_in_a_branch_is_told_and_an_all_eager_wish_is_not(caplog):
    inner = make_plan(["eager"])
    with caplog.at_level(logging.INFO, logger="hierpart"):
        log_plan(make_plan(["eager"], priority=("eager",)))
        assert caplog.records == []
        log_plan(make_plan(["tensorrt"], nested=(Nested("cond", "true_graph_0", inner),)))
    assert len(caplog.records) == 1


def test_the_whole_table_at_debug(caplog):
    plan = make_plan(["tensorrt"])
    with caplog.at_level(logging.DEBUG, logger="hierpart"):
        log_plan(plan)
    said = [record.getMessage() for record in caplog.records if record.name == "hierpart"]
    assert said == [plan_text(plan)]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1023 * 1024, "1023 KiB"), (1536, "1.5 KiB"), (5 * 2**30, "5 GiB"), (2**41, "2.0 TiB")],
)  # fmt: skip
def test_sizes(number, text):
    assert size(number) == text


def test_small_words():
    assert [seconds(s) for s in (0.0, 0.00012, 0.0123, 0.5, 1.25, 80)] == [
        "0 ms", "0.12 ms", "12 ms", "500 ms", "1.2 s", "80.0 s",
    ]  # fmt: skip
    assert (share(1, 3), share(0, 0)) == ("33.3 %", "-")
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c, +2"
    assert tallied(["a", "b", "a"]) == "a x2, b"
    assert clip("one\ntwo") == "one"
    assert clip("") == ""
    assert clip("x" * 100, 10) == "xxxxxxx..."
    assert to_text(Page("t", ("a", capped("c", ("h", ">n"), [("r", "10")], 0, "")))) == (
        "t\na\n\nc\n  h   n\n  r  10"
    )


class Attention(torch.nn.Module):
    def forward(self, x):
        return (torch.softmax(x @ x.mT, dim=-1) @ x).relu()


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: t.relu(), lambda t: t.sigmoid(), (x,))


TAKES_RELU = {
    "backend_priority": ["mine"],
    "backend_support_map": {"mine": ["torch.ops.aten.relu"]},
    "min_block_size": 1,
}
TAKES_ALL_BUT_SOFTMAX = {
    "backend_priority": ["mine"],
    "backend_support_map": {
        "mine": ["torch.ops.aten.matmul", "torch.ops.aten.transpose", "torch.ops.aten.relu"]
    },
    "min_block_size": 1,
}


def test_explain_plans_and_compiles_nothing():
    report = explain(
        Attention(), (torch.randn(2, 4),), options=Options.from_mapping(TAKES_ALL_BUT_SOFTMAX)
    )
    assert report.outcomes == ()
    assert list(report.seconds) == ["capture", "plan"]
    assert [block.backend for block in report.plan] == ["mine", "eager", "mine"]
    assert rows(str(report), "refused ops")[1:] == [
        ["1", "aten.softmax.int", "mine", "eager", "not listed"]
    ]


def test_explain_says_when_shapes_are_missing():
    gm = torch.fx.symbolic_trace(Attention())
    assert len(explain(gm).notes) == 1
    assert explain(gm, (torch.randn(2, 4),)).notes == ()
    assert str(explain(gm)).splitlines()[-1].startswith("note: ")


@pytest.mark.parametrize(("logs", "shown"), [({"TORCH_LOGS": "+hierpart"}, True), ({}, False)])
def test_torch_logs_shows_the_table(logs, shown):
    script = (
        "import torch, hierpart\n"
        "gm = torch.fx.symbolic_trace(lambda x: x.relu().sigmoid())\n"
        "hierpart.hierarchical_adjacency_partition(gm, 1, backend_priority=['mine'],"
        " backend_support_map={'mine': ['relu']})\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_LOGS"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, env={**environment, **logs},
    )  # fmt: skip
    assert done.stdout == ""
    assert ("what runs where" in done.stderr) == shown
    assert ("1 of 2 compute ops run eagerly: sigmoid" in done.stderr) == shown
