"""The blocks of a split module and of the branches in it, built in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from hierpart.artefact import Kept, Saved
from hierpart.build.block_builder import Builder
from hierpart.build.contained_compile import Tried
from hierpart.build.progress import Progress
from hierpart.build.results import BuildResult
from hierpart.build.structures import Made, Quota
from hierpart.graph import resolve_attribute
from hierpart.options import Options
from hierpart.page import counted
from hierpart.partition import is_accelerated
from hierpart.plan import EAGER, Outcome, Plan
from hierpart.runtime import Autocast, BranchModule, flatten, regions_of

NestedOutcomes = list[tuple[str, str, tuple[Outcome, ...]]]


@dataclass(frozen=True)
class Building:
    """What the modules that are built together have in common.

    Attributes:
        options: The options of the compile.
        saved: Compiled blocks from a file.
        quota: How many more blocks may be compiled.
        divides: Whether blocks that fail may be divided; their parts are not.
        made: Compiled structures of branches.
        tried: What trying a structure with a backend came to, parts of divided blocks included.
        branches: Branches built already, by the ``id`` of the module.
        kept: What backends made, by name.
    """

    options: Options
    saved: Saved
    quota: Quota
    divides: bool = True
    made: dict[Any, Made] = field(default_factory=dict)
    tried: dict[Any, Tried | Exception] = field(default_factory=dict)
    branches: dict[int, BranchModule] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)

    def module(
        self,
        parent: GraphModule,
        plan: Plan,
        made: dict[Any, Made],
        weights: Mapping[str, Tensor],
        prefix: str = "",
        around: Autocast | None = None,
    ) -> BuildResult:
        """Build the branches of a split module, then its blocks.

        Args:
            parent: The split module; not changed.
            plan: Its plan.
            made: What structures were compiled to; filled in.
            weights: Tensors of its placeholders that never change, by name of the placeholder.
            prefix: What comes before the names of its blocks in ``saved`` and ``kept``.
            around: The autocast region that it runs in.
        """
        started = time.perf_counter()
        regions = regions_of(parent, plan, around)
        nested = self._nested(parent, plan, prefix, regions)
        builder = Builder(
            parent, plan, self.options, made, weights, self.saved, prefix, regions, self.quota,
            self._parts if self.divides else None, self.tried,
        )  # fmt: skip
        try:
            if self.divides:
                builder.start_ahead(plan.blocks)
            outcomes = tuple(self._outcomes(builder, plan))
        finally:
            builder.ahead.close()
        self.kept.update(builder.kept)
        seconds = time.perf_counter() - started
        return BuildResult(
            outcomes, builder.calls, seconds, self.branches, tuple(nested), self.kept
        )

    def _outcomes(self, builder: Builder, plan: Plan) -> Iterator[Outcome]:
        accelerated = sum(b.backend != EAGER for b in plan.blocks)
        with Progress(accelerated) as progress:
            for block in plan.blocks:
                if block.backend != EAGER and self.divides:
                    progress.at(block.name, block.backend)
                yield builder.build(block)

    def _nested(
        self, parent: GraphModule, plan: Plan, prefix: str, regions: Mapping[str, Autocast | None]
    ) -> NestedOutcomes:
        nested: NestedOutcomes = []
        block_of = plan.block_of()
        for entry in plan.nested:
            block: Any = parent.get_submodule(plan.blocks[block_of[entry.node]].name)
            branch = resolve_attribute(block, entry.branch)
            if not is_accelerated(entry.plan) or id(branch) in self.branches:
                continue
            inner = f"{prefix}{entry.node}/{entry.branch}/"
            region = regions[entry.node]
            built = self.module(branch, entry.plan, self.made, {}, inner, region)
            flat = flatten(branch, built.calls, exact_inputs=False, branches=built.branches)
            self.branches[id(branch)] = BranchModule(branch, flat, region)
            nested += [(entry.node, entry.branch, built.outcomes), *built.nested]
        return nested

    def _parts(
        self,
        parent: GraphModule,
        plan: Plan,
        options: Options,
        weights: Mapping[str, Tensor],
        region: Autocast | None,
    ) -> BuildResult:
        """Build the parts of a block; what is made of them belongs to that block alone."""
        parts = replace(self, options=options, saved={}, divides=False, branches={}, kept={})
        return replace(parts, quota=Quota()).module(parent, plan, {}, weights, "", region)


def notes_of(built: BuildResult) -> Iterator[str]:
    """Yield what a report should say of what was built, one sentence each."""
    idle = [o for o in built.outcomes if o.status == "built"]
    if idle:
        made = counted(len({o.shared_with or o.block for o in idle}), "block")
        yield f"{made} compiled for another machine; eager here: {idle[0].detail.splitlines()[0]}"
    compiled = sum(o.status == "compiled" for o in built.outcomes)
    shared = sum(o.status == "shared" for o in built.outcomes)
    if shared:
        yield f"compiled {compiled}, shared {shared}"
    for node, branch, outcomes in built.nested:
        ran = ", ".join(f"{o.backend} ({o.status})" for o in outcomes if o.planned != EAGER)
        yield f"branch {branch} of {node}: {ran}"
