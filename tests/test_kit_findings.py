"""Faults of the library that the fuzzing kit found, each as small as it got."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from hierpart.testing import adapters, annotate, check_partitioner
from hierpart.testing.reading.blocks import block_calls

aten = torch.ops.aten


def one_branch(build):
    """Return a module of one input for a branch."""
    graph = Graph()
    graph.output((build(graph, graph.placeholder("arg0")),))
    return GraphModule({}, graph)


@pytest.mark.parametrize("support", [[torch.ops.higher_order.cond], []], ids=["whole", "split"])
def test_a_branch_that_writes_its_operand_stays_with_its_op(support):
    """C6: such branches were taken for attributes that are written, and crossed as inputs."""
    graph = Graph()
    x = graph.placeholder("x")
    test = graph.call_function(aten.any.default, (x,))
    writes = one_branch(lambda g, a: g.call_function(aten.neg.default, (write(g, a),)))
    keeps = one_branch(lambda g, a: g.call_function(aten.relu.default, (a,)))
    branches = [graph.get_attr(name) for name in ("yes", "no")]
    result = graph.call_function(torch.ops.higher_order.cond, (test, *branches, (x,)))
    first = graph.call_function(operator.getitem, (result, 0))
    graph.output((first, graph.call_function(aten.add.Tensor, (x, 1.0))))
    gm = GraphModule({"yes": writes, "no": keeps}, graph)
    inputs = (torch.ones(3),)
    annotate(gm, inputs)
    options = {
        "backend_priority": ["other"],
        "backend_support_map": {"other": [*support, aten.any.default, aten.relu.default]},
        "min_block_size": 1,
    }
    split = check_partitioner(adapters.hierpart, gm, inputs, options=options)
    crossing = [arg.name for call, _ in block_calls(split) for arg in call.args]
    assert not {"yes", "no"} & set(crossing)


def write(graph, node):
    return graph.call_function(aten.add_.Scalar, (node, 1.0))


@pytest.mark.parametrize("metadata", [False, True], ids=["without metadata", "with metadata"])
def test_sizes_of_a_tensor_that_is_reshaped_in_place_do_not_cross_whole(metadata):
    """C6: where no metadata says how many there are, they were handed on as one ``Size``."""
    graph = Graph()
    x = graph.call_function(aten.clone.default, (graph.placeholder("x"),))
    x = graph.call_function(aten.unsqueeze_.default, (x, 0))
    sizes = graph.call_function(getattr, (x, "shape"))
    second = graph.call_function(operator.getitem, (sizes, 1))
    graph.output(graph.call_function(aten.mul.Scalar, (x, second)))
    gm = GraphModule({}, graph)
    inputs = (torch.ones(3),)
    if metadata:
        annotate(gm, inputs)
    options = {
        "backend_priority": ["other"],
        "backend_support_map": {"other": [aten.clone.default, aten.unsqueeze_.default, getattr]},
        "min_block_size": 1,
    }
    check_partitioner(adapters.hierpart, gm, inputs, options=options)


def test_a_tuple_with_none_in_it_leaves_item_by_item():
    """C6: where an item was None, a whole tuple crossed from its block to the output."""
    graph = Graph()
    x = graph.placeholder("x")
    norm = graph.call_function(aten.native_layer_norm.default, (x, [3], None, None, 1e-5))
    mean, deviation = (graph.call_function(operator.getitem, (norm, i)) for i in (1, 2))
    given = (x, x, [3], mean, deviation, None, None, [True, False, False])
    grads = graph.call_function(aten.native_layer_norm_backward.default, given)
    absent = graph.call_function(operator.getitem, (grads, 1))
    graph.output((grads, absent))
    gm = GraphModule({}, graph)
    inputs = (torch.arange(6.0).view(2, 3),)
    annotate(gm, inputs)
    support = {"other": [aten.native_layer_norm_backward.default, operator.getitem]}
    options = {"backend_priority": ["other"], "backend_support_map": support, "min_block_size": 1}

    result = check_partitioner(adapters.hierpart, gm, inputs, options=options)
    given_out = [n.meta["val"] for call, _ in block_calls(result) for n in call.users]
    assert all(isinstance(value, torch.Tensor) for value in given_out)


@pytest.mark.parametrize("held", [False, True], ids=["operand", "attribute"])
def test_a_branch_may_hand_back_a_buffer(held):
    """C3: a buffer was read before a branch's result, which is that buffer, was written."""
    inner = Graph()
    given = inner.placeholder("arg0")
    inner.output((inner.get_attr("state") if held else given,))
    graph, state = Graph(), torch.ones(3)
    x, read = graph.placeholder("x"), graph.get_attr("state")
    test = graph.call_function(aten.any.default, (x,))
    branches = [graph.get_attr(name) for name in ("yes", "no")]
    operands = (x,) if held else (read,)
    both = graph.call_function(torch.ops.higher_order.cond, (test, *branches, operands))
    first = graph.call_function(operator.getitem, (both, 0))
    added = graph.call_function(aten.add_.Scalar, (first, 1.0))
    late = graph.call_function(aten.mul.Tensor, (read, x))
    graph.output((added, late))
    branch = GraphModule({"state": state} if held else {}, inner)
    gm = GraphModule({"yes": branch, "no": branch, "state": state}, graph)
    options = {
        "backend_priority": ["other"],
        "backend_support_map": {"other": [aten.any.default, aten.mul.Tensor]},
        "min_block_size": 1,
    }
    split = check_partitioner(adapters.hierpart, gm, (torch.ones(3),), options=options)
    assert len(block_calls(split)) == 3


