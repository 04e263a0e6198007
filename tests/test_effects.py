"""What a node does besides computing its value, op by op (C3).

Rows of the tables state what ``effect_of`` has to say in words: ``writes x``, ``aliases x``,
``random``, ``ordered``, ``guard``, ``barrier``, ``reshapes``, ``may alias``. Rows that can run are
also run on real tensors: whatever is seen to be written, shared or drawn has to be announced.
"""

from __future__ import annotations

import builtins
import importlib
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from hierpart.graph.node.effects import branches_of, effect_of, resolve_attribute
from hierpart.graph.node.op_effects import Effect

aten = torch.ops.aten
X = "xywbmvoi"
"""Single letters stand for graph inputs, everything else for itself."""


def node_for(target: Any, *args: Any, **kwargs: Any) -> Node:
    """Return a node that calls ``target``; one-letter strings in the arguments become inputs."""
    graph = Graph()
    inputs: dict[str, Node] = {}

    def value(leaf: Any) -> Any:
        if isinstance(leaf, str) and leaf in X:
            if leaf not in inputs:
                inputs[leaf] = graph.placeholder(leaf)
            return inputs[leaf]
        return leaf

    args, kwargs = pytree.tree_map(value, (args, kwargs))
    op = "call_method" if isinstance(target, str) else "call_function"
    return graph.create_node(op, target, args, kwargs)


def words(effect: Effect) -> set[str]:
    """Return what an effect says, in the words of the tables."""
    flags = {
        "may alias": effect.maybe_aliases,
        "reshapes": effect.writes_metadata,
        "random": effect.random,
        "ordered": effect.ordered,
        "guard": effect.guard,
        "barrier": effect.barrier,
    }
    named = {f"writes {n.name}" for n in effect.writes} | {
        f"aliases {n.name}" for n in effect.aliases
    }
    return named | {word for word, holds in flags.items() if holds}


def no_module(target: str) -> Any:
    raise AssertionError(f"{target} was looked up")


def said(target: Any, *args: Any, **kwargs: Any) -> set[str]:
    return words(effect_of(node_for(target, *args, **kwargs), no_module))


# ------------------------------------------------------------------ operators with a schema

