"""``check_backend``: backends that do one thing wrong are caught by the rule that they break."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx import Graph, GraphModule

from hierpart.backends.inductor import InductorBackend
from hierpart.errors import BackendUnavailableError, OptionError
from hierpart.plan import Verdict
from hierpart.testing import BackendViolation, annotate, check_backend
from hierpart.testing.checks.backend.check import check_backend_on
from hierpart.testing.checks.backend.rules import BACKEND_RULES
from hierpart.testing.generate.tensors import BATCH, TensorSpec
from tests.doubles import Double, Raising, Wrapping

aten = torch.ops.aten


class Plain(Double):
    """A right backend: eager under a name of its own."""

    def __init__(self) -> None:
        super().__init__("plain")


def module(writes=False):
    """Return ``linear_weight + relu(x).t()`` and the rows' number, and how its input is made."""
    graph = Graph()
    x = graph.placeholder("x")
    if writes:
        x = graph.call_function(aten.mul_.Scalar, (x, 2.0))
    turned = graph.call_function(aten.t.default, (graph.call_function(aten.relu.default, (x,)),))
    weighted = graph.call_function(aten.add.Tensor, (turned, graph.get_attr("weight")))
    rows = graph.call_function(aten.sym_size.int, (x, 0))
    ones = graph.call_function(aten.full.default, ([rows], 1.5))
    graph.output((weighted, ones, graph.call_function(aten.view.default, (x, [-1]))))
    root = torch.nn.Module()
    root.register_buffer("weight", torch.arange(3.0).reshape(3, 1))
    return GraphModule(root, graph)


def judged(backend, writes=False):
    """Check a backend on that one graph with two sizes."""
    gm, spec = module(writes), TensorSpec((BATCH, 3), seed=1)
    annotate(gm, (spec.make(5),), [spec])
    return check_backend_on(backend, gm, [(spec.make(5),), (spec.make(7, 1),)])


def wrapping(wrap):
    return Wrapping("plain", wrap)


# ---------------------------------------------------------------------- right ones pass


def test_eager_under_another_name_passes():
    found = check_backend(Plain(), graphs=6)
    assert found.blocks >= 4
    assert found.dynamic
    assert "torch.ops.aten.clone.default" in found.ops or len(found.ops) > 5


@pytest.mark.inductor
def test_inductor_passes():
    found = check_backend(InductorBackend(), graphs=2, size=6)
    assert found.blocks
    assert judged(InductorBackend()).dynamic == 1


def test_a_backend_that_is_not_there_is_not_checked():
    backend = Plain()
    backend.available = lambda: "no such device"
    with pytest.raises(BackendUnavailableError, match="no such device"):
        check_backend(backend)


def test_a_backend_that_takes_nothing_is_not_called_right():
    with pytest.raises(ValueError, match="modules="):
        check_backend(Double("plain", refuses=[""]), graphs=1)


# ---------------------------------------------------------------------- wrong ones are caught


class Other(Plain):
    def verdict(self, node):
        return Verdict("other", super().verdict(node).supported)


class Flickers(Plain):
    turns = itertools.count()

    def verdict(self, node):
        return Verdict("plain", next(self.turns) % 2 == 0, None, "maybe")


class Silent(Plain):
    def verdict(self, node):
        return Verdict("plain", False)


class Marks(Plain):
    def verdict(self, node):
        node.meta["plain"] = True
        return super().verdict(node)


class Raises(Plain):
    def verdict(self, node):
        raise KeyError(node.name)


class Exits(Plain):
    def compile(self, block, inputs, options):
        raise SystemExit(1)


class Aliasing(Wrapping):
    keeps_aliases = True


class Exact(Wrapping):
    exact_strides = True


class Saves(Plain):
    def dump(self, made):
        return b"12345678"

    def restore(self, data, block):
        if len(data) < 8:
            raise ValueError("cut short")
        return lambda *args: [value + 1 for value in block(*args)]


class SavesAnything(Saves):
    def restore(self, data, block):
        return (lambda *args: block(*args)) if len(data) == 8 else (lambda *args: [])


def static(function, inputs):
    kept = {}

    def run(*args):
        made = function(*args)
        slots = kept.setdefault(len(args[0]) > 0, [torch.empty(64) for _ in made])
        flat = [
            slot[: value.numel()].copy_(value.reshape(-1))
            for slot, value in zip(slots, made, strict=True)
        ]
        return [value.view(other.shape) for value, other in zip(flat, made, strict=True)]

    return run


def baked(function, inputs):
    """Gives the first call's number of rows ever after."""
    rows = []

    def run(*args):
        first, ones, last = function(*args)
        rows.append(len(ones))
        return first, torch.full((rows[0],), 1.5), last

    return run


