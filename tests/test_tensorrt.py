"""Engines built without a GPU: real networks, what they read and write, and the known traps."""

from __future__ import annotations

import copy
import inspect
import logging
import os.path
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import hierpart
from benchmarks import gpu
from hierpart.backends.protocol import Backend
from hierpart.backends.registry import get_backend
from hierpart.backends.tensorrt import TensorRTBackend, library, settings
from hierpart.backends.tensorrt.ranges import range_of
from hierpart.backends.tensorrt.settings import RTX_TARGETS, Settings
from hierpart.errors import BackendUnavailableError, OptionError
from hierpart.plan import Reason
from tests.doubles import Double
from tests.tensorrt_models import (
    TARGET,
    Tokens,
    backend,
    compiled,
    engines_of,
    needs_rtx,
    node_of,
)

aten = torch.ops.aten


def test_it_is_the_registered_backend():
    assert isinstance(get_backend("tensorrt"), TensorRTBackend)
    assert isinstance(TensorRTBackend(), Backend)
    assert f"torch={torch.__version__}" in TensorRTBackend().fingerprint()


def test_it_says_in_words_why_it_cannot_be_used(monkeypatch):
    monkeypatch.setattr(library, "_version", lambda name: None)
    reason = "neither torch-tensorrt nor torch-tensorrt-rtx is installed"
    assert backend().available() == reason
    with pytest.raises(BackendUnavailableError, match=reason):
        library.library()
    monkeypatch.setattr(library, "_version", {"torch-tensorrt-rtx": "1.9.0"}.get)
    assert "torch-tensorrt-rtx 1.9.0 is made for torch 1.9, and this is" in backend().available()
    monkeypatch.setattr(
        library, "_version", {"torch-tensorrt-rtx": torch.__version__, "tensorrt-rtx": "1"}.get
    )
    monkeypatch.setattr(library, "gpu", lambda: None)
    assert "no GPU and no target" in TensorRTBackend().available()
    monkeypatch.setattr(library, "gpu", lambda: (9, 0))
    assert "does not run on sm_90; it runs on sm_75" in TensorRTBackend().available()
    node = node_of(aten.relu.default, torch.ones(2))
    verdict = TensorRTBackend().verdict(node)
    assert (verdict.reason, verdict.supported) == (Reason.BACKEND_UNAVAILABLE, False)
    assert "sm_90" in verdict.detail


def test_a_failing_import_is_told_with_its_cause(monkeypatch):
    monkeypatch.setattr(library, "problem", lambda: None)

    def broken(name):
        raise OSError("libnvinfer.so: cannot open\nmore")

    monkeypatch.setattr(library.importlib, "import_module", broken)
    library._imported.cache_clear()
    try:
        with pytest.raises(BackendUnavailableError, match=r"OSError: libnvinfer.so: cannot open$"):
            library.library()
        assert "libnvinfer" in backend().available()
    finally:
        library._imported.cache_clear()


@pytest.mark.parametrize("has_cuda", [True, False])
def test_what_the_import_asks_of_a_gpu_is_answered_only_while_it_runs(
    monkeypatch, tmp_path, has_cuda
):
    monkeypatch.setattr(torch.version, "cuda", "13.0" if has_cuda else None)
    places = [(torch.cuda, "get_device_capability"), (torch.cuda, "current_device"),
              (os.path, "isfile"), (warnings, "showwarning")]  # fmt: skip
    before = [getattr(owner, name) for owner, name in places]
    had = hasattr(torch._C, "_CudaDeviceProperties")

    def failing_import(name):
        if not torch.cuda.is_available():
            assert torch.cuda.get_device_capability() == (0, 0)
            assert torch.cuda.current_device() == 0
        assert hasattr(torch._C, "_CudaDeviceProperties") == (had or not has_cuda)
        assert Path(__file__).is_file()
        (tmp_path / "libtorchtrt_runtime.so").touch()
        there = os.path.isfile(tmp_path / "libtorchtrt_runtime.so")  # noqa: PTH113 - what it calls
        assert there == has_cuda
        logging.captureWarnings(True)
        raise ImportError("stopped here")

    monkeypatch.setattr(library.importlib, "import_module", failing_import)
    with pytest.raises(BackendUnavailableError, match="ImportError: stopped here"):
        library._imported.__wrapped__()
    assert [getattr(owner, name) for owner, name in places] == before
    assert hasattr(torch._C, "_CudaDeviceProperties") == had


