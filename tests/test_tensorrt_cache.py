"""Engines on disk: what their key covers, damaged entries, processes at once; and running them."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import multiprocessing
import sys
import time
from unittest import mock

import pytest
import torch
from torch import nn

from hierpart.backends.tensorrt import TensorRTBackend, cache, library, refit, running
from hierpart.backends.tensorrt import engine as engines
from hierpart.backends.tensorrt.cache import kept_or_built
from hierpart.backends.tensorrt.engine import DamagedEngineError, Engine, weight_digest
from hierpart.backends.tensorrt.lowering import lower
from hierpart.backends.tensorrt.ranges import Range
from hierpart.backends.tensorrt.running import EngineBlock, idle
from hierpart.backends.tensorrt.settings import Settings
from hierpart.errors import OptionError
from hierpart.graph.canonical_form import canonical
from tests.tensorrt_models import TARGET, compiled, needs_rtx

SHAPE = Range((1, 3), (2, 3), (8, 3))


def make_engine(**changes) -> Engine:
    fields = {
        "plan": b"vtrt plan", "inputs": ("in_0",), "outputs": ("output0", "output1"),
        "places": (0,), "results": (1, -1, 0, 1), "weights": (), "digests": (), "ranges": (SHAPE,),
        "target": ("sm_89",), "settings": {"max_size": 8}, "refittable": False, "stripped": False,
        "versions": {"torch": "2", "tensorrt-rtx": "1"}, "seconds": 0.5, "layers": 4,
        "log": ("WARNING: slow",),
    }  # fmt: skip
    return Engine(**(fields | changes))


def test_engines_are_written_and_read():
    made = make_engine()
    assert Engine.from_bytes(made.to_bytes()) == made
    assert "sm_89: 9 B, 4 layers, 1 in, 2 out, built in 0.50 s" in made.describe()


def test_damaged_bytes_are_no_engine():
    data = make_engine().to_bytes()
    for i in range(len(data)):
        flipped = bytearray(data)
        flipped[i] ^= 1
        with pytest.raises(DamagedEngineError):
            Engine.from_bytes(bytes(flipped))
    for cut in (0, 10, len(engines.MAGIC) + 32, len(data) - 1):
        with pytest.raises(DamagedEngineError):
            Engine.from_bytes(data[:cut])
    with pytest.raises(DamagedEngineError):
        Engine.from_bytes(data + b"x")


def test_an_entry_is_built_once(tmp_path):
    built = []

    def make():
        built.append(1)
        return make_engine()

    first = kept_or_built(tmp_path / "new", "key", make)
    second = kept_or_built(tmp_path / "new", "key", make)
    other = kept_or_built(tmp_path / "new", "other", make)
    assert (first[1], second[1], other[1]) == (False, True, False)
    assert first[0] == second[0]
    assert len(built) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "empty"])
def test_damaged_entries_are_told_and_built_again(tmp_path, caplog, damage):
    kept_or_built(tmp_path, "key", make_engine)
    path = tmp_path / "key.engine"
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[-3] ^= 4
    path.write_bytes(
        {"flip": bytes(flipped), "cut": data[:-5], "foreign": b"PK\x03\x04", "empty": b""}[damage]
    )
    with caplog.at_level(logging.WARNING, logger="hierpart"):
        found, kept = kept_or_built(tmp_path, "key", make_engine)
    assert not kept
    assert found == make_engine()
    assert "is not used and built again" in caplog.text
    assert kept_or_built(tmp_path, "key", make_engine)[1]


def test_a_failed_build_leaves_nothing_and_frees_the_entry(tmp_path):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept_or_built(tmp_path, "key", fail)
    assert not list(tmp_path.glob("*.engine"))
    assert not kept_or_built(tmp_path, "key", make_engine)[1]
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".part"]


def test_a_full_disk_costs_the_entry_and_no_more(tmp_path, monkeypatch, caplog):
    def full(self, data):
        raise OSError("No space left on device")

    monkeypatch.setattr(cache.Path, "write_bytes", full)
    assert kept_or_built(tmp_path, "key", make_engine) == (make_engine(), False)
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.glob("*engine*"))


def test_a_folder_that_cannot_be_used_is_an_error_of_the_option(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OptionError, match="engine_cache="):
        kept_or_built(file / "inside", "key", make_engine)


def _build_slowly(folder, log):
    def make():
        with (log / f"{time.time_ns()}").open("w"):
            time.sleep(0.3)
        return make_engine(plan=b"x" * 100_000)

    found, _ = kept_or_built(folder, "key", make)
    assert len(found.plan) == 100_000


def test_processes_at_once_build_an_engine_once(tmp_path):
    folder, log = tmp_path / "cache", tmp_path / "log"
    log.mkdir()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_build_slowly, args=(folder, log)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0, 0, 0]
    assert len(list(log.iterdir())) == 1
    assert kept_or_built(folder, "key", make_engine)[1]


class Pair(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.compute = compute

    def forward(self, a, b):
        return self.compute(a, b, self.weight)


def key(compute, shape=(4, 4), weight=None, **options):
    model = Pair(compute)
    if weight is not None:
        model.weight = nn.Parameter(weight)
    args = (torch.ones(shape), torch.ones(shape))
    own = Settings.of({**TARGET, **options})
    return engines.key_of(lowered(model, args, own), own)


def lowered(model, args, settings):
    """Return a whole model as a lowered block with its parameters inside."""
    from hierpart.backends.tensorrt.support import support_for

    program = torch.export.export(model, args, strict=False).run_decompositions({})
    names = list(program.graph.find_nodes(op="placeholder"))
    targets = program.graph_signature.inputs_to_parameters
    weights = {
        i: model.get_parameter(targets[n.name]) for i, n in enumerate(names) if n.name in targets
    }
    block = canonical(program.graph_module).block
    return lower(block, weights, support_for(settings).answer)


@needs_rtx
def test_keys_cover_everything_that_an_engine_depends_on(monkeypatch):
    keys = {
        "a-b": key(lambda a, b, w: a - b),
        "b-a": key(lambda a, b, w: b - a),
        "+1": key(lambda a, b, w: a + b + 1),
        "+2": key(lambda a, b, w: a + b + 2),
        "+1.0": key(lambda a, b, w: a + b + 1.0),
        "sum 0": key(lambda a, b, w: (a + b).sum(0)),
        "sum 1": key(lambda a, b, w: (a + b).sum(1)),
        "both": key(lambda a, b, w: (a + b, a)),
        "other": key(lambda a, b, w: (a, a + b)),
        "shape": key(lambda a, b, w: a - b, (4, 8)),
        "weight": key(lambda a, b, w: a - b + w),
        "other weight": key(lambda a, b, w: a - b + w, weight=torch.full((4, 4), 2.0)),
        "half weight": key(lambda a, b, w: a - b + w, weight=torch.ones(4, 4).half()),
        "target": key(lambda a, b, w: a - b, target="sm_86"),
        "targets": key(lambda a, b, w: a - b, target=["sm_86", "sm_89"]),
        "level": key(lambda a, b, w: a - b, optimization_level=1),
    }
    monkeypatch.setattr(library, "versions", lambda: {"torch": "9"})
    keys["versions"] = key(lambda a, b, w: a - b)
    assert len(set(keys.values())) == len(keys)
    monkeypatch.undo()
    assert key(lambda a, b, w: a - b) == keys["a-b"]
    assert key(lambda a, b, w: a - b, engine_cache="/elsewhere") == keys["a-b"]
    assert key(lambda x, y, w: x - y + w, weight=torch.ones(4, 4)) == keys["weight"]


@needs_rtx
def test_the_second_compile_builds_nothing(tmp_path, monkeypatch):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    first = compiled(model, (x,), options={"engine_cache": str(tmp_path)})
    assert "from the engine cache" not in first.report.outcomes[0].detail

    def never(*args):
        raise AssertionError("built again")

    with monkeypatch.context() as patch:
        patch.setattr(engines, "build", never)
        second = compiled(model, (x,), options={"engine_cache": str(tmp_path)})
    assert second.report.outcomes[0].status == "built"
    assert "from the engine cache" in second.report.outcomes[0].detail
    with torch.no_grad():
        model[0].weight.mul_(2)
    third = compiled(model, (x,), options={"engine_cache": str(tmp_path)})
    assert "from the engine cache" not in third.report.outcomes[0].detail
    assert len(list(tmp_path.glob("*.engine"))) == 2


# Running: the engine's part is played by a function, since these tests need no GPU.


class Graphs(nn.Module):
    def forward(self, x, w):
        return x * 3, x, x + w, x * 3


@pytest.fixture
def runs(monkeypatch):
    """Return what the stand-in for an engine was given; engines run here."""
    seen = []

    def stand_in(engine):
        def run(*given):
            seen.append(given)
            return given[0] + given[0].new_ones(()), given[0] * 3

        return run

    monkeypatch.setattr(running, "idle", lambda engine: None)
    monkeypatch.setattr(running, "runnable", stand_in)
    return seen


def with_weight(weight):
    engine = make_engine(weights=(1,), digests=(weight_digest(weight),))
    return EngineBlock(engine, torch.fx.symbolic_trace(Graphs()), {1: weight})


def test_results_are_put_where_the_block_has_them(runs):
    weight = torch.ones(3)
    block = with_weight(weight)
    x = torch.randn(3, 2).t()
    given = [x, weight]
    results = block(given)
    assert given == []
    assert runs[0][0].is_contiguous()  # engines read memory in order
    assert results[1] is x
    assert results[0] is results[3]
    torch.testing.assert_close(list(results), [x * 3, x, x + 1, x * 3])


@pytest.mark.parametrize("change", ["written", "replaced", "data"])
def test_weights_that_changed_are_not_in_the_engine(runs, caplog, change):
    weight = nn.Parameter(torch.ones(3))
    block, x = with_weight(weight), torch.ones(2, 3)
    assert block([x, weight])[2] is not None
    assert len(runs) == 1
    with torch.no_grad():
        if change == "written":
            weight.mul_(5)
        elif change == "data":
            weight.data = torch.full((3,), 5.0)
        else:
            weight = nn.Parameter(torch.full((3,), 5.0))
    with caplog.at_level(logging.WARNING, logger="hierpart"):
        for _ in range(2):
            results = block([x, weight])
    torch.testing.assert_close(results[2], torch.full((2, 3), 6.0))
    assert len(runs) == 1
    assert caplog.text.count("a weight was changed after the engine was built") == 1
    same = nn.Parameter(torch.ones(3))
    block([x, same])  # another tensor of the same values
    assert len(runs) == 2


def test_shapes_outside_the_range_run_eagerly(runs, caplog):
    weight = torch.ones(3)
    block = with_weight(weight)
    with caplog.at_level(logging.WARNING, logger="hierpart"):
        results = block([torch.ones(9, 3), weight])
    assert runs == []
    assert results[2].shape == (9, 3)
    assert "[9, 3] is outside the engine's range [1, 3] to [8, 3]" in caplog.text


def test_why_an_engine_does_not_run_is_told(monkeypatch):
    made = make_engine()
    monkeypatch.setattr(library, "gpu", lambda: None)
    assert idle(made) == "there is no GPU"
    monkeypatch.setattr(library, "gpu", lambda: (8, 6))
    assert idle(made) == "the GPU here is sm_86"
    monkeypatch.setattr(library, "gpu", lambda: (8, 9))
    monkeypatch.setattr(library, "is_rtx", lambda: True)
    monkeypatch.setattr(library, "problem", lambda: "not installed")
    assert idle(made) == "not installed"
    monkeypatch.setattr(library, "problem", lambda: None)
    monkeypatch.setattr(library, "versions", lambda: {"torch": "3", "tensorrt-rtx": "2"})
    assert idle(made) == "the engine was built with tensorrt-rtx 1 and here is 2"
    monkeypatch.setattr(library, "versions", lambda: {"torch": "3", "tensorrt-rtx": "1"})
    assert idle(made) is None
    anywhere = dataclasses.replace(made, target=())
    monkeypatch.setattr(library, "gpu", lambda: (9, 0))
    assert "TensorRT-RTX does not run on sm_90" in idle(anywhere)
    block = EngineBlock(made, torch.fx.symbolic_trace(Graphs()), {})
    assert "the block runs eagerly here: the GPU here is sm_90" in block.detail
    assert "WARNING: slow" in block.detail
    results = block([torch.ones(2, 3), torch.ones(3)])
    torch.testing.assert_close(results[0], torch.full((2, 3), 3.0))


# Refitting: the parts of TensorRT that need a GPU are played by stand-ins.


@pytest.fixture
def refits(monkeypatch):
    """Return the weights of each refit; the engine's part is played as by ``runs``."""
    seen = []

    def stand_in(engine, block, weights):
        seen.append({i: w.clone() for i, w in weights.items()})
        digests = tuple(weight_digest(w) for w in weights.values())
        return dataclasses.replace(engine, plan=b"refitted", digests=digests, stripped=False)

    monkeypatch.setattr(refit, "refitted", stand_in)
    return seen