OVERLOADS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], set[str]]] = {
    "pointwise": (aten.add.Tensor, ("x", "y"), {}, set()),
    "in place": (aten.add_.Tensor, ("x", "y"), {}, {"writes x", "aliases x"}),
    "in place by name": (aten.add_.Tensor, (), {"other": "y", "self": "x"}, {"writes x", "aliases x"}),
    "copy_": (aten.copy_.default, ("x", "y"), {}, {"writes x", "aliases x"}),
    "out=": (aten.add.out, ("x", "y"), {"out": "o"}, {"writes o", "aliases o"}),
    "several out=": (
        aten.sort.values, ("x", 0, False), {"values": "o", "indices": "i"},
        {"writes o", "writes i", "aliases o", "aliases i"},
    ),
    "lists written": (aten._foreach_add_.Scalar, (["x", "y"], 1.0), {}, {"writes x", "writes y"}),
    "view": (aten.view.default, ("x", [-1]), {}, {"aliases x"}),
    "view that copies sometimes": (aten.reshape.default, ("x", [-1]), {}, {"aliases x"}),
    "list of views": (aten.split.Tensor, ("x", 2), {}, {"aliases x"}),
    "view without an annotation": (aten._unsafe_view.default, ("x", [-1]), {}, {"may alias"}),
    "itself sometimes": (aten.type_as.default, ("x", "y"), {}, {"may alias"}),
    "shape in place": (aten.t_.default, ("x",), {}, {"writes x", "aliases x", "reshapes"}),
    "squeeze_": (aten.squeeze_.dim, ("x", 0), {}, {"writes x", "aliases x", "reshapes"}),
    "factory": (aten.zeros.default, ([2],), {}, set()),
    "random factory": (aten.rand.default, ([2],), {}, {"random"}),
    "random in place": (aten.normal_.default, ("x",), {}, {"writes x", "aliases x", "random"}),
    "native_dropout": (aten.native_dropout.default, ("x", 0.5, True), {}, {"random"}),
    "native_dropout in eval": (aten.native_dropout.default, ("x", 0.5, False), {}, set()),
    "dropout": (aten.dropout.default, ("x", 0.5, True), {}, {"random", "may alias"}),
    "dropout in eval": (aten.dropout.default, ("x", 0.5, False), {}, {"may alias"}),
    "dropout of nothing": (aten.dropout.default, ("x", 0.0, True), {}, {"may alias"}),
    "attention": (aten.scaled_dot_product_attention.default, ("x", "y", "v"), {}, {"may alias"}),
    "attention with dropout": (
        aten.scaled_dot_product_attention.default, ("x", "y", "v", None, 0.1), {},
        {"random", "may alias"},
    ),
    "attention with dropout by name": (
        aten.scaled_dot_product_attention.default, ("x", "y", "v"), {"dropout_p": 0.1},
        {"random", "may alias"},
    ),
    "batch_norm in training": (
        aten.native_batch_norm.default, ("x", "w", "b", "m", "v", True, 0.1, 1e-5), {},
        {"writes m", "writes v"},
    ),
    "batch_norm in eval": (
        aten.native_batch_norm.default, ("x", "w", "b", "m", "v", False, 0.1, 1e-5), {}, set(),
    ),
    "batch_norm without statistics": (
        aten.native_batch_norm.default, ("x", "w", "b", None, None, True, 0.1, 1e-5), {}, set(),
    ),
    "batch_norm of inference graphs": (
        aten._native_batch_norm_legit_no_training.default, ("x", "w", "b", "m", "v", 0.1, 1e-5), {},
        set(),
    ),
    "batch_norm of functional training graphs": (
        aten._native_batch_norm_legit_functional.default,
        ("x", "w", "b", "m", "v", True, 0.1, 1e-5), {}, set(),
    ),
    "batch_norm with annotated statistics": (
        aten._native_batch_norm_legit.default, ("x", "w", "b", "m", "v", True, 0.1, 1e-5), {},
        {"writes m", "writes v"},
    ),
    "backward of batch_norm": (
        aten.native_batch_norm_backward.default,
        ("y", "x", "w", "m", "v", "o", "i", True, 1e-5, [True, True, True]), {}, set(),
    ),
    "embedding_renorm_": (aten.embedding_renorm_.default, ("w", "i", 1.0, 2.0), {}, {"writes w", "aliases w"}),
    "assertion on data": (aten._assert_async.msg, ("x", "why"), {}, {"ordered", "guard"}),
    "assertion on a size": (aten._assert_scalar.default, (True, "why"), {}, {"ordered", "guard"}),
    "range of a size": (aten.sym_constrain_range.default, (3,), {}, {"ordered", "guard"}),
    "print": (aten._print.default, ("text",), {}, {"ordered"}),
    "reading a number": (aten.item.default, ("x",), {}, {"may alias"}),
    "size": (aten.sym_size.int, ("x", 0), {}, {"may alias"}),
}  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "wanted"), OVERLOADS.values(), ids=OVERLOADS)
def test_operators_with_a_schema(target, args, kwargs, wanted):
    """C3: aliases, writes, random draws and assertions of ATen operators."""
    assert said(target, *args, **kwargs) == wanted


def _overloads_of_aten() -> list[Any]:
    found = [
        n.removeprefix("aten::")
        for n in torch._C._dispatch_get_all_op_names()
        if n.startswith("aten::")
    ]
    parts = [n.partition(".") for n in sorted(found)]
    return [getattr(getattr(aten, name), overload or "default") for name, _, overload in parts]


