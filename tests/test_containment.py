"""Faulty backends: the result is right all the same and the report says who did what wrong."""

from __future__ import annotations

import functools
import json
import re

import pytest
import torch

from hierpart import build
from hierpart.capture import capture
from hierpart.options import Options
from tests.doubles import Double, options_for
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
