"""Reading the members of a file: the manifest, compiled code, and the exported program."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from hierpart.artefact.archive import check_program, pickle_in, unique
from hierpart.artefact.members import ArtefactError
from hierpart.artefact.origin import Saved
from hierpart.artefact.writing import FORMAT, MANIFEST, PLAN, PROGRAM
from hierpart.backends import backend_named
from hierpart.graph import is_getitem
from hierpart.options import Options
from hierpart.version import __version__

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_block(value: Any) -> bool:
    kinds = (str, str, bool, bool)
    return (
        isinstance(value, list) and len(value) == len(kinds) and all(map(isinstance, value, kinds))
    )


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "blocks": lambda v: isinstance(v, dict) and all(map(_is_block, v.values())),
    "compiled_again": _texts_by_name,
    "fallback": lambda v: isinstance(v, bool),
    "options": lambda v: isinstance(v, dict) and all(isinstance(o, dict) for o in v.values()),
    "names": lambda v: isinstance(v, dict) and all(map(_texts, v.values())),
    "tied": _texts_by_name,
    "guards": _texts,
    "conditions": _texts,
    "notes": _texts,
}
"""What has to be in a manifest besides the versions, and of what form."""


def read_manifest(path: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of a file that this version can read.

    Raises:
        ArtefactError: A member is missing, or the file was written by other versions.
    """
    for name in (MANIFEST, PLAN, PROGRAM):
        if name not in members:
            raise ArtefactError(f"{path}: holds no {name}; it was not written by compiled.save")
    try:
        manifest: dict[str, Any] = json.loads(members[MANIFEST], object_pairs_hook=unique)
        found = manifest["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtefactError(f"{path}: its manifest cannot be read: {error}") from error
    if found != FORMAT:
        raise ArtefactError(
            f"{path}: format {found}, and hierpart {__version__} reads format {FORMAT}; save it "
            "again with this version"
        )
    here = torch.__version__.partition("+")[0]
    if manifest.get("torch") != here:
        raise ArtefactError(
            f"{path}: saved with torch {manifest.get('torch')}, and this is torch {here}; load it "
            "with that version, or compile and save the model again"
        )
    odd = [key for key, fits in _FIELDS.items() if not fits(manifest.get(key))]
    if odd:
        raise ArtefactError(f"{path}: its manifest has odd or no {', '.join(odd)}")
    for name, (_, member, *_) in manifest["blocks"].items():
        if member not in members:
            raise ArtefactError(f"{path}: holds no {member}, the compiled code of {name}")
    return manifest


def readable_blocks(
    manifest: Mapping[str, Any], members: Mapping[str, bytes], moved: bool, allow_pickle: bool
) -> tuple[Saved, dict[str, str]]:
    """Return the compiled blocks that may be read, and why others are compiled again."""
    saved: dict[str, tuple[str, bytes]] = {}
    again: dict[str, str] = dict(manifest["compiled_again"])
    for name, (backend, member, is_pickle, is_portable) in manifest["blocks"].items():
        if moved and not is_portable:
            again[name] = f"{backend} compiled it for the device that it was on"
        elif (is_pickle or _pickles(backend)) and not allow_pickle:
            again[name] = f"what {backend} compiled is a pickle; load with allow_pickle=True"
        else:
            saved[name] = (backend, members[member])
    return saved, again


def _pickles(name: str) -> bool:
    """Whether that backend unpickles, whatever a file says of it."""
    return bool(getattr(backend_named(name, Options()), "pickles", False))


def plain_options(manifest: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the backends' options that name no program, folder or module, and the others' names.

    A file could name the compiler that is to be run, or a folder that compiled code is read from.
    """
    kept: dict[str, dict[str, Any]] = {}
    left_out = []
    for backend, own in manifest["options"].items():
        kept[backend] = {key: value for key, value in own.items() if _is_plain_option(key, value)}
        left_out += [f"{backend}.{key}" for key in own if key not in kept[backend]]
    return kept, left_out


def _is_plain_option(key: str, value: Any) -> bool:
    if any(word in key for word in ("cxx", "dir", "path", "cache", "pass", "cmd", "lib", "module")):
        return False
    if isinstance(value, list):
        return all(_is_plain_option(key, v) for v in value)
    if isinstance(value, str):
        return re.fullmatch(r"\w[\w.]{0,60}", value) is not None  # a word, no path and no flag
    return value is None or isinstance(value, (bool, int, float))


def read_program(
    path: Path, data: bytes, manifest: Mapping[str, Any], allow_pickle: bool
) -> ExportedProgram:
    """Return the exported program, with the names that its nodes had.

    Raises:
        ArtefactError: It holds pickles, cannot be read, or reads back as another graph.
    """
    if not allow_pickle:
        pickled = pickle_in(data)
        if pickled is not None:
            raise ArtefactError(
                f"{path}: {pickled} is a pickle, which can run any code; load it with "
                "allow_pickle=True if you trust it"
            )
    check_program(data)
    try:
        program = torch.export.load(io.BytesIO(data))
    except Exception as error:  # torch's reader raises whatever its first bad member does
        raise ArtefactError(f"{path}: torch.export cannot read its graph: {error}") from error
    _drop_unused(program.graph_module, "", manifest["names"])
    _check_names(program.graph_module, "", manifest["names"])
    return program


def on_device(
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