def test_every_write_in_a_schema_is_a_write():
    """C3: no ATen operator writes an argument that ``effect_of`` does not name."""
    graph, checked = Graph(), 0
    for op in _overloads_of_aten():
        arguments = op._schema.arguments
        inputs = {a.name: graph.placeholder(f"{a.name}_") for a in arguments}
        wanted = {
            inputs[a.name] for a in arguments if a.alias_info is not None and a.alias_info.is_write
        }
        positional = tuple(inputs[a.name] for a in arguments if not a.kwarg_only)
        named = {a.name: inputs[a.name] for a in arguments if a.kwarg_only}
        node = graph.call_function(op, positional, named)
        missing = wanted - set(effect_of(node, no_module).writes)
        assert not missing, f"{op}: {missing}"
        checked += bool(wanted)
    assert checked > 500


def test_every_operator_with_a_generator_or_a_seeded_tag_is_random():
    """C3: no ATen operator that draws at random goes unnoticed."""
    graph, drawn = Graph(), 0
    x = graph.placeholder("x")
    for op in _overloads_of_aten():
        arguments = op._schema.arguments
        if not any("Generator" in str(a.type) for a in arguments):
            continue
        values = {a.name: x for a in arguments if str(a.type) == "Tensor"}
        node = graph.call_function(op, (), values | dict.fromkeys(("train", "training"), True))
        assert effect_of(node, no_module).random, op
        drawn += 1
    assert drawn > 50


# ------------------------------------------------------------------ Python functions

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], set[str]]] = {
    "operator": (operator.add, ("x", "y"), {}, set()),
    "augmented assignment": (operator.iadd, ("x", "y"), {}, {"writes x", "aliases x"}),
    "setitem": (operator.setitem, ("x", 0, "y"), {}, {"writes x", "aliases x"}),
    "delitem": (operator.delitem, ("x", 0), {}, {"writes x", "aliases x"}),
    "getitem": (operator.getitem, ("x", 0), {}, {"aliases x"}),
    "getattr": (builtins.getattr, ("x", "T"), {}, {"aliases x"}),
    "math": (operator.floordiv, ("x", 2), {}, set()),
    "torch function": (torch.sin, ("x",), {}, set()),
    "torch view": (torch.flatten, ("x",), {}, {"aliases x"}),
    "torch list of views": (torch.chunk, ("x", 2), {}, {"aliases x"}),
    "out=": (torch.add, ("x", "y"), {"out": "o"}, {"writes o", "aliases o"}),
    "two out=": (
        torch.sort, ("x",), {"out": ("o", "i")},
        {"writes o", "writes i", "aliases o", "aliases i"},
    ),
    "name ends in _": (torch.relu_, ("x",), {}, {"writes x", "aliases x"}),
    "inplace=": (F.relu, ("x",), {"inplace": True}, {"writes x", "aliases x"}),
    "inplace by position": (F.relu, ("x", True), {}, {"writes x", "aliases x"}),
    "not in place": (F.relu, ("x", False), {}, set()),
    "dropout by default": (F.dropout, ("x",), {}, {"random", "may alias"}),
    "dropout in eval": (F.dropout, ("x", 0.5, False), {}, {"may alias"}),
    "dropout in place": (
        F.dropout, ("x", 0.5, True, True), {}, {"random", "may alias", "writes x", "aliases x"},
    ),
    "batch_norm in training": (
        F.batch_norm, ("x", "m", "v"), {"training": True},
        {"writes m", "writes v", "aliases m", "aliases v", "may alias"},
    ),
    "batch_norm in eval": (F.batch_norm, ("x", "m", "v"), {}, {"may alias"}),
    "instance_norm with statistics": (
        F.instance_norm, ("x", "m", "v"), {},
        {"writes m", "writes v", "aliases m", "aliases v", "may alias"},
    ),
    "embedding": (F.embedding, ("i", "w"), {}, set()),
    "embedding with a largest norm": (
        F.embedding, ("i", "w", None, 1.0), {}, {"writes w", "aliases w"},
    ),
    "rand": (torch.rand, (3,), {}, {"random"}),
    "rand_like": (torch.rand_like, ("x",), {}, {"random"}),
    "bernoulli": (torch.bernoulli, ("x",), {}, {"random"}),
    "multinomial": (torch.multinomial, ("x", 2), {}, {"random"}),
    "seed": (torch.manual_seed, (0,), {}, {"barrier"}),
    "assert": (torch._assert, ("x", "why"), {}, {"ordered", "guard"}),
    "check": (torch._check, (True,), {}, {"ordered", "guard"}),
    "grad mode": (torch._C._set_grad_enabled, (False,), {}, {"barrier"}),
    "autocast": (torch.amp.autocast_mode._enter_autocast, ("cpu", None, True, None), {}, {"barrier"}),
    "end of autocast": (torch.amp.autocast_mode._exit_autocast, ("x",), {}, {"barrier"}),
    "packet": (aten.relu, ("x",), {}, set()),
    "packet in place": (aten.add_, ("x", "y"), {}, {"writes x", "aliases x"}),
}  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "wanted"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions(target, args, kwargs, wanted):
    """C3: functions without a schema are read by name, keywords and signature."""
    assert said(target, *args, **kwargs) == wanted


