"""Checks of a backend that need no block: its members, its verdicts, its options."""

from __future__ import annotations

import re
from typing import Any

from torch.fx import GraphModule

from hierpart.backends import Backend
from hierpart.errors import OptionError
from hierpart.plan import Verdict
from hierpart.testing.checks.backend.rules import BackendViolation, require
from hierpart.testing.reading.blocks import callable_nodes
from hierpart.testing.reading.snapshot import difference, snapshot

METHODS = ("available", "verdict", "compile", "fingerprint")
NO_OPTION = "no_backend_has_an_option_of_this_name"


def check_members(backend: Backend) -> None:
    """Check the attributes and methods of the protocol and the options.

    Raises:
        BackendViolation: One is missing or of another type.
    """
    name = getattr(backend, "name", None)
    legal = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    require(legal, "members", f"name is {name!r}; letters, digits and underscores are legal")
    for member in METHODS:
        require(callable(getattr(backend, member, None)), "members", f"{member}() is missing")
    for member in ("takes_scalars", "keeps_aliases"):
        value = getattr(backend, member, None)
        require(isinstance(value, bool), "members", f"{member} is {value!r}, not True or False")
    rank = getattr(backend, "max_rank", "missing")
    require(rank is None or isinstance(rank, int), "members", f"max_rank is {rank!r}")
    kept = getattr(backend, "keep_ops", None)
    require(isinstance(kept, frozenset), "members", f"keep_ops is {kept!r}, not a frozenset")
    why = backend.available()
    require(why is None or isinstance(why, str), "members", f"available() returned {why!r}")
    first, second = backend.fingerprint(), backend.fingerprint()
    require(isinstance(first, str), "members", f"fingerprint() returned {first!r}, not text")
    require(first == second, "members", f"fingerprint() was {first!r}, then {second!r}")
    both = hasattr(backend, "dump") == hasattr(backend, "restore")
    require(both, "members", "dump and restore go together")
    _check_options(backend)


def _check_options(backend: Any) -> None:
    if not hasattr(backend, "check_options"):
        return
    try:
        backend.check_options({NO_OPTION: 1})
    except OptionError as error:
        named = NO_OPTION in str(error)
        require(named, "errors", f"the message does not name the option: {error}")
        return
    except Exception as error:
        text = f"check_options raised {type(error).__name__}, not hierpart.errors.OptionError"
        raise BackendViolation("errors", text) from error
    raise BackendViolation("errors", "check_options takes an option that does not exist")


def check_verdicts(backend: Backend, gm: GraphModule) -> None:
    """Ask for the verdict on every callable node of ``gm`` with a value, twice.

    Raises:
        BackendViolation: A verdict is not what the protocol says.
    """
    before = snapshot(gm)
    for node in callable_nodes(gm):
        if "val" not in node.meta:
            continue
        try:
            first, second = backend.verdict(node), backend.verdict(node)
        except Exception as error:
            text = f"verdict({node.format_node()}) raised {type(error).__name__}: {error}"
            raise BackendViolation("verdict", text) from error
        require(isinstance(first, Verdict), "verdict", f"verdict returned {first!r}")
        text = f"the verdict on {node.format_node()} names {first.backend!r}, not {backend.name!r}"
        require(first.backend == backend.name, "verdict", text)
        text = f"{node.format_node()} is refused without a reason"
        require(first.supported or first.reason is not None, "verdict", text)
        text = f"the verdict on {node.format_node()} was {first}, then {second}"
        require(first == second, "verdict", text)
    changed = difference(before, snapshot(gm))
    require(not changed, "verdict", f"verdict changed the graph: {changed}")
