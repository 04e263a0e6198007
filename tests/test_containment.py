"""Faulty backends: the result is right all the same and the report says who did what wrong."""

from __future__ import annotations

import functools
import json
import re

import pytest
import torch

import hierpart
from hierpart.build import compiling as build
from hierpart.capture.captured import capture
from hierpart.options import Options
from tests.doubles import Double, Wrapping, options_for
from tests.faulty import FAULTS, MODELS, Faulty, model_of

COSTLY = ("hangs", "allocates without end")


@functools.cache
def captured(name):
    """Return a model, its inputs and its capture, made once."""
    model, args = model_of(name)
    options = Options(backend_priority=())
    return model, args, capture(model, args, None, dynamic_shapes=None, options=options)


@pytest.fixture
def compiled_with(monkeypatch):
    def compile_model(fault, name, **fields):
        model, args, known = captured(name)
        monkeypatch.setattr(build, "capture", lambda *a, **k: known)
        settings = {
            "check": True,
            "compile_timeout": 2 if fault == "hangs" else 60,
            "compile_memory": 2**29,
        }
        backends = Faulty("first", fault, type(model).guilty, refuses=["cat"]), Double("second")
        options = options_for(*backends, **settings | fields)
        return model, args, build.compile_model(model, args, options=options)

    return compile_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_result_is_right_and_the_report_names_block_backend_and_reason(
    fault, name, compiled_with, caplog
):
    """C4, C8: nine faults in three models."""
    model, args, module = compiled_with(fault, name)
    given = [a.clone() for a in args]
    with torch.no_grad():
        torch.testing.assert_close(module(*args), model(*given), rtol=0, atol=0)
    torch.testing.assert_close(list(args), given, rtol=0, atol=0)
    planned = [b for b in module.plan.blocks if b.backend == "first"]
    guilty = [b for b in planned if any(model.guilty in n for n in b.nodes)]
    assert guilty
    told = json.loads(module.report.to_json())["report"]["outcomes"]
    for block in planned:
        outcome = told[block.index]
        assert (outcome["block"], outcome["planned"]) == (block.index, "first")
        if block not in guilty:
            assert (outcome["backend"], outcome["error"]) == ("first", None)
            continue
        assert re.search(FAULTS[fault], outcome["error"]), outcome["error"]
        assert outcome["status"] == "fell back" if fault in COSTLY else "divided"
        assert outcome["backend"] == "second" if fault in COSTLY else "first"
    first = guilty[0].index
    assert next(a["backend"] for a in told[first]["attempts"]) == "first"
    assert re.search(rf"^ +{first} +first ", module.report.compiled_text(), re.MULTILINE)
    warned = [r.getMessage() for r in caplog.records if r.name == "hierpart" and r.levelno == 30]
    assert any(f"block {first} (" in text and "first: " in text for text in warned)


class Blocks(torch.nn.Module):
    """Two distinct blocks around a cumsum."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(torch.tanh(self.linear(x)).cumsum(0) * 2, -1)


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("fields", "rows"), [({"compile_timeout": 300}, 4096), ({"compile_workers": 2}, 4098)]
)
def test_inductor_compiles_in_children_agrees_and_is_not_guilty(fields, rows):
    """Kernels use threads of OpenMP's, in the child as well; sizes make them do so."""
    model, x = Blocks(), (torch.randn(rows, 8),)
    module = hierpart.compile(
        model, x, check=True, backend_priority=["inductor"], min_block_size=1,
        torch_executed_ops=["torch.ops.aten.cumsum"], options=fields,
    )  # fmt: skip
    told = [(o.status, o.error, o.detail) for o in module.report.outcomes]
    assert told == [("compiled", None, ""), ("eager", None, ""), ("compiled", None, "")]
    with torch.no_grad():
        torch.testing.assert_close(module(*x), model(*x), rtol=1e-3, atol=1e-4)
    assert hierpart.bisect(module, x).guilty == ()
    assert hierpart.bisect(module, x, reference="float64").first is None


@pytest.mark.inductor
def test_a_block_that_takes_inductor_too_long_goes_to_eager(tmp_path, monkeypatch):
    """C4: the cap ends Inductor and the compiler that it has started."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = Blocks(), (torch.randn(33, 8),)
    module = hierpart.compile(
        model, x, backend_priority=["inductor"], min_block_size=1,
        torch_executed_ops=["torch.ops.aten.cumsum"], options={"compile_timeout": 0.05},
    )  # fmt: skip
    assert {o.backend for o in module.report.outcomes} == {"eager"}
    assert "did not end within compile_timeout=0.05 s" in module.report.outcomes[0].error
    with torch.no_grad():
        torch.testing.assert_close(module(*x), model(*x), rtol=0, atol=0)


@pytest.mark.parametrize("fields", [{"compile_timeout": 60}, {"compile_workers": 2}])
def test_children_compile_in_the_context_of_torch_compile(fields):
    """There a compiler may ask what a size is: Dynamo guards on the answer."""
    torch._dynamo.reset()
    asked = []

    def ask(function, inputs):
        sizes = [s for t in inputs for s in getattr(t, "shape", ()) if isinstance(s, torch.SymInt)]
        asked.append([int(s) for s in sizes])
        return function

    double = Wrapping("first", ask, refuses=["relu"])
    double.caches = True
    backend = hierpart.Backend(
        backend_priority=["first"], backend_support_map={"first": double}, min_block_size=1,
        **fields,
    )  # fmt: skip
    compiled = torch.compile(lambda x: (x.sin() * 2).relu() + 1, backend=backend, dynamic=True)
    for size in (5, 7):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), (x.sin() * 2).relu() + 1)
    told = [o.error for report in backend.reports for o in report.outcomes]
    assert told == [None] * 6
    assert [5] in asked
    torch._dynamo.reset()
