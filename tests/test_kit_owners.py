"""The kit judges owners by the options alone: what was made with others, or moved elsewhere, fails.

A right partition is made with some options and judged by others, which it does not keep to.
"""

import dataclasses
import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from hierpart.plan import Reason, Verdict
from hierpart.testing import ContractViolation, adapters, annotate, check_partitioner
from hierpart.testing.checks.owners import Asked
from hierpart.testing.checks.partition import check_partition
from hierpart.testing.checks.planned_blocks import check_planned
from hierpart.testing.oracle.record import record
from hierpart.testing.reading.blocks import block_calls

aten = torch.ops.aten
X = torch.tensor([-1.0, 2.0])
MUL, RELU, SIN = aten.mul.Scalar, aten.relu.default, aten.sin.default
COND = torch.ops.higher_order.cond
BOTH = {
    "backend_priority": ["third", "tensorrt"],
    "backend_support_map": {"third": [MUL, RELU], "tensorrt": [RELU, "torch.ops.aten.sin.default"]},
    "min_block_size": 1,
}


def plain():
    """``sin(relu(x * 2))``."""
    graph = Graph()
    product = graph.call_function(MUL, (graph.placeholder("x"), 2.0))
    graph.output(graph.call_function(SIN, (graph.call_function(RELU, (product,)),)))
    return annotate(GraphModule({}, graph), (X,))


def with_branches():
    """``cond(any(x), relu, sin, (x,))``."""
    graph, bodies = Graph(), {}
    x = graph.placeholder("x")
    test = graph.call_function(aten.any.default, (x,))
    for name, op in (("yes", RELU), ("no", SIN)):
        body = Graph()
        body.output((body.call_function(op, (body.placeholder("x"),)),))
        bodies[name] = GraphModule({}, body)
    names = (graph.get_attr("yes"), graph.get_attr("no"))
    both = graph.call_function(COND, (test, *names, (x,)))
    graph.output(graph.call_function(operator.getitem, (both, 0)))
    return annotate(GraphModule(bodies, graph), (X,))


def branch_options(listed, **more):
    support = {"third": [RELU, *([COND] if listed else [])]}
    return {
        "backend_priority": ["third"], "backend_support_map": support, "min_block_size": 0, **more
    }  # fmt: skip


def modes(mode):
    return {"control_flow": {"cond": mode}}


