"""Who takes each node, and why the others do not (``tester.py``, ``assign.py``, ``opnames.py``; C4)."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import (
    OperatorSupportBase,
    any_chain,
    chain,
    create_op_support,
)

import hierpart
from hierpart import BackendOpSupportTester
from hierpart.backends.eager import EagerBackend
from hierpart.errors import OptionError
from hierpart.graph.facts import Facts, analyse
from hierpart.graph.node.op_names import OpSet, canonical, exists, qualified_name
from hierpart.options import Options
from hierpart.partition.owners import assignment as steps
from hierpart.partition.owners import tester as asking
from hierpart.partition.owners.assignment import Assignment
from hierpart.plan import EAGER, Reason, Verdict
from tests.cases.harness import export, split, trace, vector

aten = torch.ops.aten
exported = functools.partial(export, decompose=False)
ATEN = "torch.ops.aten."


class Chain(nn.Module):
    """Five relus and a sine."""

    def forward(self, x):
        for _ in range(5):
            x = torch.relu(x)
        return torch.sin(x)


@functools.cache
def chain_graph() -> GraphModule:
    """One object for all tests: nothing here may change it (C10)."""
    return exported(Chain(), (vector(2),))


def first(gm: GraphModule, target: Any) -> Node:
    return next(n for n in gm.graph.nodes if n.target == target)


def assigned(gm: GraphModule, support: Any, **options: Any) -> tuple[Facts, Assignment]:
    fields = {"backend_priority": list(support), "backend_support_map": support, **options}
    facts = analyse(gm)
    return facts, steps.assign(facts, asking.tester_of(Options(**fields)))


def owners(gm: GraphModule, support: Any, **options: Any) -> dict[str, str]:
    """Owner of each node that belongs to a unit, by name."""
    facts, found = assigned(gm, support, **options)
    return {
        n.name: found.owner[facts.unit_of[i]]
        for i, n in enumerate(facts.nodes)
        if not facts.floating[i]
    }


def refusals(gm: GraphModule, support: Any, name: str, **options: Any) -> dict[str, Reason | None]:
    facts, found = assigned(gm, support, **options)
    i = next(i for i, n in enumerate(facts.nodes) if n.name == name)
    return {v.backend: v.reason for v in found.verdicts[i]}


# ------------------------------------------------------------------ the tester's answer

SUPPORT = {"tensorrt": {ATEN + "relu.default"}, "inductor": {ATEN + "relu.default", aten.sin}}


def asker(**more: Any) -> BackendOpSupportTester:
    return BackendOpSupportTester(SUPPORT, ("tensorrt", "inductor"), **more)


def test_the_answer_is_a_pair_that_is_false_when_nothing_takes_the_node():
    """C4: the first backend in priority; the pair unpacks and reads right as a condition."""
    gm, ask = chain_graph(), asker().is_node_supported
    relu, sin = first(gm, aten.relu.default), first(gm, aten.sin.default)

    supported, backend = ask({}, relu)
    assert (supported, backend) == (True, "tensorrt")
    assert ask({}, sin) == (True, "inductor")
    assert ask({}, relu)
    excluding = asker(torch_executed_ops={aten.relu})
    assert excluding.is_node_supported({}, relu) == (False, "None")
    assert not excluding.is_node_supported({}, relu)


def test_the_order_of_the_priority_decides():
    gm = chain_graph()
    turned = BackendOpSupportTester(SUPPORT, ("inductor", "tensorrt"))
    assert turned.is_node_supported({}, first(gm, aten.relu.default)).backend == "inductor"


def test_attributes_go_wherever_they_are_used():
    gm = exported(nn.Linear(2, 2), (vector(2),))
    weight = gm.graph.find_nodes(op="get_attr")[0]
    assert asker().is_node_supported({}, weight) == (True, "tensorrt")
    assert not BackendOpSupportTester({}, ()).is_node_supported({}, weight)


def test_torchs_own_combinators_read_the_answer_right():
    """``chain``, ``any_chain`` and CapabilityBasedPartitioner take the tester as it is."""
    gm = chain_graph()
    relu, sin = first(gm, aten.relu.default), first(gm, aten.sin.default)
    only_sin = BackendOpSupportTester({"tensorrt": {aten.sin}}, ("tensorrt",))
    only_relu = BackendOpSupportTester({"tensorrt": {aten.relu}}, ("tensorrt",))

    assert any_chain(only_sin, only_relu).is_node_supported({}, relu)
    assert not chain(only_sin, only_relu).is_node_supported({}, relu)
    assert not any_chain(only_sin).is_node_supported({}, relu)
    parts = CapabilityBasedPartitioner(gm, only_relu).propose_partitions()
    assert [{n.target for n in p.nodes} for p in parts] == [{aten.relu.default}]
    assert sin not in parts[0].nodes


# ------------------------------------------------------------------ counts


def test_counts_are_true():
    """Five relus count five, however often each is asked about."""
    gm, ask = chain_graph(), asker()
    for _ in range(3):
        for node in gm.graph.nodes:
            if node.op == "call_function":
                ask.is_node_supported({}, node)

    assert ask.supported_operators == {
        f"tensorrt_{ATEN}relu.default": 5, f"inductor_{ATEN}sin.default": 1,
    }  # fmt: skip
    assert ask.unsupported_operators == {}


def test_the_tester_that_the_call_returns_has_counted_each_node_once():
    gm = chain_graph()
    _, counted = hierpart.hierarchical_adjacency_partition(
        gm, backend_support_map={"tensorrt": {aten.relu}}, backend_priority=["tensorrt"]
    )
    assert counted.supported_operators == {f"tensorrt_{ATEN}relu.default": 5}
    assert counted.unsupported_operators == {f"{ATEN}sin.default": 1}


def test_the_overview_goes_to_the_log_and_not_to_the_screen(caplog, capfd):
    ask = asker(torch_executed_ops={aten.sin})
    for node in chain_graph().graph.find_nodes(op="call_function", target=aten.relu.default):
        ask.is_node_supported({}, node)
    with caplog.at_level(logging.DEBUG, "hierpart"):
        ask.print_support_overview(3)

    assert capfd.readouterr() == ("", "")
    assert "accelerated blocks: 3" in caplog.text
    assert f"tensorrt_{ATEN}relu.default: 5" in caplog.text
    assert "unsupported or excluded nodes: none" in caplog.text


class Counted(Collection):
    """A collection that counts how often it is gone through."""

    def __init__(self, *items: Any) -> None:
        self.items, self.walks = items, 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item: object) -> bool:
        return item in self.items


def test_a_collection_is_normalised_once_and_not_once_a_node():
    """C12: the number of walks over the table of ops does not grow with the graph."""

    class Deep(nn.Module):
        def forward(self, x):
            for _ in range(60):
                x = torch.relu(x)
            return x

    walks = []
    for model in (Chain(), Deep()):
        table = Counted(ATEN + "relu.default", aten.sin)
        split(trace(model), {"tensorrt": table})
        walks.append(table.walks)
    assert walks[0] == walks[1]


# ------------------------------------------------------------------ what a user may write for an op

SPELLINGS = {
    "overload": aten.relu.default,
    "packet": aten.relu,
    "qualified name": "torch.ops.aten.relu.default",
    "name of the packet": "torch.ops.aten.relu",
    "short name": "aten.relu.default",
    "short name of the packet": "aten.relu",
    "dispatcher's name": "aten::relu",
    "with blanks": " torch.ops.aten.relu.default ",
}


@pytest.mark.parametrize("op", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("collection", [set, list, tuple, frozenset, dict.fromkeys])
def test_an_op_may_be_spelt_in_many_ways_in_either_table(op, collection):
    """A packet stands for all of its overloads, in the support map and in torch_executed_ops."""
    gm = chain_graph()
    ops = collection([op])
    assert owners(gm, {"tensorrt": ops})["relu"] == "tensorrt"
    taken = owners(gm, {"tensorrt": {aten.relu, aten.sin}}, torch_executed_ops=ops)
    assert taken["relu"] == EAGER
    assert taken["sin"] == "tensorrt"


def test_an_overload_stands_for_itself_alone():
    class Model(nn.Module):
        def forward(self, x):
            return torch.add(torch.mul(x, x), 1.0) * 2.0

    gm = exported(Model(), (vector(2),))
    assert owners(gm, {"tensorrt": {aten.mul.Scalar}})["mul"] == EAGER
    assert owners(gm, {"tensorrt": {aten.mul.Tensor}})["mul"] == "tensorrt"
    assert owners(gm, {"tensorrt": {aten.mul}})["mul"] == "tensorrt"


class Layers(nn.Module):
    """Modules whose names say nothing about their types."""

    def __init__(self):
        super().__init__()
        self.relu, self.fc = nn.Tanh(), nn.Linear(2, 2)
        self.own = nn.Sequential(nn.ReLU())

    def forward(self, x):
        return self.own(self.relu(self.fc(x))).abs() + torch.sin(x)


LAYERS = {
    "type": (nn.Linear, "fc"),
    "public name": ("torch.nn.Linear", "fc"),
    "full name": ("torch.nn.modules.linear.Linear", "fc"),
    "path": ("fc", "fc"),
    "method": ("abs", "abs_1"),
    "function": (torch.sin, "sin"),
    "name of the function": ("torch.sin", "sin"),
    "operator": (operator.add, "add"),
    "name of the operator": ("operator.add", "add"),
    "private name of the operator": ("_operator.add", "add"),
}


@pytest.mark.parametrize(("op", "name"), LAYERS.values(), ids=LAYERS)
def test_modules_are_matched_by_type_and_methods_by_name(op, name):
    gm = trace(Layers())
    found = owners(gm, {"tensorrt": {op}})
    assert [n for n, owner in found.items() if owner == "tensorrt"] == [name]
    everything = {nn.Linear, nn.Tanh, nn.ReLU, "abs", torch.sin, operator.add}
    excluded = owners(gm, {"tensorrt": everything}, torch_executed_ops=[op])
    assert [n for n, owner in excluded.items() if owner == EAGER] == [name]


class Functional(nn.Module):
    """Functions whose own names are not the ones that users write."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.weight)
        return torch.nn.functional.softplus(torch.nn.functional.gelu(x))


