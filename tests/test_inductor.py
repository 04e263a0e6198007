"""The Inductor backend: what it refuses and why, and what its blocks guarantee."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.fx import Graph

from hierpart.backends.inductor import InductorBackend, boxed_entry
from hierpart.backends.protocol import Backend
from hierpart.backends.registry import get_backend
from hierpart.build.compiling import compile_model
from hierpart.errors import OptionError
from hierpart.graph.canonical_form import canonical
from hierpart.graph.node.op_names import qualified_name
from hierpart.options import Options
from hierpart.plan import Reason
from tests.doubles import Double, same

INDUCTOR = InductorBackend()
aten = torch.ops.aten


def node_of(target, *values, op="call_function", result=None, **kwargs):
    """Return a node with an input for each of ``values`` and ``result`` as its recorded value."""
    graph = Graph()
    inputs = []
    for i, value in enumerate(values):
        inputs.append(graph.placeholder(f"x{i}"))
        if value is not None:
            inputs[-1].meta["val"] = value
    node = graph.create_node(op, target, tuple(inputs), kwargs)
    graph.output(node)
    if result is not None:
        node.meta["val"] = result
    return node


def fake(*size, **kwargs):
    with FakeTensorMode():
        return torch.empty(*size, **kwargs)


X = fake(2, 3)


def test_it_is_the_registered_backend():
    assert isinstance(get_backend("inductor"), InductorBackend)
    assert isinstance(INDUCTOR, Backend)
    assert INDUCTOR.available() is None
    assert f"torch={torch.__version__}" in INDUCTOR.fingerprint()


@pytest.mark.parametrize(
    "node",
    [
        node_of(aten.add.Tensor, X, X, result=X),
        node_of(aten.nonzero.default, X, result=fake(2, 2, dtype=torch.int64)),
        node_of(aten.topk.default, X, result=[X, fake(2, 3, dtype=torch.int64)]),
        node_of(aten._assert_async.msg, X, result=None),
        node_of(aten.view_as_real.default, fake(2, dtype=torch.complex64), result=fake(2, 2)),
        node_of(aten.randn_like.default, X, result=X),
        node_of(aten.sym_size.int, X, result=2),
        node_of(torch.relu, X, result=X),
        node_of("relu", X, op="call_method", result=X),
        node_of(torch.nn.functional.gelu, X, result=X),
    ],
    ids=lambda n: qualified_name(n.target),
)
def test_what_standalone_compile_takes_is_taken(node):
    assert INDUCTOR.verdict(node).supported


@pytest.mark.parametrize(
    ("node", "reason", "detail"),
    [
        (node_of(aten.add.Tensor, X, X), Reason.NO_METADATA, ""),
        (node_of(aten.neg.default, None, result=X), Reason.NO_METADATA, "of its input x0"),
        (node_of(aten.add_.Tensor, X, X, result=X), Reason.MUTATES, "aten.add_.Tensor"),
        (node_of("relu", X, op="call_module", result=X), Reason.NOT_LISTED, "torch.export"),
        (node_of(copy.copy, X, result=X), Reason.NOT_LISTED, "function of copy"),
        (
            node_of(aten.neg.default, fake(2, 2).to_sparse(), result=X),
            Reason.LAYOUT,
            "torch.sparse_coo",
        ),
        (node_of(aten.neg.default, X, result=fake(2, device="meta")), Reason.LAYOUT, "device meta"),
        (
            node_of(aten.neg.default, X, result=torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)),
            Reason.LAYOUT,
            "quantised",
        ),
        (node_of(torch.ops.prims._make_token.default, result=fake(0)), Reason.EFFECT, "_make_token"),
        (
            node_of(torch.ops.higher_order.with_effects, X, result=(X,)),
            Reason.EFFECT,
            "with_effects",
        ),
        (
            node_of(torch.ops.higher_order.associative_scan, X, result=(X,)),
            Reason.CONTROL_FLOW,
            "associative_scan",
        ),
        (
            node_of(torch.ops.higher_order.auto_functionalized, X, result=(X,)),
            Reason.CONTROL_FLOW,
            "auto_functionalized around",
        ),
        (node_of(aten.neg.default, object(), result=X), Reason.NON_TENSOR_BOUNDARY, "object"),
    ],
    ids=lambda v: qualified_name(v.target) if isinstance(v, torch.fx.Node) else None,
)  # fmt: skip
def test_refusals_have_a_reason(node, reason, detail):
    verdict = INDUCTOR.verdict(node)
    assert not verdict.supported
    assert verdict.backend == "inductor"
    assert verdict.reason is reason
    assert detail in verdict.detail


def cond_in(body):
    class Choosing(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, body, lambda a: a.cos(), (x,))

    program = torch.export.export(Choosing(), (torch.randn(3),), strict=False)
    graph = program.run_decompositions({}).graph
    return next(n for n in graph.nodes if n.target is torch.ops.higher_order.cond)


def test_control_flow_is_taken_with_its_branches_or_refused_for_one_of_their_ops():
    assert INDUCTOR.verdict(cond_in(lambda a: a.sin() * 2)).supported
    inner = cond_in(lambda a: torch.cond(a.sum() > 1, lambda b: b + 1, lambda b: b.neg(), (a,)))
    assert INDUCTOR.verdict(inner).supported
    node = cond_in(lambda a: a.sin() * 2)
    branch = node.graph.owning_module.get_submodule(str(node.args[1].target))
    for inside in branch.graph.nodes:
        inside.meta.pop("val", None)
    verdict = INDUCTOR.verdict(node)
    assert verdict.reason is Reason.CONTROL_FLOW
    assert str(node.args[1].target) in verdict.detail


def test_a_branch_with_a_tensor_of_its_own_is_refused():
    literal = torch.tensor([1.0, 2.0, 3.0])
    node = cond_in(lambda a: a.sin() * 2)
    owner = node.graph.owning_module
    branch = owner.get_submodule(str(node.args[1].target))
    branch.literal = literal
    with branch.graph.inserting_before(branch.graph.output_node()):
        branch.graph.create_node("get_attr", "literal")
    verdict = INDUCTOR.verdict(node)
    assert verdict.reason is Reason.CONTROL_FLOW
    assert "literal is not an operand" in verdict.detail


def test_settings_are_checked_against_inductors_config():
    INDUCTOR.check_options({"max_autotune": True, "triton.cudagraphs": False})
    with pytest.raises(OptionError, match="did you mean 'max_autotune'"):
        INDUCTOR.check_options({"max_autotun": True})


class Wide(nn.Module):
    """What a block may meet: layouts, views, repeated and passed-through outputs, integers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x, index):
        y = self.norm(self.conv(x)).relu()
        z = y.permute(0, 2, 3, 1)
        values, places = z.flatten(1).topk(3, dim=1)
        torch._assert_async((index >= 0).all(), "negative index")
        return z, z.softmax(-1)[index], values * x.shape[0], places, x, x.view(-1), z


