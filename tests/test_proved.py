"""Assertions that metadata proves take no place of their own and are still there (C3, C5)."""

import pytest
import torch
from torch import nn

import hierpart
from hierpart.graph.node.effects import effect_of
from hierpart.plan import Reason
from hierpart.testing import adapters, annotate, check_partitioner

aten = torch.ops.aten
ASSERTION = aten._assert_tensor_metadata.default


class Casts(nn.Module):
    """An exported cast leaves an assertion on its input; ``x`` is an input, ``y`` a result."""

    def forward(self, x):
        y = x.to(torch.float32).sin()
        return y.to(torch.float64).cos() + 1


def exported():
    gm = torch.export.export(Casts(), (torch.ones(3, dtype=torch.float16),)).module()
    assert sum(n.target is ASSERTION for n in gm.graph.nodes) == 2
    return gm


def split(gm, priority, minimum=1, **options):
    everything = {f"torch.ops.{n.target}" for n in gm.graph.nodes if n.op == "call_function"}
    support = {
        "first": {"torch.ops.aten.relu.default"},
        "second": everything - {f"torch.ops.{ASSERTION}"},
    }
    support = {b: ops for b, ops in support.items() if b in priority}
    return hierpart.hierarchical_adjacency_partition(
        gm, minimum, backend_priority=priority, backend_support_map=support, **options
    )[0]


def test_they_cut_no_block():
    gm = exported()
    result = split(gm, ["first", "second"])
    plan = result.meta["hierpart"]
    names = {n.name for n in gm.graph.nodes if n.target is ASSERTION}
    assert [b.backend for b in plan.blocks if names & set(b.nodes)] == ["second"]
    x = torch.ones(3, dtype=torch.float16)
    torch.testing.assert_close(result(x), gm(x))


def test_they_count_for_nothing_and_say_where_they_went():
    plan = split(exported(), ["first", "second"]).meta["hierpart"]
    assert sum(b.compute_ops for b in plan.blocks) == 5  # two casts, sin, cos, add
    reasons = {m.reason for m in plan.moves() if "_assert_tensor_metadata" in str(m.nodes)}
    assert reasons == {Reason.FOLLOWS_VALUE}


def test_they_stay_in_the_graph_and_outlive_the_removal_of_dead_code():
    result = split(exported(), ["second"])
    result.graph.eliminate_dead_code()
    result.recompile()
    blocks = [m for m in result.children() if isinstance(m, torch.fx.GraphModule)]
    assert sum(n.target is ASSERTION for m in blocks for n in m.graph.nodes) == 2
    with pytest.raises(RuntimeError, match="dtype"):
        result(torch.ones(3, dtype=torch.float64))


def test_what_the_user_excludes_runs_eagerly():
    plan = split(exported(), ["second"], torch_executed_ops=[ASSERTION]).meta["hierpart"]
    owners = {plan.owner[n] for n in plan.owner if n.startswith("_assert_tensor_metadata")}
    assert owners == {"eager"}


def asserted(graph, node, **said):
    return graph.call_function(ASSERTION, (node,), {"dtype": torch.float32, **said})


def written():
    """Assertions on an input, on a result that is written between them, and on a view of it."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    asserted(graph, x)
    asserted(graph, x, device=torch.device("cpu"))
    y = graph.call_function(aten.relu.default, (x,))
    asserted(graph, y)
    graph.call_function(aten.add_.Tensor, (y, x))
    view = graph.call_function(aten.view.default, (y, [3, 2]))
    asserted(graph, y)
    asserted(graph, view)
    graph.output((graph.call_function(aten.sin.default, (view,)), y))
    gm = torch.fx.GraphModule({}, graph)
    return annotate(gm, (torch.ones(2, 3),))


@pytest.mark.parametrize("fast", [("relu",), ("relu", "sin"), ("sin", "view"), ("add_",), ()])
def test_writes_and_views_do_not_tie_them_down(fast):
    """C1 to C11 on every choice of ops; a write that a backend refuses takes no neighbour along."""
    gm = written()
    listed = {
        f"torch.ops.{n.target}"
        for n in gm.graph.nodes
        if n.name in fast
        or n.name in (f"{name}_{kind}" for name in fast for kind in ("default", "tensor"))
    }
    options = {"backend_priority": ["first"], "backend_support_map": {"first": listed},
               "min_block_size": 1}  # fmt: skip
    result = check_partitioner(adapters.hierpart, gm, (torch.randn(2, 3),), options=options)
    owner = result.meta["hierpart"].owner
    assert {n for n, o in owner.items() if o == "first" and not n.startswith("_assert")} == {
        n.name for n in gm.graph.nodes if f"torch.ops.{n.target}" in listed
    }


def test_two_on_one_input_follow_who_reads_it():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    asserted(graph, x)
    asserted(graph, x)
    graph.output((graph.call_function(aten.sin.default, (x,)),))
    gm = annotate(torch.fx.GraphModule({}, graph), (torch.ones(3),))
    plan = split(gm, ["first", "second"]).meta["hierpart"]
    assert {b.backend for b in plan.blocks} == {"second"}


class Branches(nn.Module):
    """A cast inside a branch."""

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda v: v.to(torch.float64).sin(), lambda v: v.double(), (x,)
        )


@pytest.mark.inductor
def test_a_cast_in_a_branch_keeps_the_op_whole():
    model, x = Branches(), torch.ones(3)
    compiled = hierpart.compile(model, (x,), backend_priority=["inductor"], min_block_size=1)
    assert {*compiled.plan.owner.values()} == {"inductor"}
    for value in (x, -x):
        torch.testing.assert_close(compiled(value), model(value))


@pytest.mark.parametrize("wrong", ["no value", "dtype", "size", "symbolic"])
def test_what_metadata_does_not_prove_is_an_effect(wrong):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    if wrong != "no value":
        x.meta["val"] = torch.ones(3, dtype=torch.float16, device="meta")
    said = {
        "no value": ((), {"dtype": torch.float16}),
        "dtype": ((), {"dtype": torch.float32}),
        "size": (([4],), {}),
        "symbolic": (([graph.placeholder("n")],), {}),
    }[wrong]
    args, kwargs = said
    node = graph.call_function(ASSERTION, (x, *args), kwargs)
    effect = effect_of(node, lambda name: None)
    assert effect.is_effect
    assert not effect.proved
    proved = graph.call_function(ASSERTION, (x, None, None, torch.float16), {"device": "meta"})
    assert effect_of(proved, lambda name: None).proved == (wrong != "no value")


@pytest.mark.inductor
def test_no_compiler_sees_them():
    model, x = Casts(), torch.ones(3, dtype=torch.float16)
    compiled = hierpart.compile(model, (x,), backend_priority=["inductor"], min_block_size=1)
    assert [o.status for o in compiled.report.outcomes] == ["compiled"]
    torch.testing.assert_close(compiled(x), model(x))
