"""The ``torch.compile`` backend: options, graphs, shapes, training, and what passes through."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from hierpart.dynamo import Backend, hierpart
from hierpart.errors import OptionError, UnsupportedModeError
from tests.doubles import Double, Raising, Wrapping, in_layout, same, turned


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def backend_of(*doubles, **options):
    return Backend(
        backend_priority=[d.name for d in doubles],
        backend_support_map={d.name: d for d in doubles},
        min_block_size=1,
        **options,
    )


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_the_name_is_registered_by_the_entry_point_alone():
    code = (
        "import sys, torch, torch._dynamo\n"
        "assert 'hierpart' in torch._dynamo.list_backends()\n"
        "assert 'hierpart' not in sys.modules\n"
        "f = torch.compile(lambda x: x.sin().cos(), backend='hierpart', options={\n"
        "    'backend_priority': [], 'min_block_size': 1})\n"
        "x = torch.ones(3)\n"
        "assert torch.equal(f(x), x.sin().cos())\n"
        "assert 'hierpart.dynamo' in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_misspelt_option_says_what_was_meant():
    f = torch.compile(lambda x: x + 1, backend="hierpart", options={"min_blok_size": 3})
    with pytest.raises(Exception, match=r"unknown option 'min_blok_size'; did you mean"):
        f(torch.ones(2))
    with pytest.raises(OptionError, match="did you mean 'min_block_size'"):
        Backend(min_blok_size=3)
    with pytest.raises(OptionError, match="Inductor has no setting 'max_autotun'"):
        Backend(backend_priority=["inductor"], inductor={"max_autotun": True})
    with pytest.raises(OptionError, match="unknown keyword 'optoins'"):
        hierpart(torch.fx.symbolic_trace(lambda x: x), [], optoins={})
    with pytest.raises(Exception, match=r"give them to hierpart\.Backend"):
        torch.compile(lambda x: x + 1, backend=backend_of(), options={"fallback": False})(
            torch.ones(2)
        )


def test_modes_are_inductors_or_refused():
    for mode in (None, "default"):
        assert Backend(mode=mode) == Backend()
    tuned = Backend(
        mode="max-autotune-no-cudagraphs", inductor={"coordinate_descent_tuning": False}
    )
    assert tuned.options.options_of("inductor") == {
        "max_autotune": True,
        "coordinate_descent_tuning": False,
    }
    assert Backend(mode="reduce-overhead").options.options_of("inductor") == {
        "triton.cudagraphs": True
    }
    with pytest.raises(UnsupportedModeError, match="did you mean 'max-autotune'"):
        Backend(mode="max-autotun")
    with pytest.raises(UnsupportedModeError, match="'inductor' is not in backend_priority"):
        Backend(mode="max-autotune", backend_priority=["tensorrt"])
    f = torch.compile(lambda x: x + 1, backend="hierpart", mode="reduce-overhead", options=None)
    close(f(torch.ones(2)), torch.full((2,), 2.0))


def test_equal_backends_compile_once():
    double = Double("first")
    one, two = backend_of(double), backend_of(double)
    assert one == two
    assert hash(one) == hash(two)
    assert one != backend_of(double, fallback=False)
    assert one != object()

    def f(x):
        return x.sin() + 1

    x = torch.randn(3)
    for backend in (one, two, backend_of(double)):
        close(torch.compile(f, backend=backend)(x), f(x))
    assert (len(one.reports), len(two.reports)) == (1, 0)
    torch._dynamo.reset()
    assert one.reports == []


def test_inference_is_split_and_reported():
    backend, model, x = backend_of(Double("first", refuses=["relu"])), layers(), torch.randn(3, 4)
    with torch.no_grad():
        close(torch.compile(model, backend=backend)(x), model(x))
    (report,) = backend.reports
    assert [b.backend for b in report.plan] == ["first", "eager", "first", "eager", "first"]
    assert "inference graph of torch.compile" in report.notes


def test_sizes_are_not_baked_in():
    double = Double("first", refuses=["relu"])
    backend, model = backend_of(double), layers()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for size in (3, 4, 5, 9, 1, 17):
            x = torch.randn(size, 4)
            close(compiled(x), model(x))
    assert len(backend.reports) <= 3  # static, then dynamic, then perhaps size 1

    def sizes(x):
        return x.relu() * x.shape[0] + x.new_full((x.shape[0],), x.shape[1]).unsqueeze(1), x.shape[
            0
        ]

    compiled = torch.compile(sizes, backend=backend, dynamic=True)
    for shape in ((3, 4), (5, 7), (8, 2)):
        x = torch.randn(shape)
        same(compiled(x), sizes(x))
    assert compiled(torch.ones(3, 4))[1] == 3


def test_a_guard_that_a_compiler_asks_for_becomes_a_recompile():
    asked = []

    def ask(function, inputs):
        sizes = [
            s for t in inputs for s in getattr(t, "shape", (t,)) if isinstance(s, torch.SymInt)
        ]
        if sizes:
            asked.append(bool(sizes[0] > 6))
        bound = asked[-1] if sizes else None

        def run(*args):
            tensor = next(a for a in args if isinstance(a, torch.Tensor))
            assert bound is None or (tensor.shape[0] > 6) == bound
            return function(*args)

        return run

    backend = backend_of(Wrapping("first", ask))
    compiled = torch.compile(lambda x: x.sin() * 2, backend=backend, dynamic=True)
    for size in (4, 5, 9, 12, 6):
        x = torch.randn(size)
        close(compiled(x), x.sin() * 2)
    assert asked == [False, True]


def test_graph_breaks_and_data_dependent_branches():
    backend = backend_of(Double("first", refuses=["relu"]))

    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y.relu() + 1
        return y - 1

    compiled = torch.compile(f, backend=backend)
    for x in (torch.ones(3), -torch.ones(3)):
        close(compiled(x), f(x))
    assert len(backend.reports) >= 3


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


@pytest.mark.parametrize("dynamic", [None, True])
def test_training_equals_eager(dynamic):
    torch.manual_seed(1)
    model = Stateful()
    reference = copy.deepcopy(model)
    backend = backend_of(Double("first", refuses=["relu", "threshold"]))
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, reference)]
    for step in range(6):
        x = torch.randn(4 + step % 2, 3, 6, 6, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        for network, optimiser, value in zip(
            (compiled, reference), optimisers, (x, other), strict=True
        ):
            torch.manual_seed(step)
            network(value).square().sum().backward()
            optimiser.step()
            optimiser.zero_grad()
        close(x.grad, other.grad)
    for name, value in reference.state_dict().items():
        close(model.state_dict()[name], value)
    kinds = {note for report in backend.reports for note in report.notes}
    assert {"forward graph of torch.compile", "backward graph of torch.compile"} <= kinds
    owners = {o.backend for report in backend.reports for o in report.outcomes}
    assert owners == {"first", "eager"}


def test_saved_activations_are_brought_into_the_layout_that_backward_was_traced_with():
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = turned(x)
            ctx.save_for_backward(y)
            return y * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].sin()

    seen: list[bool] = []
    backend = backend_of(Wrapping("first", in_layout(seen), refuses=["turned"]))
    x = torch.randn(3, 4, requires_grad=True)
    torch.compile(lambda x: Turned.apply(x) + 1, backend=backend)(x).sum().backward()
    close(x.grad, (x.detach() + 0).sin())
    assert len(backend.reports) == 2
    assert len(seen) >= 2
    assert all(seen)


def test_default_partitioning_without_inductor_and_min_cut_with_it():
    from torch._functorch.partitioners import (
        default_partition,
        min_cut_rematerialization_partition,
    )

    assert backend_of(Double("a"))._partitioner() is default_partition
    assert Backend()._partitioner() is min_cut_rematerialization_partition


def test_updates_of_inputs_views_and_regions():
    backend = backend_of(Double("first", refuses=["relu"]))

    def f(x, y):
        view = x.view(-1)
        x.add_(1)
        with torch.autocast("cpu", torch.bfloat16):
            z = y @ y
        with torch.no_grad():
            w = z.relu() * view.sum()
        y.mul_(2)
        return view, w, y[0], x

    compiled = torch.compile(f, backend=backend)
    for _ in range(2):
        x, y = torch.randn(3, 4), torch.randn(4, 4)
        other_x, other_y = x.clone(), y.clone()
        result, expected = compiled(x, y), f(other_x, other_y)
        same(result, expected)
        same((x, y), (other_x, other_y))
        assert result[0].data_ptr() == x.data_ptr()
        assert result[2].data_ptr() == y.data_ptr()
    (report,) = backend.reports
    assert not any("copy_." in op for op in report.plan.ops.values()), "writes are outputs"


def test_random_numbers_are_those_of_eager():
    backend = backend_of(Double("first", refuses=["relu"]))

    def f(x):
        noise = torch.randn_like(x).relu()
        return nn.functional.dropout(x + torch.rand_like(x), 0.5) + noise

    compiled, x = torch.compile(f, backend=backend), torch.randn(16)
    for seed in range(3):
        torch.manual_seed(seed)
        result = compiled(x)
        torch.manual_seed(seed)
        same(result, f(x))


def test_control_flow_and_constants():
    backend = backend_of(Double("first", refuses=["relu", "cond"]))

    def f(x):
        shifted = x + torch.tensor([1.0, 2.0, 3.0])
        return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos(), (shifted,)) + 1

    compiled = torch.compile(f, backend=backend)
    with torch.no_grad():
        for x in (torch.ones(3), -torch.ones(3)):
            close(compiled(x), f(x))


def test_a_failed_block_falls_back_and_without_fallback_the_compile_fails():
    error = RuntimeError("no such kernel")
    backend = backend_of(Raising("first", error), Double("second"))
    x = torch.randn(3)
    close(torch.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
    assert backend.reports[0].outcomes[0].backend == "second"
    torch._dynamo.reset()
    strict = backend_of(Raising("first", error), fallback=False)
    with pytest.raises(Exception, match=r"failed to compile with first: RuntimeError: no such"):
        torch.compile(lambda x: x.sin() + 1, backend=strict)(x)


def test_a_restart_that_aot_asks_for_is_passed_on():
    """A float argument with ``dynamic=True`` makes AOTAutograd ask Dynamo to trace again."""
    calls = []

    class Seen(Backend):
        def __call__(self, gm, example_inputs, **kwargs):
            calls.append(len(list(gm.graph.nodes)))
            return super().__call__(gm, example_inputs, **kwargs)

    double = Double("first")
    backend = Seen(
        backend_priority=["first"], backend_support_map={"first": double}, min_block_size=1
    )
    model = nn.BatchNorm1d(3).train()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for size in (4, 6):
        x = torch.randn(size, 3)
        close(compiled(x), reference(x))
    assert double.compiled
    assert len(calls) == 2
    close(model.running_mean, reference.running_mean)


def test_dynamos_restart_from_a_block_reaches_dynamo():
    from torch._dynamo.exc import SkipFrame

    backend = backend_of(Raising("first", SkipFrame("not this one")), Double("second"))
    x = torch.randn(3)
    close(torch.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
    assert backend.reports == []


def test_the_backend_keeps_no_example_inputs():
    import gc
    import weakref

    backend = backend_of(Double("first"))
    model, x = layers(), torch.randn(2, 4)
    references = [weakref.ref(x), weakref.ref(model[0].weight)]
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    reports = list(backend.reports)
    del model, x
    torch._dynamo.reset()
    gc.collect()
    assert [r() for r in references] == [None, None]
    assert len(reports) == 1


def test_a_compiled_module_runs_inside_torch_compile():
    from hierpart.build.compiling import compile_model
    from tests.doubles import options_for

    module = compile_model(
        layers(), (torch.randn(3, 4),), options=options_for(Double("first", ["relu"]))
    )

    def f(x):
        return module(x * 2) + 1

    x = torch.randn(3, 4)
    with torch.no_grad():
        close(torch.compile(f, backend="eager")(x), f(x))
