"""Artefacts in torch's structured trace, where ``tlparse`` shows them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

from torch._logging._internal import trace_structured

from hierpart.plan import Plan


def trace_artefact(name: str, payload: Callable[[], str], encoding: str = "json") -> None:
    """Add an artefact to torch's structured trace, where ``TORCH_TRACE`` asks for one.

    ``tlparse`` shows it among those of the compile that it belongs to. ``payload`` is only called
    where a trace is written.
    """
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=payload,
        expect_trace_id=False,  # outside a compile torch would import Inductor to log the stack
    )


def steps_json(plan: Plan) -> str:
    """Return what each step did, with its time, branches included."""
    steps = [
        {**dataclasses.asdict(step), "branch": "/".join(path)}
        for path, part in _with_paths(plan, ())
        for step in part.steps
    ]
    return json.dumps(steps, indent=1)


def _with_paths(plan: Plan, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Plan]]:
    yield path, plan
    for nested in plan.nested:
        yield from _with_paths(nested.plan, (*path, nested.node, nested.branch))