@pytest.mark.parametrize("name", ["linear", "gelu", "softplus"])
def test_functions_may_be_named_as_users_write_them(name):
    """``torch.nn.functional.gelu`` is ``torch._C._nn.gelu``; both names, and the function, match."""
    gm = trace(Functional())
    function = getattr(torch.nn.functional, name)
    for op in (function, f"torch.nn.functional.{name}", f"torch._C._nn.{name}"):
        assert owners(gm, {"tensorrt": {op}})[name] == "tensorrt", op
        everything = {
            torch.nn.functional.linear,
            torch.nn.functional.gelu,
            torch.nn.functional.softplus,
        }
        assert owners(gm, {"tensorrt": everything}, torch_executed_ops=[op])[name] == EAGER, op


def test_the_name_of_an_attribute_is_no_type():
    """A Tanh that is called ``relu`` is a Tanh."""
    gm = trace(Layers())
    found = owners(gm, {"tensorrt": {nn.ReLU}})
    assert found["relu"] == EAGER
    assert found["own_0"] == "tensorrt"


def test_names_round_trip():
    """``canonical`` gives for each spelling the name that ``qualified_name`` gives for the op."""
    assert canonical("aten::relu.default") == qualified_name(aten.relu.default)
    assert canonical("aten.relu") == qualified_name(aten.relu)
    assert canonical("higher_order.cond") == qualified_name(torch.ops.higher_order.cond)
    assert canonical("operator.getitem") == qualified_name(operator.getitem)
    assert canonical(nn.Linear) == "torch.nn.modules.linear.Linear"
    assert canonical(torch.nn.functional.relu) == "torch.nn.functional.relu"
    assert OpSet.of([aten.relu, "aten.sin.default"]).names == {
        "torch.ops.aten.relu", "torch.ops.aten.sin.default",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("torch.ops.aten.relu.default", True), ("torch.ops.aten.relu.defolt", False),
        ("torch.ops.aten.nothing_like_it", False), ("torch.relu", True), ("torch.rellu", False),
        ("_operator.add", True), ("view", True), ("vieww", False),
        ("torch.ops.a_library_not_imported_yet.op", True), ("torch.nn.Linear", True),
        ("torch.ops.higher_order.cond", True), ("torch.ops.higher_order.con", False),
        ("no_such_package.op", False),
    ],
)  # fmt: skip
def test_what_exists(name, real):
    assert exists(name) is real


