"""Compile the blocks of a split module: once per distinct structure, falling down the priority.

A block that a backend cannot compile goes to the next backend that takes all of its nodes, in the
end to eager; what happened is one :class:`Outcome` a block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from hierpart.assemble import is_accelerated
from hierpart.attempt import Compiled, cause_of, compile_block, let_through
from hierpart.branch import BranchModule
from hierpart.calling import GraphCall
from hierpart.canonical import Canonical, canonical
from hierpart.capture import backend_named, capture
from hierpart.effects import resolve_attribute
from hierpart.errors import BackendCompileError
from hierpart.exported import ExportCall
from hierpart.flat import Call, Flat, flatten
from hierpart.line import run_line
from hierpart.options import Options
from hierpart.outcomes import Attempt, BuildResult, Outcome
from hierpart.plan import EAGER, Block, Plan
from hierpart.report import Report, log_plan
from hierpart.runtime import CompiledModule
from hierpart.symbols import guards_of
from hierpart.values import value_of

_log = logging.getLogger("hierpart")


@dataclass(frozen=True)
class _Made:
    """What a structure was compiled to, by whom, for which block, and the tries on the way."""

    function: Compiled | None
    backend: str
    block: int
    attempts: tuple[Attempt, ...]


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
        BackendCompileError: A block failed to compile and ``fallback`` is off.
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
    flat, parent, report = build_graph(
        captured.graph, options, seconds=seconds, notes=captured.notes,
        exact_inputs=program is not None,
    )  # fmt: skip
    added = guards_of(values)[len(before) :]
    if not added:
        return CompiledModule.of(captured, call, flat, report)
    twin = flatten(parent, {}, exact_inputs=True)
    return CompiledModule.of(captured, call.under(added), flat, report, twin)


def build_graph(
    graph: GraphModule,
    options: Options,
    *,
    seconds: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    exact_inputs: bool = True,
) -> tuple[Flat, GraphModule, Report]:
    """Split and compile one graph; return the function that runs it, the split module, the report.

    Args:
        graph: The graph; not changed.
        options: The options of the split.
        seconds: What earlier stages took, by name.
        notes: What the report is to say besides.
        exact_inputs: Whether inputs will come in the layout of their ``val``.
    """
    started = time.perf_counter()
    result = run_line(graph, options)
    log_plan(result.plan)
    parent = result.split()
    split = time.perf_counter() - started
    built = build_blocks(parent, result.plan, options)
    flat = flatten(parent, built.calls, exact_inputs=exact_inputs, branches=built.branches)
    times = {**(seconds or {}), "split": split, "build": built.seconds}
    notes = (*notes, *_notes(built))
    return flat, parent, Report(result.plan, built.outcomes, notes, times)


def build_blocks(parent: GraphModule, plan: Plan, options: Options) -> BuildResult:
    """Compile the blocks of a split module.

    Args:
        parent: The split module; neither it nor its blocks are changed.
        plan: Its plan.
        options: ``fallback``, the backends' own options, and backend objects in the support map.

    Raises:
        OptionError: A backend does not know one of its options.
        BackendCompileError: A block failed and ``fallback`` is off; the cause is chained.
    """
    started = time.perf_counter()
    return _build(parent, plan, options, {}, _Shared({}, {}), started)


@dataclass(frozen=True)
class _Shared:
    """What branches have in common: compiled structures, and the branches built already."""

    made: dict[tuple[tuple[str, ...], str], _Made]
    branches: dict[int, BranchModule]


def _build(
    parent: GraphModule,
    plan: Plan,
    options: Options,
    made: dict[tuple[tuple[str, ...], str], _Made],
    shared: _Shared,
    started: float,
) -> BuildResult:
    """Build the branches, then the blocks; ``made`` holds what this plan's blocks share."""
    nested: list[tuple[str, str, tuple[Outcome, ...]]] = []
    block_of = plan.block_of()
    for entry in plan.nested:
        block: Any = parent.get_submodule(plan.blocks[block_of[entry.node]].name)
        branch = resolve_attribute(block, entry.branch)
        if not is_accelerated(entry.plan) or id(branch) in shared.branches:
            continue
        now = time.perf_counter()
        built = _build(branch, entry.plan, options, shared.made, shared, now)
        flat = flatten(branch, built.calls, exact_inputs=False, branches=built.branches)
        shared.branches[id(branch)] = BranchModule(branch, flat)
        nested += [(entry.node, entry.branch, built.outcomes), *built.nested]
    builder = _Builder(parent, plan, options, made)
    outcomes = tuple(builder.build(b) for b in plan.blocks)
    seconds = time.perf_counter() - started
    return BuildResult(outcomes, builder.calls, seconds, shared.branches, tuple(nested))