@needs_rtx
def test_the_import_leaves_no_patch_behind():
    assert backend().available() is None
    for function in (torch.cuda.get_device_capability, torch.cuda.current_device):
        assert inspect.getmodule(function) is torch.cuda
    assert warnings.showwarning.__module__ == "warnings" or "pytest" in str(warnings.showwarning)
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.cuda.current_device()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "sm_90"}, "legal: sm_75, sm_80, sm_86, sm_89, sm_120, sm_121"),
        ({"target": "fast"}, "legal: sm_75"),
        ({"target": ["sm_89", 9]}, "legal: sm_75"),
        ({"targt": "sm_89"}, "did you mean 'target'"),
        ({"precision": "fp16"}, "model.half()"),
        ({"optimization_level": 6}, "from 0 to 5"),
        ({"workspace_size": None}, "whole number"),
        ({"workspace_size": True}, "whole number"),
        ({"truncate_double": "yes"}, "True or False"),
        ({"tiling_optimization_level": "ful"}, "did you mean 'full'"),
        ({"engine_cache": 3}, "takes a path"),
    ],
)
def test_settings_are_checked(monkeypatch, options, message):
    monkeypatch.setattr(settings.library, "installed", lambda: (library.RTX, "1"))
    with pytest.raises(OptionError, match=message.replace("(", r"\(").replace(")", r"\)")):
        TensorRTBackend().check_options(options)
    with pytest.raises(OptionError):
        hierpart.compile(nn.ReLU(), (torch.ones(2),), options={"tensorrt": options})


def test_targets_are_written_in_several_ways(monkeypatch):
    monkeypatch.setattr(settings.library, "installed", lambda: (library.RTX, "1"))
    for given in ("sm_89", "8.9", "sm89", (8, 9), ["sm_89"], ("8.9", (8, 9))):
        assert Settings.of({"target": given}).target == ("sm_89",)
    assert Settings.of({"target": list(reversed(RTX_TARGETS))}).target == RTX_TARGETS
    assert Settings.of({"target": None}).target == ()
    with pytest.raises(OptionError, match="has no timing_cache"):
        Settings.of({"timing_cache": "timings"})
    monkeypatch.setattr(settings.library, "installed", lambda: ("torch-tensorrt", "1"))
    assert Settings.of({"timing_cache": "timings"}).timing_cache == "timings"
    with pytest.raises(OptionError, match="for the GPU at hand only"):
        Settings.of({"target": "sm_89"})


def check_engines(module, least=1):
    """Check that every TensorRT block has an engine that reads and writes what the block does."""
    outcomes = [o for o in module.report.outcomes if o.planned == "tensorrt"]
    assert len(outcomes) >= least
    assert all(o.status == "built" and o.backend == "eager" for o in outcomes), outcomes
    blocks = [b for b in module.plan if b.backend == "tensorrt"]
    for block, outcome, engine in zip(blocks, outcomes, engines_of(module), strict=True):
        assert engine.plan[:4] in (b"vtrt", b"ftrt")
        assert engine.target == ("sm_89",)
        assert not {*engine.places} & {*engine.weights}
        passed = {-1 - r for r in engine.results if r < 0}
        assert {*engine.places, *engine.weights} | passed <= set(range(len(block.inputs)))
        assert len(engine.results) == len(block.outputs)
        assert sorted({r for r in engine.results if r >= 0}) == list(range(len(engine.outputs)))
        assert "engine for sm_89" in outcome.detail
        assert "there is no GPU" in outcome.detail or torch.cuda.is_available()
    text = str(module.report)
    assert "runs eagerly here" in text
    return engines_of(module)


