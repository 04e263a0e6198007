"""What went where and why: the report of a plan and of what became of its blocks.

:mod:`hierpart.plan.tables` builds one page from a plan; :mod:`hierpart.page` renders it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierpart.errors import HierpartError
from hierpart.options import Options
from hierpart.page import Page, Table, counted, seconds, tallied, to_rich, to_text
from hierpart.plan import (
    EAGER,
    GETITEM,
    LIMIT,
    Plan,
    PlanData,
    block_count,
    blocks_by_backend,
    compute_ops,
    outcomes_table,
    plan_page,
    plan_text,
    short_name,
    tree,
)
from hierpart.report.structured_trace import steps_json, trace_artefact

if TYPE_CHECKING:
    from hierpart.plan import Outcome
    from hierpart.report.advice import Advice, SizeRow, Suggestion
    from hierpart.report.details import Details
    from hierpart.report.planned_graph import Planned

_log = logging.getLogger("hierpart")


@dataclass(frozen=True)
class Report:
    """A plan and, after a compile, what became of each block.

    Attributes:
        plan: The plan.
        outcomes: One a block, in block order; empty where nothing was compiled.
        notes: Things that a user should know, one sentence each.
        seconds: Wall-clock seconds by stage, in the order in which the stages ran.
        details: What is known of each node and value besides.
        planned: The graph and the options, for what plans again; only where a model was captured.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    details: Details | None = field(default=None, compare=False, repr=False)
    planned: Planned | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        return to_rich(self._page(LIMIT))

    def text(self, limit: int = LIMIT) -> str:
        """Return the report as plain text with at most ``limit`` rows a table; 0 shows all."""
        return to_text(self._page(limit))

    def compiled_text(self, limit: int = LIMIT) -> str:
        """Return what became of each block as plain text, without the plan; 0 shows all rows."""
        return to_text(Page("", (outcomes_table(self.outcomes, limit),))).strip("\n")

    def summary(self) -> str:
        """Return the report in one line."""
        return summary(self.plan)

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan's JSON with one more key, ``"report"``; ``Plan.from_json`` reads it."""
        report = {
            "outcomes": [dataclasses.asdict(outcome) for outcome in self.outcomes],
            "notes": list(self.notes),
            "seconds": dict(self.seconds),
        }
        if self.details is not None:
            report["details"] = self.details.to_dict()
        data = self.plan.to_dict() | {"report": report}
        return json.dumps(data, indent=indent, default=_plain)

    def to_html(
        self,
        path: str | PathLike[str] | None = None,
        *,
        title: str = "",
        advice: Advice | None = None,
    ) -> str:
        """Return the report as one HTML page that opens from disk, and write it where asked.

        Args:
            path: Where to write it, in UTF-8.
            title: What was planned, for the heading.
            advice: What :meth:`advice` returned, to be told too.
        """
        from hierpart.report.html.page import html

        text = html(
            self.plan, self.outcomes, self.notes, self.seconds, self.details,
            title=title, advice=advice,
        )  # fmt: skip
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def draw(self, path: str | PathLike[str]) -> tuple[Path, ...]:
        """Draw the graph, coloured by block, and return the files that were written.

        Args:
            path: ``.dot``, ``.png``, ``.svg``, ``.pdf``, or ``.json`` for Model Explorer's node
                data; branches of control-flow ops get files of their own.

        Raises:
            DrawingError: The suffix is another, or Graphviz is not installed.
            HierpartError: The report is not of :func:`explain`, so there is no graph to draw.
            MissingExtraError: pydot is not installed; ``pip install 'hierpart[viz]'`` brings it.
        """
        from hierpart.report.drawing import draw

        return draw(self._graph().result, Path(path))

    def save_repro(self, block: int, directory: str | PathLike[str]) -> Path:
        """Write one block and a script that runs by itself, and return the script.

        It times eager, Inductor and the block's backend on the same inputs and compares their
        results. Values of inputs, and of weights of exported programs, are random.

        Args:
            block: Number of the block.
            directory: Where ``block_<number>.pt2`` and ``block_<number>.py`` go; made if missing.

        Raises:
            HierpartError: There is no such block, torch cannot export it, or the report is without
                its graph.
        """
        from hierpart.report.repro import save_repro

        return save_repro(self._graph().result, block, Path(directory))

    def advice(self, limit: int = 10) -> Advice:
        """Return what would help most: plans with one op more supported, and with other minima.

        Args:
            limit: Most ops to plan with, each for one backend, those that it refuses most often.

        Raises:
            HierpartError: The report is not of :func:`explain`, so there is no graph to plan.
        """
        from hierpart.report.advice import advise

        return advise(self._graph(), limit)

    def suggestions(self, limit: int = 10) -> tuple[Suggestion, ...]:
        """Return which refused ops would be worth supporting; see :meth:`advice`."""
        return self.advice(limit).suggestions

    def sweep(self) -> tuple[SizeRow, ...]:
        """Return blocks and coverage for each of several minimum sizes; see :meth:`advice`."""
        return self.advice(0).sizes

    def _graph(self) -> Planned:
        if self.planned is None:
            raise HierpartError(
                "this report is without its graph: ask the one that hierpart.explain returned"
            )
        return self.planned

    def _page(self, limit: int) -> Page:
        page = plan_page(self.plan, limit)
        parts: list[str | Table | Page] = list(page.parts)
        if self.outcomes:
            parts.append(outcomes_table(self.outcomes, limit))
        if self.seconds:
            stages = ", ".join(f"{name} {seconds(value)}" for name, value in self.seconds.items())
            parts += ["", f"time: {stages}"]
        parts += [f"note: {note}" for note in self.notes]
        return Page(page.title, tuple(parts))