def stranger(*values: Any) -> Any:
    """A function that nothing is known about."""
    return values[0]


def test_functions_that_nothing_is_known_about_may_write_and_keep_their_order():
    """C3: where facts are missing the answer is conservative."""
    assert said(stranger, "x", 2, ["y"]) == {
        "writes x", "writes y", "aliases x", "aliases y", "ordered",
    }  # fmt: skip
    assert said(stranger, 2) == {"ordered", "barrier"}


@pytest.mark.parametrize("target", [print, setattr], ids=["print", "setattr"])
def test_builtins_with_side_effects_keep_their_order(target):
    """C3: a call of ``print`` or ``setattr`` is an effect like an operator that prints."""
    args = ("hello", "x") if target is print else ("x", "name", 1)

    assert effect_of(node_for(target, *args), no_module).is_effect


STATISTICS = {
    "torch.batch_norm": (torch.batch_norm, ("x", None, None, "m", "v", True, 0.1, 1e-5, False)),
    "torch.native_batch_norm": (
        torch.native_batch_norm, ("x", None, None, "m", "v", True, 0.1, 1e-5),
    ),
    "torch.instance_norm": (torch.instance_norm, ("x", None, None, "m", "v", True, 0.1, 1e-5, False)),
    "torch.batch_norm_update_stats": (torch.batch_norm_update_stats, ("x", "m", "v", 0.1)),
    "the packet": (aten.batch_norm, ("x", None, None, "m", "v", True, 0.1, 1e-5, False)),
}  # fmt: skip


@pytest.mark.parametrize(("target", "args"), STATISTICS.values(), ids=STATISTICS)
def test_statistics_are_written_whatever_way_the_function_is_reached(target, args):
    """C3: functions without a Python signature write their running statistics too."""
    assert {"writes m", "writes v"} <= said(target, *args)


def test_plain_constructors_hold_nothing_up():
    """``torch.tensor(2.0)`` in a graph is no more of a barrier than ``torch.zeros(2)``."""
    assert "barrier" not in said(torch.tensor, 2.0)
    assert "barrier" not in said(torch.zeros, 2)


# ------------------------------------------------------------------ methods

METHODS: dict[str, tuple[str, tuple[Any, ...], set[str]]] = {
    "pure": ("relu", ("x",), set()),
    "view": ("view", ("x", -1), {"aliases x"}),
    "itself sometimes": ("to", ("x", torch.float32), {"aliases x"}),
    "in place": ("add_", ("x", "y"), {"writes x", "aliases x"}),
    "random in place": ("bernoulli_", ("x", 0.5), {"writes x", "aliases x", "random"}),
    "shape in place": ("t_", ("x",), {"writes x", "aliases x", "reshapes"}),
    "resize_": ("resize_", ("x", 3), {"writes x", "aliases x", "reshapes"}),
    "augmented": ("__iadd__", ("x", "y"), {"writes x", "aliases x"}),
    "unknown": ("frobnicate", ("x",), {"aliases x"}),
    "list": ("append", ("x", "y"), {"writes x", "aliases x", "barrier"}),
    "backward": ("backward", ("x",), {"writes x", "aliases x", "barrier"}),
}