def agrees(module, model, *args):
    with torch.no_grad():
        torch.testing.assert_close(module(*args), model(*args), rtol=0, atol=0)


@needs_rtx
def test_resnet18():
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18().eval()
    x = torch.randn(1, 3, 64, 64)
    module = compiled(model, (x,))
    (engine,) = check_engines(module)
    assert module.plan.owner["conv2d"] == "tensorrt"
    assert {*module.plan.owner.values()} == {"tensorrt"}
    assert len(engine.plan) > 40e6  # the weights are inside
    assert engine.inputs == (f"in_{engine.places[0]}",)
    assert len(engine.weights) == sum(1 for _ in model.parameters()) + 2 * 20
    agrees(module, model, x)


@needs_rtx
def test_a_bert_layer():
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=64, num_attention_heads=4, intermediate_size=128, num_hidden_layers=1,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = bert.BertLayer(config).eval()
    args = (torch.randn(2, 16, 64), torch.rand(2, 1, 16, 16) > 0.3)
    module = compiled(model, args)
    (engine,) = check_engines(module)
    assert len(engine.inputs) == 2
    assert {*module.plan.owner.values()} == {"tensorrt"}
    agrees(module, model, *args)


@needs_rtx
def test_a_vit_block():
    vit = pytest.importorskip("torchvision.models.vision_transformer")
    model = vit.EncoderBlock(4, 32, 64, 0.0, 0.0).eval()
    x = torch.randn(2, 17, 32)
    module = compiled(model, (x,))
    check_engines(module)
    assert {*module.plan.owner.values()} == {"tensorrt"}
    with torch.no_grad():  # eager attention takes a fused path in inference
        torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_rtx
def test_a_whole_llama_is_one_engine():
    pytest.importorskip("transformers")
    from tests.models import example

    model, args = example("llama")
    module = compiled(model, args)
    (outcome,) = module.report.outcomes
    assert (outcome.planned, outcome.status) == ("tensorrt", "built")
    torch.testing.assert_close(module(*args)[0], model(*args)[0], rtol=1e-4, atol=1e-4)


@needs_rtx
def test_a_dynamic_batch_of_integers_and_masks():
    model = Tokens().eval()
    args = (torch.randint(0, 50, (3, 7)), torch.rand(3, 7) > 0.5)
    batch = Dim("batch", min=1, max=8)
    module = compiled(model, args, dynamic_shapes=({0: batch}, {0: batch}))
    (engine,) = check_engines(module)
    assert [(r.least, r.likeliest, r.greatest) for r in engine.ranges] == [
        ((1, 7), (3, 7), (8, 7))
    ] * 2
    for size in (1, 3, 8):
        ids, mask = torch.randint(0, 50, (size, 7)), torch.rand(size, 7) > 0.5
        agrees(module, model, ids, mask)


@needs_rtx
def test_float64_is_refused_unless_it_may_be_truncated():
    x = torch.ones(2, 3, dtype=torch.float64)
    module = compiled(nn.Softmax(1), (x,))
    assert module.plan.verdicts["softmax"][0].reason is Reason.DTYPE
    assert "truncate_double" in module.plan.verdicts["softmax"][0].detail
    module = compiled(nn.Softmax(1), (x,), options={"truncate_double": True})
    check_engines(module)
    agrees(module, nn.Softmax(1), x)  # run eagerly here, so in float64


class Outputs(nn.Module):
    def forward(self, x, y):
        z = x.relu()
        return torch.dropout(x, 0.1, False), z, z, y.clone(), z + y


