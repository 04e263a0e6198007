"""What building the blocks came to."""

from __future__ import annotations

from dataclasses import dataclass


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
