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