@pytest.mark.parametrize(("target", "args", "wanted"), METHODS.values(), ids=METHODS)
def test_methods(target, args, wanted):
    """C3: methods are read by name."""
    assert said(target, *args) == wanted


def test_every_method_that_ends_in_an_underscore_writes():
    """C3: all in-place methods of ``torch.Tensor`` write their tensor."""
    names = [n for n in dir(torch.Tensor) if n.endswith("_") and not n.startswith("_")]

    assert len(names) > 100
    assert not [n for n in names if "writes x" not in said(n, "x", "y")]


@pytest.mark.parametrize("name", ["max", "min", "sort", "topk", "median", "mode", "svd", "cummax"])
def test_methods_with_several_results_write_nothing(name):
    """The out= variants of an op say nothing about the method that shares its name."""
    assert not [w for w in said(name, "x", 1) if w.startswith("writes")]


# ------------------------------------------------------------------ what is seen when a row is run

RUN: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "embedding with a largest norm": lambda: (F.embedding, (torch.tensor([1]), torch.ones(3, 2), None, 0.1), {}),
    "batch_norm": lambda: (F.batch_norm, (torch.rand(4, 3), torch.zeros(3), torch.ones(3)), {"training": True}),
    "out=": lambda: (torch.add, (torch.ones(2), 1), {"out": torch.empty(2)}),
    "to itself": lambda: ("to", (torch.ones(2), torch.float32), {}),
    "contiguous": lambda: ("contiguous", (torch.ones(2),), {}),
    "expand_as": lambda: ("expand_as", (torch.ones(1), torch.ones(3)), {}),
    "narrow": lambda: (aten.narrow.default, (torch.ones(4), 0, 1, 2), {}),
    "type_as": lambda: (aten.type_as.default, (torch.ones(2), torch.ones(3)), {}),
    "real": lambda: (torch.real, (torch.ones(2),), {}),
    "atleast_2d": lambda: (torch.atleast_2d, (torch.ones(2),), {}),
    "broadcast_tensors": lambda: (torch.broadcast_tensors, (torch.ones(2), torch.ones(1)), {}),
    "dropout": lambda: (F.dropout, (torch.ones(4),), {}),
    "rrelu": lambda: (F.rrelu, (-torch.ones(4),), {"training": True}),
    "gumbel_softmax": lambda: (F.gumbel_softmax, (torch.ones(4),), {}),
    "fractional_max_pool2d": lambda: (F.fractional_max_pool2d, (torch.rand(1, 1, 8, 8), 2, 3), {}),
    "randperm": lambda: (torch.randperm, (4,), {}),
    "normal": lambda: (torch.normal, (torch.zeros(2), torch.ones(2)), {}),
    "fill a slice": lambda: (operator.setitem, (torch.ones(3), 0, 2.0), {}),
    "augmented": lambda: (operator.imul, (torch.ones(3), 2.0), {}),
    "batch_norm of inference graphs": lambda: (
        aten._native_batch_norm_legit_no_training.default,
        (torch.rand(4, 3), None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5), {},
    ),
    "batch_norm_update_stats": lambda: (
        aten.batch_norm_update_stats.default,
        (torch.rand(4, 3), torch.zeros(3), torch.ones(3), 0.1), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", RUN.values(), ids=RUN)
def test_what_is_seen_to_happen_is_announced(make):
    """C3: run on real tensors, nothing is written, shared or drawn that is not announced."""
    target, args, kwargs = make()
    leaves, spec = pytree.tree_flatten((args, kwargs))
    graph = Graph()
    nodes = {
        i: graph.placeholder(f"t{i}") for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)
    }
    node_args, node_kwargs = pytree.tree_unflatten(
        [nodes.get(i, v) for i, v in enumerate(leaves)], spec
    )
    op = "call_method" if isinstance(target, str) else "call_function"
    effect = effect_of(graph.create_node(op, target, tuple(node_args), node_kwargs), no_module)
    before = {i: leaves[i].clone() for i in nodes}
    stream = torch.get_rng_state()
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target

    result = function(*args, **kwargs)

    for i, node in nodes.items():
        if not torch.equal(before[i], leaves[i]):
            assert node in effect.writes, f"wrote argument {i}"
        shared = {
            t.untyped_storage()._cdata
            for t in pytree.tree_leaves(result)
            if isinstance(t, torch.Tensor)
        }
        if leaves[i].untyped_storage()._cdata in shared:
            assert node in effect.aliases or effect.maybe_aliases, f"shared argument {i}"
    if not torch.equal(stream, torch.get_rng_state()):
        assert effect.random


