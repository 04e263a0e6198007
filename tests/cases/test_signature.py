"""The split module is called like the graph that went in, and options mean what they say."""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

import hierpart
from hierpart.plan import EAGER
from tests.cases.harness import agree, everywhere, export, near, same, split, trace, vector

aten = torch.ops.aten
ATEN = "torch.ops.aten."
Pair = namedtuple("Pair", "first second")


# ------------------------------------------------------------------ inputs


def test_defaults_stay():
    class Model(nn.Module):
        def forward(self, x, gain=2.0, *, shift=None):
            h = torch.relu(x) * gain
            h = torch.cumsum(h, 0)
            return torch.sin(h)

    gm = torch.fx.symbolic_trace(Model(), concrete_args={"shift": None})
    for result in everywhere(gm, (vector(3),), more=[(vector(3), 3.0)]):
        same(result.parent(vector(3)), gm(vector(3)), "default")
        same(result.parent(vector(3), gain=4.0), gm(vector(3), gain=4.0), "by name")


@pytest.mark.parametrize("name", ["input", "range", "self_", "lambda_", "getitem", "args", "type"])
def test_names_of_arguments_stay(name):
    graph = Graph()
    x = graph.placeholder(name)
    y = graph.placeholder(f"{name}_1", default_value=1.5)
    h = graph.call_function(aten.sin.default, (x,))
    h = graph.call_function(aten.cumsum.default, (h, 0))
    graph.output(graph.call_function(aten.mul.Tensor, (h, y)))
    gm = GraphModule(nn.Module(), graph)
    for result in everywhere(gm, (vector(3),), more=[(vector(3), 2.0)]):
        got = result.parent(**{name: vector(3), f"{name}_1": 2.0})
        assert torch.equal(got, gm(vector(3), 2.0))


def test_variable_arguments():
    class Model(nn.Module):
        def forward(self, x, *rest, **named):
            h = torch.cumsum(torch.sin(x), 0)
            return h + rest[0] * rest[1], torch.relu(named["bias"])

    graph = Graph()
    x, rest, named = (graph.placeholder(n) for n in ("x", "*rest", "**named"))
    first = graph.call_function(operator.getitem, (rest, 0))
    second = graph.call_function(operator.getitem, (rest, 1))
    bias = graph.call_function(operator.getitem, (named, "bias"))
    h = graph.call_function(torch.cumsum, (graph.call_function(torch.sin, (x,)), 0))
    product = graph.call_function(operator.mul, (first, second))
    total = graph.call_function(operator.add, (h, product))
    graph.output((total, graph.call_function(torch.relu, (bias,))))
    gm = GraphModule(nn.Module(), graph)
    args, kwargs = (vector(3), vector(3, seed=1), vector(3, seed=2)), {"bias": vector(2)}
    same(gm(*args, **kwargs), Model()(*args, **kwargs), "hand-made graph")
    for result in everywhere(gm, args, kwargs):
        same(result.parent(*args, **kwargs), Model()(*args, **kwargs), "split")


def test_keywords_only_in_any_order_and_one_of_them_none():
    class Model(nn.Module):
        def forward(self, *, hidden, mask=None, scale):
            h = torch.cumsum(torch.relu(hidden) * scale, 0)
            h = h if mask is None else h * mask
            return torch.sin(h) - scale

    kwargs = {"scale": vector(3), "hidden": vector(2, 3), "mask": None}
    gm = export(Model(), (), kwargs)
    for result in everywhere(gm, (), kwargs):
        other = {k: kwargs[k] for k in ("mask", "hidden", "scale")}
        near(result.parent(**other), Model()(**kwargs))


def test_unread_inputs_stay_in_their_places():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.param = nn.Parameter(torch.rand(3, 4))
            self.linear = nn.Linear(4, 5)

        def forward(self, x, unread, y, echo):
            w = self.linear(y).clamp(min=0.0, max=1.0)
            z = self.linear(x + self.param).clamp(min=0.0, max=1.0)
            return torch.cumsum(z, 0) + w, echo

    args = tuple(vector(3, 4, seed=i) for i in range(4))
    gm = export(Model(), args)
    for result in everywhere(gm, args):
        names = [n.target for n in result.parent.graph.find_nodes(op="placeholder")]
        assert names == [n.target for n in gm.graph.find_nodes(op="placeholder")]


