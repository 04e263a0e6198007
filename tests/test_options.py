"""Options are checked strictly: every error names the value and the nearest legal one."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest
import torch

import hierpart
from hierpart.errors import HierpartError, OptionError, nearest
from hierpart.options import DEFAULT_MIN_BLOCK_SIZE, Options, default_priority

aten = torch.ops.aten

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "reserved name": ({"backend_priority": ["None"]}, "'None' cannot be used"),
    "reserved name, small": ({"backend_priority": ["none"]}, "'none' cannot be used"),
    "empty name": ({"backend_priority": [""]}, "'' cannot be used"),
    "a name with a dot": ({"backend_priority": ["a.b"]}, "'a.b' cannot be used"),
    "a name with a blank": ({"backend_priority": ["a b"]}, "'a b' cannot be used"),
    "a name that is no text": ({"backend_priority": [5]}, "5 cannot be used"),
    "a string for a list": ({"backend_priority": "tensorrt"}, "takes a list of backend names"),
    "a set, which has no order": ({"backend_priority": {"a", "b"}}, "takes a list of backend names"),
    "twice": ({"backend_priority": ["a", "b", "a"]}, "names a backend twice"),
    "eager before others": ({"backend_priority": ["eager", "a"]}, "'eager' runs everything"),
    "a support map of another backend": (
        {"backend_support_map": {"tensort": set()}}, "names 'tensort'.*did you mean 'tensorrt'",
    ),
    "a support map that is none": ({"backend_support_map": ["tensorrt"]}, "takes a mapping"),
    "one op as a string": (
        {"backend_support_map": {"tensorrt": "aten.relu"}}, "not the string 'aten.relu'",
    ),
    "a negative size": ({"min_block_size": -3}, "whole number from 0, not -3"),
    "a fraction": ({"min_block_size": 2.5}, "not 2.5"),
    "a number as text": ({"min_block_size": "5"}, "not '5'"),
    "a truth value as a size": ({"min_block_size": True}, "not True"),
    "no size": ({"min_block_size": None}, "not None"),
    "a negative size of one backend": (
        {"min_block_size": {"inductor": -1}}, r"min_block_size\['inductor'\].*not -1",
    ),
    "a size of another backend": (
        {"min_block_size": {"inducto": 1}}, "names 'inducto'.*did you mean 'inductor'",
    ),
    "an op instead of ops": ({"torch_executed_ops": "aten.relu"}, "takes a collection of ops"),
    "an overload instead of ops": ({"torch_executed_ops": aten.relu.default}, "takes a collection"),
    "a name instead of names": ({"exclude_nodes": "relu"}, "takes a collection of names"),
    "nodes instead of names": ({"exclude_modules": [5]}, "takes a collection of names"),
    "a name as predicate": ({"exclude": "relu"}, "takes a predicate"),
    "a flag that is none": ({"require_full_compilation": 1}, "True or False, not 1"),
    "another flag that is none": ({"skip_fusion": "no"}, "True or False, not 'no'"),
    "a check that is no flag": ({"check": "yes"}, "True or False, not 'yes'"),
    "strict as a number": ({"strict": 1}, "True or False, not 1"),
    "no time": ({"compile_timeout": 0}, "compile_timeout takes a number above 0, not 0"),
    "time as text": ({"compile_timeout": "5"}, "not '5'"),
    "a negative tolerance": ({"check_tolerance": -1e-3}, "check_tolerance takes .* not -0.001"),
    "half a byte": ({"compile_memory": 0.5}, "compile_memory takes a whole number"),
    "fewer than no blocks": ({"max_blocks": -1}, "max_blocks takes a whole number from 0"),
    "no such way to demote": ({"demote": "eagr"}, "'eagr' is not legal.*did you mean 'eager'"),
    "no such decomposition": ({"decompositions": "core"}, "'core' is not legal"),
    "no such mode": ({"control_flow": {"cond": "hole"}}, "'hole' is not legal.*'whole'"),
    "options of a backend that is not used": (
        {"backend_options": {"inducter": {}}}, "'inducter'.*did you mean 'inductor'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), WRONG.values(), ids=WRONG)
def test_illegal_values_are_named(fields, words):
    """A ``ValueError`` that names the value and says what is legal."""
    with pytest.raises(OptionError, match=words) as caught:
        Options(**fields)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, HierpartError)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("min_blok_size", "min_block_size"), ("backend_prioritys", "backend_priority"),
        ("torch_executed_op", "torch_executed_ops"), ("inductr", "inductor"),
        ("fallbck", "fallback"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_the_nearest_one(key, meant):
    """Unknown options are never filtered out in silence."""
    with pytest.raises(OptionError, match=f"unknown option '{key}'; did you mean '{meant}'"):
        Options.from_mapping({key: 1})


def test_an_unknown_key_far_from_all_lists_the_legal_ones():
    with pytest.raises(OptionError, match="unknown option 'xyz'; legal: 'allowed_single_node"):
        Options.from_mapping({"xyz": 1})


def test_the_defaults_are_those_of_the_field():
    """Five ops, TensorRT before Inductor, nothing excluded."""
    options = Options()
    assert options.backend_priority == ("tensorrt", "inductor")
    assert options.min_block_size == DEFAULT_MIN_BLOCK_SIZE == 5
    assert options.demote == "cascade"
    assert options.fallback
    assert not options.require_full_compilation
    assert Options.from_mapping(None) == Options.from_mapping({}) == options


def test_options_are_frozen_and_keep_nothing_of_the_callers():
    """What the caller passed in can change later without changing the options."""
    support, ops = {"tensorrt": {aten.relu}}, [aten.sin]
    options = Options(backend_support_map=support, torch_executed_ops=ops)
    support["inductor"] = set()
    ops.append(aten.cos)
    assert list(options.backend_support_map or {}) == ["tensorrt"]
    assert options.torch_executed_ops == (aten.sin,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.demote = "eager"  # type: ignore[misc]


def test_a_collection_without_an_order_is_put_in_one():
    """C9: a set of ops gives the same options whatever its order."""
    ops = [aten.sin, aten.cos, aten.relu, "aten.exp", torch.neg]
    assert len({Options(torch_executed_ops=o).torch_executed_ops for o in (ops, ops[::-1])}) == 1
    assert Options(torch_executed_ops=set(ops)) == Options(torch_executed_ops=frozenset(ops))


def test_equal_options_are_equal_and_copies_too():
    made = Options(min_block_size={"inductor": 2}, torch_executed_ops=[aten.relu])
    assert made == Options(min_block_size={"inductor": 2}, torch_executed_ops={aten.relu})
    assert made == dataclasses.replace(made) == copy.copy(made)
    assert made != Options(min_block_size={"inductor": 3}, torch_executed_ops=[aten.relu])


def test_sizes_by_backend():
    """A backend that the mapping does not name has the default."""
    options = Options(min_block_size={"inductor": 2})
    assert (options.size_of("inductor"), options.size_of("tensorrt")) == (2, 5)
    assert Options(min_block_size=7).size_of("inductor") == 7
    assert Options(min_block_size=torch.tensor(3)).size_of("inductor") == 3


def test_eager_at_the_end_of_the_priority_says_nothing_new():
    assert Options(backend_priority=["inductor", "eager"]).backend_priority == ("inductor",)
    assert Options(backend_priority=["eager"]).backend_priority == ()
    assert Options(backend_priority=[]).backend_priority == ()


def test_a_key_that_names_a_backend_holds_its_own_options():
    """As ``torch.compile(options=...)`` passes them."""
    options = Options.from_mapping({"inductor": {"max_autotune": True}, "min_block_size": 2})
    assert options.options_of("inductor") == {"max_autotune": True}
    assert options.options_of("tensorrt") == {}
    assert options.min_block_size == 2
    with pytest.raises(OptionError, match="'inductor' take a mapping, not 5"):
        Options.from_mapping({"inductor": 5})


def test_the_environment_replaces_the_default_priority_only(monkeypatch):
    """``HIERPART_PRIORITY`` is the default; what is passed in wins."""
    monkeypatch.setenv("HIERPART_PRIORITY", " inductor , mine,")
    assert default_priority() == ("inductor", "mine")
    assert Options.from_mapping({}).backend_priority == ("inductor", "mine")
    assert Options.from_mapping({"backend_priority": ["a"]}).backend_priority == ("a",)
    monkeypatch.setenv("HIERPART_PRIORITY", "")
    assert default_priority() == ("tensorrt", "inductor")


def test_a_bad_environment_is_an_error_too(monkeypatch):
    monkeypatch.setenv("HIERPART_PRIORITY", "a.b")
    with pytest.raises(OptionError, match=re.escape("'a.b'")):
        Options.from_mapping({})


def test_no_other_module_reads_the_environment():
    """Environment variables are read in ``options.py`` and nowhere else in the line."""
    from pathlib import Path

    package = Path(hierpart.__file__).parent
    readers = [
        p.relative_to(package).as_posix()
        for p in sorted(package.rglob("*.py"))
        if re.search(r"\bos\.environ|\bgetenv\b", p.read_text())
    ]
    assert readers == ["options.py"]


def test_the_nearest_legal_name():
    """One close name, else the first eight; nothing where nothing is legal."""
    assert nearest("inductr", ["tensorrt", "inductor"]) == "; did you mean 'inductor'?"
    assert nearest("zzz", ["b", "a"]) == "; legal: 'a', 'b'"
    assert nearest("zzz", "abcdefghij").endswith("'h', ...")
    assert nearest("zzz", []) == ""
