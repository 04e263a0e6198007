"""What building the blocks came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hierpart.artefact import Kept
from hierpart.plan import Outcome
from hierpart.runtime import BranchModule, Call


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