# ------------------------------------------------------------------ other kinds of support


class OnlyRelu(OperatorSupportBase):
    """What torch's own partitioners take."""

    def is_node_supported(self, submodules, node):
        return node.target is aten.relu.default


def test_a_torch_operator_support_speaks_for_a_backend():
    gm = chain_graph()
    for support in (OnlyRelu(), create_op_support(lambda _, n: n.target is aten.relu.default)):
        found = owners(gm, {"tensorrt": support, "inductor": {aten.sin}})
        assert found["relu"] == "tensorrt"
        assert found["sin"] == "inductor"
    assert refusals(gm, {"tensorrt": OnlyRelu()}, "sin") == {"tensorrt": Reason.NOT_LISTED}


class Picky(EagerBackend):
    """A backend that takes what its owner says, with traits of its own."""

    def __init__(self, name: str, ops: Collection[Any], missing: str | None = None) -> None:
        self.name, self.ops, self.missing = name, ops, missing

    def available(self) -> str | None:
        return self.missing

    def verdict(self, node: Node) -> Verdict:
        yes = node.target in self.ops
        return Verdict(self.name, yes, None if yes else Reason.DTYPE, "" if yes else "int64")


def test_a_backend_object_answers_for_itself():
    """C4: its reason and detail are recorded as they are."""
    gm = chain_graph()
    facts, found = assigned(gm, {"mine": Picky("mine", [aten.relu.default])})
    sin = next(i for i, n in enumerate(facts.nodes) if n.name == "sin")
    assert found.verdicts[sin] == (Verdict("mine", False, Reason.DTYPE, "int64"),)
    assert owners(gm, {"mine": Picky("mine", [aten.relu.default])})["relu"] == "mine"


