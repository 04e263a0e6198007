"""What a structure was compiled to, and how many more may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hierpart.build.block_compile import Code
from hierpart.build.contained_compile import Subject
from hierpart.plan import EAGER, Attempt, Block, Outcome, Plan


@dataclass(frozen=True)
class Made:
    """What a structure was compiled to, by whom, for which block, and the tries on the way."""

    code: Code | None
    backend: str
    block: int
    attempts: tuple[Attempt, ...]
    status: str = "compiled"
    note: str = ""
    parts: tuple[Outcome, ...] = ()

    def outcome(self, block: Block, shared: bool, seconds: float) -> Outcome:
        """Return what became of a block that was compiled to this.

        Args:
            block: The block.
            shared: Whether it runs the code of an equal block.
            seconds: Wall-clock seconds spent on it.
        """
        error = next((a.error for a in self.attempts if a.error), None)
        idle = self.code is not None and self.code.idle is not None
        status = self.status if self.backend == block.backend else "fell back"
        details = (self.code.detail if self.code is not None else "", self.note)
        outcome = Outcome(
            block.index, block.backend, EAGER if idle else self.backend, seconds,
            "built" if idle else status, error, self.attempts,
            detail="; ".join(filter(None, details)), parts=self.parts,
        )  # fmt: skip
        if not shared:
            return outcome
        with_block = self.block if self.code is not None else None
        if outcome.status in ("compiled", "loaded"):
            outcome = replace(outcome, status="shared")
        return replace(outcome, attempts=(), shared_with=with_block)


@dataclass(frozen=True)
class Structure:
    """What a block has in common with its equals, and what is its own.

    Attributes:
        key: Equal for blocks that may run the same code.
        same: Equal for blocks that a backend does the same with.
        subject: The block to compile.
        candidates: Backends that take all of its nodes, the planned one first.
        attributes: Qualified names of the tensors that follow its placeholders.
    """

    key: Any
    same: Any
    subject: Subject
    candidates: tuple[str, ...]
    attributes: tuple[str, ...]


@dataclass
class Quota:
    """How many accelerated blocks may still be compiled; ``None`` for any number."""

    left: int | None = None

    def take(self) -> bool:
        """Whether one more may be compiled; it counts."""
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


def candidates_of(block: Block, plan: Plan) -> tuple[str, ...]:
    """Return the planned backend and, below it, those that take all of the block's nodes."""
    order = [b for b in plan.priority if b != EAGER]
    below = order[order.index(block.backend) + 1 :]
    takes = [{v.backend for v in plan.verdicts[name] if v.supported} for name in block.nodes]
    return (block.backend, *(b for b in below if all(b in t for t in takes)))


def first_line(text: str) -> str:
    """Return the first line that says something."""
    return next((line for line in text.splitlines() if line.strip()), text)