def test_nested_inputs_and_outputs():
    class Model(nn.Module):
        def forward(self, tree, pair):
            a = torch.sin(tree["a"][0]) + pair.second
            b = torch.cumsum(tree["a"][1], 0)
            c = torch.relu(tree["z"]["deep"])
            ordered = OrderedDict([("y", a), ("x", (b, [c, None, 3]))])
            return {"out": ordered, "pair": Pair(c, a), "text": "as it was"}

    torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
    tree = {"a": [vector(3), vector(3, seed=1)], "z": {"deep": vector(2)}}
    args = (tree, Pair(vector(3), vector(3, seed=2)))
    everywhere(export(Model(), args), args)


def test_the_checks_of_inputs_stay():
    class Model(nn.Module):
        def forward(self, x):
            return torch.sin(torch.cumsum(x, 0))

    program = torch.export.export(Model(), (vector(3, 4),), strict=False)
    gm = program.run_decompositions().module()
    with pytest.raises((AssertionError, RuntimeError), match="3"):
        gm(vector(5, 4))
    result = split(gm, {"tensorrt": {ATEN + "sin.default"}})
    agree(result, (vector(3, 4),))
    with pytest.raises((AssertionError, RuntimeError), match="3"):
        result.parent(vector(5, 4))


def test_hooks_and_mode_and_meta_of_the_module_stay():
    class Model(nn.Module):
        def forward(self, x):
            return torch.sin(torch.cumsum(x, 0))

    gm = trace(Model(), (vector(3),)).eval()
    gm.meta["from the caller"] = {"any": "thing"}
    seen = []
    gm.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    gm.register_forward_hook(lambda m, args, out: seen.append("post"))
    parent = split(gm, {"tensorrt": {"torch.sin"}}).parent
    parent(vector(3))
    assert seen == ["pre", "post"]
    assert not parent.training
    assert not any(m.training for m in parent.modules())
    assert parent.meta["from the caller"] == {"any": "thing"}
    assert "hierpart" not in gm.meta
    assert split(gm.train(), {"tensorrt": {"torch.sin"}}).parent.training


# ------------------------------------------------------------------ graphs with nothing in them

EMPTY = {
    "inputs": lambda self, x, y: (y, x),
    "an input": lambda self, x, y: x,
    "a parameter": lambda self, x, y: self.scale,
    "a constant": lambda self, x, y: (x, 3, None, "text"),
    "nothing": lambda self, x, y: None,
    "an empty tuple": lambda self, x, y: (),
    "an empty dict": lambda self, x, y: {},
}


@pytest.mark.parametrize("forward", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("full", [False, True])
def test_graphs_without_a_callable_node(forward, full):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((2,), 3.0))

    Model.forward = forward
    gm = trace(Model(), (vector(2), vector(3)))
    support = {"tensorrt": {ATEN + "relu.default"}}
    result = split(gm, support, require_full_compilation=full)
    assert all(b == EAGER for b in result.backends)
    agree(result, (vector(2), vector(3)))


def test_factories_only():
    class Model(nn.Module):
        def forward(self):
            return torch.ones(3) * 2.0, torch.zeros(2), torch.rand(2)

    everywhere(export(Model(), ()), ())


# ------------------------------------------------------------------ a second split