@pytest.fixture(scope="module")
def wide():
    torch.manual_seed(0)
    model = Wide()
    reference = copy.deepcopy(model)
    module = compile_model(
        model, (torch.randn(4, 3, 6, 6), torch.tensor([0, 1])),
        dynamic_shapes=({0: Dim("n", min=1, max=32)}, {0: Dim("k", min=1, max=32)}),
        options=Options(backend_priority=("inductor",), min_block_size=1),
    )  # fmt: skip
    return module, reference


@pytest.mark.inductor
def test_results_layouts_and_updates_are_those_of_eager(wide):
    module, reference = wide
    assert {o.backend for o in module.report.outcomes} >= {"inductor"}
    assert all(o.error is None for o in module.report.outcomes)
    for size in (4, 7, 1, 32):
        x, index = torch.randn(size, 3, 6, 6), torch.arange(size) % size
        with torch.no_grad():
            expected = reference(x, index)
        result = module(x, index)
        assert [t.stride() for t in result] == [t.stride() for t in expected]
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        assert result[4] is x
        assert result[5].data_ptr() == x.data_ptr()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.inductor
def test_assertions_still_hold(wide):
    with pytest.raises(RuntimeError, match="negative index"):
        wide[0](torch.randn(4, 3, 6, 6), torch.tensor([-1]))


