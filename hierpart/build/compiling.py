"""Compile the blocks of a split module: once per distinct structure, falling down the priority.

A block that a backend cannot compile goes to the next backend that takes all of its nodes, in the
end to eager; what happened is one :class:`Outcome` a block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.artefact import Frame, Kept, Origin, Saved
from hierpart.backends import backend_named
from hierpart.build.module_builder import Building, notes_of
from hierpart.build.results import BuildResult
from hierpart.build.structures import Quota
from hierpart.capture import Captured, ExportCall, GraphCall, capture, fixed_weights
from hierpart.graph import guards_of, value_of
from hierpart.options import Options
from hierpart.partition import run_line
from hierpart.plan import Plan
from hierpart.report import Planned, Report, details_of, log_plan, trace_artefact
from hierpart.runtime import CompiledModule, Flat, Pieces


def compile_model(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options,
) -> CompiledModule:
    """Capture, split and compile a model for inference.

    Args:
        model: An ``nn.Module`` in the mode that is to be captured, an ``ExportedProgram`` or a
            GraphModule.
        args: Example positional inputs of a module.
        kwargs: Example keyword inputs of a module.
        dynamic_shapes: As for ``torch.export.export``.
        options: The options of the split; ``backend_options`` hold the backends' own.

    Returns:
        A module that is called like the model, with ``.report`` and ``.plan``.

    Raises:
        InputTypeError: ``model`` is none of these.
        OptionError: An option does not fit.
        BackendCompileError: A block failed and ``strict`` is on.
    """
    check_backend_options(options)
    started = time.perf_counter()
    captured = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes, options=options)
    seconds = {"capture": time.perf_counter() - started}
    values = [value_of(n) for n in captured.graph.graph.find_nodes(op="placeholder")]
    program = captured.program
    # Both before compiling, which may put more conditions on sizes.
    call = GraphCall(captured.graph) if program is None else ExportCall.of(program)
    before = guards_of(values)
    built = build_graph(
        captured.graph, options, seconds=seconds, notes=captured.notes,
        exact_inputs=program is not None, weights=fixed_weights(program),
        keep=program is not None,
    )  # fmt: skip
    return finished(captured, call, built, guards_of(values)[len(before) :], options, before)


def finished(
    captured: Captured,
    call: GraphCall | ExportCall,
    built: Built,
    added: Sequence[Any],
    options: Options,
    guards: Sequence[Any],
) -> CompiledModule:
    """Return the module that runs what was built.

    Args:
        captured: The capture.
        call: How the module is called.
        built: What became of its graph.
        added: Conditions that compiled code puts on sizes; where they fail, all runs eagerly.
        options: The options of the compile.
        guards: Conditions on sizes that the captured graph relies on.
    """
    origin = None
    if captured.program is not None:
        frame = Frame.of(captured.program)
        origin = Origin(frame, options, built.kept, tuple(guards), tuple(added))
    twin = built.pieces.flat(built.pieces.calls) if added else None
    if added:
        call = call.under(added)
    return CompiledModule.of(captured, call, built.flat, built.report, twin, origin, built.pieces)


@dataclass(frozen=True)
class Built:
    """What became of a graph.

    Attributes:
        flat: The function that runs it.
        pieces: What that is made from.
        report: What went where.
        kept: What backends made, by the name of the block.
    """

    flat: Flat
    pieces: Pieces
    report: Report
    kept: Mapping[str, Kept]

    @property
    def parent(self) -> GraphModule:
        """The split module."""
        return self.pieces.parent


def build_graph(
    graph: GraphModule,
    options: Options,
    *,
    seconds: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    exact_inputs: bool = True,
    weights: Mapping[str, torch.Tensor] | None = None,
    keep: bool = False,
) -> Built:
    """Split and compile one graph.

    Args:
        graph: The graph; not changed.
        options: The options of the split.
        seconds: What earlier stages took, by name.
        notes: What the report is to say besides.
        exact_inputs: Whether inputs will come in the layout of their ``val``.
        weights: Tensors of placeholders that never change, by name of the placeholder.
        keep: Whether the report keeps the graph; one that holds weights would keep them alive.
    """
    started = time.perf_counter()
    result = run_line(graph, options)
    log_plan(result.plan)
    parent = result.split()
    split = time.perf_counter() - started
    built = build_blocks(parent, result.plan, options, weights)
    pieces = Pieces(parent, built.calls, exact_inputs, built.branches)
    times = {**(seconds or {}), "split": split, "build": built.seconds}
    report = replace(
        built_report(result.plan, built, notes, times),
        details=details_of(result), planned=Planned(result, options) if keep else None,
    )  # fmt: skip
    trace_artefact("hierpart_report", report.to_json)
    return Built(pieces.flat(), pieces, report, built.kept)


def built_report(
    plan: Plan, built: BuildResult, notes: Sequence[str], seconds: Mapping[str, float]
) -> Report:
    """Return the report of what was built."""
    return Report(plan, built.outcomes, (*notes, *notes_of(built)), seconds)


def build_blocks(
    parent: GraphModule,
    plan: Plan,
    options: Options,
    weights: Mapping[str, torch.Tensor] | None = None,
    saved: Saved | None = None,
) -> BuildResult:
    """Compile the blocks of a split module.

    Args:
        parent: The split module; neither it nor its blocks are changed.
        plan: Its plan.
        options: ``strict``, checks and caps, the backends' own options, and backend objects in the
            support map.
        weights: Tensors of placeholders that never change, by name of the placeholder.
        saved: Compiled blocks from a file.

    Raises:
        OptionError: A backend does not know one of its options.
        BackendCompileError: A block failed and ``strict`` is on; the cause is chained.
    """
    build = Building(options, saved or {}, Quota(options.max_blocks))
    return build.module(parent, plan, {}, weights or {})


def check_backend_options(options: Options) -> None:
    """Let each backend that can check its own options do so before any work is done."""
    for name in options.backend_priority:
        check = getattr(backend_named(name, options), "check_options", None)
        if check is not None:
            check(options.options_of(name))