class Block(nn.Module):
    """A linear layer, work that no backend takes, and work that one does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.relu(self.linear(x))
        return torch.sin(torch.cumsum(h, 0)) + h


LINEAR = {"tensorrt": {ATEN + op for op in ("permute.default", "addmm.default", "relu.default")}}


def test_one_graph_can_be_split_again_and_a_result_too():
    args = (vector(2, 4),)
    gm = export(Block(), args)
    first = split(gm, LINEAR)
    second = split(gm, {"inductor": {ATEN + "relu.default", ATEN + "add.Tensor"}})
    agree(second, args)
    assert first.plan == split(gm, LINEAR).plan
    again, _ = hierpart.hierarchical_adjacency_partition(
        first.parent, min_block_size=1, backend_priority=["tensorrt", "inductor"],
        backend_support_map={"tensorrt": {ATEN + "sin.default"}, "inductor": {ATEN + "add.Tensor"}},
    )  # fmt: skip
    same(again(*args), gm(*args), "split of a split")
    inside = [m for name, m in again.named_modules() if name.endswith("_run_on_acc_tensorrt_0")]
    assert inside


# ------------------------------------------------------------------ what runs where


class Line(nn.Module):
    """Four ops in a row."""

    def forward(self, x):
        return torch.sin(torch.relu(torch.tanh(x) * 2.0))


LINE = {
    "tensorrt": {ATEN + "relu.default", ATEN + "tanh.default", ATEN + "mul.Tensor"},
    "inductor": {ATEN + "sin.default", ATEN + "relu.default"},
}


@pytest.mark.parametrize(
    "entry",
    [aten.relu.default, aten.relu, ATEN + "relu.default", ATEN + "relu", "aten.relu.default"],
    ids=str,
)
@pytest.mark.parametrize("kind", [set, list, tuple, frozenset])
def test_every_form_of_a_torch_executed_op(entry, kind):
    gm = export(Line(), (vector(3),))
    result = split(gm, LINE, torch_executed_ops=kind([entry]))
    assert result.homes("relu") == [EAGER]
    assert result.homes("tanh") == ["tensorrt"]
    assert result.homes("sin") == ["inductor"]


def test_exclusions_by_name_module_and_predicate():
    gm = export(Block(), (vector(2, 4),))
    everything = {
        "tensorrt": {
            n.target for n in gm.graph.find_nodes(op="call_function", target=aten.relu.default)
        }
        | {aten.addmm, aten.sin, aten.permute}
    }
    assert split(gm, everything, exclude_nodes=["sin"]).homes("sin") == [EAGER]
    assert split(gm, everything, exclude=lambda n: n.name == "relu").homes("relu") == [EAGER]
    by_module = split(gm, everything, exclude_modules=["linear"])
    assert by_module.homes("addmm") == [EAGER]
    assert by_module.homes("relu") == ["tensorrt"]


def test_modules_are_supported_by_their_type():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu, self.fc = nn.Tanh(), nn.Linear(3, 3)

        def forward(self, x):
            return torch.sin(self.relu(self.fc(x)))

    gm = trace(Model(), (vector(2, 3),))
    assert split(gm, {"tensorrt": {nn.Linear}}).homes("fc") == ["tensorrt"]
    excluded = split(gm, {"tensorrt": {nn.Linear}}, torch_executed_ops={nn.Linear})
    assert excluded.homes("fc") == [EAGER]
    assert split(gm, {"tensorrt": {nn.ReLU}}).homes("relu") == [EAGER]


def sizes(result) -> dict[str, int]:
    return {b.name: sum(n.target is not operator.getitem for n in b.calls()) for b in result.blocks}


def test_small_blocks_go_to_the_next_backend_and_neighbours_join():
    class Model(nn.Module):
        def forward(self, x):
            h = torch.sin(torch.relu(torch.tanh(torch.relu(x))))
            a, b = torch.split(h, 2, 1)
            h = torch.cumsum(torch.cat([b, a], 1), 0)
            h = torch.cos(torch.relu(torch.neg(torch.tanh(h))))
            return torch.neg(torch.relu(torch.tanh(torch.relu(h))))

    names = {
        "sin.default",
        "cos.default",
        "split.Tensor",
        "split_with_sizes.default",
        "slice.Tensor",
    }
    tensorrt = {ATEN + op for op in ("relu.default", "tanh.default", "neg.default")}
    gm, args = export(Model(), (vector(2, 4),)), (vector(2, 4),)
    result = split(
        gm, {"tensorrt": tensorrt, "inductor": {ATEN + n for n in names}}, min_block_size=3
    )
    agree(result, args)
    for block in result.blocks:
        assert block.backend == EAGER or sizes(result)[block.name] >= 3
    for before, after in zip(result.backends, result.backends[1:], strict=False):
        assert before != after
    wider = {"tensorrt": tensorrt, "inductor": tensorrt | {ATEN + n for n in names}}
    result = split(gm, wider, min_block_size={"tensorrt": 5, "inductor": 2})
    agree(result, args)
    assert "inductor" in result.backends
    eager = split(gm, wider, min_block_size={"tensorrt": 5, "inductor": 2}, demote="eager")
    moved = {
        m.target for m in eager.plan.moves() if m.reason.value == "block under the minimum size"
    }
    assert moved == {EAGER}


def test_a_graph_that_is_supported_whole_is_exempt_from_the_minimum():
    gm = export(Line(), (vector(3),))
    assert split(gm, LINE, min_block_size=4).backends == ["tensorrt", "inductor"]
    without_sin = {"tensorrt": LINE["tensorrt"]}
    assert split(gm, without_sin, min_block_size=4).backends == [EAGER]


def test_full_compilation_with_several_backends_and_its_error():
    gm = export(Line(), (vector(3),))
    result = split(gm, LINE, require_full_compilation=True)
    assert set(result.backends) == {"tensorrt", "inductor"}
    agree(result, (vector(3),))
    with pytest.raises(hierpart.errors.FullCompilationError, match=r"aten\.sin"):
        split(gm, {"tensorrt": LINE["tensorrt"]}, require_full_compilation=True)


# ------------------------------------------------------------------ what the peer's tests ask for


def test_supported_unsupported_supported():
    class Model(nn.Module):
        def forward(self, x, y):
            x = torch.pow(torch.relu(torch.add(x, y)), 2)
            x = torch.cumsum(x, 0)
            return torch.relu(torch.add(x, y))

    gm = trace(Model(), (vector(3), vector(3, seed=1)))
    support = {"tensorrt": {torch.add, torch.relu, torch.pow}}
    assert split(gm, support, min_block_size=2).backends == ["tensorrt", EAGER, "tensorrt"]
    without_add = split(gm, support, torch_executed_ops={torch.add})
    assert without_add.home_of_op("add") == {EAGER}
    assert without_add.home_of_op("pow") == {"tensorrt"}


def test_one_op_is_below_the_default_minimum():
    class Model(nn.Module):
        def forward(self, x, y):
            return torch.cumsum(torch.add(x, y), 0)

    gm = trace(Model(), (vector(3), vector(3, seed=1)))
    parent, tester = hierpart.hierarchical_adjacency_partition(
        gm, backend_support_map={"tensorrt": {torch.add}}, backend_priority=["tensorrt"]
    )
    assert not [n for n in parent.graph.nodes if "_run_on_acc" in str(n.target)]
    assert sum(tester.unsupported_operators.values()) == 1
    assert sum(tester.supported_operators.values()) == 1


def test_convolutions_and_norms_alternate_between_two_backends():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.conv2, self.bn2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)

        def forward(self, x):
            x = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(x)))

    args = (vector(1, 3, 8, 8),)
    gm = export(Model().eval(), args)
    norm = {ATEN + "_native_batch_norm_legit_no_training.default"}
    support = {
        "inductor": {ATEN + "convolution.default"},
        "tensorrt": {ATEN + "convolution.default", ATEN + "relu.default", "_operator.getitem"}
        | norm,
    }
    result = split(gm, support, backend_priority=["inductor", "tensorrt"])
    assert result.backends == ["inductor", "tensorrt"] * 2
    agree(result, args)
    result = split(gm, support, backend_priority=["inductor", "tensorrt"], torch_executed_ops=norm)
    assert result.backends == ["inductor", EAGER, "tensorrt"] * 2


# ------------------------------------------------------------------ wrong calls


WRONG = {
    "unknown backend": (
        {"backend_support_map": {"tensorrtt": set()}, "backend_priority": ["tensorrt"]},
        "tensorrt",
    ),
    "reserved name": ({"backend_priority": ["None"], "backend_support_map": {}}, "None"),
    "name with a dot": ({"backend_priority": ["a.b"], "backend_support_map": {}}, "a.b"),
    "negative size": ({"min_block_size": -3}, "-3"),
    "text as size": ({"min_block_size": "5"}, "'5'"),
    "no such op": ({"torch_executed_ops": {"torch.ops.aten.reluu.default"}}, "relu"),
    "no such op in the map": (
        {"backend_support_map": {"tensorrt": {"torch.ops.aten.relu.defolt"}}},
        "relu",
    ),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_named(options, words):
    gm = export(Line(), (vector(3),))
    with pytest.raises(ValueError, match=words):
        hierpart.hierarchical_adjacency_partition(gm, **options)


def test_what_is_not_a_graph_is_refused_with_advice():
    program = torch.export.export(Line(), (vector(3),), strict=False)
    for wrong in (Line(), program):
        with pytest.raises(TypeError, match=r"hierpart\.compile|\.module\(\)"):
            hierpart.hierarchical_adjacency_partition(wrong)


def test_arguments_of_the_program_and_its_output_are_left_alone(monkeypatch, capfd):
    argv = ["program", "--min-acc-module-size", "9", "--max", "10", "--help"]
    monkeypatch.setattr(sys, "argv", list(argv))
    result = split(export(Line(), (vector(3),)), LINE)
    assert result.backends == ["tensorrt", "inductor"]
    assert sys.argv == argv
    assert capfd.readouterr() == ("", "")