few = {"third": [MUL, RELU], "tensorrt": [RELU]}
small = {**BOTH, "backend_support_map": few, "min_block_size": {"third": 3, "tensorrt": 1}}
swapped = {"third": BOTH["backend_support_map"]["tensorrt"], "tensorrt": [MUL, RELU]}
LISTED, REFUSED = branch_options(True), branch_options(False)
UNLIKE = {
    "an op that is to run eagerly": (plain, BOTH, {**BOTH, "torch_executed_ops": [RELU]}, "C4"),
    "an op by its packet": (plain, BOTH, {**BOTH, "torch_executed_ops": [aten.relu]}, "C4"),
    "a node that is excluded": (plain, BOTH, {**BOTH, "exclude_nodes": ["relu_default"]}, "C4"),
    "the other backend's ops": (plain, {**BOTH, "backend_support_map": swapped}, BOTH, "C4"),
    "another priority": (plain, {**BOTH, "backend_priority": ["tensorrt", "third"]}, BOTH, "C4"),
    "another minimum": (plain, BOTH, {**BOTH, "min_block_size": 2}, "C5"),
    "straight to eager": (plain, {**small, "demote": "eager"}, small, "C4"),
    "not to eager": (plain, small, {**small, "demote": "eager"}, "C4"),
    "an op taken whole": (with_branches, LISTED, {**LISTED, **modes("recurse")}, "C4"),
    "an op with too much in it": (
        with_branches, LISTED, {**LISTED, **modes("whole_if_supported")}, "C4"),
    "an op not taken whole": (with_branches, REFUSED, {**REFUSED, **modes("whole")}, "C4"),
    "branches not planned": (with_branches, {**REFUSED, **modes("opaque")}, REFUSED, "C4"),
    "branches planned": (with_branches, REFUSED, {**REFUSED, **modes("opaque")}, "C4"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_owners_that_the_options_do_not_give_are_caught(name):
    build, made_with, judged_by, contract = UNLIKE[name]
    gm = build()
    result = adapters.hierpart(gm, **made_with)
    check_partition(gm, result, (X,), options=made_with)
    right = adapters.hierpart(gm, **judged_by)
    check_partition(gm, right, (X,), options=judged_by)

    with pytest.raises(ContractViolation) as caught:
        check_partition(gm, result, (X,), options=judged_by)

    assert caught.value.contract == contract, caught.value


@pytest.mark.parametrize("reason", [Reason.MUTATES, Reason.UNIT, Reason.NOT_LISTED])
def test_a_refusal_for_no_good_reason_is_caught(reason):
    """``third`` is not registered: nothing keeps it from taking an op that is listed."""
    gm, only = plain(), {**BOTH, "backend_support_map": {"third": [MUL, SIN], "tensorrt": []}}
    result = adapters.hierpart(gm, **only)
    plan = result.meta["hierpart"]
    no = (Verdict("third", False, reason), Verdict("tensorrt", False, Reason.NOT_LISTED))
    result.meta["hierpart"] = dataclasses.replace(
        plan,
        verdicts={**plan.verdicts, "mul_scalar": no},
        owner={**plan.owner, "mul_scalar": "eager"},
        blocks=(dataclasses.replace(plan.blocks[0], backend="eager"), *plan.blocks[1:]),
    )

    with pytest.raises(ContractViolation, match="it was asked to take it") as caught:
        check_partition(gm, result, (X,), options=only)

    assert caught.value.contract == "C4"


def test_what_the_options_mean_beyond_the_known_ones_is_not_judged():
    assert Asked.of(BOTH) is not None
    for more in (
        {"exclude": callable},
        {"torch_executed_ops": ["aten::relu"]},
        {"backend_support_map": {"third": [RELU]}},
        {"min_block_size": {"third": 1}},
        {"backend_priority": []},
    ):
        assert Asked.of({**BOTH, **more}) is None


def test_a_branch_left_as_it_was_is_caught():
    gm = with_branches()
    result = adapters.hierpart(gm, **REFUSED)
    block = next(m for m in result.children() if "yes" in m._modules)
    block.yes = gm.yes

    with pytest.raises(ContractViolation, match="yes: is planned for") as caught:
        check_partition(gm, result, (X,), options=REFUSED)

    assert caught.value.contract == "C4"


def test_a_branch_split_in_another_way_than_planned_is_caught():
    gm = with_branches()
    result = adapters.hierpart(gm, **REFUSED)
    block = next(m for m in result.children() if "yes" in m._modules)
    block.yes = adapters.hierpart(gm.yes, **{**REFUSED, "min_block_size": 1})

    with pytest.raises(ContractViolation, match="is not split by its plan"):
        check_partition(gm, result, (X,), options=REFUSED)


def test_a_branch_split_for_nothing_is_caught():
    gm = with_branches()
    result = adapters.hierpart(gm, **REFUSED)
    block = next(m for m in result.children() if "no" in m._modules)
    block.no = adapters.hierpart(gm.no, **REFUSED)

    with pytest.raises(ContractViolation, match="has no work for a backend"):
        check_partition(gm, result, (X,), options=REFUSED)


# ---------------------------------------------------------------------- the result and its plan


def swap_inputs(result):
    """Let a block take its two inputs in the other order, and the parent hand them in so."""
    call, block = next(c for c in block_calls(result) if len(c[0].args) == 2)
    first, second = [n for n in block.graph.nodes if n.op == "placeholder"]
    first.prepend(second)
    call.args = call.args[::-1]
    plan = result.meta["hierpart"]
    at = next(b.index for b in plan.blocks if b.name == call.target)
    blocks = list(plan.blocks)
    blocks[at] = dataclasses.replace(blocks[at], inputs=blocks[at].inputs[::-1])
    return dataclasses.replace(plan, blocks=tuple(blocks))


def name_other_inputs(result):
    block = result.meta["hierpart"].blocks[-1]
    return with_block(result, dataclasses.replace(block, inputs=(*block.inputs, "x")))


def name_fewer_outputs(result):
    block = result.meta["hierpart"].blocks[-1]
    return with_block(result, dataclasses.replace(block, outputs=()))


def name_another_module(result):
    block = result.meta["hierpart"].blocks[-1]
    return with_block(result, dataclasses.replace(block, name="_run_on_gpu_7"))


def run_elsewhere(result):
    """Name a node in the block before the one that runs it."""
    plan = result.meta["hierpart"]
    first, second = plan.blocks
    moved, *rest = second.nodes
    blocks = (
        dataclasses.replace(first, nodes=(*first.nodes, moved)),
        dataclasses.replace(second, nodes=tuple(rest)),
    )
    return dataclasses.replace(plan, blocks=blocks)


def with_block(result, block):
    plan = result.meta["hierpart"]
    return dataclasses.replace(plan, blocks=(*plan.blocks[:-1], block))


@pytest.mark.parametrize(
    ("change", "contract"),
    [
        (swap_inputs, "C9"),
        (name_other_inputs, "C6"),
        (name_fewer_outputs, "C6"),
        (name_another_module, "C1"),
        (run_elsewhere, "C1"),
    ],
)
def test_a_result_that_is_not_what_its_plan_says_is_caught(change, contract):
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    both = graph.call_function(aten.sub.Tensor, (y, x))
    graph.output(graph.call_function(SIN, (graph.call_function(RELU, (both,)),)))
    gm = annotate(GraphModule({}, graph), (X, X))
    chosen = {**BOTH, "backend_support_map": {"third": [aten.sub.Tensor], "tensorrt": [RELU, SIN]}}
    result = adapters.hierpart(gm, **chosen)
    accesses = record(gm, (X, X))
    check_planned(result.meta["hierpart"], gm, result, accesses)
    plan = change(result)

    with pytest.raises(ContractViolation) as caught:
        check_planned(plan, gm, result, accesses)

    assert caught.value.contract == contract, caught.value


def test_a_branch_that_an_opaque_op_shares_may_be_split():
    """Ops of one block share what becomes of a branch module that they share."""
    inner, graph = Graph(), Graph()
    inner.output((inner.call_function(aten.relu.default, (inner.placeholder("arg0"),)),))
    branch = GraphModule({}, inner)
    x = graph.placeholder("x")
    held = [graph.get_attr("body") for _ in range(3)]
    flow = torch.ops.higher_order
    first = graph.call_function(flow.invoke_subgraph, (held[0], "body", x))
    item = graph.call_function(operator.getitem, (first, 0))
    test = graph.call_function(
        aten.any.default, (graph.call_function(aten.gt.Scalar, (item, 0.0)),)
    )
    both = graph.call_function(flow.cond, (test, held[1], held[2], (item,)))
    graph.output(graph.call_function(operator.getitem, (both, 0)))
    gm, inputs = GraphModule({"body": branch}, graph), (torch.ones(3),)
    chosen = {
        "backend_priority": ["other"], "backend_support_map": {"other": [aten.relu.default]},
        "min_block_size": 1, "control_flow": {"invoke_subgraph": "opaque"},
    }  # fmt: skip
    split = check_partitioner(adapters.hierpart, gm, inputs, options=chosen)
    (held_by,) = [m for n, m in split.named_modules() if n.endswith("_run_on_gpu_0")]
    assert held_by.body is not branch
