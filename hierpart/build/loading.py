"""Reading what :mod:`hierpart.artefact` wrote."""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import itertools
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from hierpart.artefact import (
    CAREFUL,
    FORMAT,
    MANIFEST,
    PLAN,
    PROGRAM,
    ArtefactError,
    Saved,
    read_members,
)
from hierpart.build.compiling import Built, build_blocks, built_report, finished
from hierpart.capture import Captured, ExportCall, InputCheck, fixed_weights
from hierpart.errors import PlanError
from hierpart.graph import evaluator, guards_of, is_getitem, places, symbols_in, value_of
from hierpart.options import Options
from hierpart.partition import replay
from hierpart.plan import EAGER, Plan
from hierpart.runtime import Pieces
from hierpart.version import __version__

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from hierpart.runtime import CompiledModule


def load_module(path: Path, device: Any, allow_pickle: bool) -> CompiledModule:
    """Return the module in a file; see :func:`hierpart.api.load`."""
    started = time.perf_counter()
    members = read_members(path)
    manifest = _manifest(path, members)
    saved, again = _saved(manifest, members, device is not None, allow_pickle)
    program = _program(path, members[PROGRAM], manifest, allow_pickle)
    if device is not None:
        program = _moved(path, program, device, manifest)
    for name, first in manifest["tied"].items():
        program.state_dict[name] = program.state_dict[first]
    try:
        plan = Plan.from_json(members[PLAN].decode())
        parent = replay(program.graph_module, plan)
    except (PlanError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: its plan does not fit its graph: {error}") from error
    read = time.perf_counter() - started
    values = [value_of(n) for n in program.graph.find_nodes(op="placeholder")]
    call = ExportCall.of(program)
    guards = _expressions(manifest["guards"], values)
    call = dataclasses.replace(call, check=_with_guards(call.check, guards))
    before = guards_of(values)
    options = _options(plan, manifest, saved)
    built = build_blocks(parent, plan, options, fixed_weights(program), saved)
    pieces = Pieces(parent, built.calls, branches=built.branches)
    notes = [
        f"loaded from {path.name}",
        *(f"{n} was compiled again: {w}" for n, w in again.items()),
    ]
    report = built_report(plan, built, notes, {"read": read, "build": built.seconds})
    added = [*_expressions(manifest["conditions"], values), *guards_of(values)[len(before) :]]
    whole = Built(pieces.flat(), pieces, report, built.kept)
    return finished(Captured(program.graph_module, program), call, whole, added, options, guards)


def _manifest(path: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of a file that this version can read.

    Raises:
        ArtefactError: A member is missing, or the file was written by other versions.
    """
    for name in (MANIFEST, PLAN, PROGRAM):
        if name not in members:
            raise ArtefactError(f"{path}: holds no {name}; it was not written by compiled.save")
    try:
        manifest: dict[str, Any] = json.loads(members[MANIFEST])
        found = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: its manifest cannot be read: {error}") from error
    if found != FORMAT:
        raise ArtefactError(
            f"{path}: format {found}, and hierpart {__version__} reads format {FORMAT}; save it "
            "again with this version"
        )
    here = torch.__version__.partition("+")[0]
    if manifest["torch"] != here:
        raise ArtefactError(
            f"{path}: saved with torch {manifest['torch']}, and this is torch {here}; load it with "
            "that version, or compile and save the model again"
        )
    for name, (_, member, *_) in manifest["blocks"].items():
        if member not in members:
            raise ArtefactError(f"{path}: holds no {member}, the compiled code of {name}")
    return manifest


def _saved(
    manifest: Mapping[str, Any], members: Mapping[str, bytes], moved: bool, allow_pickle: bool
) -> tuple[Saved, dict[str, str]]:
    """Return the compiled blocks that may be read, and why others are compiled again."""
    saved: dict[str, tuple[str, bytes]] = {}
    again: dict[str, str] = dict(manifest["compiled_again"])
    for name, (backend, member, is_pickle, is_portable) in manifest["blocks"].items():
        if moved and not is_portable:
            again[name] = f"{backend} compiled it for the device that it was on"
        elif is_pickle and not allow_pickle:
            again[name] = f"what {backend} compiled is a pickle; load with allow_pickle=True"
        else:
            saved[name] = (backend, members[member])
    return saved, again


def _program(
    path: Path, data: bytes, manifest: Mapping[str, Any], allow_pickle: bool
) -> ExportedProgram:
    """Return the exported program, with the names that its nodes had.

    Raises:
        ArtefactError: It holds pickles, cannot be read, or reads back as another graph.
    """
    pickled = None if allow_pickle else _pickle_in(data)
    if pickled is not None:
        raise ArtefactError(
            f"{path}: {pickled} is a pickle, which can run any code; load it with "
            "allow_pickle=True if you trust it"
        )
    try:
        program = torch.export.load(io.BytesIO(data))
    except Exception as error:  # torch's reader raises whatever its first bad member does
        raise ArtefactError(f"{path}: torch.export cannot read its graph: {error}") from error
    _drop_unused(program.graph_module, "", manifest["names"])
    _check_names(program.graph_module, "", manifest["names"])
    return program


def _moved(
    path: Path, program: ExportedProgram, device: Any, manifest: Mapping[str, Any]
) -> ExportedProgram:
    """Return the program on another device.

    Raises:
        ArtefactError: It cannot be moved there.
    """
    from torch.export.passes import move_to_device_pass

    try:
        where = torch.empty(0, device=device).device  # with its index
        moved = move_to_device_pass(program, where)
    except Exception as error:  # whatever the device's library says
        raise ArtefactError(f"{path}: cannot be moved to {device}: {error}") from error
    _check_names(moved.graph_module, "", manifest["names"])
    return moved


def _pickle_in(data: bytes) -> str | None:
    """Return the first member of a torch.export archive that would be read as a pickle."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if name.endswith("_config.json"):
                config = json.loads(archive.read(name)).get("config", {})
                for key, payload in config.items():
                    plain = payload["path_name"].startswith(("weight_", "tensor_"))
                    if payload["use_pickle"] or not plain:
                        return str(key)
            elif name.endswith((".pt", ".pkl")) and not _is_plain(archive.read(name)):
                return name
    return None


def _is_plain(data: bytes) -> bool:
    """Whether a member is empty or holds nothing but tensors and plain containers."""
    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # whatever it is, it is not plain
        return False
    return True


def _drop_unused(module: GraphModule, at: str, names: Mapping[str, Sequence[str]]) -> None:
    """Erase what torch.export adds for results that nobody reads."""
    known = set(names.get(at, ()))
    for node in reversed(list(module.graph.nodes)):
        if is_getitem(node) and not node.users and node.name not in known:
            module.graph.erase_node(node)
    module.recompile()
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            _drop_unused(child, f"{at}{name}/", names)


def _check_names(module: GraphModule, at: str, names: Mapping[str, Sequence[str]]) -> None:
    """Check that the nodes are those that were saved, here and in branches.

    Raises:
        ArtefactError: They are not.
    """
    found, wanted = [node.name for node in module.graph.nodes], list(names.get(at, ()))
    if found != wanted:
        pairs = itertools.zip_longest(found, wanted)
        other = next((a, b) for a, b in pairs if a != b)
        raise ArtefactError(
            f"torch.export reads the graph back otherwise: {other[0]} in place of {other[1]}"
        )
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            _check_names(child, f"{at}{name}/", names)


def _options(plan: Plan, manifest: Mapping[str, Any], saved: Saved) -> Options:
    """Return the options for what has to be compiled again; code that is here needs none."""
    priority = [name for name in plan.priority if name != EAGER]
    here = {backend for backend, _ in saved.values()}
    own = {b: o for b, o in manifest["options"].items() if b in priority and b not in here}
    careful = {name: manifest[name] for name in CAREFUL if name in manifest}
    return Options(
        backend_priority=tuple(priority), backend_options=own, fallback=manifest["fallback"],
        **careful,
    )  # fmt: skip


def _expressions(texts: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return expressions in the symbols of ``values``, found by their names.

    Raises:
        ArtefactError: A text is no expression as sympy's ``srepr`` writes them.
    """
    symbols = {str(s): s for value in values for s in symbols_in(value)}
    found = []
    for text in texts:
        try:
            expression = _made(ast.parse(text, mode="eval").body, _classes())
        except (SyntaxError, TypeError, ValueError) as error:
            raise ArtefactError(f"a condition on sizes cannot be read: {error}") from error
        known = {s: symbols[str(s)] for s in expression.free_symbols if str(s) in symbols}
        found.append(expression.xreplace(known))
    return found


def _made(node: ast.expr, classes: Mapping[str, Any]) -> Any:
    """Return what ``Class(argument, ..., key=constant)`` stands for.

    sympy's own reader evaluates the text as Python, which a file must not make this process do.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_made(node.operand, classes)
    if isinstance(node, ast.Name) and node.id in classes:
        return classes[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
        # Some classes read a text as Python; only names and decimals have to be texts.
        if node.func.id not in ("Symbol", "Float") and any(map(_is_text, node.args)):
            raise ValueError(f"{ast.unparse(node)!r} holds a text")
        args = [_made(a, classes) for a in node.args]
        named = {str(k.arg): _made(k.value, classes) for k in node.keywords}
        return classes[node.func.id](*args, **named)
    raise ValueError(f"{ast.unparse(node)!r} is no part of an expression")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


@functools.cache
def _classes() -> dict[str, Any]:
    """Return the classes and constants that expressions on sizes are made of, by name."""
    import sympy
    from torch.utils._sympy import functions

    found = {**vars(sympy), **vars(functions)}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, sympy.Basic)
        or (isinstance(value, type) and issubclass(value, sympy.Basic))
    }


def _with_guards(check: InputCheck, guards: Sequence[Any]) -> InputCheck:
    """Return the check with the conditions that torch.export does not save."""
    values = [expected.value for expected in check.expected]
    known = set(places(values))
    told = [g for g in guards if g.free_symbols and g.free_symbols <= known]
    texts = tuple(str(guard) for guard in told)
    return dataclasses.replace(check, guards=texts, guard_values=evaluator(told, values))