@needs_rtx
def test_inputs_that_are_returned_and_values_returned_twice_keep_their_places():
    from hierpart.backends.tensorrt.engine import build
    from hierpart.backends.tensorrt.lowering import lower
    from hierpart.backends.tensorrt.support import support_for
    from hierpart.graph.canonical_form import canonical

    args = (torch.randn(3), torch.randn(3))
    program = torch.export.export(Outputs(), args, strict=False).run_decompositions({})
    block = canonical(program.graph_module).block
    own = Settings.of(TARGET)
    lowered = lower(block, {}, support_for(own).answer)
    first, twice, again, *_ = lowered.outputs
    assert twice == again >= 0
    assert first == -1 or lowered.outputs.count(first) == 1  # torch 2.13 copies there
    engine = build(lowered, own)
    assert engine.inputs == ("in_0", "in_1")
    assert engine.outputs == tuple(f"output{i}" for i in range(max(lowered.outputs) + 1))
    from hierpart.backends.tensorrt.running import EngineBlock

    run = EngineBlock(engine, block, {})
    given = list(args)
    results = run(given)
    assert given == []
    torch.testing.assert_close(tuple(results), program.module()(*args))


@needs_rtx
def test_networks_rename_no_input_and_drop_no_output():
    from hierpart.backends.tensorrt.network import make_network

    node = node_of(aten.relu.default, torch.ones(2, 3))
    (x,) = node.all_input_nodes
    node.graph.output_node().args = ((node, x, node),)
    block = node.graph.owning_module
    network = make_network(block, Settings.of(TARGET))
    assert network.inputs == ("x0",)
    assert network.outputs == ("output0", "output1", "output2")
    made = network.interpreter.ctx.net
    assert made.get_input(0).name == "x0"
    assert [made.get_output(i).name for i in range(made.num_outputs)] == list(network.outputs)


@needs_rtx
def test_weights_are_inside_and_blocks_with_other_weights_share_no_engine():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Tanh()) for _ in range(3)))
    model[2][0] = model[0][0]
    x = torch.randn(2, 8)
    module = hierpart.compile(
        model, (x,), backend_priority=["tensorrt"], min_block_size=1,
        torch_executed_ops=["torch.ops.aten.tanh.default"], options={"tensorrt": TARGET},
    )  # fmt: skip
    planned = [o for o in module.report.outcomes if o.planned == "tensorrt"]
    assert [o.shared_with for o in planned] == [None, None, 0]  # the last has the first's weights
    assert all(
        engine.inputs == ("in_0",) or len(engine.inputs) == 1 for engine in engines_of(module)
    )
    assert all(len(engine.weights) == 2 for engine in engines_of(module))
    agrees(module, model, x)


@needs_rtx
def test_derived_sizes_have_ranges_of_their_own():
    batch = Dim("batch", min=1, max=8)

    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 4).cos().sort(stable=True).values.relu().neg()

    x = torch.randn(3, 17, 4)
    module = hierpart.compile(
        Flat(), (x,), dynamic_shapes=({0: batch},), backend_priority=["tensorrt"], min_block_size=1,
        torch_executed_ops=["torch.ops.aten.cos.default"], options={"tensorrt": TARGET},
    )  # fmt: skip
    last = engines_of(module)[-1]
    assert (last.ranges[0].least, last.ranges[0].greatest) == ((17, 4), (136, 4))
    agrees(module, Flat(), x)


@needs_rtx
def test_sizes_without_an_upper_bound_need_one():
    x = torch.randn(3, 4)
    shapes = ({0: Dim("batch", min=1)},)
    module = compiled(nn.ReLU(), (x,), dynamic_shapes=shapes)
    verdict = module.plan.verdicts["relu"][0]
    assert verdict.reason is Reason.DYNAMIC
    assert "has no upper bound" in verdict.detail
    module = compiled(nn.ReLU(), (x,), dynamic_shapes=shapes, options={"max_size": 64})
    (engine,) = check_engines(module)
    assert engine.ranges[0].greatest == (64, 4)


def test_ranges_of_fixed_shapes_need_no_library():
    found = range_of(torch.empty(2, 3), None)
    assert found.is_fixed
    assert found.holds((2, 3))
    assert not found.holds((2, 4))


@needs_rtx
def test_one_engine_for_several_targets():
    module = compiled(nn.ReLU(), (torch.randn(3),), options={"target": ["sm_80", "sm_120"]})
    (engine,) = engines_of(module)
    assert engine.target == ("sm_80", "sm_120")
    assert "engine for sm_80, sm_120" in module.report.outcomes[0].detail