def test_a_backend_that_is_not_there_refuses_everything_and_says_why():
    gm = chain_graph()
    support = {"mine": Picky("mine", [aten.relu.default], "no driver"), "inductor": {aten.relu}}
    _facts, found = assigned(gm, support)
    assert found.verdicts[0][0] == Verdict("mine", False, Reason.BACKEND_UNAVAILABLE, "no driver")
    assert found.owner[0] == "inductor"


def test_tensorrt_without_a_table_is_not_available():
    """C4: nothing is dropped in silence; the reason is recorded for every node."""
    gm = chain_graph()
    plan = hierpart.make_plan(gm, backend_priority=["tensorrt"])
    assert set(plan.owner.values()) == {EAGER}
    assert {v.reason for vs in plan.verdicts.values() for v in vs} == {Reason.BACKEND_UNAVAILABLE}


@pytest.mark.parametrize("wrong", [5, None, object()])
def test_a_support_of_no_known_kind_is_refused(wrong):
    with pytest.raises(OptionError, match="takes a collection of ops, an OperatorSupportBase"):
        BackendOpSupportTester({"tensorrt": wrong}, ("tensorrt",))


def test_an_unknown_backend_is_named_with_the_nearest_one():
    with pytest.raises(OptionError, match=r"'inductr'.*did you mean 'inductor'\?"):
        hierpart.make_plan(chain_graph(), backend_priority=["inductr"])
    with pytest.raises(OptionError, match="'tensort'"):
        BackendOpSupportTester({}, ("tensort",))


