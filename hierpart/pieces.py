"""What a compiled module is put together from, to put it together again with blocks run eagerly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch.fx import GraphModule
from torch.nn import Module

from hierpart.flat import Call, Flat, flatten


@dataclass(frozen=True)
class Pieces:
    """The split module and its compiled blocks.

    Attributes:
        parent: The split module.
        calls: How to call each compiled block, by name.
        exact_inputs: Whether inputs come in the layout of their ``val``.
        branches: What stands for branches of control-flow ops, by their ``id``.
    """

    parent: GraphModule
    calls: Mapping[str, Call]
    exact_inputs: bool = True
    branches: Mapping[int, Module] = field(default_factory=dict)

    def flat(self, eager: Collection[str] = ()) -> Flat:
        """Return the function that runs all blocks.

        Args:
            eager: Names of compiled blocks to run eagerly all the same.
        """
        calls = {name: call for name, call in self.calls.items() if name not in eager}
        return flatten(self.parent, calls, exact_inputs=self.exact_inputs, branches=self.branches)
