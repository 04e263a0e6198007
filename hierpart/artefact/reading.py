"""Reading the members of a file: the manifest, compiled code, and the exported program."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from hierpart.artefact.members import ArtefactError
from hierpart.artefact.origin import Saved
from hierpart.artefact.writing import FORMAT, MANIFEST, PLAN, PROGRAM
from hierpart.graph import is_getitem
from hierpart.version import __version__

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def read_manifest(path: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
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


def readable_blocks(
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


def read_program(
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