def check_backend_options(options: Options) -> None:
    """Let each backend that can check its own options do so before any work is done."""
    for name in options.backend_priority:
        check = getattr(backend_named(name, options), "check_options", None)
        if check is not None:
            check(options.options_of(name))


class _Builder:
    """Compiles block after block and remembers what each structure was compiled to."""

    def __init__(
        self,
        parent: GraphModule,
        plan: Plan,
        options: Options,
        made: dict[tuple[tuple[str, ...], str], _Made],
    ) -> None:
        self.parent, self.plan, self.options, self.made = parent, plan, options, made
        self.calls: dict[str, Call] = {}

    def build(self, block: Block) -> Outcome:
        if block.backend == EAGER:
            return Outcome(block.index, EAGER, EAGER, 0.0, "eager")
        started = time.perf_counter()
        child: Any = self.parent.get_submodule(block.name)
        prepared = canonical(child)
        candidates = self._candidates(block)
        key = (candidates, prepared.key)
        shared = key in self.made
        if not shared:
            self.made[key] = self._compile(block, child, prepared, candidates)
        made = self.made[key]
        if made.function is not None:
            backend = backend_named(made.backend, self.options)
            exact = backend is not None and not backend.keeps_aliases
            self.calls[block.name] = Call(made.function, prepared.attributes, exact)
        seconds = time.perf_counter() - started
        return _outcome(block, made, shared, seconds)

    def _candidates(self, block: Block) -> tuple[str, ...]:
        """Return the planned backend and, below it, those that take all of the block's nodes."""
        order = [b for b in self.plan.priority if b != EAGER]
        below = order[order.index(block.backend) + 1 :]
        takes = [
            {v.backend for v in self.plan.verdicts[name] if v.supported} for name in block.nodes
        ]
        return (block.backend, *(b for b in below if all(b in t for t in takes)))

    def _compile(
        self, block: Block, child: GraphModule, prepared: Canonical, candidates: Sequence[str]
    ) -> _Made:
        attempts: list[Attempt] = []
        for i, name in enumerate(candidates):
            copy = prepared if i == 0 else canonical(child)
            started = time.perf_counter()
            try:
                function = compile_block(name, copy, self.options)
            except Exception as error:
                let_through(error)
                cause = cause_of(error)
                seconds = time.perf_counter() - started
                text = f"{type(cause).__name__}: {cause}"
                attempts.append(Attempt(name, seconds, text))
                if not self.options.fallback:
                    raise BackendCompileError(
                        f"block {block.index} ({block.name}, {len(block.nodes)} nodes) failed to "
                        f"compile with {name}: {text}. Compile with fallback=True to run it on the "
                        "next backend"
                    ) from cause
                _log.debug("block %d: %s failed", block.index, name, exc_info=True)
                continue
            attempts.append(Attempt(name, time.perf_counter() - started))
            self._warn(block, attempts, name)
            return _Made(function, name, block.index, tuple(attempts))
        self._warn(block, attempts, EAGER)
        return _Made(None, EAGER, block.index, tuple(attempts))

    def _warn(self, block: Block, attempts: Sequence[Attempt], runs: str) -> None:
        failed = [a for a in attempts if a.error]
        if failed:
            why = "; ".join(f"{a.backend}: {_first_line(a.error or '')}" for a in failed)
            _log.warning(
                "block %d (%s) failed to compile and runs on %s: %s",
                block.index, block.name, runs, why,
            )  # fmt: skip


def _outcome(block: Block, made: _Made, shared: bool, seconds: float) -> Outcome:
    error = next((a.error for a in made.attempts if a.error), None)
    status = "compiled" if made.backend == block.backend else "fell back"
    outcome = Outcome(
        block.index, block.backend, made.backend, seconds, status, error, made.attempts
    )
    if not shared:
        return outcome
    with_block = made.block if made.function is not None else None
    status = "shared" if made.backend == block.backend else "fell back"
    return replace(outcome, attempts=(), status=status, shared_with=with_block)


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), text)


def _notes(built: BuildResult) -> Iterator[str]:
    compiled = sum(o.status == "compiled" for o in built.outcomes)
    shared = sum(o.status == "shared" for o in built.outcomes)
    if shared:
        yield f"compiled {compiled}, shared {shared}"
    for node, branch, outcomes in built.nested:
        ran = ", ".join(f"{o.backend} ({o.status})" for o in outcomes if o.planned != EAGER)
        yield f"branch {branch} of {node}: {ran}"
