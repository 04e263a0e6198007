"""Backends that misbehave while they compile: contained, named, and the result is right."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import hierpart
from tests.doubles import Double, Raising, same


class MuteError(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


class Returning(Double):
    def compile(self, block, inputs, options):
        return None


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        (Raising("bad", SystemExit(3)), "raised SystemExit when compiling"),
        (Raising("bad", GeneratorExit()), "raised GeneratorExit when compiling"),
        (Raising("bad", MuteError()), "MuteError: .its text cannot be had: ValueError"),
        (Returning("bad"), "returned a NoneType, which cannot be called"),
    ],
)
def test_what_a_backend_does_when_compiling_is_contained_and_named(backend, told):
    x = torch.ones(2)
    module = hierpart.compile(
        nn.ReLU(), (x,), backend_priority=["bad"], min_block_size=1,
        backend_support_map={"bad": backend},
    )  # fmt: skip
    same(module(x), x)
    (outcome,) = module.report.outcomes
    assert outcome.backend == "eager"
    assert re.search(told, outcome.error)
