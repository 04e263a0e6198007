"""What torch's structured trace gets of hierpart, as tlparse reads it; reproduction scripts run."""

import json
import os
import subprocess
import sys

import pytest
import torch

import hierpart
from hierpart.errors import HierpartError
from hierpart.plan import Plan
from hierpart.report.report import Report
from hierpart.report.repro import example
from tests.test_html import TAKES, Net

SCRIPT = """
import torch, hierpart
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
hierpart.compile(model, (torch.randn(2, 4),), backend_priority=["eager"])
torch.compile(model, backend="hierpart", options={"backend_priority": ["eager"]})(torch.randn(2, 4))
"""


def artefacts(folder):
    """Return name, compile id and payload of each artefact in the trace files of a folder."""
    found = []
    for path in folder.iterdir():
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            head = json.loads(line[line.index("{") :]) if "] {" in line else {}
            if "artifact" in head:
                payload = []
                while i + 1 < len(lines) and lines[i + 1].startswith("\t"):
                    i += 1
                    payload.append(lines[i][1:])
                found.append((head["artifact"]["name"], head.get("frame_id"), "\n".join(payload)))
    return found


def test_plan_steps_and_report_are_artefacts_of_the_trace(tmp_path):
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True)
    ours = [a for a in artefacts(tmp_path) if a[0].startswith("hierpart")]
    names = ["hierpart_plan", "hierpart_plan_text", "hierpart_steps", "hierpart_report"]
    assert [name for name, _, _ in ours] == 2 * names
    assert [frame for _, frame, _ in ours] == 4 * [None] + 4 * [0]  # outside and inside Dynamo
    plan = Plan.from_json(ours[0][2])
    assert plan.priority == ("eager",)
    assert "what runs where" in ours[1][2]
    steps = json.loads(ours[2][2])
    assert [s["name"] for s in steps] == [s.name for s in plan.steps]
    assert all(s["seconds"] >= 0 for s in steps)
    report = json.loads(ours[3][2])["report"]
    assert [o["status"] for o in report["outcomes"]] == ["eager"]


def test_nothing_is_made_for_a_trace_that_nobody_asks_for():
    script = (
        "import torch\nfrom hierpart.report.structured_trace import trace_artefact\n"
        "for i in range(3): trace_artefact('x', lambda: print('made') or '')\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_TRACE"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("made") <= 1  # torch finds out at the first that there is no trace


@pytest.fixture(scope="module")
def report():
    return hierpart.explain(Net(), (torch.randn(2, 4),), **TAKES)


def run(script):
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=script.parent,
    )


@pytest.mark.inductor
def test_a_script_times_its_block_three_ways(tmp_path):
    report = hierpart.explain(
        Net(), (torch.randn(2, 4),), backend_priority=["inductor"], min_block_size=1,
        torch_executed_ops=[torch.ops.aten.softmax.int],
    )  # fmt: skip
    script = report.save_repro(0, tmp_path / "made")
    assert sorted(p.name for p in script.parent.iterdir()) == ["block_0.pt2", "block_0.py"]
    done = run(script)
    assert done.returncode == 0, done.stdout + done.stderr
    ways = [line.split("  ")[0] for line in done.stdout.splitlines() if " ms, " in line]
    assert ways == ["eager", "inductor", "hierpart, inductor"]
    assert "3 nodes in 1 block (inductor 1)" in done.stdout


def test_a_block_is_a_program_of_the_same_ops(report, tmp_path):
    report.save_repro(1, tmp_path)
    program = torch.export.load(tmp_path / "block_1.pt2")
    ops = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert ops == ["aten.softmax.int"]
    (x,), _ = program.example_inputs
    torch.testing.assert_close(program.module()(x)[0], x.softmax(-1))
    script = (tmp_path / "block_1.py").read_text()
    assert "BACKEND = ''" in script  # eager is no backend to time once more
    compile(script, "block_1.py", "exec")


def test_what_cannot_be_reproduced_is_said(report, tmp_path):
    with pytest.raises(HierpartError, match="there is no block 2; the last one is 1"):
        report.save_repro(2, tmp_path)
    with pytest.raises(HierpartError, match="without its graph"):
        Report(report.plan).save_repro(0, tmp_path)


def test_a_compiled_module_can_reproduce_its_blocks(tmp_path):
    compiled = hierpart.compile(Net().eval(), (torch.randn(2, 4),), backend_priority=["eager"])
    assert compiled.report.save_repro(0, tmp_path).is_file()
    assert "linear" in compiled.report.details.nodes


def test_examples_are_like_what_was_recorded():
    generator = torch.Generator().manual_seed(0)
    turned = torch.empty(2, 3, dtype=torch.float16).t()
    made = example(turned, generator)
    assert (made.shape, made.stride(), made.dtype) == (turned.shape, turned.stride(), turned.dtype)
    assert bool(made.any())
    assert example(torch.ones(2, dtype=torch.int64), generator).tolist() == [0, 0]
    assert example(3, generator) == 3
