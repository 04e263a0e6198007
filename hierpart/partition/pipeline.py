"""The line of steps: analyse, assign, cluster, merge, verify, wire. One runner, timed."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch.fx import GraphModule

from hierpart.errors import FullCompilationError
from hierpart.graph import Facts, Known, analyse, check_modes, check_ops, is_recursed, names_of
from hierpart.options import Options
from hierpart.partition.clustering.merging import Solution, merge, solve
from hierpart.partition.clustering.traffic import traffic_of
from hierpart.partition.owners.assignment import Assignment, assign
from hierpart.partition.owners.tester import BackendOpSupportTester, tester_of
from hierpart.partition.plan_assembly import assemble, is_accelerated
from hierpart.partition.splitting.parent_module import split_graph
from hierpart.partition.splitting.wiring import BlockWiring, takes_symbols, wire
from hierpart.partition.verification import verify
from hierpart.plan import EAGER, Move, Nested, Plan, Reason, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """What the line found out about a branch of a control-flow op that runs eagerly.

    Attributes:
        node: Name of the op's node.
        block: The block that the op is in.
        target: Target of the branch's ``get_attr``.
        result: The branch's own result.
    """

    node: str
    block: int
    target: str
    result: Result


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that the line found out about one graph.

    Attributes:
        plan: The verified plan.
        facts: Facts of the graph.
        tester: Who answered for the backends.
        wiring: Inputs and outputs of each block.
        branches: Branches that were planned on their own.
        clustered: Owner and node names of each block before undersized ones were moved.
    """

    plan: Plan
    facts: Facts
    tester: BackendOpSupportTester
    wiring: tuple[BlockWiring, ...]
    clustered: tuple[tuple[str, tuple[str, ...]], ...]
    branches: tuple[Branch, ...] = ()

    def split(self) -> GraphModule:
        """Return the split module; the graph that was planned is not changed."""
        with collector_paused():
            return self._split({})

    def _split(self, done: dict[int, GraphModule]) -> GraphModule:
        """Split branches first; one that several ops or blocks use is split once."""
        branches: dict[int, dict[str, GraphModule]] = {}
        for branch in self.branches:
            key = id(branch.result.facts.module)
            if key not in done:
                done[key] = branch.result._split(done)
            if is_accelerated(branch.result.plan):
                branches.setdefault(branch.block, {})[branch.target] = done[key]
        return split_graph(self.facts, self.wiring, self.plan, branches)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of circular garbage; as a decorator, until the locals are gone too.

    A split makes nothing but what it returns; the collector would walk all of it again and again,
    which makes the time grow faster than the graph (C12).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Clock:
    """Times the steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, step: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = step()
        self.seconds[name] = time.perf_counter() - started
        return result


def run_line(
    module: GraphModule, options: Options, tester: BackendOpSupportTester | None = None
) -> Result:
    """Plan ``module`` and verify the plan.

    Args:
        module: The module; not changed.
        options: The options of the split.
        tester: Who answers for the backends; ``None`` for whom the options describe.

    Raises:
        OptionError: An option does not fit this graph.
        FullCompilationError: ``require_full_compilation`` and some compute op has to run eagerly.
        PlanError: The plan breaks the contract; a defect.
    """
    check_modes(options.control_flow, options.backend_priority)
    with collector_paused():
        known, tester = Known(), tester or tester_of(options)
        started = time.perf_counter()
        analyse(module, known)
        seconds = time.perf_counter() - started
        _check_names(options, tester, known)
        return _run(module, options, tester, known, {}, seconds)


def _check_names(options: Options, tester: BackendOpSupportTester, known: Known) -> None:
    """Check the op names that the user gave against the graph and all branches in it."""
    every = known.facts.values()
    names = {name for f in every for n in f.nodes for name in names_of(n, f.resolve)}
    tester.check_names(names)
    allowed = options.allowed_single_node_partition_ops
    check_ops("allowed_single_node_partition_ops", allowed, names, strict=True)


def _run(
    module: GraphModule,
    options: Options,
    tester: BackendOpSupportTester,
    known: Known,
    done: dict[int, Result],
    analysed: float = 0.0,
) -> Result:
    """Run the line on a module and the branches in it.

    ``done`` holds modules that are planned already; ``analysed`` is how long the analysis took, of
    which a branch has no share of its own.
    """
    clock = _Clock()
    facts = analyse(module, known)
    assignment = clock.run("assign", lambda: assign(facts, tester))
    if options.require_full_compilation:
        _check_full(facts, assignment, options)
    traffic = traffic_of(facts)
    first = clock.run("cluster", lambda: solve(facts, assignment.owner, traffic))
    final = clock.run("merge", lambda: merge(facts, assignment, options, first, traffic))
    block_of, backends, moves = _blocks_of_nodes(facts, assignment, final)
    wiring = clock.run(
        "wire",
        lambda: wire(
            facts, block_of, backends, lambda b: _takes_scalars(tester, b),
            lambda b: takes_symbols(tester.traits(b)),
        ),
    )  # fmt: skip
    steps = (
        Step("analyse", 0, (), analysed),
        Step("assign", 0, assignment.moves, clock.seconds["assign"]),
        Step("cluster", len(set(first.placement.block_of)), (), clock.seconds["cluster"]),
        Step("merge", len(backends), final.moves, clock.seconds["merge"]),
        Step("wire", len(backends), moves, clock.seconds["wire"]),
    )
    branches = _branches(facts, options, tester, block_of, backends, known, done)
    nested = tuple(Nested(b.node, b.target, b.result.plan) for b in branches)
    plan = assemble(facts, options, assignment, final, block_of, wiring, steps, nested)
    clock.run("verify", lambda: verify(plan, facts))
    first_blocks, first_backends, _ = _blocks_of_nodes(facts, assignment, first)
    names: list[list[str]] = [[] for _ in first_backends]
    for node, b in zip(facts.nodes, first_blocks, strict=True):
        names[b].append(node.name)
    clustered = tuple((b, tuple(n)) for b, n in zip(first_backends, names, strict=True))
    return Result(plan, facts, tester, wiring, clustered, branches)


def _branches(
    facts: Facts,
    options: Options,
    tester: BackendOpSupportTester,
    block_of: Sequence[int],
    backends: Sequence[str],
    known: Known,
    done: dict[int, Result],
) -> tuple[Branch, ...]:
    """Plan the branches of each control-flow op that runs eagerly, each module once."""
    found = []
    for i, branches in facts.branches.items():
        node = facts.nodes[i]
        if backends[block_of[i]] != EAGER or not is_recursed(options.control_flow, node):
            continue
        for source, body in branches:
            if id(body) not in done:
                done[id(body)] = _run(body, options, tester, known, done)
            found.append(Branch(node.name, block_of[i], str(source.target), done[id(body)]))
    return tuple(found)


def _takes_scalars(tester: BackendOpSupportTester, backend: str) -> bool:
    traits = tester.traits(backend) if backend != EAGER else None
    return traits is None or traits.takes_scalars


def _blocks_of_nodes(
    facts: Facts, assignment: Assignment, solution: Solution
) -> tuple[list[int], list[str], tuple[Move, ...]]:
    """Return block of each node, owner of each block, and where shape arithmetic went.

    A floating node runs in the first block that reads it; other blocks compute it again.
    """
    block_of_unit = solution.placement.block_of
    backends = [EAGER] * (max(block_of_unit, default=-1) + 1)
    for u, b in enumerate(block_of_unit):
        backends[b] = solution.owner[u]
    block_of = [block_of_unit[u] if u >= 0 else -1 for u in facts.unit_of]
    moved: dict[tuple[str, str], list[str]] = {}
    for i in reversed(range(len(facts.nodes))):
        if block_of[i] >= 0:
            continue
        users = [facts.index[n] for n in facts.nodes[i].users if n in facts.index]
        block_of[i] = min(block_of[j] for j in users)
        first = next((v.backend for v in assignment.verdicts[i] if v.supported), EAGER)
        owner = backends[block_of[i]]
        if owner != first:
            moved.setdefault((first, owner), []).append(facts.nodes[i].name)
    moves = tuple(
        Move(tuple(reversed(names)), source, target, Reason.FOLLOWS_CONSUMER)
        for (source, target), names in moved.items()
    )
    return block_of, backends, moves


def _check_full(facts: Facts, assignment: Assignment, options: Options) -> None:
    stopped = []
    for u, owner in enumerate(assignment.owner):
        for i in facts.units[u]:
            if is_recursed(options.control_flow, facts.nodes[i]):
                continue  # its branches are checked when they are planned
            constant = facts.constant[i] and assignment.candidates[u]  # eager by our own rule
            if owner == EAGER and facts.compute[i] and not constant:
                why = "; ".join(str(v) for v in assignment.verdicts[i]) or "no backend"
                op = names_of(facts.nodes[i], facts.resolve)[0]
                stopped.append(f"  {facts.nodes[i].name} ({op}): {why}")
    if stopped:
        shown = "\n".join(stopped[:50]) + ("\n  ..." if len(stopped) > 50 else "")
        raise FullCompilationError(
            f"require_full_compilation=True, but {len(stopped)} ops have to run eagerly:\n{shown}"
        )
