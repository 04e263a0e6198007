"""Compiles block after block and remembers what each structure was compiled to."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.attempt import (
    Code,
    bakes_weights,
    cause_of,
    compile_block,
    let_through,
    restore_block,
)
from hierpart.canonical import Canonical, canonical
from hierpart.capture import backend_named
from hierpart.effects import resolve_attribute
from hierpart.errors import BackendCompileError
from hierpart.flat import Call
from hierpart.options import Options
from hierpart.outcomes import Attempt, Kept, Outcome
from hierpart.plan import EAGER, Block, Plan
from hierpart.regions import Autocast

_log = logging.getLogger("hierpart")

Saved = Mapping[str, tuple[str, bytes]]
"""Backend and bytes of compiled blocks, by the block's name (see ``BuildResult.kept``)."""


@dataclass(frozen=True)
class Made:
    """What a structure was compiled to, by whom, for which block, and the tries on the way."""

    code: Code | None
    backend: str
    block: int
    attempts: tuple[Attempt, ...]
    status: str = "compiled"


class Builder:
    """Compiles the blocks of one split module.

    Args:
        parent: The split module; not changed.
        plan: Its plan.
        options: ``fallback``, the backends' own options and backend objects.
        made: What structures were compiled to so far; filled in.
        weights: Tensors of the parent's placeholders that never change, by name of the placeholder.
        saved: Compiled blocks from a file.
        prefix: What comes before the names of this module's blocks in ``saved`` and ``kept``.
        regions: The autocast region of each block, by its name.

    Attributes:
        calls: How to call each block that runs compiled code, by name of its submodule.
        kept: What backends made, by name.
    """

    def __init__(
        self,
        parent: GraphModule,
        plan: Plan,
        options: Options,
        made: dict[Any, Made],
        weights: Mapping[str, torch.Tensor],
        saved: Saved,
        prefix: str,
        regions: Mapping[str, Autocast | None],
    ) -> None:
        self.parent, self.plan, self.options, self.made = parent, plan, options, made
        self.weights, self.saved, self.prefix = weights, saved, prefix
        self.regions = regions
        self.calls: dict[str, Call] = {}
        self.kept: dict[str, Kept] = {}
        self.arguments: dict[str, Sequence[Any]] = {
            str(n.target): n.args for n in parent.graph.find_nodes(op="call_module")
        }

    def build(self, block: Block) -> Outcome:
        """Compile one block, or take what an equal one was compiled to."""
        if block.backend == EAGER:
            return Outcome(block.index, EAGER, EAGER, 0.0, "eager")
        started = time.perf_counter()
        child: Any = self.parent.get_submodule(block.name)
        prepared = canonical(child)
        candidates = self._candidates(block)
        weights = self._weights_of(block, child, prepared, candidates)
        same = tuple((i, id(w)) for i, w in weights.items())
        is_saved = self.prefix + block.name in self.saved
        key = (candidates, prepared.key, same, is_saved, self.regions[block.name])
        shared = key in self.made
        if not shared:
            self.made[key] = self._restored(block, prepared) or self._compile(
                block, child, prepared, candidates, weights
            )
        made = self.made[key]
        if made.code is not None:
            self.kept[self.prefix + block.name] = Kept(made.backend, made.code.made)
            if made.code.idle is None:
                backend = backend_named(made.backend, self.options)
                exact = backend is not None and not backend.keeps_aliases
                self.calls[block.name] = Call(made.code.run, prepared.attributes, exact)
        return _outcome(block, made, shared, time.perf_counter() - started)

    def _candidates(self, block: Block) -> tuple[str, ...]:
        """Return the planned backend and, below it, those that take all of the block's nodes."""
        order = [b for b in self.plan.priority if b != EAGER]
        below = order[order.index(block.backend) + 1 :]
        takes = [
            {v.backend for v in self.plan.verdicts[name] if v.supported} for name in block.nodes
        ]
        return (block.backend, *(b for b in below if all(b in t for t in takes)))

    def _weights_of(
        self, block: Block, child: GraphModule, prepared: Canonical, candidates: Sequence[str]
    ) -> dict[int, torch.Tensor]:
        """Return the tensors of the block's inputs that never change, by position.

        Only where a backend wants them: blocks with other weights share no code then.
        """
        if not any(bakes_weights(name, self.options) for name in candidates):
            return {}
        found = {
            i: self.weights[a.name]
            for i, a in enumerate(self.arguments[block.name])
            if isinstance(a, Node) and a.op == "placeholder" and a.name in self.weights
        }
        first = len(prepared.inputs) - len(prepared.attributes)
        for i, name in enumerate(prepared.attributes):
            found[first + i] = resolve_attribute(child, name)
        return found

    def _restored(self, block: Block, prepared: Canonical) -> Made | None:
        found = self.saved.get(self.prefix + block.name)
        if found is None:
            return None
        name, data = found
        started = time.perf_counter()
        code = restore_block(name, data, prepared, self.options)
        tried = Attempt(name, time.perf_counter() - started)
        return Made(code, name, block.index, (tried,), "loaded")

    def _compile(
        self,
        block: Block,
        child: GraphModule,
        prepared: Canonical,
        candidates: Sequence[str],
        weights: Mapping[int, torch.Tensor],
    ) -> Made:
        attempts: list[Attempt] = []
        for i, name in enumerate(candidates):
            copy = prepared if i == 0 else canonical(child)
            started = time.perf_counter()
            try:
                region = self.regions[block.name]
                code = compile_block(name, copy, self.options, weights, region)
            except Exception as error:
                let_through(error)
                seconds = time.perf_counter() - started
                attempts.append(self._failed(block, name, error, seconds))
                continue
            attempts.append(Attempt(name, time.perf_counter() - started))
            _warn(block, attempts, EAGER if code.idle else name)
            return Made(code, name, block.index, tuple(attempts))
        _warn(block, attempts, EAGER)
        return Made(None, EAGER, block.index, tuple(attempts))

    def _failed(self, block: Block, name: str, error: Exception, seconds: float) -> Attempt:
        cause = cause_of(error)
        text = f"{type(cause).__name__}: {cause}"
        if not self.options.fallback:
            raise BackendCompileError(
                f"block {block.index} ({block.name}, {len(block.nodes)} nodes) failed to compile "
                f"with {name}: {text}. Compile with fallback=True to run it on the next backend"
            ) from cause
        _log.debug("block %d: %s failed", block.index, name, exc_info=error)
        return Attempt(name, seconds, text)


def _warn(block: Block, attempts: Sequence[Attempt], runs: str) -> None:
    failed = [a for a in attempts if a.error]
    if failed:
        why = "; ".join(f"{a.backend}: {_first_line(a.error or '')}" for a in failed)
        _log.warning(
            "block %d (%s) failed to compile and runs on %s: %s",
            block.index, block.name, runs, why,
        )  # fmt: skip


def _outcome(block: Block, made: Made, shared: bool, seconds: float) -> Outcome:
    error = next((a.error for a in made.attempts if a.error), None)
    idle = made.code is not None and made.code.idle is not None
    status = made.status if made.backend == block.backend else "fell back"
    outcome = Outcome(
        block.index, block.backend, EAGER if idle else made.backend, seconds,
        "built" if idle else status, error, made.attempts,
        detail=made.code.detail if made.code is not None else "",
    )  # fmt: skip
    if not shared:
        return outcome
    with_block = made.block if made.code is not None else None
    if outcome.status in ("compiled", "loaded"):
        outcome = replace(outcome, status="shared")
    return replace(outcome, attempts=(), shared_with=with_block)


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), text)
