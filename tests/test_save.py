"""Compiled modules in a file: what comes back, in this process and in a fresh one, and what not."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn
from torch.export import Dim

import hierpart
from hierpart import ArtefactError
from hierpart.artefact.archive import pickle_in
from hierpart.artefact.members import read_members, write_members
from hierpart.capture.input_check import InputMismatchError
from tests.doubles import Double, same
from tests.tensorrt_models import compiled, needs_rtx

FRESH = """
import sys, torch, hierpart
module = hierpart.load(sys.argv[1], allow_pickle=sys.argv[3] == "True")
given, wanted = torch.load(sys.argv[2])
found = module(*given)
torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
print([(o.planned, o.backend, o.status) for o in module.report.outcomes])
print("torch_tensorrt" in sys.modules)
"""


class Wide(nn.Module):
    """State of every kind, branches, tuples, sizes, an odd pytree."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.tied = nn.Linear(2, 2)
        self.also = self.tied
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)

    def forward(self, x, extra):
        y = self.norm(x)
        top, _ = y.topk(2, dim=1)
        _, right = torch.split(y, 2, 1)
        z = torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + torch.ones(1), (y,))
        out = self.also(self.tied(y))
        return {"top": top, "z": z, "right": right}, out, y.shape[0], self.scale + extra["add"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    torch.manual_seed(0)
    model = Wide()
    args = (torch.randn(4, 4, 2, 2), {"add": torch.randn(3)})
    shapes = ({0: 2 * Dim("half", min=1, max=16)}, {"add": None})
    module = hierpart.compile(model, args, dynamic_shapes=shapes, backend_priority=[])
    path = tmp_path_factory.mktemp("saved") / "wide.hpt"
    module.save(path)
    return module, path


def call(module, size):
    torch.manual_seed(size)
    return module(torch.randn(size, 4, 2, 2), {"add": torch.randn(3)})


def test_results_updates_and_state_come_back(wide):
    module, path = wide
    loaded = hierpart.load(path)
    assert loaded.plan == module.plan
    assert list(loaded.state_dict()) == list(module.state_dict())
    assert loaded.also.weight is loaded.tied.weight
    assert isinstance(loaded.tied.weight, nn.Parameter)
    twin = copy.deepcopy(module)
    for size in (4, 6, 32):
        same(call(loaded, size), call(twin, size))
    for name, value in twin.state_dict().items():
        same(loaded.state_dict()[name], value)
    assert "loaded from wide.hpt" in loaded.report.notes
    assert "cond" in str(loaded.report)


def test_conditions_and_ranges_of_the_capture_still_hold(wide):
    loaded = hierpart.load(wide[1])
    for size in (5, 34):
        with pytest.raises(InputMismatchError):
            call(loaded, size)
    with pytest.raises(InputMismatchError, match="extra"):
        loaded(torch.randn(4, 4, 2, 2), {"add": torch.randn(3, 1)})


def test_a_condition_that_export_forgets_is_kept(tmp_path):
    class Halves(nn.Module):
        def forward(self, x):
            torch._check(x.shape[0] % 4 == 0)
            return x.reshape(-1, 4, 2).relu()

    module = hierpart.compile(
        Halves(), (torch.randn(8, 2),), dynamic_shapes=({0: Dim.AUTO},), backend_priority=[]
    )
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m")
    same(loaded(torch.ones(12, 2)), module(torch.ones(12, 2)))
    for m in (module, loaded):
        with pytest.raises(InputMismatchError, match="condition"):
            m(torch.ones(6, 2))


def test_what_was_changed_since_is_what_is_saved(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    module = hierpart.compile(model, (torch.ones(1, 2),), backend_priority=[])
    with torch.no_grad():
        module.get_submodule("0").weight.fill_(3)
        module.get_submodule("0").bias = nn.Parameter(torch.ones(2))
    module.save(str(tmp_path / "m"))
    loaded = hierpart.load(str(tmp_path / "m"))
    same(loaded(torch.ones(1, 2)), torch.tensor([[7.0, 7.0]]))
    loaded.save(tmp_path / "m")  # again, over the file
    copied = copy.deepcopy(hierpart.load(tmp_path / "m"))
    copied.save(tmp_path / "again")
    same(hierpart.load(tmp_path / "again")(torch.ones(1, 2)), torch.tensor([[7.0, 7.0]]))


@pytest.mark.inductor
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_inductors_code_is_loaded_or_compiled_again_in_a_fresh_process(tmp_path, allow_pickle):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    args = (torch.randn(3, 4),)
    module = hierpart.compile(
        model, args, dynamic_shapes=({0: Dim("n", min=1, max=9)},), backend_priority=["inductor"],
        min_block_size=1, options={"inductor": {"max_autotune": False}},
    )  # fmt: skip
    assert module.report.outcomes[0].status == "compiled"
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m", allow_pickle=allow_pickle)
    (outcome,) = loaded.report.outcomes
    assert (outcome.backend, outcome.status) == (
        "inductor",
        "loaded" if allow_pickle else "compiled",
    )
    assert any("allow_pickle=True" in n for n in loaded.report.notes) != allow_pickle
    for size in (1, 3, 9):
        x = torch.randn(size, 4)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    if allow_pickle:
        text = fresh(tmp_path, args, module, allow_pickle)
        assert "('inductor', 'inductor', 'loaded')" in text


def fresh(folder, args, module, allow_pickle=False):
    torch.save((args, module(*args)), folder / "values")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, folder / "m", folder / "values", str(allow_pickle)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_module_is_loaded_for_another_device(wide):
    loaded = hierpart.load(wide[1], device="meta")
    assert {t.device.type for t in loaded.state_dict().values()} == {"meta"}
    assert loaded.tensor("scale").device.type == "meta"
    assert loaded.also.weight is loaded.tied.weight
    with pytest.raises(InputMismatchError, match="on meta, not a float32 tensor"):
        call(loaded, 4)
    with pytest.raises(ArtefactError, match="cannot be moved to nowhere"):
        hierpart.load(wide[1], device="nowhere")


@needs_rtx
def test_engines_are_kept_and_need_no_tensorrt_to_load(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).eval()
    args = (torch.randn(3, 4),)
    module = compiled(model, args, dynamic_shapes=({0: Dim("n", min=1, max=9)},))
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m")
    before, after = (m._origin.kept["_run_on_acc_tensorrt_0"].made.engine for m in (module, loaded))
    assert after == before
    assert loaded.report.outcomes[0].status == "built"
    assert "engine for sm_89" in loaded.report.outcomes[0].detail
    same(loaded(*args), module(*args))
    text = fresh(tmp_path, args, module)
    assert "[('tensorrt', 'eager', 'built')]\nFalse\n" in text


def test_a_backend_that_cannot_write_its_code_is_named(tmp_path, caplog):
    double = Double("mine")
    module = hierpart.compile(
        nn.ReLU(), (torch.ones(2),), backend_priority=["mine"], min_block_size=1,
        backend_support_map={"mine": double},
    )  # fmt: skip
    module.save(tmp_path / "m")
    loaded = hierpart.load(tmp_path / "m")
    same(loaded(torch.ones(2)), torch.ones(2))
    assert any("mine cannot write what it compiled" in note for note in loaded.report.notes)
    assert "no backend is registered as 'mine'" in loaded.report.outcomes[0].error
    assert "runs on eager" in caplog.text


def test_a_graph_module_cannot_be_saved(tmp_path):
    graph = torch.fx.symbolic_trace(nn.ReLU())
    module = hierpart.compile(graph, (torch.ones(2),), backend_priority=[])
    with pytest.raises(ArtefactError, match=r"captured with torch\.export"):
        module.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_options_that_are_no_data_cannot_be_saved(tmp_path):
    module = hierpart.compile(
        nn.ReLU(), (torch.ones(2),), backend_priority=["inductor"],
        options={"inductor": {"post_grad_custom_pre_pass": print}},
    )  # fmt: skip
    with pytest.raises(ArtefactError, match="options cannot be saved"):
        module.save(tmp_path / "m")


def test_a_place_that_cannot_be_written_is_told(wide, tmp_path):
    with pytest.raises(ArtefactError, match="cannot be written"):
        wide[0].save(tmp_path / "missing" / "m")


def test_every_flipped_byte_and_every_cut_is_refused(tmp_path):
    path = tmp_path / "m"
    write_members(path, {"a": b"some data" * 20, "b": b""})
    assert read_members(path) == {"a": b"some data" * 20, "b": b""}
    data = path.read_bytes()
    for i in range(len(data)):
        changed = bytearray(data)
        changed[i] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(ArtefactError):
            read_members(path)
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        with pytest.raises(ArtefactError):
            read_members(path)
    path.write_bytes(data + b"x")
    with pytest.raises(ArtefactError, match="truncated or changed"):
        read_members(path)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_damage_of_a_saved_module_is_refused_before_anything_is_loaded(wide, tmp_path, monkeypatch):
    data = wide[1].read_bytes()
    monkeypatch.setattr(torch.export, "load", None)
    for i in range(0, len(data), len(data) // 40):
        changed = bytearray(data)
        changed[i] ^= 16
        (tmp_path / "m").write_bytes(bytes(changed))
        with pytest.raises(ArtefactError, match=r"truncated or changed|not a file written"):
            hierpart.load(tmp_path / "m")
    (tmp_path / "m").write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtefactError, match="truncated"):
        hierpart.load(tmp_path / "m")
    with pytest.raises(ArtefactError, match="no such file"):
        hierpart.load(tmp_path / "none")
    (tmp_path / "m").write_text("hello" * 100)
    with pytest.raises(ArtefactError, match="not a file written by compiled"):
        hierpart.load(tmp_path / "m")


def rewritten(source, path, change, drop=()):
    """Write a file with its manifest changed and a digest that fits, as a careless tool would."""
    members = {k: v for k, v in read_members(source).items() if k not in drop}
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    write_members(path, members | {"manifest.json": json.dumps(manifest).encode()})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torch": "1.13.0"}, "saved with torch 1.13.0, and this is torch"),
        ({"format": 99}, "format 99, and hierpart"),
        ({"blocks": {"x": ["tensorrt", "blocks/0", False, True]}}, "holds no blocks/0, the compiled code of x"),
        ({"names": {"": ["x"]}}, "reads the graph back otherwise"),
    ],
)  # fmt: skip
def test_files_of_other_versions_and_incomplete_ones_are_refused(wide, tmp_path, change, message):
    with pytest.raises(ArtefactError, match=message):
        hierpart.load(rewritten(wide[1], tmp_path / "m", lambda m: m.update(change)))


