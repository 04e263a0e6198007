"""The kit itself: its graphs are valid and rich, and its checks fail where they have to."""

import copy
import operator
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule, Interpreter
from torch.utils._pytree import tree_leaves, tree_structure

from hierpart.testing import (
    FEATURES,
    FUNCTIONAL,
    ContractViolation,
    adapters,
    annotate,
    check_partitioner,
    describe,
    example_inputs,
    graph_modules,
    inputs_for,
    options,
    random_graph_module,
    reproduction,
)
from hierpart.testing.checks.partition import check_partition
from hierpart.testing.generate.choice import SeededChoice
from hierpart.testing.generate.choose_options import choose_options
from hierpart.testing.generate.emit.control_flow import attach
from hierpart.testing.generate.graph_builder import GraphBuilder, Refused, undisturbed
from hierpart.testing.generate.graphs import _inputs
from hierpart.testing.generate.maker import EMITTERS, Maker
from hierpart.testing.generate.tensors import TensorSpec
from hierpart.testing.oracle.record import conflicts, record
from hierpart.testing.reading.blocks import block_calls, branches, callable_nodes
from hierpart.testing.reading.flow import flow_name, runs

aten = torch.ops.aten


# ---------------------------------------------------------------------- the graphs


@settings(max_examples=60)
@given(st.data())
def test_graphs_are_valid_and_run(data):
    gm = data.draw(graph_modules())
    call = data.draw(example_inputs(gm))

    gm.graph.lint()
    with undisturbed():
        Interpreter(copy.deepcopy(gm)).run(*call)


def test_values_are_tried_in_the_mode_that_they_are_run_in():
    """A region in a region leaves the mode that it found; what requires grad shows it."""
    nested = 0
    for seed in range(60):
        with undisturbed():
            features = frozenset(("arithmetic", "parameters", "regions"))
            maker = Maker(GraphBuilder([(5, 0)]), SeededChoice(seed), features)
            specs = _inputs(maker)
            maker.steps(12)
            tried = {node.name: maker.builder.value(node) for node in maker.builder.graph.nodes}
            gm = maker.builder.finish(())
        modes = [n.args[0] for n in gm.graph.nodes if n.target is torch._C._set_grad_enabled]
        nested += modes.count(False) > modes.count(True)
        run = {}

        class Watch(Interpreter):
            def run_node(self, n, run=run):
                run[n.name] = super().run_node(n)
                return run[n.name]

        with undisturbed():
            Watch(gm).run(*[spec.make(5, 0) for spec in specs])
        for name, value in tried.items():
            if isinstance(value, torch.Tensor):
                assert run[name].requires_grad == value.requires_grad, (seed, name)
    assert nested > 3


@settings(max_examples=25)
@given(graph_modules(metadata="fake", features=set(FEATURES)))
def test_metadata_is_on_every_tensor_and_symbolic(gm):
    values = {node.name: node.meta.get("val") for node in gm.graph.nodes}
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    first = next(iter(values.values()))

    assert all(torch._subclasses.fake_tensor.is_fake(value) for value in tensors)
    assert any(isinstance(size, torch.SymInt) for size in first.shape)
    assert all("val" in n.meta for n in gm.graph.nodes if n.op == "placeholder")


@pytest.mark.parametrize("known", [False, True])
def test_a_branch_has_a_name_that_means_no_other_branch(known):
    """A name that the graph around has means the same there and in the branch."""
    around, inside = GraphBuilder([(5, 0)]), GraphBuilder([(5, 0)])
    inside.outer = around.root
    one, other = (GraphModule({}, Graph()) for _ in range(2))
    around.root.true_graph_0 = one
    (node,) = attach(
        Maker(inside, SeededChoice(0), frozenset()), ("true",), [one if known else other]
    )
    assert inside.value(node) is (one if known else other)
    assert node.target == ("true_graph_0" if known else "true_graph_1")


def test_a_second_name_of_a_shared_branch_means_that_branch_too():
    around, inside = GraphBuilder([(5, 0)]), GraphBuilder([(5, 0)])
    inside.outer = around.root
    one, other = (GraphModule({}, Graph()) for _ in range(2))
    around.root.false_graph_0 = around.root.true_graph_0 = one
    (node,) = attach(Maker(inside, SeededChoice(0), frozenset()), ("true",), [other])
    assert inside.value(node) is other


