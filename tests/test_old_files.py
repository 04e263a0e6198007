"""Files that 0.1.0 wrote, before its modules were packages, load and give the results of then.

``tests/data/written_by_0.1.0``: each model as ``<name>.hierpart``, and ``<name>.pt`` with its
arguments and what the model itself gave. Written with torch 2.14.1, the only version that reads them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hierpart
from hierpart import ArtefactError
from tests.tensorrt_models import needs_rtx

FILES = Path(__file__).parent / "data" / "written_by_0.1.0"
SAME_TORCH = torch.__version__.partition("+")[0] == "2.14.1"
written_with = pytest.mark.skipif(not SAME_TORCH, reason="the files were saved with torch 2.14.1")


def loaded(name: str, **options):
    return hierpart.load(FILES / f"{name}.hierpart", **options)


@written_with
@pytest.mark.inductor
@pytest.mark.parametrize(
    ("name", "again"),
    [("wide_inductor", True), ("dynamic_inductor", False)],  # torch could not keep a block's branch
)
def test_inductor_code_of_0_1_0(name, again):
    module = loaded(name, allow_pickle=True)
    args, wanted = torch.load(FILES / f"{name}.pt")
    torch.testing.assert_close(module(*args), wanted)
    assert {o.backend for o in module.report.outcomes} >= {"inductor"}
    assert any("compiled again" in note for note in module.report.notes) == again


@written_with
@pytest.mark.inductor
def test_other_sizes_of_a_dynamic_file_of_0_1_0():
    module = loaded("dynamic_inductor", allow_pickle=True)
    args, _ = torch.load(FILES / "dynamic_inductor.pt")
    (x,) = args
    torch.testing.assert_close(module(torch.cat([x, x])), torch.cat([module(x)] * 2) / 2)


@written_with
@needs_rtx
def test_an_engine_of_0_1_0():
    module = loaded("engine")
    assert [(o.planned, o.backend, o.status) for o in module.report.outcomes] == [
        ("tensorrt", "eager", "built")
    ]


@pytest.mark.skipif(SAME_TORCH, reason="this is the version that saved the files")
def test_another_torch_names_the_version_that_reads_the_file():
    with pytest.raises(ArtefactError, match=r"saved with torch 2\.14\.1"):
        loaded("engine")
