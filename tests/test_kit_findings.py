"""Faults of the library that the fuzzing kit found, each as small as it got."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from hierpart.testing import adapters, annotate, check_partitioner
from hierpart.testing.blocks import block_calls

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