# ------------------------------------------------------------------ modules that are called


def module_effect(module: nn.Module, *names: str) -> Effect:
    graph = Graph()
    node = graph.call_module("it", tuple(graph.placeholder(n) for n in names or ("x",)))
    return effect_of(node, lambda target: module)


MODULES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "linear": (lambda: nn.Linear(3, 3), {"aliases x"}),
    "relu in place": (lambda: nn.ReLU(inplace=True), {"aliases x", "writes x"}),
    "dropout in training": (lambda: nn.Dropout(0.5), {"aliases x", "random"}),
    "dropout in eval": (lambda: nn.Dropout(0.5).eval(), {"aliases x"}),
    "dropout of nothing": (lambda: nn.Dropout(0.0), {"aliases x"}),
    "nested dropout": (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), {"aliases x", "random"}),
    "attention with dropout": (lambda: nn.MultiheadAttention(4, 2, dropout=0.5), {"aliases x", "random"}),
    "rrelu": (nn.RReLU, {"aliases x", "random"}),
    "batch_norm in eval": (lambda: nn.BatchNorm1d(3).eval(), {"aliases x"}),
}  # fmt: skip


@pytest.mark.parametrize(("make", "wanted"), MODULES.values(), ids=MODULES)
def test_modules(make, wanted):
    """C3: modules of torch.nn are read by type, mode and settings."""
    assert words(module_effect(make())) == wanted


def test_statistics_of_a_norm_are_written_in_training():
    """C3: a called batch norm writes its own buffers in training and only reads them in eval."""
    norm = nn.BatchNorm1d(3)
    written = {id(t) for t in module_effect(norm).written_tensors}

    assert written == {id(b) for b in norm.buffers()}
    assert not module_effect(norm.eval()).written_tensors
    assert not module_effect(nn.BatchNorm1d(3, track_running_stats=False)).written_tensors