def refittable(weight, known, **changes):
    engine = make_engine(weights=(1,), digests=(weight_digest(weight),), refittable=True, **changes)
    return EngineBlock(engine, torch.fx.symbolic_trace(Graphs()), {1: weight} if known else {})


def test_a_refittable_engine_gets_the_weights_that_changed(runs, refits, caplog):
    weight, x = torch.ones(3), torch.ones(2, 3)
    block = refittable(weight, known=True)
    block([x, weight])
    assert refits == []
    weight.mul_(5)
    for _ in range(3):
        block([x, weight])
    assert [w[1].tolist() for w in refits] == [[5.0] * 3]
    assert len(runs) == 4
    assert block.engine.plan == b"vtrt plan"  # what is saved is the engine as it was built
    assert caplog.text == ""


def test_an_engine_without_weights_gets_them_at_the_first_call(runs, refits):
    weight, x = torch.ones(3), torch.ones(2, 3)
    block = refittable(weight, known=True, stripped=True)
    for _ in range(2):
        block([x, weight])
    assert [w[1].tolist() for w in refits] == [[1.0] * 3]
    assert len(runs) == 2


def test_an_engine_built_with_other_weights_is_refitted(runs, refits):
    built, mine = torch.ones(3), torch.zeros(3)
    block = refittable(built, known=False)
    block([torch.ones(2, 3), mine])
    assert [w[1].tolist() for w in refits] == [[0.0] * 3]


