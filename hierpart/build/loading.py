"""Reading what :mod:`hierpart.artefact` wrote."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierpart.artefact import (
    CAREFUL,
    PLAN,
    PROGRAM,
    ArtefactError,
    Saved,
    on_device,
    plain_options,
    read_expressions,
    read_manifest,
    read_members,
    read_program,
    readable_blocks,
)
from hierpart.build.compiling import Built, build_blocks, built_report, finished
from hierpart.capture import Captured, ExportCall, InputCheck, fixed_weights
from hierpart.errors import BackendCompileError, BackendUnavailableError
from hierpart.graph import evaluator, guards_of, places, value_of
from hierpart.options import Options
from hierpart.partition import replay
from hierpart.plan import EAGER, Plan
from hierpart.runtime import Pieces

if TYPE_CHECKING:
    from hierpart.runtime import CompiledModule


def load_module(path: Path, device: Any, allow_pickle: bool) -> CompiledModule:
    """Return the module in a file; see :func:`hierpart.api.load`."""
    members = read_members(path)
    try:
        return _module_of(path, members, device, allow_pickle)
    except (ArtefactError, BackendCompileError, BackendUnavailableError):
        raise
    except Exception as error:  # what a file can make its readers raise cannot be listed
        raise ArtefactError(
            f"{path}: cannot be read: {type(error).__name__}: {error}; save it again"
        ) from error


def _module_of(
    path: Path, members: Mapping[str, bytes], device: Any, allow_pickle: bool
) -> CompiledModule:
    started = time.perf_counter()
    manifest = read_manifest(path, members)
    saved, again = readable_blocks(manifest, members, device is not None, allow_pickle)
    program = read_program(path, members[PROGRAM], manifest, allow_pickle)
    if device is not None:
        program = on_device(path, program, device, manifest)
    for name, first in manifest["tied"].items():
        if first not in program.state_dict:
            raise ArtefactError(f"{path}: ties {name} to {first}, which it does not hold")
        program.state_dict[name] = program.state_dict[first]
    try:
        plan = Plan.from_json(members[PLAN].decode())
        odd = [b.name for b in plan.blocks if not b.name.isidentifier()]
        if odd:
            raise ArtefactError(f"{path}: its plan names a block {odd[0][:100]!r}")
        parent = replay(program.graph_module, plan)
    except ArtefactError:
        raise
    except Exception as error:  # whatever the first odd field makes it do
        raise ArtefactError(f"{path}: its plan does not fit its graph: {error}") from error
    read = time.perf_counter() - started
    values = [value_of(n) for n in program.graph.find_nodes(op="placeholder")]
    call = ExportCall.of(program)
    guards = read_expressions(manifest["guards"], values)
    call = dataclasses.replace(call, check=_with_guards(call.check, guards))
    before = guards_of(values)
    options = _options(plan, manifest, saved, allow_pickle)
    built = build_blocks(parent, plan, options, fixed_weights(program), saved)
    pieces = Pieces(parent, built.calls, branches=built.branches)
    notes = [
        f"loaded from {path.name}",
        *(f"{n} was compiled again: {w}" for n, w in again.items()),
    ]
    if not allow_pickle and (left_out := plain_options(manifest)[1]):
        notes.append(f"not taken from the file, for they name files or folders: {left_out}")
    report = built_report(plan, built, notes, {"read": read, "build": built.seconds})
    added = [*read_expressions(manifest["conditions"], values), *guards_of(values)[len(before) :]]
    whole = Built(pieces.flat(), pieces, report, built.kept)
    return finished(Captured(program.graph_module, program), call, whole, added, options, guards)


def _options(plan: Plan, manifest: Mapping[str, Any], saved: Saved, allow_pickle: bool) -> Options:
    """Return the options for what has to be compiled again; code that is here needs none."""
    priority = [name for name in plan.priority if name != EAGER]
    here = {backend for backend, _ in saved.values()}
    known = manifest["options"] if allow_pickle else plain_options(manifest)[0]
    own = {b: o for b, o in known.items() if b in priority and b not in here}
    careful = {name: manifest[name] for name in CAREFUL if name in manifest}
    return Options(
        backend_priority=tuple(priority), backend_options=own, fallback=manifest["fallback"],
        **careful,
    )  # fmt: skip


def _with_guards(check: InputCheck, guards: Sequence[Any]) -> InputCheck:
    """Return the check with the conditions that torch.export does not save."""
    values = [expected.value for expected in check.expected]
    known = set(places(values))
    told = [g for g in guards if g.free_symbols and g.free_symbols <= known]
    texts = tuple(str(guard) for guard in told)
    return dataclasses.replace(check, guards=texts, guard_values=evaluator(told, values))