def test_functional_graphs_write_nothing():
    for seed in range(60):
        gm = random_graph_module(seed, features=FUNCTIONAL - {"dynamic", "modules"})
        call = inputs_for(gm)
        before = copy.deepcopy(call)
        state = {name: value.clone() for name, value in gm.state_dict().items()}
        with undisturbed():
            gm(*call)

        assert all(
            torch.equal(a, b)
            for a, b in zip(tree_leaves(call), tree_leaves(before), strict=True)
            if isinstance(a, torch.Tensor)
        )
        assert all(torch.equal(value, state[name]) for name, value in gm.state_dict().items())


@pytest.mark.parametrize("feature", sorted(EMITTERS))
def test_every_emitter_adds_nodes(feature):
    """No emitter is one that eager always refuses."""
    features, steps = frozenset(FEATURES), 4
    if feature == "branch_effects":  # it needs a branch that reads a buffer, a rare thing
        features, steps = frozenset(("control_flow", feature, "mutation", "buffers")), 12
    for emit in EMITTERS[feature]:
        if emit.__name__ == "switch" and not runs("switch"):
            continue  # torch 2.13 has none
        added = 0
        for seed in range(40):
            with undisturbed():
                maker = Maker(GraphBuilder([(5, 0)]), SeededChoice(seed), features)
                _inputs(maker)
                maker.steps(steps)
                before = len(maker.builder.graph.nodes)
                try:
                    emit(maker)
                except Refused:
                    continue
                added += len(maker.builder.graph.nodes) > before
        assert added >= 3, f"{emit.__name__} added nodes {added} times of 40"


def test_a_seed_gives_one_graph_in_every_process():
    program = (
        "from hierpart.testing import describe, random_graph_module\n"
        "for seed in range(20): print(describe(random_graph_module(seed, metadata='none')))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in (1, 2)
    ]

    assert texts[0] == texts[1]
    assert texts[0].count("module (top)") == 20