@needs_rtx
def test_a_failed_build_falls_down_the_list_with_tensorrts_own_words(monkeypatch, caplog):
    from hierpart.backends.tensorrt import engine

    def log_and_fail(network, settings, log):
        logging.getLogger("torch_tensorrt [TensorRT Conversion Context]").error("tactic missing")
        raise engine.EngineError("\n".join(["TensorRT built no engine", *log]))

    monkeypatch.setattr(engine, "_plan", log_and_fail)
    second = Double("second")
    with caplog.at_level(logging.WARNING, logger="hierpart"):
        module = compiled(
            nn.ReLU(), (torch.randn(3),), priority=("tensorrt", "second"),
            backend_support_map={"second": second},
        )  # fmt: skip
    (outcome,) = module.report.outcomes
    assert (outcome.planned, outcome.backend, outcome.status) == ("tensorrt", "second", "fell back")
    assert outcome.error == "EngineError: TensorRT built no engine\nERROR: tactic missing"
    assert "runs on second" in caplog.text


@needs_rtx
def test_without_a_target_and_a_gpu_the_next_backend_has_the_nodes(monkeypatch):
    monkeypatch.setattr(library, "gpu", lambda: None)
    second = Double("second")
    module = hierpart.compile(
        nn.ReLU(), (torch.randn(3),), backend_priority=["tensorrt", "second"], min_block_size=1,
        backend_support_map={"second": second},
    )  # fmt: skip
    assert module.plan.owner == {"relu": "second"}
    verdict = module.plan.verdicts["relu"][0]
    assert verdict.reason is Reason.BACKEND_UNAVAILABLE
    assert "no GPU and no target" in verdict.detail


@needs_rtx
def test_the_registry_is_left_with_the_settings_that_it_had():
    backend().available()
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS as REGISTRY

    before = REGISTRY.compilation_settings, REGISTRY.disallowed_targets
    compiled(nn.ReLU(), (torch.randn(3),), options={"truncate_double": True})
    assert (REGISTRY.compilation_settings, REGISTRY.disallowed_targets) == before


@pytest.fixture
def lowered_runs(monkeypatch):
    """Make networks and no engines, and run lowered blocks in the engines' place."""
    from hierpart.backends.tensorrt import engine as engines
    from hierpart.backends.tensorrt import running
    from hierpart.backends.tensorrt.network import make_network

    blocks = {}

    def build(lowered, settings):
        network = make_network(lowered.block, settings)
        made = engines.Engine(
            b"", network.inputs, network.outputs, lowered.inputs, lowered.outputs, lowered.weights,
            engines.weight_digests(lowered), network.ranges, settings.target, settings.to_json(),
            False, False, {}, 0.0, 0,
        )  # fmt: skip
        blocks[id(made)] = made, lowered.block
        return made

    monkeypatch.setattr(engines, "build", build)
    monkeypatch.setattr(running, "idle", lambda engine: None)
    monkeypatch.setattr(running, "_off_gpu", lambda block: None)
    monkeypatch.setattr(running, "runnable", lambda engine: blocks[id(engine)][1])
    return blocks


@needs_rtx
@pytest.mark.parametrize("case", gpu.cases(4)[1::2], ids=lambda case: case.name)
def test_lowered_blocks_compute_what_the_blocks_do(lowered_runs, case):
    model, args = case.model().eval(), case.inputs(4)
    module = compiled(model, args, dynamic_shapes=case.shapes)
    assert {o.backend for o in module.report.outcomes} == {"tensorrt"}
    assert lowered_runs
    for size in case.sizes:
        args = case.inputs(size)
        with torch.no_grad():
            torch.testing.assert_close(module(*args), model(*args), rtol=1e-4, atol=1e-4)