@pytest.mark.inductor
def test_blocks_are_called_with_one_list_and_empty_it():
    """Guards the private way to the artifact's own boxed function on this version of torch."""
    gm = torch.export.export(nn.ReLU(), (torch.randn(3),), strict=False).run_decompositions({})
    prepared = canonical(gm.graph_module)
    from torch._inductor import standalone_compile

    with torch.no_grad():
        artifact = standalone_compile(
            prepared.block, list(prepared.inputs), dynamic_shapes="from_graph", aot=True,
            donate_graph_module=True,
        )  # fmt: skip
    entry = boxed_entry(artifact)
    assert entry is not None, "torch has moved the boxed function inside its compiled artifacts"
    x = torch.randn(3)
    args = [x]
    (result,) = entry(args)
    assert args == []
    same(result, x.relu())
    assert boxed_entry(object()) is None


@pytest.mark.inductor
def test_equal_layers_are_compiled_once_with_their_own_weights():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.GELU()) for _ in range(4)))
    x = torch.randn(2, 8)
    module = compile_model(
        model, (x,), options=Options(
            backend_priority=("inductor",), min_block_size=1,
            torch_executed_ops=("torch.ops.aten.gelu.default",),
        ),
    )  # fmt: skip
    statuses = [o.status for o in module.report.outcomes if o.planned == "inductor"]
    assert statuses == ["compiled", "shared", "shared", "shared"]
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)
        model[2][0].weight.mul_(3)
        torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.inductor
def test_a_predicate_from_a_size_is_not_baked_in():
    class Choosing(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda a: a.sin(), lambda a: a.cos(), (x,)) * 2

    module = compile_model(
        Choosing(), (torch.randn(3, 2),), dynamic_shapes=({0: Dim("n", min=1, max=32)},),
        options=Options(backend_priority=("inductor",), min_block_size=1),
    )  # fmt: skip
    assert [o.backend for o in module.report.outcomes] == ["inductor"]
    for size in (3, 4, 5, 20):
        x = torch.randn(size, 2)
        torch.testing.assert_close(module(x), Choosing()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.inductor
def test_what_inductor_cannot_lower_falls_back_with_its_own_message(monkeypatch):
    from torch._inductor import lowering

    def refuse(*args, **kwargs):
        raise NotImplementedError("no code for erf here")

    monkeypatch.setitem(lowering.lowerings, aten.erf.default, refuse)
    with torch._inductor.config.patch(force_disable_caches=True):
        second = Double("second")
        module = compile_model(
            torch.export.export(Erf(), (torch.randn(3),), strict=False),
            options=Options(
                backend_priority=("inductor", "second"), backend_support_map={"second": second},
                min_block_size=1,
            ),
        )  # fmt: skip
    (outcome,) = module.report.outcomes
    assert (outcome.planned, outcome.backend) == ("inductor", "second")
    assert "no code for erf here" in outcome.error
    x = torch.randn(3)
    same(module(x), Erf()(x))


class Erf(nn.Module):
    def forward(self, x):
        return torch.erf(x) + 1


@pytest.mark.inductor
def test_settings_reach_inductor():
    seen = []
    graph = torch.export.export(Erf(), (torch.randn(4),), strict=False).run_decompositions({})
    prepared = canonical(graph.graph_module)
    settings = {"post_grad_custom_pre_pass": seen.append, "force_disable_caches": True}
    with torch.no_grad():
        INDUCTOR.compile(prepared.block, prepared.inputs, settings)
    assert len(seen) == 1
    assert isinstance(seen[0], Graph)
