"""Building blocks: falling down the priority, sharing equal blocks, exact layouts, isolation."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from hierpart.build.compiling import build_blocks, build_graph, compile_model
from hierpart.capture.captured import capture
from hierpart.errors import BackendCompileError, BackendUnavailableError, OptionError
from hierpart.graph.canonical_form import canonical
from hierpart.options import Options
from hierpart.partition.pipeline import run_line
from tests.doubles import Double, Raising, Wrapping, in_layout, options_for, same, turned


class Chain(nn.Module):
    """Three layers of equal structure; each has two activations that a backend may refuse."""

    def __init__(self, width=4, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x) * 2).relu()
        return x


@pytest.fixture
def chain():
    torch.manual_seed(0)
    return Chain(), (torch.randn(3, 4),)


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return torch.export.export(Chain(), (torch.randn(3, 4),), strict=False)


def compiled(program, *backends, **fields):
    return compile_model(program, options=options_for(*backends, **fields))


def ran(module):
    return [outcome.backend for outcome in module.report.outcomes]


def agrees(module, program):
    x = torch.randn(3, 4)
    with torch.no_grad():
        same(module(x), program.module()(x))


def test_a_failed_block_goes_to_the_next_backend(program, caplog):
    first, second = Raising("first", RuntimeError("no such kernel\ndetails")), Double("second")
    with caplog.at_level(logging.INFO, logger="hierpart"):
        module = compiled(program, first, second)
    (outcome,) = module.report.outcomes
    assert (outcome.planned, outcome.backend, outcome.status) == ("first", "second", "fell back")
    assert outcome.error == "RuntimeError: no such kernel\ndetails"
    assert [(a.backend, a.error is None) for a in outcome.attempts] == [
        ("first", False),
        ("second", True),
    ]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "no such kernel" in warnings[0]
    assert "runs on second" in warnings[0]
    assert "details" not in warnings[0]
    agrees(module, program)


def test_backends_that_refuse_a_node_of_the_block_are_passed_over(program):
    first = Raising("first", RuntimeError("no"), refuses=["relu"])
    second = Double("second", refuses=["tanh", "relu"])
    third = Double("third", refuses=["relu"])
    module = compiled(program, first, second, third)
    assert second.compiled == []
    failed = [o for o in module.report.outcomes if o.planned == "first"]
    assert failed
    assert {o.backend for o in failed} == {"third"}
    agrees(module, program)


def test_the_last_resort_is_eager(program):
    module = compiled(
        program, Raising("first", RuntimeError("no")), Raising("b", ValueError("nor"))
    )
    (outcome,) = module.report.outcomes
    assert (outcome.backend, outcome.status) == ("eager", "fell back")
    assert [a.error for a in outcome.attempts] == ["RuntimeError: no", "ValueError: nor"]
    agrees(module, program)


def test_without_fallback_the_failure_is_raised_with_its_cause(program):
    error = RuntimeError("no such kernel")
    with pytest.raises(BackendCompileError, match=r"block 0 .*first.*fallback=True") as caught:
        compiled(program, Raising("first", error), Double("second"), fallback=False)
    assert caught.value.__cause__ is error


def test_a_name_without_a_compiler_says_so(program):
    ops = {"torch.ops.aten.linear.default", "torch.ops.aten.mul.Tensor"}
    module = compile_model(
        program,
        options=Options(
            backend_priority=("mine",), backend_support_map={"mine": ops}, min_block_size=1
        ),
    )
    assert set(ran(module)) == {"eager"}
    assert "no backend is registered as 'mine'" in module.report.outcomes[0].error
    agrees(module, program)


def test_tensorrt_without_engines_says_why_and_moves_on(program):
    second = Double("second")
    ops = {"torch.ops.aten.linear.default", "torch.ops.aten.mul.Tensor"}
    options = Options(
        backend_priority=("tensorrt", "second"),
        backend_support_map={"tensorrt": ops, "second": second},
        min_block_size=1,
    )
    module = compile_model(program, options=options)
    planned = [o for o in module.report.outcomes if o.planned == "tensorrt"]
    assert planned
    assert {o.backend for o in planned} == {"second"}
    assert planned[0].error.startswith("BackendUnavailableError: TensorRT: ")
    with pytest.raises(BackendCompileError) as caught:
        compile_model(program, options=replace(options, fallback=False))
    assert isinstance(caught.value.__cause__, BackendUnavailableError)


def control_flow_errors():
    from torch._dynamo import exc
    from torch._inductor.exc import InductorError

    restart = exc.TensorifyScalarRestartAnalysis()
    yield restart, restart
    skip = exc.SkipFrame("skip")
    yield skip, skip
    short = exc.ShortenTraceback("short", first_useful_frame=None)
    yield short, short
    yield InductorError(restart, None), restart


@pytest.mark.parametrize("case", range(4))
def test_dynamos_control_flow_passes_through(program, case):
    raised, expected = list(control_flow_errors())[case]
    with pytest.raises(type(expected)) as caught:
        compiled(program, Raising("first", raised), Double("second"))
    assert caught.value is expected


def test_inductors_own_failure_is_a_failure_and_reported_as_its_cause(program):
    from torch._inductor.exc import InductorError

    error = InductorError(NotImplementedError("no lowering"), None)
    module = compiled(program, Raising("first", error), Double("second"))
    assert ran(module) == ["second"]
    assert module.report.outcomes[0].error == "NotImplementedError: no lowering"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OptionError("no such setting")])
def test_what_the_user_did_passes_through(program, error):
    with pytest.raises(type(error)):
        compiled(program, Raising("first", error), Double("second"))


def test_equal_blocks_compile_once_with_their_own_weights(program):
    backend = Double("first", refuses=["relu"])
    module = compiled(program, backend)
    assert len(backend.compiled) == 1
    outcomes = [o for o in module.report.outcomes if o.planned == "first"]
    assert [(o.status, o.shared_with) for o in outcomes] == [
        ("compiled", None),
        ("shared", 0),
        ("shared", 0),
    ]
    assert "compiled 1, shared 2" in module.report.notes
    agrees(module, program)


def test_equal_blocks_that_fail_are_tried_once(program, caplog):
    backend = Raising("first", RuntimeError("no"), refuses=["relu"])
    module = compiled(program, backend)
    assert len(backend.compiled) == 1
    outcomes = [o for o in module.report.outcomes if o.planned == "first"]
    assert {(o.status, o.backend, o.error) for o in outcomes} == {
        ("fell back", "eager", "RuntimeError: no")
    }
    agrees(module, program)


class Varied(nn.Module):
    """Pairs of blocks around a relu; the two sides differ in one respect."""

    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return self.right(self.left(x).relu())


DIFFERENCES = {
    "a constant": (lambda x: x * 2.0 + 1, lambda x: x * 3.0 + 1),
    "the type of a constant": (lambda x: x * 2 + 1, lambda x: x * 2.0 + 1),
    "wiring": (lambda x: x.sin() - x.cos(), lambda x: x.cos() - x.sin()),
    "a dimension": (lambda x: x.sum(0, keepdim=True) + x, lambda x: x.sum(1, keepdim=True) + x),
    "a dtype": (lambda x: (x * 2).to(torch.float64) * 1.5, lambda x: x * 2 * 1.5),
    "strides": (lambda x: (x + 1).t().contiguous().t(), lambda x: (x + 1).contiguous()),
    "a keyword": (lambda x: torch.add(x, x, alpha=2), lambda x: torch.add(x, x, alpha=3)),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_blocks_that_differ_in_one_thing_compile_each(name):
    backend = Double("first", refuses=["relu"])
    model, x = Varied(*DIFFERENCES[name]), torch.randn(4, 4)
    module = compile_model(model, (x,), options=options_for(backend))
    same(module(x), model(x))
    assert len(backend.compiled) == 2


def test_blocks_whose_inputs_lie_otherwise_compile_each():
    class Turning(nn.Module):
        def forward(self, x):
            return x.sin().relu().t().sin()

    backend, x = Double("first", refuses=["relu", "transpose", ".t."]), torch.randn(4, 4)
    module = compile_model(Turning(), (x,), options=options_for(backend))
    assert [len(b.nodes) for b in module.plan] == [1, 2, 1]
    same(module(x), Turning()(x))
    assert len(backend.compiled) == 2


def test_a_branch_that_a_backend_takes_is_its_own_copy_too():
    class Choosing(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    def destroy(function, inputs):
        for module in backend.compiled[-1].children():
            for node in reversed(list(module.graph.nodes)):
                module.graph.erase_node(node)
        return function

    backend = Wrapping("first", destroy)
    graph = capture(
        torch.export.export(Choosing(), (torch.randn(3),), strict=False),
        options=options_for(backend),
    ).graph
    sizes = {name: len(m.graph.nodes) for name, m in graph.named_children()}
    assert len(sizes) == 2
    build_graph(graph, options_for(backend))
    assert len(list(backend.compiled[-1].children())) == 2
    assert {name: len(m.graph.nodes) for name, m in graph.named_children()} == sizes


def test_the_key_forgets_names_and_weights_but_not_sharing(program):
    def key(model):
        graph = capture(
            torch.fx.symbolic_trace(model), (torch.randn(2, 2),), options=options_for(Double("a"))
        ).graph
        return canonical(graph).key

    class Two(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.a = nn.Parameter(torch.randn(2))
            self.b = self.a if tied else nn.Parameter(torch.randn(2))
            self.tied = tied

        def forward(self, renamed):
            return renamed * self.a + (self.a if self.tied else self.b)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.weight + self.bias

    assert key(Two(tied=False)) == key(Other())
    assert key(Two(tied=True)) != key(Other())


def test_the_backend_gets_its_own_copy_without_tensors(program):
    def destroy(function, inputs):
        block = backend.compiled[-1]
        assert list(block.state_dict()) == []
        assert all(n.op != "get_attr" for n in block.graph.nodes)
        assert len(inputs) == len(block.graph.find_nodes(op="placeholder"))
        for node in reversed(list(block.graph.nodes)):
            block.graph.erase_node(node)
        return function

    backend = Wrapping("first", destroy)
    graph = capture(program, options=options_for(backend)).graph
    result = run_line(graph, options_for(backend))
    parent = result.split()
    before = [
        (str(n.format_node()), n.meta.get("val")) for b in parent.children() for n in b.graph.nodes
    ]
    build_blocks(parent, result.plan, options_for(backend))
    after = [
        (str(n.format_node()), n.meta.get("val")) for b in parent.children() for n in b.graph.nodes
    ]
    assert all(a[0] == b[0] and a[1] is b[1] for a, b in zip(before, after, strict=True))


def packed(function, inputs):
    """Hand out contiguous memory, as an engine does."""
    return lambda *args: [t.contiguous() for t in function(*args)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_have_the_strides_that_the_graph_says(dynamic):
    class Transposing(nn.Module):
        def forward(self, x):
            y = (x * 2).permute(0, 2, 1)
            return y, y.relu()

    x = torch.randn(4, 3, 5)
    shapes = ({0: torch.export.Dim("a", min=2), 1: torch.export.Dim("b", min=2)},)
    backend = Wrapping("first", packed, refuses=["relu"])
    module = compile_model(
        Transposing(), (x,), dynamic_shapes=shapes if dynamic else None,
        options=options_for(backend),
    )  # fmt: skip
    for size in [(4, 3, 5), (6, 2, 5)] if dynamic else [(4, 3, 5)]:
        x = torch.randn(*size)
        same(module(x), Transposing()(x))


def test_inputs_come_in_the_strides_that_the_graph_says():
    class Turning(nn.Module):
        def forward(self, x):
            return turned(x * 2) + 1

    seen: list[bool] = []
    backend, x = Wrapping("first", in_layout(seen), refuses=["turned"]), torch.randn(3, 4)
    module = compile_model(Turning(), (x,), options=options_for(backend))
    assert ran(module) == ["first", "eager", "first"]
    same(module(x), x * 2 + 1)
    assert seen == [True, True]


def asking(question):
    """Return a wrap that asks ``question`` about the first open size, as a compiler might."""

    def wrap(function, inputs):
        size = next(s for t in inputs for s in t.shape if isinstance(s, torch.SymInt))
        assert question(size)  # puts a guard on the symbol

        def run(*args):
            assert question(args[0].shape[0]), "called for a size that it was not compiled for"
            return function(*args)

        return run

    return wrap


def dynamic(wrap):
    x = torch.randn(4, 3)
    return compile_model(
        Varied(lambda x: x * 2, lambda x: x + 1), (x,),
        dynamic_shapes=({0: torch.export.Dim("n", min=2, max=9)},),
        options=options_for(Wrapping("first", wrap, refuses=["relu"]), Double("second", ["relu"])),
    )  # fmt: skip


@pytest.mark.parametrize(
    "question", [lambda n: n == 4, lambda n: 2 * n == 8, lambda n: int(n) == 4]
)
def test_a_compiler_that_would_fix_a_size_fails(question):
    module = dynamic(asking(question))
    planned = [o for o in module.report.outcomes if o.planned == "first"]
    assert {o.backend for o in planned} == {"second"}
    assert "would only be right where" in planned[0].error
    for n in (4, 7, 2):
        x = torch.randn(n, 3)
        same(module(x), (x * 2).relu() + 1)


@pytest.mark.parametrize("question", [lambda n: n % 2 == 0, lambda n: n < 6])
def test_where_a_condition_of_compiled_code_fails_all_runs_eagerly(question):
    module = dynamic(asking(question))
    assert ran(module) == ["first", "eager", "first"]
    for n in (4, 7, 2, 9):
        x = torch.randn(n, 3)
        same(module(x), (x * 2).relu() + 1)


def test_blocks_compile_apart_from_the_ambient_compile(program):
    from torch._guards import TracingContext, tracing

    states = []

    def look(function, inputs):
        states.append(
            (TracingContext.try_get(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        )
        return function

    context = TracingContext(None)
    with tracing(context), torch.autocast("cpu", torch.bfloat16):
        compiled(program, Wrapping("first", look))
        assert TracingContext.try_get() is context
    assert states == [(None, False, False)]


def test_backend_options_reach_the_backend_and_are_checked_first(program):
    seen = []

    class Picky(Double):
        def check_options(self, options):
            if set(options) - {"level"}:
                raise OptionError("unknown setting")

        def compile(self, block, inputs, options):
            seen.append(dict(options))
            return super().compile(block, inputs, options)

    compiled(program, Picky("first"), backend_options={"first": {"level": 3}})
    assert seen == [{"level": 3}]
    with pytest.raises(OptionError, match="unknown setting"):
        compiled(program, Picky("first"), backend_options={"first": {"levle": 3}})


def test_a_graph_without_compute_and_one_without_backends(program):
    class Same(nn.Module):
        def forward(self, x):
            return x

    x = torch.randn(2)
    module = compile_model(Same(), (x,), options=options_for(Double("first")))
    assert module(x) is x
    assert module.report.outcomes == ()
    module = compile_model(program, options=Options(backend_priority=()))
    assert ran(module) == ["eager"]
    agrees(module, program)


def test_building_leaves_the_exported_program_alone(program):
    before = copy.deepcopy(program.graph_module.code), list(program.state_dict)
    compiled(program, Double("first", refuses=["relu"]))
    assert (program.graph_module.code, list(program.state_dict)) == before


def test_build_graph_returns_the_function_the_split_and_the_report(program):
    backend = Double("first", refuses=["relu"])
    graph = capture(program, options=options_for(backend)).graph
    built = build_graph(graph, options_for(backend))
    flat, parent, report = built.flat, built.parent, built.report
    x = torch.randn(3, 4)
    values = [*program.state_dict.values(), x]
    args = list(values)
    (result,) = flat.run(args)
    assert args == []
    same(result, parent(*values)[0])
    assert list(report.seconds) == ["split", "build"]