@needs_rtx
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_lowered_blocks_of_random_graphs(lowered_runs, first):
    """300 graphs: what converters are given computes what the graph does, in its layouts."""
    from hierpart.testing import FUNCTIONAL, inputs_for, random_graph_module

    ran = 0
    for seed in range(first, first + 50):
        features = {*FUNCTIONAL, *(["dynamic"] if seed % 2 else [])}
        graph = random_graph_module(seed, 12, features=features, metadata="fake")
        args = inputs_for(graph, call=0, batch=5)
        module = compiled(copy.deepcopy(graph), (), options={"max_size": 64})
        ran += sum(o.backend == "tensorrt" for o in module.report.outcomes)
        torch.manual_seed(0)
        wanted = graph(*copy.deepcopy(args))
        torch.manual_seed(0)
        found = module(*copy.deepcopy(args))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert ran > 20


@pytest.mark.gpu
@needs_rtx
def test_engines_run_on_the_gpu(tmp_path):
    if not torch.cuda.is_available() or TensorRTBackend().available() is not None:
        pytest.skip(f"no engines run here: {TensorRTBackend().available()}")
    model, args = Tokens().eval().cuda(), (torch.randint(0, 50, (3, 7)), torch.rand(3, 7) > 0.5)
    args = tuple(a.cuda() for a in args)
    batch = Dim("batch", min=1, max=8)
    module = hierpart.compile(
        model, args, backend_priority=["tensorrt"], min_block_size=1,
        dynamic_shapes=({0: batch}, {0: batch}),
    )  # fmt: skip
    assert {o.backend for o in module.report.outcomes} == {"tensorrt"}
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m")
    assert {o.status for o in loaded.report.outcomes} == {"loaded"}
    for run in (module, loaded):
        with torch.no_grad():
            torch.testing.assert_close(run(*args), model(*args), rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@needs_rtx
@pytest.mark.parametrize("option", ["refittable", "strip_weights"])
def test_weights_are_put_into_engines_on_the_gpu(tmp_path, option):
    if not torch.cuda.is_available() or TensorRTBackend().available() is not None:
        pytest.skip(f"no engines run here: {TensorRTBackend().available()}")
    model, args = nn.Linear(8, 4).eval().cuda(), (torch.randn(2, 8, device="cuda"),)
    module = hierpart.compile(
        model, args, backend_priority=["tensorrt"], min_block_size=1,
        options={"tensorrt": {option: True}},
    )  # fmt: skip
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m")
    with torch.no_grad():
        for run in (module, loaded):
            torch.testing.assert_close(run(*args), model(*args), rtol=1e-2, atol=1e-3)
        for weight in (*model.parameters(), *loaded.parameters()):
            weight.fill_(0.5)
        for run in (module, loaded):
            torch.testing.assert_close(run(*args), model(*args), rtol=1e-2, atol=1e-3)


@needs_rtx
def test_what_is_private_in_torch_tensorrt_is_still_there():
    backend().available()
    from torch_tensorrt.dynamo import conversion
    from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter

    moved = "torch_tensorrt has moved {}; see hierpart/backends/tensorrt/network.py and engine.py"
    methods = ("_construct_trt_network_def", "_populate_trt_builder_config", "output",
               "_create_timing_cache", "_save_timing_cache")  # fmt: skip
    for name in methods:
        assert callable(getattr(TRTInterpreter, name, None)), moved.format(f"TRTInterpreter.{name}")
    for name in ("registries", "compilation_settings", "disallowed_targets"):
        assert hasattr(conversion.DYNAMO_CONVERTERS, name), moved.format(
            f"DYNAMO_CONVERTERS.{name}"
        )
    node = node_of(aten.relu.default, torch.ones(2, 3))
    from hierpart.backends.tensorrt.network import make_network

    made = make_network(node.graph.owning_module, Settings.of(TARGET)).interpreter
    for name in ("builder", "ctx", "_input_names", "_output_names"):
        assert hasattr(made, name), moved.format(f"TRTInterpreter.{name}")
    for name in ("net", "requires_output_allocator", "weight_refit_map"):
        assert hasattr(made.ctx, name), moved.format(f"ConversionContext.{name}")