def test_an_engine_that_takes_no_weights_runs_eagerly(runs, monkeypatch, caplog):
    def fails(*_):
        raise engines.EngineError("TensorRT did not take the weights")

    monkeypatch.setattr(refit, "refitted", fails)
    weight, x = torch.ones(3), torch.ones(2, 3)
    block = refittable(weight, known=True, stripped=True)
    with caplog.at_level(logging.WARNING, logger="hierpart"):
        results = [block([x, weight]) for _ in range(2)]
    torch.testing.assert_close(results[1][2], x + 1)
    assert runs == []
    assert caplog.text.count("could not be refitted: TensorRT did not take the weights") == 1
    assert "could not be refitted" in block.detail


class Refitter:
    """Plays TensorRT's own: holds two weights and notes what it is given."""

    def __init__(self, engine, logger):
        self.engine = engine

    def get_all_weights(self):
        return ["a KERNEL", "b CONSTANT"]

    def set_named_weights(self, name, weights, location):
        kind, address, count = weights
        assert kind == "FLOAT"
        assert location == "HOST"
        held = (ctypes.c_float * count).from_address(address)
        self.engine.given[name] = held  # read when it refits, as TensorRT does

    def refit_cuda_engine(self):
        self.engine.inside = {name: list(held) for name, held in self.engine.given.items()}
        return self.engine.takes


