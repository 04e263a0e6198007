"""``cache_dir``: backends keep what they compile in the folder that the caller names."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import hierpart
from hierpart.backends.registry import backend_named, own_options
from hierpart.errors import OptionError
from hierpart.options import Options


def options(**given):
    return Options.from_mapping({"backend_priority": ["tensorrt", "inductor"], **given})


def own(name, chosen):
    return own_options(name, backend_named(name, chosen), chosen)


def test_each_backend_gets_a_folder_of_its_own(tmp_path):
    chosen = options(cache_dir=tmp_path)
    assert own("inductor", chosen) == {"cache_dir": str(tmp_path / "inductor")}
    assert own("tensorrt", chosen) == {"engine_cache": str(tmp_path / "tensorrt")}
    assert backend_named("tensorrt", chosen).settings.engine_cache == str(tmp_path / "tensorrt")
    assert own("inductor", options()) == {}


def test_a_folder_that_the_backend_was_given_comes_first(tmp_path):
    chosen = options(cache_dir=tmp_path, tensorrt={"engine_cache": "engines"})
    assert own("tensorrt", chosen) == {"engine_cache": "engines"}


def test_what_is_no_path_is_refused():
    with pytest.raises(OptionError, match="cache_dir takes a path, not 3"):
        options(cache_dir=3)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_option(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"cache_dir=.* cannot be used"):
        hierpart.compile(
            nn.ReLU(), (torch.ones(2),), backend_priority=["inductor"], min_block_size=1,
            options={"cache_dir": tmp_path / "file"},
        )  # fmt: skip


def files(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.inductor
@pytest.mark.parametrize("workers", [1, 2])
def test_inductor_finds_there_what_it_compiled(tmp_path, monkeypatch, workers):
    """Nothing is added by a second compile, and nothing is written where Inductor writes else."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "else"))
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid()), torch.randn(2, 4)
    settings = {
        "backend_priority": ["inductor"], "min_block_size": 1, "torch_executed_ops": ["aten.tanh"],
        "options": {"cache_dir": tmp_path / "given", "compile_workers": workers},
    }  # fmt: skip
    found = []
    for _ in range(2):
        compiled = hierpart.compile(model.eval(), (x,), **settings)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        found.append(files(tmp_path / "given" / "inductor"))
    assert [o.status for o in compiled.report.outcomes] == ["compiled", "eager", "compiled"]
    assert found[0] == found[1] != set()
    assert not files(tmp_path / "else")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "else")