def explain(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | None = None,
) -> Report:
    """Capture and plan ``model`` without compiling it.

    Args:
        model: An ``nn.Module``, an ``ExportedProgram`` or a ``GraphModule``.
        args: Example positional inputs, for a module that has to be exported.
        kwargs: Example keyword inputs.
        dynamic_shapes: As for ``torch.export.export``.
        options: The options of the split; the defaults if ``None``.

    Raises:
        InputTypeError: ``model`` is none of these.
        OptionError: An option does not fit this graph.
        FullCompilationError: ``require_full_compilation`` and some compute op has to run eagerly.
    """
    from hierpart.capture import capture
    from hierpart.partition import run_line
    from hierpart.report.details import details_of
    from hierpart.report.planned_graph import Planned

    options = options or Options.from_mapping(None)
    started = time.perf_counter()
    captured = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes, options=options)
    captured_at = time.perf_counter()
    result = run_line(captured.graph, options)
    spent = {"capture": captured_at - started, "plan": time.perf_counter() - captured_at}
    planned = Planned(result, options)
    return Report(result.plan, (), captured.notes, spent, details_of(result), planned)


def log_plan(plan: Plan) -> None:
    """Log one INFO line if something ended in eager, and the whole table at DEBUG.

    A plan whose only backend is eager has nothing to say at INFO: nobody asked for more.
    """
    if len(plan.priority) > 1 and blocks_by_backend(*tree(plan))[EAGER]:
        _log.info("%s", summary(plan))
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", plan_text(plan))
    trace_artefact("hierpart_plan", plan.to_json)
    trace_artefact("hierpart_plan_text", lambda: plan_text(plan, 0), "string")
    trace_artefact("hierpart_steps", lambda: steps_json(plan))


def summary(plan: Plan) -> str:
    """Return the plan in one line: nodes, blocks by backend, and what runs eagerly."""
    text = f"{counted(len(plan.owner), 'node')} in {block_count(plan)}"
    counts = blocks_by_backend(*tree(plan))
    used = [f"{name} {count}" for name, count in counts.items() if count]
    if used:
        text += f" ({', '.join(used)}{', branches included' if plan.nested else ''})"
    if counts[EAGER]:
        ops = compute_ops(plan)
        text += f"; {ops[EAGER]} of {counted(ops.total(), 'compute op')} run eagerly"
    names = tallied(short_name(op) for part in tree(plan) for op in _eager_ops(part))
    return text + (f": {names}" if names else "")


def _eager_ops(plan: PlanData) -> Iterator[str]:
    """Yield the eager ops that could run elsewhere.

    ``getitem`` only takes an op's result apart, and an op whose branches are split is their frame.
    """
    frames = {nested.node for nested in plan.nested}
    names = (n for b in plan.blocks if b.backend == EAGER for n in b.nodes if n not in frames)
    return (op for op in (plan.ops.get(n, n) for n in names) if op != GETITEM)


def _plain(value: object) -> object:
    """Return an enum's value; every other type is left to :mod:`json` to refuse."""
    if hasattr(value, "value"):
        return value.value
    raise TypeError(f"{type(value).__name__} is not JSON serialisable")
