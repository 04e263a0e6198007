"""``check_backend``: the one call with which the author of a backend tests it.

Blocks are cut out of random graphs, or out of graphs given, by what the backend says it takes;
each is compiled by the backend and called beside the same block in eager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch.fx import GraphModule

from hierpart.backends import Backend
from hierpart.errors import BackendUnavailableError
from hierpart.testing.checks.backend.compiled import Tolerance, check_block
from hierpart.testing.checks.backend.members import check_members, check_verdicts
from hierpart.testing.checks.backend.rules import BackendViolation
from hierpart.testing.checks.backend.samples import samples
from hierpart.testing.generate.features import FEATURES
from hierpart.testing.generate.graphs import nested, random_graph_module
from hierpart.testing.generate.reproduce import reproduction
from hierpart.testing.generate.tensors import SPECS, ScalarSpec, values_of
from hierpart.testing.reading.blocks import callable_nodes
from hierpart.testing.reading.snapshot import target_text

BATCHES = (5, 7)
"""Sizes of the symbolic dimension in the two calls of each block."""
LEFT_OUT = frozenset(
    {"random", "random_in_place", "asserts", "prints", "regions", "modules", "branch_effects",
     "reshape_in_place", "tuple_outputs", "shared_inputs"}
)  # fmt: skip
"""Features that say nothing about a backend: numbers from its own stream are other numbers."""
PLAIN = frozenset(
    {"arithmetic", "dtypes", "kwargs", "views", "multi_output", "parameters", "empty", "layouts",
     "mutation", "dynamic"}
)  # fmt: skip
"""Features of two graphs in three: the ops that most backends take."""


@dataclass(frozen=True)
class BackendCheck:
    """What was checked.

    Attributes:
        blocks: How many blocks were compiled and called.
        dynamic: How many of them have symbolic sizes.
        ops: The ops in them, each once.
        idle: Why blocks could be compiled but not run on this machine, if so.
    """

    blocks: int
    dynamic: int
    ops: tuple[str, ...]
    idle: tuple[str, ...] = ()


def backend_features(backend: Backend) -> frozenset[str]:
    """Return the features of random graphs that a backend is tried with."""
    wanted = frozenset(FEATURES) - LEFT_OUT
    return wanted if backend.keeps_aliases else wanted - {"mutation"}


def check_backend(
    backend: Backend,
    *,
    graphs: int = 30,
    seed: int = 0,
    size: int = 8,
    modules: Sequence[tuple[GraphModule, Sequence[Any]]] = (),
    options: Mapping[str, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> BackendCheck:
    """Check everything that hierpart asks of a backend; see ``BACKEND_RULES``.

    Args:
        backend: The backend object.
        graphs: How many random graphs to cut blocks from, half of them with a symbolic size.
        seed: Number of the first random graph.
        size: Most steps of a random graph.
        modules: Further graphs, each with the arguments of one call, for ops that random graphs
            do not hold. Their nodes need ``meta["val"]`` (see :func:`hierpart.testing.annotate`).
        options: The backend's own options, handed to ``compile``.
        rtol: Relative tolerance of values; default: by dtype, as ``torch.testing.assert_close``.
        atol: Absolute tolerance of values.

    Returns:
        What was checked: a look at ``ops`` says what was not.

    Raises:
        BackendViolation: A rule is broken; the error holds a program that shows it.
        BackendUnavailableError: The backend says that it cannot be used here.
        ValueError: It takes no node of any graph, so nothing was checked.
    """
    check_members(backend)
    if (why := backend.available()) is not None:
        raise BackendUnavailableError(f"{backend.name} cannot be checked here: {why}")
    close, given = Tolerance(rtol, atol), [(gm, [tuple(inputs)]) for gm, inputs in modules]
    drawn = (_random(backend, number, size) for number in range(seed, seed + graphs))
    done = [check_backend_on(backend, *pair, options, close) for pair in chain(given, drawn)]
    if not any(check.blocks or check.idle for check in done):
        raise ValueError(
            f"{backend.name} takes no node of {len(done)} graphs, so nothing was checked; pass "
            "modules=[(graph_module, inputs)] with ops that it takes"
        )
    return BackendCheck(
        sum(check.blocks for check in done),
        sum(check.dynamic for check in done),
        tuple(sorted({op for check in done for op in check.ops})),
        tuple(sorted({why for check in done for why in check.idle})),
    )


def _random(backend: Backend, number: int, size: int) -> tuple[GraphModule, list[Any]]:
    features = backend_features(backend) - ({"dynamic"} if number % 2 else set())
    if number % 3:
        features &= PLAIN
    gm = random_graph_module(number, size=size, features=features)
    return gm, calls_of(gm)


def calls_of(gm: GraphModule) -> list[tuple[Any, ...]]:
    """Return the arguments of the two calls of a random graph.

    Numbers that are not symbolic stay as they are: a compiler may take them for constants.
    """
    specs = gm.meta[SPECS]
    fixed = [ScalarSpec(s.values[:1]) if isinstance(s, ScalarSpec) else s for s in specs]
    return [nested(gm, values_of(fixed, batch, call)) for call, batch in enumerate(BATCHES)]


def check_backend_on(
    backend: Backend,
    gm: GraphModule,
    calls: Sequence[Sequence[Any]],
    options: Mapping[str, Any] | None = None,
    close: Tolerance | None = None,
) -> BackendCheck:
    """Check the verdicts of a backend on one graph and the blocks that follow from them.

    Args:
        backend: The backend object.
        gm: A graph with ``meta["val"]`` on its nodes.
        calls: Arguments of the calls to compare.
        options: The backend's own options.
        close: How far values may be from eager's.

    Raises:
        BackendViolation: A rule is broken; the error holds a program that shows it.
    """
    try:
        check_verdicts(backend, gm)
        found = samples(backend, gm, calls)
        idle = [check_block(backend, s, options or {}, close or Tolerance()) for s in found]
    except BackendViolation as error:
        program = program_for(backend, gm, calls)
        raise BackendViolation(error.rule, error.detail, program) from error
    ops = {target_text(n.target) for s in found for n in callable_nodes(s.prepare()[0])}
    return BackendCheck(
        sum(why is None for why in idle), sum(s.dynamic for s in found), tuple(sorted(ops)),
        tuple(sorted({why for why in idle if why is not None})),
    )  # fmt: skip


def program_for(backend: Backend, gm: GraphModule, calls: Sequence[Sequence[Any]]) -> str:
    """Return a program that checks ``backend`` on ``gm`` again; sizes in it are plain numbers."""
    head, _, _ = reproduction(gm, calls).partition("options = ")
    kind = type(backend)
    names = ", ".join(f"call_{number}" for number in range(len(calls)))
    return (
        f"{head}\nfrom {kind.__module__} import {kind.__qualname__.split('.')[0]}\n\n"
        "from hierpart.testing import check_backend_on\n\n"
        f"check_backend_on({kind.__qualname__}(), gm, [{names}])\n"
    )