@pytest.mark.parametrize("member", ["plan.json", "program.pt2"])
def test_missing_members_are_named(wide, tmp_path, member):
    with pytest.raises(ArtefactError, match=f"holds no {member}"):
        hierpart.load(rewritten(wide[1], tmp_path / "m", lambda m: None, drop=[member]))


def test_a_plan_of_another_graph_is_refused(wide, tmp_path):
    other = hierpart.compile(nn.ReLU(), (torch.ones(2),), backend_priority=[])
    members = read_members(wide[1])
    write_members(tmp_path / "m", members | {"plan.json": other.plan.to_json().encode()})
    with pytest.raises(ArtefactError, match="plan"):
        hierpart.load(tmp_path / "m")


class Trap:
    """Its pickle runs a function."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle ran')",))


def test_no_pickle_is_read_unless_it_is_allowed(wide, tmp_path):
    members = read_members(wide[1])
    assert pickle_in(members["program.pt2"]) is None
    trapped = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(members["program.pt2"])) as source:
        names = source.namelist()
        with zipfile.ZipFile(trapped, "w") as target:
            for name in names:
                data = source.read(name)
                if name.endswith("sample_inputs/model.pt"):
                    data = pickle.dumps(Trap())
                target.writestr(name, data)
    write_members(tmp_path / "m", members | {"program.pt2": trapped.getvalue()})
    with pytest.raises(ArtefactError, match=r"model.pt is a pickle.*allow_pickle=True"):
        hierpart.load(tmp_path / "m")


@pytest.mark.parametrize(
    "payload",
    [
        {"path_name": "weight_0", "use_pickle": True},
        {"path_name": "custom_obj_0", "use_pickle": False},
        {"path_name": "opaque_obj_0", "use_pickle": False},
    ],
)
def test_pickled_weights_and_objects_are_seen(payload):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("m/version", "3")
        archive.writestr("m/models/model.json", "{}")
        archive.writestr(
            "m/data/weights/model_weights_config.json", json.dumps({"config": {"w": payload}})
        )
    assert pickle_in(buffer.getvalue()) == "w"
