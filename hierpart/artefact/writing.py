"""Compiled modules on disk: what ``compiled.save(path)`` writes and ``hierpart.load(path)`` reads.

The file holds the exported program with its weights, the plan, and what backends made of the
blocks. The plan is replayed on loading and no backend is asked. No pickle is read unless the caller
allows it: without, blocks whose code can only be pickled (Inductor's) are compiled again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.fx import GraphModule

from hierpart.artefact.archive import check_program
from hierpart.artefact.expressions import check_expression
from hierpart.artefact.members import ArtefactError, write_members
from hierpart.artefact.origin import Frame, Origin
from hierpart.backends import backend_named
from hierpart.options import Options
from hierpart.report import Report
from hierpart.version import __version__

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FORMAT = 1
MANIFEST, PLAN, PROGRAM = "manifest.json", "plan.json", "program.pt2"
CAREFUL = ("check", "check_tolerance", "compile_timeout", "compile_memory", "max_blocks")
"""Options that hold, too, for blocks that are compiled again on loading."""


class Savable(Protocol):
    """A compiled module, as far as saving needs it."""

    report: Report

    def state_dict(self, *, keep_vars: bool) -> Mapping[str, Any]:
        """Return parameters and persistent buffers by qualified name."""

    def tensor(self, name: str) -> Any:
        """Return the tensor or constant that the graph knows by this qualified name."""


def save(module: Savable, origin: Origin | None, path: Any) -> None:
    """Write a compiled module to one file.

    Args:
        module: The module, with the weights that it has now.
        origin: What it was made from.
        path: The file; replaced where it is there.

    Raises:
        ArtefactError: The module cannot be saved, or the file not be written.
    """
    if origin is None:
        raise ArtefactError(
            "only modules that were captured with torch.export can be saved: compile the model "
            "itself or an ExportedProgram, not a GraphModule"
        )
    members: dict[str, bytes] = {}
    blocks, again = _blocks(origin, members)
    program = _with_tensors(origin.frame, module)
    manifest = {
        "format": FORMAT, "hierpart": __version__, "torch": _release(torch.__version__),
        "blocks": blocks, "compiled_again": again, "fallback": origin.options.fallback,
        "options": _plain_options(origin.options),
        **{name: getattr(origin.options, name) for name in CAREFUL},
        "names": dict(_names(program.graph_module)),
        "tied": _tied(program.state_dict),
        "guards": _texts(origin.guards),
        "conditions": _texts(origin.conditions),
        "notes": list(module.report.notes),
    }  # fmt: skip
    buffer = io.BytesIO()
    try:
        torch.export.save(program, buffer)
    except Exception as error:  # its serialiser knows some types and raises on others
        raise ArtefactError(f"torch.export cannot save the graph: {error}") from error
    check_program(buffer.getvalue())  # what is written can be read
    head = {
        MANIFEST: json.dumps(manifest, indent=1).encode(),
        PLAN: module.report.plan.to_json().encode(),
    }
    write_members(Path(path), {**head, PROGRAM: buffer.getvalue(), **members})


def _blocks(
    origin: Origin, members: dict[str, bytes]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Put what backends made into ``members``, each once.

    Returns:
        Backend, member, whether it is a pickle and whether it fits any device, by block, and why
        others are compiled again.
    """
    blocks: dict[str, list[Any]] = {}
    again: dict[str, str] = {}
    done: dict[int, str] = {}
    for name, kept in origin.kept.items():
        backend: Any = backend_named(kept.backend, origin.options)
        if not hasattr(backend, "dump"):
            again[name] = f"{kept.backend} cannot write what it compiled"
            continue
        if id(kept.made) not in done:
            try:
                data = backend.dump(kept.made)
            except Exception as error:  # backends raise whatever they like
                again[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            done[id(kept.made)] = f"blocks/{len(done)}"
            members[done[id(kept.made)]] = data
        traits = [bool(getattr(backend, t, False)) for t in ("pickles", "portable")]
        blocks[name] = [kept.backend, done[id(kept.made)], *traits]
    return blocks, again


def _with_tensors(frame: Frame, module: Savable) -> ExportedProgram:
    """Return the program with the tensors that the module has now."""
    from torch.export.graph_signature import InputKind

    state: dict[str, Any] = dict(module.state_dict(keep_vars=True))
    constants: dict[str, Any] = {}
    for spec in frame.signature.input_specs:
        name = str(spec.target)
        if spec.kind is InputKind.PARAMETER:
            state[name] = module.tensor(name)
        elif spec.kind is InputKind.BUFFER:
            (state if spec.persistent else constants)[name] = module.tensor(name)
        elif spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ):
            constants[name] = module.tensor(name)
    return frame.filled(state, constants)


def _plain_options(options: Options) -> dict[str, Any]:
    """Return the backends' own options as JSON data.

    Raises:
        ArtefactError: One is not plain data.
    """
    try:
        plain = {name: dict(own) for name, own in options.backend_options.items()}
        found: dict[str, Any] = json.loads(json.dumps(plain))
    except (TypeError, ValueError) as error:
        raise ArtefactError(f"the backends' options cannot be saved: {error}") from error
    return found


def _tied(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the first name of each tensor that stands under several, by its other names."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(value), name) for name, value in state.items()}
    return {name: other for name, other in names.items() if name != other}


def _names(module: GraphModule, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the names of the nodes of a module and of the branches in it."""
    yield path, [node.name for node in module.graph.nodes]
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            yield from _names(child, f"{path}{name}/")


def _texts(expressions: Sequence[Any]) -> list[str]:
    import sympy

    texts = [sympy.srepr(e) for e in expressions]
    for text in texts:
        check_expression(text)
    return texts


def _release(version: str) -> str:
    """Return a version without what says for which CUDA it was built."""
    return version.partition("+")[0]