def test_graphs_shrink_to_what_matters():
    """A graph that writes a view shrinks to the view and the write."""

    def writes_a_view(gm):
        nodes = list(gm.graph.nodes)
        return any(
            node.target is aten.add_.Scalar and node.args[0].target is aten.select.int
            for node in nodes
            if node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node)
        )

    found = find(
        graph_modules(features=["views", "mutation"], metadata="none"),
        writes_a_view,
        settings=settings(
            max_examples=4000,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )

    assert len(found.graph.nodes) <= 5, found.graph


def test_unknown_features_are_refused():
    with pytest.raises(ValueError, match="no feature is called 'loops'"):
        graph_modules(features=["loops"])
    with pytest.raises(ValueError, match="metadata is one of"):
        graph_modules(metadata="real")


# ---------------------------------------------------------------------- reproductions


@settings(max_examples=40)
@given(st.data())
def test_a_reproduction_builds_the_same_graph_and_inputs(data):
    gm = data.draw(graph_modules(without=["modules"]))
    chosen = data.draw(options(gm))
    call = inputs_for(gm)
    program = reproduction(gm, [call], chosen).split("from hierpart.testing import adapters")[0]
    names = {}
    exec(program, names)

    assert describe(names["gm"]) == describe(gm)
    assert {k: v for k, v in names["options"].items() if k != "backend_support_map"}.keys() == (
        chosen.keys() - {"backend_support_map"}
    )
    for mine, theirs in zip(tree_leaves(call), tree_leaves(names["call_0"]), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()


def test_a_reproduction_gives_one_tensor_for_two_inputs_and_nests_arguments():
    seen = set()
    for seed in range(60):
        gm = random_graph_module(seed, features=["shared_inputs", "pytree", "mutation"])
        call = inputs_for(gm)
        names = {}
        program = reproduction(gm, [call])
        exec(program.split("from hierpart.testing import adapters")[0], names)
        theirs = names["call_0"]
        assert tree_structure(theirs) == tree_structure(call)
        pairs = [[a is b for a in t for b in t] for t in map(tree_leaves, (call, theirs))]
        assert pairs[0] == pairs[1]
        with undisturbed():
            Interpreter(names["gm"]).run(*theirs)
        seen.add(("pytree", len(call) != len(tree_leaves(call))))
        seen.add(("shared", sum(pairs[0]) > len(tree_leaves(call))))
    assert len(seen) == 4


def test_a_truth_value_differs_from_call_to_call():
    graphs = [random_graph_module(seed, features=["scalars"]) for seed in range(40)]
    given = [[tree_leaves(inputs_for(gm, call))[-1] for call in (0, 1)] for gm in graphs]
    assert [True, False] in given


def test_a_reproduction_shares_what_the_graph_shares():
    """One branch module, held at the top and in another branch."""
    gm = nested_conds()
    gm.false_graph_0 = gm.true_graph_0.false_graph_0
    names = {}
    program = reproduction(gm, [(X,)])
    exec(program.split("from hierpart.testing import adapters")[0], names)

    assert names["gm"].false_graph_0 is names["gm"].true_graph_0.false_graph_0
    assert describe(names["gm"]) == describe(gm)


def test_a_violation_carries_a_program_that_shows_it():
    gm = two_random_ops()
    with pytest.raises(ContractViolation) as caught:
        check_partitioner(swapped("rand_like_default", "rand_like_default_1"), gm, (torch.ones(2),))

    program = caught.value.reproduction
    assert "rand_like" in program
    assert program in str(caught.value)
    exec(program, {})


# ---------------------------------------------------------------------- graphs to break


def graph_of(build, **attributes):
    root = torch.nn.Module()
    for name, value in attributes.items():
        if isinstance(value, torch.nn.Parameter):
            root.register_parameter(name, value)
        else:
            root.register_buffer(name, value)
    graph = Graph()
    graph.output(build(graph))
    return GraphModule(root, graph)


def two_random_ops():
    def build(graph):
        x = graph.placeholder("x")
        return tuple(graph.call_function(aten.rand_like.default, (x,)) for _ in range(2))

    return graph_of(build)


def read_then_write():
    def build(graph):
        x = graph.placeholder("x")
        before = graph.call_function(aten.relu.default, (x,))
        graph.call_function(aten.add_.Scalar, (x, 1.0))
        return before

    return graph_of(build)


def buffer_under_two_names():
    def build(graph):
        first, second = graph.get_attr("state"), graph.get_attr("state")
        before = graph.call_function(aten.neg.default, (first,))
        graph.call_method("add_", (second, 1.0))
        return before

    return graph_of(build, state=torch.ones(3))


def print_then_assert():
    def build(graph):
        x = graph.placeholder("x")
        graph.call_function(print, ("first",))
        graph.call_function(print, ("second",))
        return x

    return graph_of(build)


def assert_then_index():
    def build(graph):
        x, index = graph.placeholder("x"), graph.placeholder("index")
        good = graph.call_function(
            aten.all.default, (graph.call_function(aten.ge.Scalar, (index, 0)),)
        )
        graph.call_function(aten._assert_async.msg, (good, "an index is negative"))
        return graph.call_function(aten.index.Tensor, (x, [index]))

    return graph_of(build)


def weighted():
    def build(graph):
        x = graph.placeholder("x")
        weight = graph.get_attr("weight")
        y = graph.call_function(aten.mul.Tensor, (x, weight))
        return (graph.call_function(aten.relu.default, (y,)),)

    return graph_of(build, weight=torch.nn.Parameter(torch.ones(2)))


def multi_output():
    def build(graph):
        x = graph.placeholder("x")
        parts = graph.call_function(aten.split.Tensor, (x, 1))
        one = graph.call_function(operator.getitem, (parts, 0))
        return (graph.call_function(aten.relu.default, (one,)),)

    return graph_of(build)


def with_default():
    def build(graph):
        x = graph.placeholder("x")
        y = graph.placeholder("scale", default_value=2.0)
        return graph.call_function(aten.mul.Scalar, (x, y))

    return graph_of(build)


def viewed():
    def build(graph):
        x = graph.placeholder("x")
        y = graph.call_function(aten.t.default, (x,))
        return (y, graph.call_function(aten.relu.default, (y,)))

    return graph_of(build)


# ---------------------------------------------------------------------- ways to break a partition


def in_order(names):
    """Return a partitioner that makes one block a node, in the order given."""

    def partition(gm, **options):
        graph = Graph()
        env = {}
        nodes = {node.name: node for node in gm.graph.nodes}
        placed = [n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")]
        placed += [nodes[name] for name in names(gm)]
        for node in placed:
            env[node] = graph.node_copy(node, env.__getitem__)
        output = next(n for n in gm.graph.nodes if n.op == "output")
        graph.output(torch.fx.node.map_arg(output.args[0], env.__getitem__))
        return adapters.hierpart(GraphModule(gm, graph), backend_support_map={"tensorrt": []})

    return partition


def calls_of(gm):
    return [node.name for node in gm.graph.nodes if node.op.startswith("call_")]


def swapped(first, second):
    def names(gm):
        order = calls_of(gm)
        i, j = order.index(first), order.index(second)
        order[i], order[j] = order[j], order[i]
        return order

    return in_order(names)


def broken(change, **more):
    """Return a partitioner that splits right and then breaks the result with ``change``."""

    def partition(gm, **options):
        result = adapters.hierpart(
            gm,
            backend_support_map={"tensorrt": ["torch.ops.aten.relu.default"]},
            min_block_size=1,
            **more,
        )
        change(result)
        for module in result.modules():
            if isinstance(module, GraphModule):
                module.recompile()
        return result

    return partition


def first_block(result):
    return next(module for _, module in result.named_children() if isinstance(module, GraphModule))


def node_of(gm, op, target=None):
    return next(n for n in gm.graph.nodes if n.op == op and target in (None, n.target))


def copy_weight(result):
    block = first_block(result)
    block.weight = torch.nn.Parameter(block.weight.detach().clone())


def keep_unused(result):
    result.register_buffer("left_behind", next(iter(result.parameters())).detach())


def add_unused_block(result):
    result.add_module("unused", GraphModule({}, Graph()))


def get_attr_first(result):
    graph = first_block(result).graph
    node_of(first_block(result), "placeholder").prepend(node_of(first_block(result), "get_attr"))
    return graph


def lose_default(result):
    node_of(result, "placeholder", "scale").args = ()


def lose_metadata(result):
    for node in first_block(result).graph.nodes:
        node.meta = {}


def evaluate_a_block(result):
    first_block(result).training = False


def rename_a_node(result):
    node_of(first_block(result), "call_function", aten.mul.Tensor)._rename("product")


def lose_parent_metadata(result):
    for node in result.graph.nodes:
        node.meta = {}


def drop_write(result):
    for block in [m for m in result.children() if isinstance(m, GraphModule)]:
        for node in list(block.graph.nodes):
            if node.target is aten.add_.Scalar:
                block.graph.erase_node(node)


def run_twice(result):
    block = first_block(result)
    node = node_of(block, "call_function", aten.mul.Tensor)
    with block.graph.inserting_after(node):
        block.graph.call_function(node.target, node.args)


def other_op(result):
    node_of(first_block(result), "call_function", aten.mul.Tensor).target = aten.sub.Tensor


def swap_operands(result):
    for block in [m for m in result.children() if isinstance(m, GraphModule)]:
        for node in block.graph.nodes:
            if node.target is aten.mul.Tensor:
                node.args = (node.args[0], node.args[0])


def pure(result):
    for module in result.children():
        module._is_impure = False


def list_output(result):
    output = node_of(result, "output")
    output.args = (list(output.args[0]),)


def bare_block_output(result):
    block = first_block(result)
    output = node_of(block, "output")
    output.args = (list(output.args[0]),)


def new_storage(result):
    block = first_block(result)
    output = node_of(block, "output")
    with block.graph.inserting_before(output):
        made = block.graph.call_function(aten.clone.default, (output.args[0][0],))
    output.args = ((made, *output.args[0][1:]),)


def tuple_crossing(gm, **options):
    from torch.fx.passes.split_module import split_module

    copied = copy.deepcopy(gm)
    part = {"split_tensor": 0, "getitem": 1, "relu_default": 1}
    result = split_module(copied, copied, lambda node: part[node.name])
    for block in result.children():
        output = node_of(block, "output")
        if not isinstance(output.args[0], tuple):
            output.args = ((output.args[0],),)
            block.recompile()
    for node in list(result.graph.nodes):
        if node.op == "call_module":
            with result.graph.inserting_after(node):
                item = result.graph.call_function(operator.getitem, (node, 0))
            node.replace_all_uses_with(item, lambda user, item=item: user is not item)
    result.recompile()
    return result


def tagging(gm, **options):
    result = adapters.hierpart(gm, backend_support_map={"tensorrt": []})
    next(iter(gm.graph.nodes)).tag = "mine"
    return result


def writing_metadata(gm, **options):
    result = adapters.hierpart(gm, backend_support_map={"tensorrt": []})
    next(iter(gm.graph.nodes)).meta["tag"] = "mine"
    return result


def cleaning(gm, **options):
    gm.graph.eliminate_dead_code()
    return adapters.hierpart(gm, backend_support_map={"tensorrt": []})


def stepping_the_state(gm, **options):
    with torch.no_grad():
        next(iter(gm.parameters())).add_(0)
    return adapters.hierpart(gm, backend_support_map={"tensorrt": []})


def printing(gm, **options):
    sys.stdout.write("splitting")
    return adapters.hierpart(gm, backend_support_map={"tensorrt": []})


def undecided():
    calls = []

    def partition(gm, **options):
        calls.append(gm)
        support = ["torch.ops.aten.mul.Tensor"] if len(calls) == 2 else []
        return adapters.hierpart(gm, backend_support_map={"tensorrt": support}, min_block_size=0)

    return partition


X = torch.tensor([-1.0, 2.0])
M = torch.tensor([[1.0, -2.0], [3.0, 4.0]])

MUTANTS = {
    "two random ops swapped": (
        two_random_ops, swapped("rand_like_default", "rand_like_default_1"), (X,), "C3"),
    "a write before an earlier read": (
        read_then_write, swapped("relu_default", "add__scalar"), (X,), "C3"),
    "a write through a second get_attr before an earlier read": (
        buffer_under_two_names, swapped("neg_default", "add_"), (), "C3"),
    "two prints swapped": (print_then_assert, swapped("print_1", "print_2"), (X,), "C3"),
    "an index before the assertion before it": (
        assert_then_index, swapped("_assert_async_msg", "index_tensor"), (X, torch.tensor([1])),
        "C3"),
    "an op run twice": (weighted, broken(run_twice), (X,), "C1"),
    "an op dropped": (read_then_write, broken(drop_write), (X,), "C1"),
    "another op": (weighted, broken(other_op), (X,), "C1"),
    "a tuple crosses": (multi_output, tuple_crossing, (X,), "C6"),
    "a block returns a list": (weighted, broken(bare_block_output), (X,), "C6"),
    "a weight copied": (weighted, broken(copy_weight), (X,), "C7"),
    "a dangling attribute": (weighted, broken(keep_unused), (X,), "C7"),
    "a dangling block": (weighted, broken(add_unused_block), (X,), "C7"),
    "a block that does not train": (weighted, broken(evaluate_a_block), (X,), "C7"),
    "a node under another name": (weighted, broken(rename_a_node), (X,), "C11"),
    "get_attr before placeholders": (weighted, broken(get_attr_first), (X,), "C7"),
    "an operand mixed up": (weighted, broken(swap_operands), (X,), "C8"),
    "a default lost": (with_default, broken(lose_default), (X, 2.0), "C8"),
    "a list in place of a tuple": (weighted, broken(list_output), (X,), "C8"),
    "an effect that dead-code removal takes": (read_then_write, broken(pure), (X,), "C8"),
    "another plan the second time": (weighted, undecided(), (X,), "C9"),
    "nodes of the input tagged": (weighted, tagging, (X,), "C10"),
    "metadata of the input written": (weighted, writing_metadata, (X,), "C10"),
    "dead code of the input removed": (read_then_write, cleaning, (X,), "C10"),
    "a weight of the input touched": (weighted, stepping_the_state, (X,), "C10"),
    "something printed": (weighted, printing, (X,), "C10"),
    "metadata of a block lost": (weighted, broken(lose_metadata), (X,), "C11"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_partitions_are_caught(name):
    build, partition, call, contract = MUTANTS[name]
    gm = build()
    for node in gm.graph.nodes:
        if node.op.startswith("call_"):
            node.meta["stack_trace"] = "here"
    if name == "dead code of the input removed":
        gm.graph.call_function(aten.relu.default, (next(iter(gm.graph.nodes)),))
        output = next(n for n in gm.graph.nodes if n.op == "output")
        output.prepend(list(gm.graph.nodes)[-1])
        gm.recompile()

    with pytest.raises(ContractViolation) as caught:
        check_partitioner(partition, gm, call)

    assert caught.value.contract == contract, caught.value


@pytest.mark.parametrize(
    "name",
    [
        "two random ops swapped",
        "a write before an earlier read",
        "a write through a second get_attr before an earlier read",
    ],
)
def test_wrong_orders_show_in_values_too(name):
    build, partition, call, _ = MUTANTS[name]

    with pytest.raises(ContractViolation) as caught:
        check_partitioner(partition, build(), call, judge=["C8"])

    assert caught.value.contract == "C8"


def whole_tuple():
    """The parts of a tensor, handed out as they are and read one by one in another block."""

    def build(graph):
        parts = graph.call_function(aten.split.Tensor, (graph.placeholder("x"), 1))
        return (parts, graph.call_function(aten.relu.default, (graph.call_function(
            aten.cat.default, (parts,)),)))  # fmt: skip

    return graph_of(build)


def step_then_read():
    def build(graph):
        state = graph.get_attr("state")
        graph.call_function(aten.add_.Scalar, (state, 1.0))
        return graph.call_function(aten.relu.default, (state,))

    return graph_of(build, state=torch.ones(3))


def hold_written_state(result):
    """Let the block that reads the buffer hold it: right as long as both have the same tensor."""
    call, block = block_calls(result)[-1]
    block.register_buffer("state", result.state)
    given = node_of(block, "placeholder")
    with block.graph.inserting_after(given):
        given.replace_all_uses_with(block.graph.get_attr("state"))
    block.graph.erase_node(given)
    call.args = ()


def test_a_written_buffer_that_blocks_hold_is_caught_once_it_is_moved():
    with pytest.raises(ContractViolation, match="after the attributes were moved") as caught:
        check_partitioner(broken(hold_written_state), step_then_read(), (), judge=["C8"])

    assert caught.value.contract == "C8"
    check_partitioner(broken(lambda result: None), step_then_read(), ())


def test_items_that_cross_without_metadata_are_caught():
    def split(gm):
        return adapters.hierpart(
            gm, backend_priority=["a", "b"], min_block_size=1,
            backend_support_map={"a": [aten.split.Tensor], "b": [aten.cat.default]},
        )  # fmt: skip

    gm = annotate(whole_tuple(), (X,))
    blocks = len(block_calls(split(gm)))
    check_partition(gm, split(gm), (X,))
    lost = 0
    for place in range(blocks + 1):
        count = len(items_of(split(gm), place))
        for position in range(count):
            for key in ("val", "stack_trace"):
                result = split(gm)
                del items_of(result, place)[position].meta[key]
                with pytest.raises(ContractViolation) as caught:
                    check_partition(gm, result, (X,), judge=["C11"])
                assert caught.value.contract == "C11"
                lost += 1
    assert blocks == 3
    assert lost == 2 * (2 + 2 + 2), "items out of a block, in the parent, into the next block"


def test_a_size_that_is_read_elsewhere_carries_what_its_own_node_did():
    """The block reads the size off its input; nothing is found wrong with that."""
    graph = Graph()
    y = graph.call_function(aten.relu.default, (graph.placeholder("x"),))
    graph.output(graph.call_function(operator.add, (graph.call_method("size", (y, 0)), 1)))
    call = (torch.ones(5, 3),)
    gm = annotate(GraphModule({}, graph), call, [TensorSpec((-1, 3), torch.float32)])
    result = adapters.hierpart(gm, backend_support_map={"tensorrt": []})
    reads = [n for _, block in block_calls(result) for n in block.graph.nodes if n.name == "size"]

    check_partition(gm, result, call)

    assert [n.target for n in reads] == [aten.sym_size.int]
    reads[0].meta["stack_trace"] = "elsewhere"
    with pytest.raises(ContractViolation, match="stack_trace of size"):
        check_partition(gm, result, call)


def items_of(result, place):
    """Return the nodes that hand items on, of the parent (0) or of one of its blocks."""
    holder = [result, *(block for _, block in block_calls(result))][place]
    return [n for n in holder.graph.nodes if "_item_" in n.name]


# ---------------------------------------------------------------------- branches


def body_of(*ops, inner=None):
    """Return a branch of one input that runs ``ops``, then ``inner(graph, value)``."""
    graph = Graph()
    value = graph.placeholder("x")
    for op in ops:
        value = graph.call_function(op, (value,))
    graph.output((inner(graph, value) if inner else value,))
    return graph


def cond_of(graph, value, yes="true_graph_0", no="false_graph_0"):
    test = graph.call_function(aten.any.default, (value,))
    nodes = (graph.get_attr(yes), graph.get_attr(no))
    both = graph.call_function(torch.ops.higher_order.cond, (test, *nodes, (value,)))
    return graph.call_function(operator.getitem, (both, 0))


def nested_conds():
    """A cond in a branch of a cond; the names of branches are the same at both levels."""
    inner = {
        "true_graph_0": GraphModule({}, body_of(aten.relu.default, aten.sin.default)),
        "false_graph_0": GraphModule({}, body_of(aten.relu.default, aten.cos.default)),
    }
    outer = {
        "true_graph_0": GraphModule(inner, body_of(aten.relu.default, inner=cond_of)),
        "false_graph_0": GraphModule({}, body_of(aten.relu.default, aten.neg.default)),
    }
    return GraphModule(outer, body_of(aten.sin.default, inner=cond_of))


def shared_branches():
    """Two conds with the same branch modules."""

    def both(graph, value):
        return cond_of(graph, graph.call_function(aten.sin.default, (cond_of(graph, value),)))

    bodies = {
        "true_graph_0": GraphModule({}, body_of(aten.relu.default, aten.sin.default)),
        "false_graph_0": GraphModule({}, body_of(aten.relu.default, aten.cos.default)),
    }
    return GraphModule(bodies, body_of(inner=both))


def holders_of(gm, target):
    """Return the modules, the parent or its blocks, that hold a branch under a name."""
    return [m for m in (gm, *gm.children()) if target in m._modules]


def branch_of(gm, target):
    return getattr(holders_of(gm, target)[0], target)


def block_with(gm, target):
    blocks = [m for m in gm.children() if isinstance(m, GraphModule)]
    return next(m for m in blocks if any(n.target is target for n in m.graph.nodes))


def look_up_at_the_root(result):
    outer = branch_of(result, "true_graph_0")
    holders_of(outer, "false_graph_0")[0].false_graph_0 = branch_of(result, "false_graph_0")


def part_a_getitem(result):
    outer = branch_of(result, "true_graph_0")
    block = block_with(outer, torch.ops.higher_order.cond)
    item = node_of(block, "call_function", operator.getitem)
    output = node_of(block, "output")
    output.args = (tuple(item.args[0] if v is item else v for v in output.args[0]),)
    block.graph.erase_node(item)
    calls = [n for n in outer.graph.nodes if n.op == "call_module"]
    call = next(n for n in calls if outer.get_submodule(n.target) is block)
    taken = next(iter(call.users))
    with outer.graph.inserting_after(taken):
        again = outer.graph.call_function(operator.getitem, (taken, 0))
    taken.replace_all_uses_with(again, lambda user: user is not again)


def copy_a_shared_branch(result):
    holder = next(m for m in (result, *result.children()) if "true_graph_0" in m._modules)
    node = [n for n in holder.graph.nodes if n.target == "true_graph_0"][-1]
    holder.add_module("copied", copy.deepcopy(holder.true_graph_0))
    node.target = "copied"


def drop_from_a_branch(result):
    block = block_with(branch_of(result, "false_graph_0"), aten.neg.default)
    node = node_of(block, "call_function", aten.neg.default)
    node.replace_all_uses_with(node.args[0])
    block.graph.erase_node(node)


def part_a_branch_output(result):
    bare_block_output(branch_of(result, "false_graph_0"))


def hold_too_much_in_a_branch(result):
    keep_in(branch_of(result, "false_graph_0"))


def keep_in(module):
    module.add_module("left_behind", torch.nn.ReLU())


NESTED_MUTANTS = {
    "a nested name looked up at the root": (nested_conds, look_up_at_the_root, "C1"),
    "a getitem parted from its op": (nested_conds, part_a_getitem, "C6"),
    "a shared branch copied": (shared_branches, copy_a_shared_branch, "C7"),
    "an op of a branch dropped": (nested_conds, drop_from_a_branch, "C1"),
    "a block in a branch returns a list": (nested_conds, part_a_branch_output, "C6"),
    "a branch holds what it does not use": (nested_conds, hold_too_much_in_a_branch, "C7"),
}


@pytest.mark.parametrize("name", NESTED_MUTANTS)
def test_broken_branches_are_caught(name):
    """At a level below the top, in a branch that the call does not take where there is one."""
    build, change, contract = NESTED_MUTANTS[name]
    call = (torch.tensor([-1.0, 2.0]),)
    gm = annotate(build(), call)  # without metadata nobody knows what a tuple is
    for module in gm.modules():
        module.recompile()  # as ``broken`` will, and metadata shows in the code
    only = {"backend_priority": ["tensorrt"]}
    check_partitioner(
        broken(lambda result: None, **only), gm, call
    )  # right as long as nothing is broken

    with pytest.raises(ContractViolation) as caught:
        check_partitioner(broken(change, **only), gm, call)

    assert caught.value.contract == contract, caught.value


def test_wrong_values_of_a_branch_that_is_not_taken_are_caught():
    """C8 in every branch: the call takes the first branch, the second one is wrong."""

    def change(result):
        block = block_with(branch_of(result, "false_graph_0"), aten.neg.default)
        node_of(block, "call_function", aten.neg.default).target = aten.abs.default

    gm, call = nested_conds(), (torch.tensor([-1.0, 2.0]),)
    with pytest.raises(ContractViolation) as caught:
        check_partitioner(broken(change), gm, call, judge=["C2", "C8"])

    assert caught.value.contract == "C8"
    assert "cond/false_graph_0" in caught.value.detail


def test_control_flow_comes_nested_and_shared():
    """All ops occur, down to depth 3; branch modules are at several places, and at two levels."""
    ops, depths, shared, levels = set(), set(), 0, 0
    for seed in range(30):
        gm = random_graph_module(seed, size=4, features=["control_flow"], metadata="none")
        found = list(branches_below(gm, 1))
        ops |= {op for _, op, _ in found}
        depths |= {depth for depth, _, _ in found}
        places = {id(m): {d for d, _, other in found if other is m} for _, _, m in found}
        shared += len(found) > len(places)
        levels += any(len(at) > 1 for at in places.values())
    known = ("cond", "switch", "while_loop", "map_impl", "scan", "invoke_subgraph")
    assert ops == {op for op in known if runs(op)}
    assert depths == {1, 2, 3}
    assert shared
    assert levels


def branches_below(gm, depth):
    for node in callable_nodes(gm):
        for _, branch in branches(gm, node):
            yield depth, flow_name(node), branch
            yield from branches_below(branch, depth + 1)


# ---------------------------------------------------------------------- other partitioners


def findings(partition, seeds):
    """Return the violations that the kit finds in graphs that write in place."""
    found = []
    for seed in seeds:
        gm = random_graph_module(seed, features=["views", "mutation"])
        chosen = choose_options(SeededChoice(seed), gm)
        try:
            check_partitioner(partition, gm, inputs_for(gm), options=chosen, judge=["C8"])
        except ContractViolation as error:
            found.append(error)
    return found


def test_wrong_values_under_mutation_are_found_in_torchs_partitioner():
    found = findings(adapters.capability, range(40))

    assert any("values" in error.detail for error in found)
    assert all(error.contract == "C8" for error in found)


def test_nothing_is_found_in_one_block():
    assert not findings(adapters.one_block, range(10))


def test_wrong_values_under_mutation_are_found_in_torch_tensorrts_partitioner():
    try:
        found = findings(adapters.torch_tensorrt_hierarchical, range(40))
    except adapters.Unavailable as error:
        pytest.skip(str(error))

    assert any("values" in error.detail for error in found)


def test_a_missing_partitioner_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo.partitioning", None)

    with pytest.raises(adapters.Unavailable, match="torch_tensorrt cannot be imported"):
        adapters.torch_tensorrt_hierarchical(weighted())


# ---------------------------------------------------------------------- what nodes are seen to do


def test_a_branch_that_reads_an_attribute_is_seen_to_read_it():
    inner = Graph()
    given = inner.placeholder("arg0")
    inner.output((inner.call_function(aten.add.Tensor, (given, inner.get_attr("state"))),))
    state = torch.ones(2)
    graph = Graph()
    x, read = graph.placeholder("x"), graph.get_attr("state")
    test = graph.call_function(aten.any.default, (x,))
    branches = [graph.get_attr(name) for name in ("yes", "no")]
    both = graph.call_function(torch.ops.higher_order.cond, (test, *branches, (x,)))
    graph.call_function(aten.add_.Scalar, (read, 1.0))
    graph.output(graph.call_function(operator.getitem, (both, 0)))
    branch = GraphModule({"state": state}, inner)
    gm = GraphModule({"yes": branch, "no": branch, "state": state}, graph)

    pairs = conflicts(gm, record(gm, (X,)))
    assert ("cond", "add__scalar") in [(pair.first, pair.second) for pair in pairs]
    assert torch.equal(state, torch.ones(2))


def test_a_size_is_seen_to_be_read_before_a_reshape():
    graph = Graph()
    base = graph.call_function(aten.clone.default, (graph.placeholder("x"),))
    size = graph.call_method("size", (base, 0))
    graph.call_function(aten.unsqueeze_.default, (base, 0))
    graph.output(size)
    gm = GraphModule({}, graph)

    pairs = conflicts(gm, record(gm, (torch.ones(2),)))
    assert ("size", "unsqueeze__default") in [(pair.first, pair.second) for pair in pairs]
