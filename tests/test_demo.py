"""The demonstration shows what it promises: three owners, a refusal, a move, a fallback, a check."""

import re
from pathlib import Path

import pytest
import torch

import hierpart
from hierpart.cli.demonstration import EAGER_OPS, MINIMUM, TENSORRT_OPS, demo
from hierpart.demo import build
from hierpart.plan import Reason

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture(scope="module")
def plan():
    model, args = build()
    settings = {"min_block_size": MINIMUM, "torch_executed_ops": EAGER_OPS}
    return hierpart.explain(
        model,
        args,
        backend_priority=["tensorrt", "inductor"],
        backend_support_map={"tensorrt": TENSORRT_OPS},
        **settings,
    ).plan


def test_the_plan_is_three_way_and_small(plan):
    assert 50 <= len(plan.owner) <= 70
    assert [block.backend for block in plan] == ["tensorrt", "inductor", "tensorrt", "eager"]
    assert plan.proved


def test_softmax_is_refused_by_a_backend_and_an_undersized_block_moves(plan):
    owners = {plan.ops[name]: owner for name, owner in plan.owner.items()}
    assert owners["torch.ops.aten.softmax.int"] == "inductor"
    assert {move.reason for move in plan.moves()} == {Reason.TOO_SMALL}
    assert any("getitem" in name for name in plan.owner)  # ops with several outputs


def test_every_op_on_the_list_is_in_the_network(plan):
    assert set(TENSORRT_OPS) <= set(plan.ops.values())


def test_the_network_updates_its_buffer_and_is_always_the_same():
    (model, args), (again, _) = build(), build()
    with torch.no_grad():
        first, second = model(*args), again(*args)
    assert all(map(torch.equal, first, second))
    assert model.average.abs().sum() > 0


@pytest.mark.inductor
def test_the_demonstration_passes_and_readme_shows_what_it_prints():
    said = []
    check = demo(said.append)
    assert check.passed()
    printed = "\n".join(said)
    shown = re.search(
        r"^```text\n(A small vision network.*?)^```$", README.read_text(), re.M | re.S
    )
    assert shown is not None
    assert without_figures(shown[1]) == without_figures(printed)


def without_figures(text):
    """Return the text without times, versions and the blanks that align them."""
    text = re.sub(r"torch \S+, \d+ threads", "torch, threads", text)
    text = re.sub(r"[\d.,e+-]+ (ms|s)\b", "TIME", text)
    text = re.sub(r"largest difference \S+", "difference", text)
    text = re.sub(r"BackendUnavailableError.*", "BackendUnavailableError", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]
