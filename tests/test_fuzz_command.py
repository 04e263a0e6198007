"""``python -m hierpart fuzz``: faults are found, made small, kept, and told; none is made up."""

from __future__ import annotations

import operator
import re

import pytest
import torch
from torch.fx import GraphModule

from hierpart.cli.command_line import main
from hierpart.testing import adapters, annotate
from hierpart.testing.campaign.judges import Judge, topic_of
from hierpart.testing.campaign.rounds import fuzz
from hierpart.testing.contract import ContractViolation


def forgets(gm, **options):
    """A partitioner with a fault: one op of one input is left out."""
    result = adapters.hierpart(gm, **options)
    for _, block in result.named_children():
        for node in getattr(getattr(block, "graph", None), "nodes", ()):
            if node.op == "call_function" and len(node.args) == len(node.all_input_nodes) == 1:
                node.replace_all_uses_with(node.args[0])
                block.recompile()
                return result
    return result


def raises_on_topk(gm, **options):
    """Another: some ops are more than it can take."""
    if any("topk" in str(node.target) for node in gm.graph.nodes):
        raise KeyError("topk")
    return adapters.hierpart(gm, **options)


def test_a_fault_is_found_made_small_saved_and_remembered(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(adapters.ADAPTERS, "forgetful", forgets)
    command = [
        "fuzz",
        "--partitioner",
        "forgetful",
        "--rules",
        "C8",
        "--graphs",
        "12",
        "--size",
        "6",
    ]
    folders = ["--save", str(tmp_path / "found"), "--database", str(tmp_path / "kept")]
    assert main([*command, "--seconds", "300", *folders]) == 1
    assert re.search(r"[1-4] kinds of faults", capsys.readouterr().out), "one finding of each kind"
    assert any((tmp_path / "kept").rglob("*")), "the next campaign starts with what was found"
    path = tmp_path / "found" / "finding_0.py"
    program = path.read_text()
    assert program.startswith("# C8: ")
    assert "check_partitioner(adapters.forgetful, gm" in program
    assert program.count("graph.") <= 8
    exec(compile(program.replace("adapters.forgetful", "adapters.hierpart"), path, "exec"), {})
    monkeypatch.setattr(adapters, "forgetful", forgets, raising=False)
    with pytest.raises(ContractViolation):
        exec(compile(program, path, "exec"), {})


def test_an_error_is_a_fault_of_its_own_kind():
    graph = torch.fx.Graph()
    best = graph.call_function(torch.topk, (graph.placeholder("x"), 1))
    graph.output(graph.call_function(operator.getitem, (best, 0)))
    gm = GraphModule({}, graph)
    annotate(gm, (torch.ones(5, 3),))
    finding = Judge(raises_on_topk, "picky", frozenset({"C8"}))(gm, {})
    assert finding.kind == "KeyError in test_fuzz_command.py:raises_on_topk"
    assert "adapters.picky" in finding.program


def test_a_seed_draws_the_same_graphs_and_hierpart_survives_them():
    first, second = (fuzz(adapters.hierpart, graphs=4, start=7) for _ in range(2))
    assert first.findings == second.findings == ()
    assert first.graphs == second.graphs == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--partitioner", "hierprat"], "did you mean 'hierpart'"),
        (["--rules", "C8,C12"], "no rule is called 'C12'"),
    ],
)
def test_what_does_not_exist_is_named(options, told, capsys):
    assert main(["fuzz", "--seconds", "1", *options]) == 2
    assert told in capsys.readouterr().err


def test_a_fault_that_does_not_come_again_is_told_all_the_same():
    calls = []

    def once(gm, **options):
        calls.append(gm)
        if len(calls) == 1:
            raise KeyError("once")
        return adapters.hierpart(gm, **options)

    found = fuzz(once, graphs=3, start=7, enough=1)
    assert [finding.kind for finding in found.findings] == ["KeyError in test_fuzz_command.py:once"]
    assert found.findings[0].after == 1


def test_faults_of_one_rule_or_place_are_told_apart_by_what_they_are_about():
    told = [
        ("C8", "call 0: output 0: values [1.0] instead of [2.0]"),
        ("C8", "call 1: output 3: values [0.0] instead of [4.0]"),
        ("C8", "after eliminate_dead_code on the result: call 0: output 0: values [1.0] instead"),
        ("C8", "the arguments are [('x', ())] instead of [('x', (2.0,))]"),
        ("E in f.py:g", "Subgraph can't be empty"),
        ("E in f.py:g", "Couldn't create subgraphs"),
        ("E in f.py:g", "Node mul_tensor was already tagged"),
        ("E in f.py:g", "Node sin was already tagged"),
    ]
    gm = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    keys = [(kind, topic_of(kind, message, gm)) for kind, message in told]
    assert keys[0] == keys[1]
    assert keys[-1] == keys[-2]
    assert len(set(keys)) == 6
