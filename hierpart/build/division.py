"""A block that a backend fails on, divided: the good part stays, the rest goes elsewhere.

Nodes are taken from the backend by halves until what is left of the block works. Then the block is
planned again as a graph of its own, in which the backend refuses the guilty nodes; its parts are
compiled and run by one flat function in place of the block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from hierpart.backends import backend_named
from hierpart.build.block_compile import Code, output_values, restrided
from hierpart.build.check.halving import SearchEndedError, guilty_items
from hierpart.build.contained_compile import Subject, check_block
from hierpart.build.results import BuildResult
from hierpart.errors import BlockFaultError, OptionError
from hierpart.graph import canonical
from hierpart.options import Options
from hierpart.partition import BackendOpSupportTester, Result, Verdicts, run_line, tester_of
from hierpart.plan import Block, Outcome, Plan, Reason, Verdict
from hierpart.runtime import Autocast, Flat, flatten

MOST_GUILTY = 2
"""Most nodes that a block is searched for; one with more faults goes to the next backend whole."""

_log = logging.getLogger("hierpart")

BuildParts = Callable[
    [GraphModule, Plan, Options, Mapping[str, Tensor], Autocast | None], BuildResult
]
"""Compiles the blocks of a split block, none of which is divided again."""


@dataclass(frozen=True)
class Divided:
    """A block in parts.

    Attributes:
        code: What runs in place of the block; takes the same inputs.
        parts: What became of each part.
        guilty: Names of the nodes that the backend fails on.
    """

    code: Code
    parts: tuple[Outcome, ...]
    guilty: tuple[str, ...]


class RegionTester(BackendOpSupportTester):
    """Answers as ``base`` does, but that one backend refuses the guilty nodes."""

    def __init__(
        self, base: BackendOpSupportTester, backend: str, guilty: Sequence[str], why: str
    ) -> None:
        super().__init__(
            base.backend_support_map, base.backend_priority, base.torch_executed_ops,
            base._exclude, base.control_flow,
        )  # fmt: skip
        self.refusal = Verdict(backend, False, Reason.COMPILE_FAILED, why)
        self.guilty = frozenset(guilty)

    def verdicts(self, node: Node) -> Verdicts:
        """Return every backend's answer for a callable node, in order of priority."""
        found = super().verdicts(node)
        if node.name not in self.guilty:
            return found
        return tuple(self.refusal if v.backend == self.refusal.backend else v for v in found)


@dataclass(frozen=True)
class _Search:
    """A block that ``backend`` fails on, and how to build it in parts."""

    block: Block
    subject: Subject
    backend: str
    options: Options
    build: BuildParts
    why: str

    def planned(self, options: Options, guilty: Sequence[str]) -> Result:
        tester = RegionTester(tester_of(options), self.backend, guilty, self.why)
        return run_line(self.subject.child, options, tester)

    def built(self, options: Options, result: Result) -> tuple[GraphModule, BuildResult]:
        parent = result.split()
        names = [n.name for n in self.subject.child.graph.find_nodes(op="placeholder")]
        known = {names[i]: t for i, t in self.subject.known.items() if i < len(names)}
        return parent, self.build(parent, result.plan, options, known, self.subject.region)

    def works_without(self, guilty: Sequence[str]) -> bool:
        """Whether the backend does the rest of the block right, however small it is."""
        options = replace(_only((self.backend,), self.options), min_block_size=1)
        result = self.planned(options, guilty)
        wanted = [b for b in result.plan.blocks if b.backend == self.backend]
        _, built = self.built(options, result)
        return all(built.outcomes[b.index].backend == self.backend for b in wanted)


def divide(
    block: Block, subject: Subject, backend: str, options: Options, build: BuildParts, why: str
) -> Divided | None:
    """Return a block in parts, ``None`` where that keeps nothing with the backend.

    Args:
        block: The block as the plan has it.
        subject: The block to compile.
        backend: Who fails on it.
        options: The options of the compile.
        build: Compiles the parts.
        why: What the backend failed with.
    """
    if block.compute_ops <= max(options.size_of(backend), 1):
        return None
    order = options.backend_priority
    below = replace(_only(order[order.index(backend) :], options), strict=False, fallback=True)
    search = _Search(block, subject, backend, below, build, why)
    try:
        guilty = guilty_items(block.nodes, search.works_without, MOST_GUILTY)
    except (SearchEndedError, OptionError) as error:  # options may name ops of other blocks
        _log.debug("block %d is not divided: %s", block.index, error)
        return None
    result = search.planned(below, guilty)
    parent, built = search.built(below, result)
    if all(outcome.backend != backend for outcome in built.outcomes):
        return None
    flat = flatten(parent, built.calls, exact_inputs=True, branches=built.branches)
    return _checked(search, flat, built, guilty)


def _checked(
    search: _Search, flat: Flat, built: BuildResult, guilty: tuple[str, ...]
) -> Divided | None:
    """Return the parts as one function, if they agree with the block."""
    prepared = canonical(search.subject.child)
    if not set(flat.attributes) <= set(prepared.attributes):
        return None
    first = len(prepared.inputs) - len(prepared.attributes)
    order = [first + prepared.attributes.index(name) for name in flat.attributes]
    order += range(first)

    def run(args: list[Any]) -> Sequence[Any]:
        values = [args[i] for i in order]
        args.clear()
        results: Sequence[Any] = flat.run(values)
        return results

    backend = backend_named(search.backend, search.options)
    exact = backend is not None and backend.keeps_aliases
    outputs = output_values(prepared.block)
    code = Code(run if exact else restrided(run, outputs), None)
    try:
        check_block(search.backend, search.subject, search.options, code)
    except BlockFaultError as error:
        _log.debug("block %d is not divided: %s", search.block.index, error)
        return None
    return Divided(code, built.outcomes, guilty)


def _only(names: Sequence[str], options: Options) -> Options:
    """Return the options for these backends alone."""
    sizes = options.min_block_size
    support = options.backend_support_map
    return replace(
        options,
        backend_priority=tuple(names),
        backend_support_map=support and {b: s for b, s in support.items() if b in names},
        backend_options={b: o for b, o in options.backend_options.items() if b in names},
        min_block_size=(
            {b: n for b, n in sizes.items() if b in names} if isinstance(sizes, Mapping) else sizes
        ),
        require_full_compilation=False,
        max_blocks=None,
    )
