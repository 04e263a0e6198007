"""Bad input: an error of the right family that names what is wrong, or a right result."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

import hierpart
from hierpart.cli.command_line import main
from hierpart.errors import GraphError, HierpartError
from hierpart.graph.node.values import SEVERAL, Kind, kind_of
from hierpart.testing import annotate
from hierpart.testing.campaign import bad_input as badinput
from hierpart.testing.campaign.bad_input import fuzz_bad_input, try_input
from hierpart.testing.generate.malformed import CHANGES

aten = torch.ops.aten
NONE = {"backend_priority": []}


def module():
    graph = Graph()
    x = graph.placeholder("x")
    best = graph.call_function(aten.topk.default, (graph.call_function(aten.relu.default, (x,)), 1))
    graph.output(graph.call_function(operator.getitem, (best, 0)))
    return annotate(GraphModule({}, graph), (torch.ones(2, 3),))


def nodes(gm):
    return {node.name: node for node in gm.graph.nodes}


def later(gm):
    nodes(gm)["relu_default"].args = (nodes(gm)["topk_default"],)


def foreign(gm):
    nodes(gm)["relu_default"].args = (Graph().placeholder("y"),)


def endless(gm):
    gm.graph.erase_node(nodes(gm)["output"])


def twice(gm):
    gm.graph.output(nodes(gm)["x"])


def named_twice(gm):
    nodes(gm)["getitem"].name = "relu_default"


def dangling(gm):
    with gm.graph.inserting_before(nodes(gm)["relu_default"]):
        nodes(gm)["relu_default"].args = (gm.graph.create_node("get_attr", "layer.weight"),)


def uncallable(gm):
    nodes(gm)["relu_default"].target = "relu"


def no_module(gm):
    nodes(gm)["relu_default"].op, nodes(gm)["relu_default"].target = "call_module", "training"


def nameless(gm):
    nodes(gm)["relu_default"].op = "call_method"


def opcode(gm):
    nodes(gm)["relu_default"].op = "call"


def fed(gm):
    nodes(gm)["relu_default"].op, nodes(gm)["relu_default"].target = "placeholder", "y"


def no_tensor(gm):
    nodes(gm)["relu_default"].meta["val"] = (torch.ones(2),)


def no_tuple(gm):
    nodes(gm)["topk_default"].meta["val"] = torch.ones(2)


def sizes(gm):
    nodes(gm)["topk_default"].meta["val"] = torch.Size([2])


def nothing(gm):
    nodes(gm)["relu_default"].meta["val"] = None


def nothing_from_torch(gm):
    nodes(gm)["relu_default"].target = torch.relu
    nodes(gm)["relu_default"].meta["val"] = None


def nothing_from_a_method(gm):
    node = nodes(gm)["relu_default"]
    node.op, node.target = "call_method", "relu_"
    node.args[0].meta["val"], node.meta["val"] = torch.ones(2), None


def nothing_in_place(gm):
    node = nodes(gm)["relu_default"]
    node.target, node.args = operator.iadd, (node.args[0], 1.0)
    node.args[0].meta["val"], node.meta["val"] = torch.ones(2), (1, 2)


def empty_item(gm):
    node = nodes(gm)["relu_default"]
    node.target, node.args = operator.getitem, (node.args[0], 0)
    node.args[0].meta["val"], node.meta["val"] = (torch.ones(2), torch.ones(2)), ()


CASES = {
    later: "'relu_default' uses 'topk_default', which comes later",
    foreign: "'relu_default' uses 'y', which is in another graph",
    endless: "no output",
    twice: "comes after the graph's output",
    named_twice: "two nodes have the name 'relu_default'",
    dangling: "no attribute 'layer.weight'",
    uncallable: "'relu', which cannot be called",
    no_module: "'training', which is no module",
    nameless: "which is no name",
    opcode: "has the opcode 'call'; legal are placeholder",
    fed: "is a placeholder and takes",
    no_tensor: "is a tuple, and aten.relu.default returns a tensor: propagate shapes again",
    no_tuple: "returns a tuple",
    sizes: "is a Size, and aten.topk.default returns a tuple",
    nothing: "is a NoneType",
    nothing_from_torch: "is a NoneType, and relu returns a tensor: propagate shapes again",
    nothing_from_a_method: "is a NoneType, and relu_ returns a tensor",
    nothing_in_place: "is a tuple, and iadd returns a tensor",
    empty_item: "is a tuple, and getitem returns a tensor",
}


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("inside", [False, True], ids=["top", "branch"])
def test_a_malformed_graph_is_refused_by_name(change, inside):
    gm = module()
    broken = gm
    if inside:
        graph = Graph()
        body = graph.get_attr("body")
        call = (body, "body", graph.placeholder("x"))
        graph.output(graph.call_function(torch.ops.higher_order.invoke_subgraph, call))
        gm = GraphModule({"body": gm}, graph)
        broken = gm.body
    hierpart.hierarchical_adjacency_partition(gm, **NONE)
    change(broken)
    with pytest.raises(GraphError, match=CASES[change].replace("(", r"\(")):
        hierpart.hierarchical_adjacency_partition(gm, **NONE)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("method", [False, True], ids=["torch", "method"])
def test_a_flag_may_make_several_values_of_one(method, recorded):
    """C6: ``nonzero(as_tuple=True)`` gives a tuple, which is right and does not cross whole."""

    def forward(x):
        found = x.nonzero(as_tuple=True) if method else torch.nonzero(x, as_tuple=True)
        return found[0].neg()

    gm = torch.fx.symbolic_trace(forward)
    (found,) = (node for node in gm.graph.nodes if node.target in (torch.nonzero, "nonzero"))
    if recorded:
        found.meta["val"] = (torch.zeros(2, dtype=torch.int64),)
    split, _ = hierpart.hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"other": [found.target]}, backend_priority=["other"]
    )
    x = torch.tensor([0.0, 2.0, 3.0])
    assert torch.equal(split(x), torch.tensor([-1, -2]))
    inside = {name for block in split.meta["hierpart"].blocks for name in block.outputs}
    assert found.name not in inside


@pytest.mark.parametrize("flag", SEVERAL)
def test_with_a_flag_nobody_takes_several_values_for_one(flag):
    """C6: also where nothing is recorded and no operator of that name gives several."""
    gm = torch.fx.symbolic_trace(lambda x: x.some_method(**{flag: True})[0].neg())
    (found,) = (node for node in gm.graph.nodes if node.target == "some_method")
    assert kind_of(found) is Kind.TUPLE


def test_an_error_in_the_users_predicate_is_no_fault():
    """It reaches the user as it is (tests/test_api.py holds that)."""
    assert try_input(11724) == ("options", "refused")


def test_some_hundred_bad_inputs():
    done = fuzz_bad_input(220)
    assert done.faults == {}
    assert done.inputs == 220
    assert done.refused.keys() | done.right.keys() >= {*CHANGES, "options", "file"}
    assert done.refused["file"] == 220 // (len(CHANGES) + 4), "no damaged file is loaded"
    assert sum(done.refused.values()) > 66
    assert sum(done.right.values()) > 33


@pytest.mark.slow
def test_20000_bad_inputs():
    done = fuzz_bad_input(20_000, start=1000)
    assert (done.inputs, done.faults) == (20_000, {})


def _index(kind):
    return [*CHANGES].index(kind)


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        (lambda gm, **options: {}["gone"], "KeyError from"),
        (lambda gm, **options: 1 / 0, "ZeroDivisionError from"),
        (lambda gm, **options: (GraphModule(gm, first_half(gm)), None), "wrong result"),
        (lambda gm, **options: iter(int, 1) and hang(), "no answer after 1 s"),
    ],
)
def test_anything_else_is_a_fault(monkeypatch, partition, told):
    number = _index("no val on some nodes")
    monkeypatch.setattr(badinput, "LIMIT", 1)
    assert try_input(number)[1] in (None, "refused")
    monkeypatch.setattr(hierpart, "hierarchical_adjacency_partition", partition)
    assert told in try_input(number)[1]


def first_half(gm):
    graph = Graph()
    graph.graph_copy(gm.graph, {})
    graph.output(next(iter(graph.nodes)))
    return graph


def hang():
    while True:
        pass


def test_an_error_of_the_right_family_is_an_answer(monkeypatch):
    def refuse(gm, **options):
        raise HierpartError("no")

    monkeypatch.setattr(hierpart, "hierarchical_adjacency_partition", refuse)
    assert try_input(_index("cycle"))[1] == "refused"


def test_the_command_counts(capsys, monkeypatch):
    assert main(["fuzz", "--bad-input", "--graphs", "22"]) == 0
    assert "22 bad inputs: " in capsys.readouterr().out
    monkeypatch.setattr(badinput, "damaged", lambda data, seed: data + b" " if seed else data)
    monkeypatch.setattr(hierpart, "load", lambda path: None)
    assert main(["fuzz", "--bad-input", "--graphs", "22"]) == 1
    assert "a damaged file was loaded" in capsys.readouterr().out


def test_a_getitem_without_arguments_is_planned():
    """Its run fails; planning ended with an ``IndexError``."""
    graph = Graph()
    x = graph.placeholder("x")
    item = graph.call_function(operator.getitem, (x, 0))
    graph.output(item)
    gm = GraphModule({}, graph)
    item.args = ()
    result, _ = hierpart.hierarchical_adjacency_partition(gm, **NONE)
    assert [block.nodes for block in result.meta["hierpart"].blocks] == [("getitem",)]