@pytest.fixture
def tensorrt(monkeypatch):
    """Play the parts of TensorRT that need a GPU; return the engine that it reads."""
    engine = mock.Mock(given={}, inside={}, takes=True)
    engine.serialize_with_config = lambda config: str(engine.inside).encode()
    played = mock.Mock(Refitter=Refitter, Weights=lambda *given: given)
    played.TensorLocation.HOST = "HOST"
    played.Runtime.return_value.deserialize_cuda_engine.return_value = engine
    monkeypatch.setitem(sys.modules, "tensorrt", played)
    theirs = mock.Mock()
    theirs.dtype._from.return_value.to.return_value = "FLOAT"
    monkeypatch.setattr(refit, "library", lambda: theirs)
    return engine


def test_every_weight_is_given_by_name_and_in_memory_order(tensorrt):
    named = {"a KERNEL": torch.arange(6.0).reshape(2, 3).t(), "b CONSTANT": torch.ones(1)}
    plan = refit.refitted_plan(b"plan", named, [])
    assert plan == b"{'a KERNEL': [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], 'b CONSTANT': [1.0]}"


def test_refitting_says_what_is_wrong(tensorrt):
    with pytest.raises(engines.EngineError, match="has a weight 'b CONSTANT' that the block"):
        refit.refitted_plan(b"plan", {"a KERNEL": torch.ones(1)}, [])
    named = {"a KERNEL": torch.ones(1), "b CONSTANT": torch.ones(1)}
    tensorrt.takes = False
    with pytest.raises(engines.EngineError, match="did not take the weights\nERROR: size"):
        refit.refitted_plan(b"plan", named, ["ERROR: size"])


