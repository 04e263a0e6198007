"""The facts of a graph, and the order that storages, draws, assertions and regions impose.

Units, kinds and counts come from ``graph.py`` (C1, C5, C6), the order from ``hazards.py`` (C2, C3).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from hierpart.graph.facts import Facts, analyse, count_compute
from hierpart.graph.hazards import may_share, storage_key
from hierpart.graph.node.values import Kind
from hierpart.testing.reading.snapshot import difference, snapshot
from tests.cases.harness import export, record, trace, vector

aten = torch.ops.aten
exported = functools.partial(export, decompose=False)


@dataclass(frozen=True)
class Made:
    """A graph and its facts, asked by node name."""

    gm: GraphModule
    facts: Facts

    def at(self, name: str) -> int:
        return next(i for i, n in enumerate(self.facts.nodes) if n.name == name)

    def unit(self, name: str) -> set[str]:
        """Names of the nodes in the unit of a node."""
        nodes = self.facts.units[self.facts.unit_of[self.at(name)]]
        return {self.facts.nodes[i].name for i in nodes}

    def direct(self, name: str) -> set[str]:
        """Names of the nodes in the units that have to run before the unit of a node."""
        preds = self.facts.preds[self.facts.unit_of[self.at(name)]]
        return {self.facts.nodes[i].name for p in preds for i in self.facts.units[p]}

    def before(self, first: str, second: str) -> bool:
        """Whether ``first`` has to run before ``second``, directly or not."""
        wanted, stack, seen = self.facts.unit_of[self.at(first)], [], set()
        stack = list(self.facts.preds[self.facts.unit_of[self.at(second)]])
        while stack:
            unit = stack.pop()
            if unit not in seen:
                seen.add(unit)
                stack += self.facts.preds[unit]
        return wanted in seen


def made(
    build: Callable[..., Any], *args: Any, values: Sequence[Any] = (), **attributes: Any
) -> Made:
    """Return the graph that ``build(graph, *inputs)`` writes, with one input an argument name.

    Args:
        build: Gets the graph and its inputs; returns the output.
        args: Names of the inputs.
        values: Example inputs; where given, values are recorded in ``meta["val"]``.
        attributes: Attributes of the module.
    """
    graph, root = Graph(), nn.Module()
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            root.register_buffer(name, value)
        else:
            setattr(root, name, value)
    graph.output(build(graph, *(graph.placeholder(str(a)) for a in args)))
    gm = GraphModule(root, graph)
    if values:
        record(gm, tuple(values))
    return Made(gm, analyse(gm))


def call(graph: Graph, target: Any, *args: Any, name: str = "", **kwargs: Any) -> Node:
    op = "call_method" if isinstance(target, str) else "call_function"
    return graph.create_node(op, target, args, kwargs, name=name or None)


# ------------------------------------------------------------------ units


def test_every_callable_node_is_in_one_unit_or_floats():
    """C1: units are disjoint, in graph order, and hold all nodes but the shape arithmetic."""

    class Model(nn.Module):
        def forward(self, x):
            a, b = torch.split(x, 2, 1)
            return torch.relu(a).view(x.shape[0], -1) + b

    sizes = {0: torch.export.Dim("n", min=2, max=9)}
    facts = analyse(exported(Model(), (vector(4, 4),), dynamic=(sizes,)))
    held = [i for unit in facts.units for i in unit]
    assert sorted(held) == [i for i, floats in enumerate(facts.floating) if not floats]
    assert len(set(held)) == len(held)
    assert [u[0] for u in facts.units] == sorted(u[0] for u in facts.units)
    assert {facts.nodes[i].target for i, f in enumerate(facts.floating) if f} == {aten.sym_size.int}
    assert all(facts.unit_of[i] == -1 for i, floats in enumerate(facts.floating) if floats)


def test_unpacking_belongs_to_its_producer():
    """C6: a tuple never crosses, so the nodes that take it apart are of its unit."""

    def build(g, x):
        both = call(g, torch.sort, x)
        first, second = (call(g, operator.getitem, both, i, name=f"part{i}") for i in (0, 1))
        return call(g, torch.sin, first), second

    it = made(build, "x")
    assert it.unit("sort") == {"sort", "part0", "part1"}
    assert it.unit("sin") == {"sin"}
    assert it.direct("sin") == {"sort", "part0", "part1"}


def test_a_list_used_whole_stays_with_its_user_unless_its_items_are_known():
    """C6: a list of known tensors crosses item by item; an unknown one does not cross."""

    def build(g, x):
        return call(g, torch.cat, call(g, torch.split, x, 2))

    assert made(build, "x").unit("cat") == {"split", "cat"}
    assert made(build, "x", values=(vector(4),)).unit("cat") == {"cat"}


def test_values_that_cannot_cross_tie_their_users():
    """C6: neither a generator nor any other object crosses a boundary."""

    def build(g, x):
        thing = call(g, torch.Generator)
        drawn = call(g, torch.rand, 2, generator=thing)
        return call(g, torch.add, drawn, x), call(g, torch.sin, x)

    it = made(build, "x")
    it.gm.graph.find_nodes(op="call_function", target=torch.Generator)[0].meta["type"] = object
    facts = Made(it.gm, analyse(it.gm))
    assert facts.unit("rand") == {"generator", "rand"}
    assert facts.unit("add") == {"add"}


def test_a_tie_across_other_nodes_takes_them_in():
    """C2: what lies between two nodes of a unit is of that unit, or the units form a circle."""

    def build(g, x):
        pair = call(g, torch.sort, x)
        first = call(g, operator.getitem, pair, 0, name="first")
        between = call(g, torch.sin, first)
        last = call(g, operator.setitem, pair, 0, between)
        second = call(g, operator.getitem, pair, 1, name="second")
        return call(g, torch.cos, second), last, call(g, torch.exp, x)

    it = made(build, "x")
    assert it.unit("sort") >= {"sort", "first", "second"}
    assert it.unit("exp") == {"exp"}
    assert all(p < u for u, ps in enumerate(it.facts.preds) for p in ps)


# ------------------------------------------------------------------ sizes, counts, constants


def test_sizes_that_only_feed_nodes_float():
    """C6: a size is worked out where it is needed; one that is returned has a place of its own."""

    def build(g, x):
        rows = call(g, aten.sym_size.int, x, 0, name="rows")
        double = call(g, operator.mul, rows, 2, name="double")
        given = call(g, "size", x, 1, name="given")
        return call(g, aten.view.default, x, [double, -1]), given

    it = made(build, "x", values=(vector(4, 4),))
    flags = {n.name: it.facts.floating[i] for i, n in enumerate(it.facts.nodes)}
    assert flags == {"rows": True, "double": True, "given": False, "view_default": False}
    assert it.facts.recomputable[it.at("given")]


def test_a_number_read_from_data_does_not_float():
    """C3: ``item`` cannot be worked out again from a size; what is made of its result can."""

    def build(g, x):
        number = call(g, "item", x)
        return call(g, torch.full, (2,), call(g, operator.add, number, 1))

    it = made(build, "x")
    it.facts.nodes[0].meta["val"] = 3
    it = Made(it.gm, analyse(it.gm))
    flags = {n.name: it.facts.recomputable[i] for i, n in enumerate(it.facts.nodes)}
    assert flags == {"item": False, "add": True, "full": False}
    assert it.direct("full") == {"item"}


@pytest.mark.parametrize("change", ["t_", "squeeze_", "unsqueeze_", "resize_"])
def test_sizes_of_a_tensor_whose_shape_changes_stay_in_their_place(change):
    """C3: such a size depends on when it is read."""

    def build(g, x):
        y = call(g, torch.clone, x)
        old = call(g, "size", y, 0, name="old")
        extra = {"t_": (), "squeeze_": (), "unsqueeze_": (0,), "resize_": (9,)}[change]
        call(g, change, y, *extra)
        new = call(g, "size", y, 0, name="new")
        return call(g, torch.full, (old,), 1.0), call(g, torch.full, (new,), 1.0)

    it = made(build, "x")
    assert not it.facts.recomputable[it.at("old")]
    assert it.before("old", change)
    assert it.before(change, "new")


def test_what_counts_for_the_minimum_size():
    """C5: unpacking and arithmetic on sizes count nothing, everything else one."""

    def build(g, x):
        pair = call(g, torch.sort, x)
        first = call(g, operator.getitem, pair, 0)
        rows = call(g, "size", x, 0)
        twice = call(g, operator.mul, rows, 2)
        row = call(g, operator.getitem, first, 0, name="row")
        return call(g, torch.full, (twice,), 1.0), row

    it = made(build, "x", values=(vector(3, 2),))
    counts = {n.name: it.facts.compute[i] for i, n in enumerate(it.facts.nodes)}
    assert counts == {"sort": 1, "getitem": 0, "size": 0, "mul": 0, "row": 1, "full": 1}


def test_a_higher_order_op_counts_the_ops_of_its_branches():
    """C5: a cond of two and three ops counts five; so does a nested one, and a called graph."""

    class Choice(nn.Module):
        def forward(self, p, x):
            return torch.cond(
                p, lambda x: torch.sin(x).cos(), lambda x: torch.exp(x).neg().relu(), (x,)
            )

    gm = exported(Choice(), (torch.tensor(True), vector(2)))
    facts = analyse(gm)
    assert sum(facts.compute) == 5
    assert [len(found) for found in facts.branches.values()] == [2]

    def build(g, x):
        return g.call_module("inner", (torch.tensor(True), call(g, torch.sin, x)))

    outer = made(build, "x", inner=gm)
    assert sum(outer.facts.compute) == 6 == count_compute(outer.gm)


def test_constant_work_is_what_depends_on_attributes_and_literals_alone():
    """Work on constants: no input, no draw, no called module."""

    def build(g, x):
        w = g.get_attr("w")
        one = call(g, torch.sin, w, name="one")
        two = call(g, torch.add, one, call(g, torch.ones, 2), name="two")
        drawn = call(g, torch.rand, 2, name="drawn")
        called = g.call_module("linear", (two,))
        return call(g, torch.mul, two, x, name="used"), drawn, called

    it = made(build, "x", w=torch.ones(2), linear=nn.Linear(2, 2))
    constant = {n.name: it.facts.constant[i] for i, n in enumerate(it.facts.nodes)}
    assert constant == {
        "one": True, "ones": True, "two": True, "drawn": False, "linear": False, "used": False,
    }  # fmt: skip


def test_a_constant_that_is_written_in_place_is_an_effect_and_no_constant():
    """C3: counting a buffer up is no work on constants."""

    def build(g, x):
        call(g, "add_", g.get_attr("count"), 1)
        return call(g, torch.sin, x)

    it = made(build, "x", count=torch.zeros(1))
    assert not it.facts.constant[it.at("add_")]
    assert it.facts.written_attributes == ("count",)


def test_an_attribute_that_is_missing_is_named():
    it = made(lambda g, x: g.get_attr("w"), "x", w=torch.ones(1))
    node = it.gm.graph.find_nodes(op="get_attr")[0]
    with it.gm.graph.inserting_after(node):
        it.gm.graph.call_function(torch.sin, (node,))
        it.gm.graph.call_method("add_", (node, 1))
    del it.gm.w
    with pytest.raises(AttributeError, match="has no attribute 'w'"):
        analyse(it.gm)


def test_kinds_of_values_with_and_without_recorded_ones():
    """Tensors, scalars, sizes, tuples and None are told from values, else from the operator."""

    def build(g, x):
        nodes = [
            call(g, torch.sin, x, name="tensor"),
            call(g, "size", x, 0, name="scalar"),
            call(g, "size", x, name="sizes"),
            call(g, torch.sort, x, name="tuple_"),
            call(g, aten._assert_async.msg, x, "why", name="none"),
            call(g, aten.mul.Tensor, x, 2, name="by_schema"),
            call(g, aten.sort.default, x, name="tuple_by_schema"),
        ]
        return nodes[:3]

    values = (torch.tensor([1.0]),)
    for it in (made(build, "x"), made(build, "x", values=values)):
        kinds = {n.name: it.facts.kinds[i] for i, n in enumerate(it.facts.nodes)}
        known = bool(it.gm.graph.find_nodes(op="placeholder")[0].meta)
        assert kinds["tensor"] is (Kind.TENSOR if known else Kind.UNKNOWN)
        assert kinds["scalar"] is Kind.SCALAR
        assert kinds["sizes"] is Kind.SIZES
        assert kinds["tuple_"] is kinds["tuple_by_schema"] is Kind.TUPLE
        assert kinds["none"] is Kind.NONE
        assert kinds["by_schema"] is Kind.TENSOR


# ------------------------------------------------------------------ storages (C3)


def test_a_read_stays_before_a_write_and_after_the_one_before():
    """C3: read after write, write after read, write after write."""

    def build(g, x):
        y = call(g, torch.clone, x)
        early = call(g, torch.sin, y, name="early")
        call(g, "add_", y, 1, name="write")
        late = call(g, torch.cos, y, name="late")
        call(g, "mul_", y, 2, name="again")
        return early, late

    it = made(build, "x")
    assert it.before("early", "write")
    assert it.before("write", "late")
    assert it.before("write", "again")
    assert it.before("late", "again")


VIEWS = {
    "view": lambda g, y: call(g, aten.view.default, y, [-1]),
    "method": lambda g, y: call(g, "reshape", y, -1),
    "slice": lambda g, y: call(g, operator.getitem, y, slice(0, 1)),
    "list of views": lambda g, y: call(g, operator.getitem, call(g, torch.chunk, y, 2), 0),
    "attribute": lambda g, y: call(g, getattr, y, "T"),
    "view of a view": lambda g, y: call(g, "t", call(g, "detach", y)),
    "itself": lambda g, y: call(g, "contiguous", y),
    "through a called module": lambda g, y: g.call_module("flat", (y,)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("recorded", [False, True])
def test_reads_and_writes_through_views_keep_their_order(view, recorded):
    """C3: a write through a view is a write to the base, and the other way about."""

    def build(g, x):
        y = call(g, torch.clone, x)
        other = view(g, y)
        early = call(g, torch.sin, y, name="early")
        call(g, "zero_", other, name="write")
        late = call(g, torch.cos, y, name="late")
        call(g, "add_", y, 1, name="again")
        return early, late, call(g, torch.exp, other, name="last")

    values = (vector(2, 2),) if recorded else ()
    it = made(build, "x", values=values, flat=nn.Flatten())
    assert it.before("early", "write")
    assert it.before("write", "late")
    assert it.before("late", "again")
    assert it.before("again", "last")


def test_other_storages_are_left_free():
    """C3 asks for no more than it has to: a clone and its source do not hold each other up."""

    def build(g, x):
        y, z = (call(g, torch.clone, x, name=n) for n in ("one", "two"))
        read = call(g, torch.sin, y, name="read")
        call(g, "add_", z, 1, name="write")
        return read, z

    it = made(build, "x", values=(vector(2),))
    assert not it.before("read", "write")
    assert not it.before("write", "read")


def test_recorded_values_tell_a_copy_from_a_view():
    """C3: ``type_as`` returns its argument or a copy; the recorded storages say which."""

    def build(g, x, like):
        y = call(g, torch.clone, x)
        other = call(g, aten.type_as.default, y, like, name="other")
        call(g, "add_", y, 1, name="write")
        return call(g, torch.sin, other, name="read")

    same = made(build, "x", "like", values=(vector(2), vector(2)))
    copied = made(build, "x", "like", values=(vector(2), vector(2).double()))
    unknown = made(build, "x", "like")
    assert same.before("write", "read")
    assert not copied.before("write", "read")
    assert unknown.before("write", "read")


def test_one_buffer_fetched_twice():
    """C3: two ``get_attr`` of one buffer are one storage."""

    def build(g, x):
        early = call(g, torch.add, g.get_attr("count"), x, name="early")
        call(g, "add_", g.get_attr("count"), 1, name="write")
        return early, call(g, torch.sub, g.get_attr("count"), x, name="late")

    it = made(build, "x", count=torch.zeros(1))
    assert it.before("early", "write")
    assert it.before("write", "late")
    assert it.facts.written_attributes == ("count", "count_1", "count_2")


def test_buffers_of_overlapping_storage():
    """C3: a buffer that is a view of another one is written with it."""
    base = torch.zeros(4)

    def build(g, x):
        early = call(g, torch.add, g.get_attr("part"), x, name="early")
        call(g, "add_", g.get_attr("whole"), 1, name="write")
        other = call(g, torch.add, g.get_attr("apart"), x, name="other")
        return early, other, call(g, torch.sub, g.get_attr("part"), x, name="late")

    it = made(build, "x", whole=base, part=base[:1], apart=torch.ones(1))
    assert it.before("early", "write")
    assert it.before("write", "late")
    assert not it.before("other", "write")
    assert not it.before("write", "other")


def test_a_called_module_reads_and_writes_its_own_tensors():
    """C3: a batch norm in training writes what ``get_attr`` of its buffers read."""

    def build(g, x):
        early = call(g, torch.sum, g.get_attr("norm.running_mean"), name="early")
        y = g.call_module("norm", (x,))
        return early, y, call(g, torch.prod, g.get_attr("norm.running_mean"), name="late")

    training = made(build, "x", norm=nn.BatchNorm1d(3))
    assert training.before("early", "norm")
    assert training.before("norm", "late")
    frozen = made(build, "x", norm=nn.BatchNorm1d(3).eval())
    assert not frozen.before("early", "norm")
    assert not frozen.before("norm", "late")


@pytest.mark.parametrize("recorded", [False, True])
def test_one_tensor_may_be_passed_for_two_inputs(recorded):
    """C3: where some input is written, a read of any other tensor input keeps its place."""

    def build(g, x, y):
        early = call(g, torch.sin, x, name="early")
        call(g, "add_", y, 1, name="write")
        return early, call(g, torch.cos, x, name="late")

    it = made(build, "x", "y", values=(vector(2), vector(2)) if recorded else ())
    assert it.before("early", "write")
    assert it.before("write", "late")


def test_inputs_that_nobody_writes_are_free():
    """C3 asks for no more: a write to a clone does not tie the inputs."""

    def build(g, x, y):
        mine = call(g, torch.clone, y)
        early = call(g, torch.sin, x, name="early")
        call(g, "add_", mine, 1, name="write")
        return early, mine

    it = made(build, "x", "y", values=(vector(2), vector(2)))
    assert not it.before("early", "write")


def test_a_number_among_the_inputs_is_no_storage():
    """C3 asks for no more: a size passed in is not written with a tensor."""

    def build(g, x, n):
        double = call(g, operator.mul, n, 2, name="double")
        call(g, "add_", x, 1, name="write")
        return call(g, torch.full, (double,), 1.0, name="read")

    it = made(build, "x", "n", values=(vector(2), 3))
    assert not it.before("write", "read")


@pytest.mark.parametrize("op", ["out", "setitem", "foreach"])
def test_every_way_to_write_is_seen(op):
    """C3: ``out=``, item assignment and lists of tensors."""

    def build(g, x):
        y = call(g, torch.clone, x)
        early = call(g, torch.sin, y, name="early")
        if op == "out":
            call(g, torch.add, x, 1, out=y, name="write")
        elif op == "setitem":
            call(g, operator.setitem, y, 0, 1.0, name="write")
        else:
            call(g, aten._foreach_add_.Scalar, [y], 1.0, name="write")
        return early, call(g, torch.cos, y, name="late")

    it = made(build, "x")
    assert it.before("early", "write")
    assert it.before("write", "late")


def test_storage_keys():
    """Two tensors have one key if and only if they share a storage."""
    base, other = torch.zeros(4), torch.zeros(4)
    assert storage_key(base) == storage_key(base[1:]) == storage_key(base.detach())
    assert storage_key(base) != storage_key(other)
    assert storage_key(nn.Parameter(base)) == storage_key(base)
    sparse = torch.eye(2).to_sparse()
    assert storage_key(sparse) == storage_key(sparse)
    assert storage_key(sparse) != storage_key(torch.eye(2).to_sparse())


def test_unknown_values_may_share_and_known_scalars_do_not():
    def build(g, x):
        return call(g, "relu", x, name="y"), call(g, "size", x, 0, name="n")

    it = made(build, "x")
    x, y, n = it.gm.graph.find_nodes(op="placeholder")[0], *it.facts.nodes
    assert may_share(y, x)
    assert not may_share(y, n)


# ------------------------------------------------------------------ draws, effects, guards, regions


def test_effects_keep_their_order_and_pure_ops_do_not_care():
    """C3: draws, prints, assertions and writes form one chain; a pure op is free of it."""

    def build(g, x):
        a = call(g, torch.rand_like, x, name="draw")
        free = call(g, torch.sin, x, name="free")
        call(g, aten._print.default, "hello", name="print_it")
        call(g, aten._assert_async.msg, x, "why", name="check")
        b = call(g, torch.randn_like, x, name="draw_again")
        y = call(g, torch.clone, x)
        call(g, "add_", y, a, name="write")
        return b, free, y

    it = made(build, "x", values=(vector(1),))
    chain = ["draw", "print_it", "check", "draw_again", "write"]
    assert all(it.before(a, b) for a, b in itertools.pairwise(chain))
    assert not any(it.before("free", c) or it.before(c, "free") for c in chain)


def test_what_may_fail_with_the_data_stays_behind_the_assertion():
    """C3: an index, a gather or a scatter is run after the check of its index; ``sin`` is free."""

    def build(g, x, i):
        early = call(g, aten.index_select.default, x, 0, i, name="early")
        call(
            g,
            aten._assert_async.msg,
            call(g, torch.all, call(g, torch.ge, i, 0)),
            "why",
            name="check",
        )
        late = call(g, aten.index_select.default, x, 0, i, name="late")
        return early, late, call(g, aten.sin.default, x, name="free")

    it = made(build, "x", "i", values=(vector(3), torch.tensor([0])))
    assert it.before("check", "late")
    assert not it.before("check", "early")
    assert not it.before("check", "free")


def test_without_recorded_values_all_stays_behind_the_assertion():
    """C3: where facts are missing the answer is conservative."""

    def build(g, x):
        call(g, torch._assert, x, "why", name="check")
        return call(g, torch.sin, x)

    assert made(build, "x").before("check", "sin")


def test_data_dependent_sizes_stay_behind_their_checks():
    """C3: what uses a size read from data runs after the check of its range."""

    class Model(nn.Module):
        def forward(self, x):
            n = x.item()
            torch._check(n >= 0)
            torch._check(n < 9)
            return torch.arange(9).narrow(0, 0, n) + 1

    it = Made(gm := exported(Model(), (torch.tensor(3),)), analyse(gm))
    checks = [n.name for n in it.facts.nodes if "assert" in str(n.target)]
    reader = next(
        n.name for n in it.facts.nodes if "slice" in str(n.target) or "narrow" in str(n.target)
    )
    assert checks
    assert all(it.before(c, reader) for c in checks)


MARKERS = {
    "grad": (torch._C._set_grad_enabled, (False,)),
    "autocast": (torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None)),
    "seed": (torch.manual_seed, (0,)),
}


@pytest.mark.parametrize(("target", "args"), MARKERS.values(), ids=MARKERS)
def test_nothing_crosses_the_mark_of_a_region(target, args):
    """C3: what was before a region's mark stays before it, what was after stays after."""

    def build(g, x):
        before = [call(g, torch.sin, x, name=f"before{i}") for i in range(3)]
        call(g, target, *args, name="mark")
        after = [call(g, torch.cos, x, name=f"after{i}") for i in range(3)]
        return before, after

    it = made(build, "x")
    assert all(it.before(f"before{i}", "mark") and it.before("mark", f"after{i}") for i in range(3))
    assert not it.before("before0", "before1")


def test_guards_of_an_exported_module_come_first():
    """C3: the check of the inputs stays before everything that relies on it."""
    gm = torch.export.export(nn.ReLU(), (vector(2),), strict=False).module()
    it = Made(gm, analyse(gm))
    assert it.facts.effects[it.at("_guards_fn")].guard


def test_order_edges_stay_linear():
    """C12: n reads and n writes of one storage give a number of edges linear in n."""

    def build(n):
        def body(g, x):
            y = call(g, torch.clone, x)
            for _ in range(n):
                call(g, torch.sin, y)
                call(g, torch.cos, y)
                call(g, "add_", y, 1)
                call(g, torch.manual_seed, 0)
            return y

        return body

    counts = [sum(map(len, made(build(n), "x").facts.preds)) for n in (50, 100, 200)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


def test_analysis_leaves_the_module_alone():
    """C10: no node, attribute or metadata changes."""

    class Model(nn.Module):
        def forward(self, x):
            y = torch.relu(x)
            y.add_(1)
            return y.view(x.shape[0], -1)

    gm = trace(Model(), (vector(2, 3),))
    before = snapshot(gm)
    analyse(gm)
    assert not difference(before, snapshot(gm))