# ------------------------------------------------------------------ exclusions


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.layer2 = Chain(), nn.Sequential(Chain(), nn.Tanh())

    def forward(self, x):
        return self.layer2(self.layer(x))


@pytest.mark.parametrize("capture", ["export", "trace"])
def test_exclusion_by_module_takes_the_module_and_what_is_in_it(capture):
    """``layer`` is not ``layer2``; ``layer2`` takes ``layer2.0`` with it."""
    gm = exported(Nested(), (vector(2),)) if capture == "export" else trace(Nested())
    if capture == "trace":
        everything = {torch.relu, torch.sin, nn.Tanh}
    else:
        everything = {aten.relu, aten.sin, aten.tanh}
    for path, count in (("layer", 6), ("layer2", 7), ("layer2.0", 6), ("layer2.1", 1), ("laye", 0)):
        found = owners(gm, {"tensorrt": everything}, exclude_modules=[path])
        assert list(found.values()).count(EAGER) == count, path


def test_exclusions_are_recorded_as_the_users():
    """C4: name, module, predicate and table: one reason."""
    gm = chain_graph()
    support = {"tensorrt": {aten.relu, aten.sin}, "inductor": {aten.sin}}
    for options in (
        {"exclude_nodes": ["sin"]}, {"exclude": lambda n: n.name == "sin"},
        {"torch_executed_ops": [aten.sin]},
    ):  # fmt: skip
        given = refusals(gm, support, "sin", **options)
        assert given == dict.fromkeys(support, Reason.EXCLUDED_BY_USER)
        assert refusals(gm, support, "relu", **options)["tensorrt"] is None


# ------------------------------------------------------------------ units


@functools.cache
def sort_graph() -> GraphModule:
    class Model(nn.Module):
        def forward(self, x):
            values, order = torch.sort(x)
            return torch.relu(values), order

    return exported(Model(), (vector(3),))


def test_unpacking_needs_no_support_of_its_own():
    """C6: the nodes that take a tuple apart follow the producer."""
    assert owners(sort_graph(), {"tensorrt": {aten.sort}}) == {
        "sort": "tensorrt", "getitem": "tensorrt", "getitem_1": "tensorrt", "relu": EAGER,
    }  # fmt: skip
    assert set(owners(sort_graph(), {"tensorrt": {operator.getitem}}).values()) == {EAGER}


def test_what_cannot_be_parted_is_refused_together_with_the_cause():
    """C4: the verdict names the node that stops the others."""
    graph = Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.split, (x, 2))
    graph.output(graph.call_function(torch.cat, (parts,)))
    gm = GraphModule(nn.Module(), graph)

    _facts, found = assigned(gm, {"tensorrt": {torch.split}, "inductor": {torch.split, torch.cat}})

    assert found.owner == ("inductor",)
    split_verdict = found.verdicts[0][0]
    assert split_verdict == Verdict("tensorrt", False, Reason.UNIT, "cat: not listed")


# ------------------------------------------------------------------ work on constants