def boxed(function, inputs):
    def run(*args):
        return function(*args)

    run.boxed = lambda args: [value * 2 for value in function(*args)]
    return run


def written(function, inputs):
    def run(*args):
        made = [value.clone() for value in function(*args)]
        args[0].add_(1)
        return made

    return run


FAULTS = {
    "verdict: another's name": ("verdict", Other),
    "verdict: changes its mind": ("verdict", Flickers),
    "verdict: no reason": ("verdict", Silent),
    "verdict: marks nodes": ("verdict", Marks),
    "verdict: raises": ("verdict", Raises),
    "compile: raises": ("honest", lambda: Raising("plain", NotImplementedError("no such op"))),
    "compile: ends the process": ("errors", Exits),
    "compile: gives nothing": ("result", lambda: Wrapping("plain", lambda f, i: None)),
    "call: raises": ("values", lambda: wrapping(lambda f, i: lambda *a: f(*a[:-1]))),
    "call: one value": ("result", lambda: wrapping(lambda f, i: lambda *a: f(*a)[0])),
    "call: another dtype": (
        "result", lambda: wrapping(lambda f, i: lambda *a: [v.double() for v in f(*a)])
    ),
    "call: another shape": (
        "result", lambda: wrapping(lambda f, i: lambda *a: [v.reshape(-1, 1) for v in f(*a)])
    ),
    "call: no tensor": (
        "result", lambda: wrapping(lambda f, i: lambda *a: [v.tolist() for v in f(*a)])
    ),
    "call: other values": (
        "values", lambda: wrapping(lambda f, i: lambda *a: [v * 1.01 for v in f(*a)])
    ),
    "call: writes its input": ("inputs", lambda: wrapping(written)),
    "call: one buffer for all calls": ("calls", lambda: wrapping(static)),
    "call: a size baked in": ("dynamic", lambda: wrapping(baked)),
    "call: other strides": (
        "strides", lambda: Exact("plain", lambda f, i: lambda *a: [v.contiguous() for v in f(*a)])
    ),
    "boxed: other values": ("boxed", lambda: wrapping(boxed)),
    "restore: other values": ("save", Saves),
    "restore: takes what is cut short": ("result", SavesAnything),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_backend_is_caught(fault):
    rule, make = FAULTS[fault]
    judged(Plain())
    with pytest.raises(BackendViolation) as caught:
        judged(make())
    assert caught.value.rule == rule, caught.value


@pytest.mark.parametrize(
    ("rule", "wrap"),
    [
        (
            "aliases",
            lambda f, i: lambda *a: [v.clone(memory_format=torch.preserve_format) for v in f(*a)],
        ),
        ("inputs", lambda f, i: lambda *a: f(*[v.clone() for v in a])),
    ],
)
def test_a_backend_that_only_says_that_it_keeps_aliases_is_caught(rule, wrap):
    judged(Aliasing("plain", lambda f, i: f), writes=True)
    with pytest.raises(BackendViolation) as caught:
        judged(Aliasing("plain", wrap), writes=True)
    assert caught.value.rule in (rule, "inputs"), caught.value


def fingerprints():
    number = itertools.count()
    return lambda: str(next(number))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("name", "no name"),
        ("takes_scalars", None),
        ("keeps_aliases", 1),
        ("max_rank", "three"),
        ("keep_ops", {"aten.relu.default"}),
        ("compile", None),
        ("available", lambda: False),
        ("fingerprint", fingerprints()),
        ("fingerprint", lambda: 3),
        ("dump", lambda made: b""),
    ],
)
def test_a_wrong_member_is_named(member, value):
    backend = Plain()
    setattr(backend, member, value)
    with pytest.raises(BackendViolation, match=member) as caught:
        check_backend(backend, graphs=0)
    assert caught.value.rule == "members"


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda options: None, "takes an option that does not exist"),
        (lambda options: {}["depth"], "KeyError"),
        (lambda options: (_ for _ in ()).throw(OptionError("wrong")), "does not name the option"),
    ],
)
def test_options_that_nobody_checks_are_found(check, told):
    backend = Plain()
    backend.check_options = check
    with pytest.raises(BackendViolation, match=told):
        check_backend(backend, graphs=0)


def test_every_rule_has_a_faulty_backend():
    shown = {rule for rule, _ in FAULTS.values()} | {"aliases", "members"}
    assert shown == set(BACKEND_RULES)


def test_a_violation_carries_a_program_that_shows_it():
    with pytest.raises(BackendViolation) as caught:
        judged(Silent())
    program = caught.value.reproduction
    assert "TensorSpec(shape=(-1, 3)" in program, "its sizes are symbolic there too"
    program = program.replace(f"from {Silent.__module__} import Silent", "")
    with pytest.raises(BackendViolation, match="without a reason"):
        exec(program, {"Silent": Silent})
