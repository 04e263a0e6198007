"""What building the blocks came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hierpart.branch import BranchModule
from hierpart.flat import Call


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to compile a block.

    Attributes:
        backend: Who tried.
        seconds: Wall-clock seconds that it took.
        error: Type and text of the failure; ``None`` where it worked.
    """

    backend: str
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one block.

    Attributes:
        block: Index of the block in the plan.
        planned: Backend that the plan gave it to.
        backend: Backend that runs it.
        seconds: Wall-clock seconds spent on it, failed attempts included.
        status: ``compiled``, ``loaded`` (compiled code from a file), ``shared`` (runs the code of
            an equal block), ``fell back`` (another backend than planned runs it), ``divided`` (the
            planned backend runs part of it), ``built`` (compiled for another machine; runs eagerly
            here), ``left out`` (runs eagerly because of ``max_blocks``) or ``eager`` (as planned).
        error: The first failure, where there was one.
        attempts: Every try in order.
        shared_with: Index of the equal block whose code it runs.
        detail: What the backend says of its code: sizes, times, where it runs; and what is to be
            known of how it was tried.
        parts: What became of the parts of a block that was divided.
    """

    block: int
    planned: str
    backend: str
    seconds: float
    status: str
    error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    shared_with: int | None = None
    detail: str = ""
    parts: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Kept:
    """What a backend made of a block, as it returned it.

    Attributes:
        backend: The backend.
        made: What its ``compile`` returned.
    """

    backend: str
    made: Any


@dataclass(frozen=True)
class BuildResult:
    """The compiled blocks of one split module.

    Attributes:
        outcomes: One a block, in block order.
        calls: How to call each compiled block, by the name of its submodule; blocks that are not
            named run eagerly.
        seconds: Wall-clock seconds of the whole build.
        branches: The split branches of control-flow ops whose blocks are compiled, by the ``id`` of
            the branch in the split module.
        nested: Op, branch and outcomes of each of them.
        kept: What backends made, by the name of the block; blocks in branches are named with the op
            and the branch before, as ``cond/true_graph_0/<block>``.
    """

    outcomes: tuple[Outcome, ...]
    calls: Mapping[str, Call]
    seconds: float
    branches: Mapping[int, BranchModule] = field(default_factory=dict)
    nested: tuple[tuple[str, str, tuple[Outcome, ...]], ...] = ()
    kept: Mapping[str, Kept] = field(default_factory=dict)