def test_a_module_of_the_users_may_do_anything_with_its_own():
    """C3: a module that is not torch's may write its tensors and inputs, draw and print."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

    module = Own()
    effect = module_effect(module)

    assert words(effect) == {"writes x", "aliases x", "random", "ordered"}
    assert [id(t) for t in effect.written_tensors] == [id(module.count)]


WRITING: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "embedding with a largest norm": (
        lambda: nn.Embedding(4, 3, max_norm=0.1).eval(), lambda: torch.tensor([1, 2]),
    ),
    "embedding bag with a largest norm": (
        lambda: nn.EmbeddingBag(4, 3, max_norm=0.1).eval(), lambda: torch.tensor([[1, 2]]),
    ),
    "fractional pooling": (
        lambda: nn.FractionalMaxPool2d(2, output_size=3).eval(), lambda: torch.rand(1, 1, 8, 8),
    ),
    "spectral norm": (
        # Large: the power iteration of a small matrix may have converged when it is made.
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), lambda: torch.rand(2, 64),
    ),
    "observer": (lambda: torch.ao.quantization.MinMaxObserver().eval(), lambda: torch.rand(4)),
    "fake quantisation": (lambda: torch.ao.quantization.FakeQuantize().eval(), lambda: torch.rand(4)),
    "batch norm": (lambda: nn.BatchNorm1d(3), lambda: torch.rand(4, 3)),
    "rnn with dropout": (lambda: nn.LSTM(3, 4, 2, dropout=0.5), lambda: torch.rand(5, 2, 3)),
    "hook": (lambda: hooked(nn.Linear(3, 3)), lambda: torch.rand(2, 3)),
}  # fmt: skip


def hooked(module: nn.Module) -> nn.Module:
    """Return the module with a forward hook that counts its calls in a buffer."""
    module.register_buffer("calls", torch.zeros(1))
    module.register_forward_hook(lambda m, args, out: m.calls.add_(1) and None)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "given"), WRITING.values(), ids=WRITING)
def test_modules_that_are_seen_to_write_or_draw_say_so(make, given):
    """C3: a module of torch's that changes its tensors or draws when it runs is an effect."""
    torch.manual_seed(0)
    module, value = make(), given()
    effect = module_effect(module)
    before = {k: t.clone() for k, t in module.state_dict().items()}
    stream = torch.get_rng_state()
    with torch.no_grad():
        module(value)
    after = module.state_dict()
    changed = [k for k, t in after.items() if k not in before or not torch.equal(t, before[k])]
    drawn = not torch.equal(stream, torch.get_rng_state())

    assert changed or drawn, "the row shows nothing"
    assert not changed or effect.written_tensors, f"wrote {changed}"
    assert not drawn or effect.random


# ------------------------------------------------------------------ graphs inside the graph


def graph_module(build: Callable[[Graph, Node], Any], **attributes: Any) -> GraphModule:
    graph = Graph()
    graph.output(build(graph, graph.placeholder("x")))
    root = nn.Module()
    for name, value in attributes.items():
        setattr(root, name, value)
    return GraphModule(root, graph)


BODIES: dict[str, tuple[Callable[[Graph, Node], Any], set[str]]] = {
    "pure": (lambda g, x: g.call_function(torch.sin, (x,)), set()),
    "writes": (lambda g, x: g.call_method("add_", (x, 1)), {"writes x"}),
    "draws": (lambda g, x: g.call_function(torch.rand_like, (x,)), {"random"}),
    "prints": (lambda g, x: (g.call_function(aten._print.default, ("hi",)), x)[1], {"ordered"}),
    "asserts": (
        lambda g, x: (g.call_function(torch._assert, (x, "why")), x)[1], {"ordered", "guard"},
    ),
    "region": (lambda g, x: (g.call_function(torch._C._set_grad_enabled, (False,)), x)[1], {"barrier"}),
}  # fmt: skip


@pytest.mark.parametrize(("build", "wanted"), BODIES.values(), ids=BODIES)
def test_called_graphs_do_what_their_nodes_do(build, wanted):
    """C3: the effect of a nested GraphModule is the sum of its nodes' effects."""
    assert words(module_effect(graph_module(build))) - {"aliases x"} == wanted


def test_a_nested_graph_tells_the_tensors_it_reads_and_writes():
    """C3: attributes of a called graph count as read, and as written when the graph writes."""
    weight = torch.ones(2)

    def read(g: Graph, x: Node) -> Any:
        return g.call_function(torch.add, (x, g.get_attr("weight")))

    def write(g: Graph, x: Node) -> Any:
        return g.call_method("add_", (g.get_attr("weight"), x))

    reading = module_effect(graph_module(read, weight=weight))
    writing = module_effect(graph_module(write, weight=weight))
    assert [id(t) for t in reading.tensors] == [id(weight)]
    assert not reading.written_tensors
    assert [id(t) for t in writing.written_tensors] == [id(weight)]


def cond(*, true: GraphModule, false: GraphModule) -> tuple[Node, Callable[[str], Any]]:
    graph, root = Graph(), nn.Module()
    root.yes, root.no = true, false
    p, x = graph.placeholder("p"), graph.placeholder("x")
    yes, no = graph.get_attr("yes"), graph.get_attr("no")
    node = graph.call_function(torch.ops.higher_order.cond, (p, yes, no, [x]))
    return node, lambda target: resolve_attribute(root, target)