def test_sizes_of_what_is_reshaped_do_not_cross_whole():
    """C6: without metadata the Size of a tensor that is reshaped in place crossed as a tuple."""
    graph = Graph()
    x = graph.placeholder("x")
    base = graph.call_function(aten.clone.default, (x,))
    size = graph.call_method("size", (base,))
    graph.call_function(aten.unsqueeze_.default, (base, 0))
    rows = graph.call_function(operator.getitem, (size, 0))
    graph.output(graph.call_function(aten.full.default, ([rows], 1.5)))
    gm = GraphModule({}, graph)
    options = {
        "backend_priority": ["other"],
        "backend_support_map": {"other": [aten.full.default]},
        "min_block_size": 1,
    }
    check_partitioner(adapters.hierpart, gm, (torch.ones(2, 3),), options=options)


def test_a_list_of_nothing_leaves_item_by_item():
    """``unbind`` of no rows: its value is recorded, and no list crosses (C6)."""
    graph = Graph()
    graph.output(graph.call_function(aten.unbind.int, (graph.placeholder("x"), 0)))
    gm, inputs = GraphModule({}, graph), (torch.ones(0, 3),)
    annotate(gm, inputs)
    options = {
        "backend_priority": ["other"], "backend_support_map": {"other": [aten.unbind.int]},
        "min_block_size": 1,
    }  # fmt: skip
    assert check_partitioner(adapters.hierpart, gm, inputs, options=options)(*inputs) == []


@pytest.mark.parametrize("metadata", [False, True], ids=["without metadata", "with metadata"])
def test_branches_that_only_work_with_sizes_count_nothing(metadata):
    """C5: a fault of the judge: without metadata it took ``n >= 0`` in a branch for a compute op."""

    def checked(graph, given):
        size = graph.call_function(aten.sym_size.int, (given, 0))
        graph.call_function(torch._check, (graph.call_function(operator.ge, (size, 0)),))
        return given

    graph = Graph()
    x = graph.placeholder("x")
    branches = [graph.get_attr(name) for name in ("yes", "no")]
    for _ in range(2):
        test = graph.call_function(aten.gt.Scalar, (x, 0.0))
        test = graph.call_function(aten.any.default, (test,))
        both = graph.call_function(torch.ops.higher_order.cond, (test, *branches, (x,)))
        x = graph.call_function(operator.getitem, (both, 0))
    graph.output(x)
    gm = GraphModule({"yes": one_branch(checked), "no": one_branch(checked)}, graph)
    inputs = (torch.ones(3),)
    if metadata:
        annotate(gm, inputs)
    options = {
        "backend_priority": ["other"],
        "backend_support_map": {"other": [aten.any.default, aten.gt.Scalar]},
        "min_block_size": 3,
    }
    split = check_partitioner(adapters.hierpart, gm, inputs, options=options)
    blocks = split.meta["hierpart"].blocks
    assert [b.compute_ops for b in blocks if b.backend == "other"] == [2, 2], "all is accelerated"