def test_work_on_constants_goes_to_its_consumer():
    """C4: ``relu(w)`` is no block of its own, and the plan says where it went."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(vector(2))

        def forward(self, x):
            return torch.sin(x + torch.relu(torch.neg(self.w)))

    gm = exported(Model(), (vector(2),))
    everything = {aten.relu, aten.neg, aten.add, aten.sin}
    consumed = owners(gm, {"tensorrt": {aten.relu, aten.neg}, "inductor": everything})
    assert consumed == dict.fromkeys(("neg", "relu", "add", "sin"), "inductor")
    alone = assigned(gm, {"tensorrt": {aten.relu, aten.neg}, "inductor": {aten.add, aten.sin}})[1]
    assert alone.owner == (EAGER, EAGER, "inductor", "inductor")
    assert [(m.nodes, m.source, m.target, m.reason) for m in alone.moves] == [
        (("relu",), "tensorrt", EAGER, Reason.CONSTANT_ONLY),
        (("neg",), "tensorrt", EAGER, Reason.CONSTANT_ONLY),
    ]


def test_constants_that_nobody_reads_run_eagerly():
    """C4: a result made of weights alone is no work for a compiler."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(vector(2))

        def forward(self, x):
            return torch.sin(x), torch.relu(self.w)

    found = owners(exported(Model(), (vector(2),)), {"tensorrt": {aten.relu, aten.sin}})
    assert found == {"sin": "tensorrt", "relu": EAGER}


# ------------------------------------------------------------------ what no table can say


class Copying(Picky):
    """Copies what goes in and out, as an engine does."""

    keeps_aliases = False


class TensorsOnly(Picky):
    takes_scalars = False


class LowRank(Picky):
    max_rank = 3


def single(target: Any, *args: Any, method: bool = False) -> GraphModule:
    """A graph of a clone of the input, one call on it, and a sine of the result."""
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.clone, (x,))
    node = graph.create_node(
        "call_method" if method else "call_function", target, (y, *args), name="it"
    )
    graph.output((graph.call_function(torch.sin, (y,)), node))
    return GraphModule(nn.Module(), graph)


def everything_in(gm: GraphModule) -> list[Any]:
    return [n.target for n in gm.graph.nodes if n.op.startswith("call")]


@pytest.mark.parametrize(
    ("gm", "reason"),
    [
        (single("add_", 1, method=True), Reason.MUTATES),
        (single(operator.setitem, 0, 1.0), Reason.MUTATES),
        (single(torch._assert, "why"), Reason.EFFECT),
        (single(aten._assert_async.msg, "why"), Reason.EFFECT),
    ],
    ids=["in place", "setitem", "assert", "assert_async"],
)
def test_blocks_that_copy_hold_no_effects(gm, reason):
    """C3: an engine's in-place op would write its own copy, its assertion would not fire."""
    everything = everything_in(gm)
    assert refusals(gm, {"mine": Copying("mine", everything)}, "it") == {"mine": reason}
    assert refusals(gm, {"mine": Picky("mine", everything)}, "it") == {"mine": None}


def test_blocks_that_copy_hold_no_views_of_what_is_written():
    """C3: a view made in an engine would not see the write outside it."""

    def build(write: bool) -> GraphModule:
        graph = Graph()
        x = graph.placeholder("x")
        y = graph.call_function(torch.clone, (x,))
        view = graph.call_method("view", (y, -1))
        if write:
            graph.call_method("add_", (y, 1))
        graph.output(graph.call_function(torch.sin, (view,)))
        return GraphModule(nn.Module(), graph)

    for write, reason in ((True, Reason.MUTATES), (False, None)):
        gm = build(write)
        support = {"mine": Copying("mine", everything_in(gm))}
        assert refusals(gm, support, "view") == {"mine": reason}
        assert refusals(gm, support, "sin") == {"mine": None}


def test_marks_of_regions_run_eagerly_on_every_backend():
    """C3: nothing may move across the mark, so no compiler gets it."""
    gm = single(torch.sin)
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(torch._C._set_grad_enabled, (False,)).name = "mark"
    mark = next(n.name for n in gm.graph.nodes if n.target is torch._C._set_grad_enabled)
    everything = [*everything_in(gm), torch._C._set_grad_enabled]
    support = {"a": Picky("a", everything), "b": {*everything}}
    assert refusals(gm, support, mark) == dict.fromkeys("ab", Reason.EFFECT)


