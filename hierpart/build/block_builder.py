"""Compiles block after block and remembers what each structure was compiled to."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.artefact import Kept, Saved
from hierpart.backends import backend_named
from hierpart.build.block_compile import (
    bakes_weights,
    cause_of,
    let_through,
    reason_of,
    restore_block,
)
from hierpart.build.contained_compile import (
    Subject,
    Tried,
    compile_subject,
    for_a_child,
    prepare_fork,
    try_block,
)
from hierpart.build.division import BuildParts, Divided, divide
from hierpart.build.parallel import Ahead, cores
from hierpart.build.structures import Made, Quota, Structure, candidates_of, first_line
from hierpart.errors import BlockFaultError
from hierpart.graph import Canonical, canonical, resolve_attribute
from hierpart.options import Options
from hierpart.plan import EAGER, Attempt, Block, Outcome, Plan
from hierpart.report import strict_error
from hierpart.runtime import Autocast, Call

_log = logging.getLogger("hierpart")


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
        quota: How many more blocks may be compiled.
        build_parts: Compiles the parts of a block that is divided; ``None`` to divide none.
        tried: What trying a structure with a backend came to; filled in.

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
        quota: Quota,
        build_parts: BuildParts | None,
        tried: dict[Any, Tried | Exception],
    ) -> None:
        self.parent, self.plan, self.options, self.made = parent, plan, options, made
        self.weights, self.saved, self.prefix = weights, saved, prefix
        self.regions, self.quota, self.build_parts = regions, quota, build_parts
        self.tried = tried
        self.ahead = Ahead({}, 1)
        self._structures: dict[str, Structure] = {}
        self.calls: dict[str, Call] = {}
        self.kept: dict[str, Kept] = {}
        self.arguments: dict[str, Sequence[Any]] = {
            str(n.target): n.args for n in parent.graph.find_nodes(op="call_module")
        }

    def build(self, block: Block) -> Outcome:
        """Compile one block, or take what an equal one was compiled to."""
        if block.backend == EAGER:
            return Outcome(block.index, EAGER, EAGER, 0.0, "eager")
        if not self.quota.take():
            why = f"max_blocks={self.options.max_blocks}"
            return Outcome(block.index, block.backend, EAGER, 0.0, "left out", detail=why)
        started = time.perf_counter()
        found = self._look_up(block)
        shared = found.key in self.made
        if not shared:
            self.ahead.wait(found.key)
            self.made[found.key] = self._restored(block) or self._compile(block, found)
            self.ahead.took(time.perf_counter() - started)
        made = self.made[found.key]
        if made.code is not None:
            if not made.parts:
                self.kept[self.prefix + block.name] = Kept(made.backend, made.code.made)
            if made.code.idle is None:
                backend = backend_named(made.backend, self.options)
                exact = backend is not None and not backend.keeps_aliases
                self.calls[block.name] = Call(made.code.run, found.attributes, exact)
        return made.outcome(block, shared, time.perf_counter() - started)

    def start_ahead(self, blocks: Sequence[Block]) -> None:
        """Let child processes compile distinct blocks for backends that cache on disk.

        With caps each block has a child process of its own, so none is started here.
        """
        workers = self.options.compile_workers
        workers = cores() if workers is None else workers
        if workers < 2 or self.options.has_caps or self.quota.left is not None:
            return
        works: dict[Any, Callable[[], object]] = {}
        for block in blocks:
            name = block.backend
            if name == EAGER or self.prefix + block.name in self.saved:
                continue
            if not getattr(backend_named(name, self.options), "caches", False):
                continue
            found = self._look_up(block)
            if found.key not in self.made:
                compile_it = functools.partial(compile_subject, name, found.subject, self.options)
                works[found.key] = for_a_child(compile_it)
        if len(works) > 1:
            for name in dict.fromkeys(block.backend for block in blocks):
                prepare_fork(name, self.options)
            self.ahead = Ahead(works, workers)

    def _look_up(self, block: Block) -> Structure:
        """Return what tells the block's structure; worked out once."""
        if block.name not in self._structures:
            child: Any = self.parent.get_submodule(block.name)
            prepared = canonical(child)
            candidates = candidates_of(block, self.plan)
            known = self._known_of(block, child, prepared)
            # Blocks with other weights share no code then.
            baked = any(bakes_weights(name, self.options) for name in candidates)
            weights = known if baked else {}
            same = tuple((i, id(w)) for i, w in weights.items())
            is_saved = self.prefix + block.name in self.saved
            region = self.regions[block.name]
            self._structures[block.name] = Structure(
                (candidates, prepared.key, same, is_saved, region), (prepared.key, same, region),
                Subject(child, weights, known, region), candidates, prepared.attributes,
            )  # fmt: skip
        return self._structures[block.name]

    def _known_of(
        self, block: Block, child: GraphModule, prepared: Canonical
    ) -> dict[int, torch.Tensor]:
        """Return the tensors of the block's inputs that never change, by position."""
        found = {
            i: self.weights[a.name]
            for i, a in enumerate(self.arguments[block.name])
            if isinstance(a, Node) and a.op == "placeholder" and a.name in self.weights
        }
        first = len(prepared.inputs) - len(prepared.attributes)
        for i, name in enumerate(prepared.attributes):
            found[first + i] = resolve_attribute(child, name)
        return found

    def _restored(self, block: Block) -> Made | None:
        found = self.saved.get(self.prefix + block.name)
        if found is None:
            return None
        name, data = found
        started = time.perf_counter()
        prepared = canonical(self._look_up(block).subject.child)
        code = restore_block(name, data, prepared, self.options)
        tried = Attempt(name, time.perf_counter() - started)
        return Made(code, name, block.index, (tried,), "loaded")

    def _compile(self, block: Block, found: Structure) -> Made:
        attempts: list[Attempt] = []
        subject = found.subject
        for name in found.candidates:
            started = time.perf_counter()
            try:
                tried = self._try(name, found)
            except Exception as error:
                let_through(error)
                divided = self._divided(block, subject, name, error)
                seconds = time.perf_counter() - started
                attempts.append(self._failed(block, subject, name, error, seconds))
                if divided is None:
                    continue
                self._warn(block, attempts, f"{name} but for {', '.join(divided.guilty)}")
                return Made(
                    divided.code, name, block.index, tuple(attempts), "divided",
                    f"without {', '.join(divided.guilty)}", divided.parts,
                )  # fmt: skip
            attempts.append(Attempt(name, time.perf_counter() - started))
            self._warn(block, attempts, EAGER if tried.code.idle else name)
            return Made(tried.code, name, block.index, tuple(attempts), note=tried.note)
        self._warn(block, attempts, EAGER)
        return Made(None, EAGER, block.index, tuple(attempts))

    def _try(self, name: str, found: Structure) -> Tried:
        """Try a structure once with a backend, however many parts of divided blocks have it."""
        key = (name, found.same)
        if key not in self.tried:
            try:
                self.tried[key] = try_block(name, found.subject, self.options)
            except Exception as error:
                let_through(error)
                self.tried[key] = error
        tried = self.tried[key]
        if isinstance(tried, Exception):
            raise tried
        return tried

    def _divided(
        self, block: Block, subject: Subject, name: str, error: Exception
    ) -> Divided | None:
        """Return the block in parts where it pays to look for the nodes that are to blame."""
        wanted = self.options.check and not self.options.strict and self.build_parts is not None
        costly = isinstance(error, BlockFaultError) and error.is_costly
        if not wanted or costly or self.build_parts is None:
            return None
        why = reason_of(error)
        return divide(block, subject, name, self.options, self.build_parts, why)

    def _failed(
        self, block: Block, subject: Subject, name: str, error: Exception, seconds: float
    ) -> Attempt:
        text = reason_of(error)
        if self.options.strict:
            raise strict_error(block, subject.child, name, text) from cause_of(error)
        _log.debug("block %d: %s failed", block.index, name, exc_info=error)
        return Attempt(name, seconds, text)

    def _warn(self, block: Block, attempts: Sequence[Attempt], runs: str) -> None:
        failed = [a for a in attempts if a.error]
        if not failed or self.build_parts is None:  # of parts, whoever divided the block tells
            return
        why = "; ".join(f"{a.backend}: {first_line(a.error or '')}" for a in failed)
        _log.warning(
            "block %d (%s) failed to compile and runs on %s: %s",
            block.index, block.name, runs, why,
        )  # fmt: skip