@pytest.mark.parametrize("branch", ["true", "false"])
def test_a_higher_order_op_does_what_either_branch_does(branch):
    """C3: a draw or a print in one branch is an effect of the whole op."""
    pure = graph_module(BODIES["pure"][0])
    for name, (build, wanted) in BODIES.items():
        made = {"true": pure, "false": pure} | {branch: graph_module(build)}
        node, resolve = cond(**made)
        effect = effect_of(node, resolve)
        flags = {w for w in words(effect) if not w.startswith(("writes", "aliases"))}
        assert flags == {w for w in wanted if not w.startswith("writes")}, name
        assert bool(effect.writes) == (name == "writes")


def test_branches_are_found_in_any_place_of_the_arguments():
    """Any leaf that is a ``get_attr`` of a GraphModule is a branch, and nothing else is."""
    graph, root = Graph(), nn.Module()
    root.a = root.b = graph_module(BODIES["pure"][0])
    root.weight = nn.Parameter(torch.ones(1))
    a, b, weight = (graph.get_attr(n) for n in ("a", "b", "weight"))
    node = graph.call_function(stranger, ([a, (weight,)], {"deep": {"b": b}}))

    found = branches_of(node, lambda target: resolve_attribute(root, target))

    assert [(n.name, m is root.a) for n, m in found] == [("a", True), ("b", True)]


HIGHER_ORDER = {
    "with_effects": {"ordered"},
    "print": {"ordered"},
    "call_torchbind": {"ordered"},
    "run_and_save_rng_state": {"ordered", "random"},
    "run_with_rng_state": {"ordered", "random"},
    "triton_kernel_wrapper_mutation": {"ordered", "writes x", "aliases x"},
    "auto_functionalized": set(),
    "auto_functionalized_v2": set(),
}


@pytest.mark.parametrize(("name", "wanted"), HIGHER_ORDER.items(), ids=HIGHER_ORDER)
def test_higher_order_ops_by_name(name, wanted):
    """C3: higher-order ops with effects keep their order."""
    op = getattr(torch.ops.higher_order, name, None)
    if op is None:
        pytest.skip(f"this torch has no torch.ops.higher_order.{name}")
    assert said(op, "x") == wanted


COLLECTIVES = (
    "_c10d_functional.all_reduce.default", "_c10d_functional.all_reduce_.default",
    "_c10d_functional.all_gather_into_tensor.default",
    "_c10d_functional.reduce_scatter_tensor.default", "_c10d_functional.broadcast.default",
    "_c10d_functional.wait_tensor.default", "_c10d_functional_autograd.all_to_all_single.default",
    "c10d.allreduce_.default", "c10d.barrier.default",
)  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_and_their_waits_are_ordered(name):
    """C3: every rank has to issue its collectives in one order."""
    if not torch.distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    importlib.import_module("torch.distributed._functional_collectives")
    op: Any = torch.ops
    for part in name.split("."):
        op = getattr(op, part)
    effect = effect_of(node_for(op, "x"), no_module)
    assert effect.ordered
    assert effect.is_effect


def test_the_checks_of_an_exported_module_are_guards():
    """C3: ``torch.export`` puts its input checks into a module of its own."""
    program = torch.export.export(nn.ReLU(), (torch.ones(2),), strict=False)
    gm = program.module()
    calls = gm.graph.find_nodes(op="call_module", target="_guards_fn")
    assert calls, (
        "torch.export no longer calls _guards_fn: look at hierpart.graph.node.effects._module_effect"
    )

    effect = effect_of(calls[0], lambda target: resolve_attribute(gm, target))

    assert words(effect) == {"guard", "ordered"}


def test_an_attribute_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"Linear has no attribute 'a\.b' \(missing at 'a'\)"):
        resolve_attribute(nn.Linear(1, 1), "a.b")