class Layers(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(self.conv(x).relu().mean((2, 3)))


def layers(seed):
    return lowered(Layers(seed).eval(), (torch.ones(2, 3, 8, 8),), Settings.of(TARGET))


@needs_rtx
def test_names_of_weights_hang_on_the_graph_alone():
    settings = Settings.of({**TARGET, "refittable": True})
    found = []
    for seed in (0, 1):
        model = Layers(seed).eval()
        found.append((model, refit.named_weights(layers(seed), settings)))
    (_, mine), (_, theirs) = found
    assert list(mine) == list(theirs)
    for model, named in found:
        values = {tuple(v.flatten().tolist()) for v in named.values()}
        wanted = {tuple(p.flatten().tolist()) for p in model.parameters()}
        assert wanted <= values


@needs_rtx
def test_the_key_of_a_refittable_engine_covers_no_values_of_weights():
    first, second = layers(0), layers(1)
    kept = Settings.of(TARGET)
    assert engines.key_of(first, kept) != engines.key_of(second, kept)
    for option in ("refittable", "strip_weights"):
        settings = Settings.of({**TARGET, option: True})
        assert engines.key_of(first, settings) == engines.key_of(second, settings)
        assert engines.key_of(first, settings) != engines.key_of(first, kept)


@needs_rtx
def test_refittable_engines_need_a_gpu_to_be_built(monkeypatch):
    monkeypatch.setattr(library, "gpu", lambda: None)
    for option in ("refittable", "strip_weights"):
        backend = TensorRTBackend(Settings.of({**TARGET, option: True}))
        assert "built only where a GPU is" in (backend.available() or "")
    assert TensorRTBackend(Settings.of(TARGET)).available() is None


def test_settings_are_read_again_without_paths(tmp_path):
    made = Settings.of({"max_size": 7, "engine_cache": tmp_path, "refittable": True})
    data = json.loads(json.dumps(made.to_json()))
    assert str(tmp_path) not in json.dumps(data)
    assert Settings.from_json(data) == dataclasses.replace(made, engine_cache=None)
