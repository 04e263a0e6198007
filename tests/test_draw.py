"""Pictures hold every node in the cluster and the colour of its block; what is missing is named."""

import json
import re
import shutil
import sys

import pytest
import torch

import hierpart
from hierpart.errors import MissingExtraError
from hierpart.report.drawing import DrawingError, overlay
from hierpart.report.palette import COLOURS, colour
from hierpart.report.report import Report
from tests.test_html import TAKES, Choice, Net
from tests.test_report import make_plan


@pytest.fixture(scope="module")
def report():
    return hierpart.explain(Net(), (torch.randn(2, 4),), **TAKES)


def clusters(text):
    """Return the nodes of each cluster of a DOT text, by its label."""
    found = {}
    for body in re.findall(r"subgraph cluster_block_\d+ \{(.*?)\n\}", text, re.DOTALL):
        label = re.search(r'label="([^"]*)"', body)[1]
        found[label] = re.findall(r"^\s*(\w+);", body, re.MULTILINE)
    return found


def test_dot_has_each_node_in_the_cluster_and_colour_of_its_block(report, tmp_path):
    pytest.importorskip("pydot")
    path = tmp_path / "net.dot"
    assert report.draw(path) == (path,)
    text = path.read_text()
    assert clusters(text) == {f"block {b.index}: {b.backend}": list(b.nodes) for b in report.plan}
    for name, owner in report.plan.owner.items():
        line = re.search(rf"^{name} \[(.*)\];", text, re.MULTILINE)[1]
        assert f'fillcolor="{colour(owner, report.plan, pale=True)}"' in line


def test_branches_have_pictures_of_their_own(tmp_path):
    pytest.importorskip("pydot")
    nested = hierpart.explain(Choice(), (torch.randn(2, 4),), **TAKES)
    written = nested.draw(str(tmp_path / "choice.dot"))
    names = [f"choice.cond.{n.branch}.dot" for n in nested.plan.nested]
    assert [path.name for path in written] == ["choice.dot", *names]
    inside = clusters(written[1].read_text())
    assert [n for nodes in inside.values() for n in nodes] == [
        n for b in nested.plan.nested[0].plan for n in b.nodes
    ]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_pictures_by_graphviz(report, tmp_path):
    pytest.importorskip("pydot")
    (picture,) = report.draw(tmp_path / "net.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    (drawing,) = report.draw(tmp_path / "net.svg")
    assert "block 0: mine" in drawing.read_text()


def test_the_overlay_has_block_and_colour_of_each_node(report, tmp_path):
    path = tmp_path / "net.json"
    assert report.draw(path) == (path,)
    data = json.loads(path.read_text())
    assert data == overlay(report.plan)
    block_of = report.plan.block_of()
    assert {n: r["value"] for n, r in data["results"].items()} == block_of
    assert data["results"]["softmax"]["bgColor"] == colour("eager", report.plan, pale=True)
    assert data["results"]["linear"]["bgColor"] != data["results"]["softmax"]["bgColor"]


def test_backends_have_colours_by_their_place(report):
    plan = make_plan(["tensorrt"])
    assert [colour(b, plan) for b in ("tensorrt", "inductor")] == list(COLOURS[:2])
    assert len({colour(b, plan) for b in ("tensorrt", "inductor", "eager")}) == 3


def test_what_cannot_be_drawn_is_said(report, tmp_path, monkeypatch):
    with pytest.raises(DrawingError, match=r"\.gif: .* one of \.dot, \.png"):
        report.draw(tmp_path / "net.gif")
    with pytest.raises(hierpart.HierpartError, match="without its graph"):
        Report(report.plan).draw(tmp_path / "net.dot")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DrawingError, match="Graphviz"):
        report.draw(tmp_path / "net.png")
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hierpart\[viz\]'"):
        report.draw(tmp_path / "net.dot")
    assert list(tmp_path.iterdir()) == []
    report.draw(tmp_path / "net.json")  # needs no extra