def scalar_graph() -> GraphModule:
    graph = Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["val"], n.meta["val"] = vector(3), 2
    sin = graph.call_function(torch.sin, (x,))
    rows = graph.call_method("size", (x, 0))
    total = graph.call_function(torch.sum, (sin,), name="total")
    number = graph.call_function(aten.item.default, (total,), name="number")
    by_input = graph.call_function(operator.mul, (sin, n), name="by_input")
    by_size = graph.call_function(operator.mul, (sin, rows), name="by_size")
    graph.output((by_input, by_size, number))
    return GraphModule(nn.Module(), graph)


def test_blocks_of_tensors_only_take_no_scalar_from_outside():
    """C6: a number that no tensor's size gives cannot enter, a size can be read inside."""
    gm = scalar_graph()
    support = {"mine": TensorsOnly("mine", everything_in(gm))}
    names = ("by_input", "by_size", "number", "sin", "total")
    assert {n: refusals(gm, support, n)["mine"] for n in names} == {
        "by_input": Reason.NON_TENSOR_BOUNDARY, "by_size": None,
        "number": Reason.NON_TENSOR_BOUNDARY, "sin": None, "total": None,
    }  # fmt: skip
    takes = {"mine": Picky("mine", everything_in(gm))}
    assert refusals(gm, takes, "by_input") == {"mine": None}


def test_ranks_above_the_limit_are_refused_on_both_sides():
    """C4: an op that reads or makes a tensor of too high a rank, with the numbers."""

    class Model(nn.Module):
        def forward(self, x):
            y = torch.sin(x).reshape(1, 1, 2, 2)
            return torch.cos(y).sum((0, 1)).neg()

    gm = exported(Model(), (vector(4),))
    support = {"mine": LowRank("mine", everything_in(gm))}
    facts, found = assigned(gm, support)
    verdicts = {facts.nodes[i].name: v[0] for i, v in enumerate(found.verdicts)}
    refused = {n for n, v in verdicts.items() if v.reason is Reason.RANK}
    assert refused == {n.name for n in facts.nodes} - {"sin", "neg"}
    assert verdicts["cos"].detail == "rank 4, at most 3"


def test_the_reason_of_the_table_comes_before_that_of_the_boundary():
    """C4: an op that the backend does not know is reported as such, whatever else is wrong."""
    gm = single("add_", 1, method=True)
    assert refusals(gm, {"mine": Copying("mine", [])}, "it") == {"mine": Reason.DTYPE}


@pytest.mark.parametrize("backend", ["tensorrt", "inductor"])
def test_the_traits_of_a_known_backend_hold_with_a_table_of_ops_too(backend):
    """C3: naming ``aten.add_`` in the map does not let an engine write the caller's tensor."""

    class Model(nn.Module):
        def forward(self, x):
            return x.add_(1).relu()

    program = torch.export.export(Model(), (vector(2),), strict=False)
    gm = program.module()
    ops = {n.target for n in gm.graph.find_nodes(op="call_function", target=aten.add_.Tensor)}
    assert ops, "the graph has no in-place op"
    assert refusals(gm, {backend: ops}, "add_") == {backend: Reason.MUTATES}


def test_submodules_are_looked_up_once_for_a_support_object(monkeypatch):
    """C12: asking torch's own support objects costs no walk over all modules per node."""

    class Takes(OperatorSupportBase):
        def is_node_supported(self, submodules, node):
            return isinstance(submodules[node.target], nn.ReLU)

    gm = torch.fx.symbolic_trace(nn.Sequential(*(nn.ReLU() for _ in range(20))))
    walks, walk = [], gm.named_modules
    monkeypatch.setattr(gm, "named_modules", lambda *a, **k: (walks.append(1), walk(*a, **k))[1])
    plan = hierpart.make_plan(
        gm, backend_priority=["a"], backend_support_map={"a": Takes()}, min_block_size=1
    )
    assert [b.backend for b in plan] == ["a"]
    assert len(walks) == 1
