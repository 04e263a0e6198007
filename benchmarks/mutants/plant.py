"""Plants one fault in copies of the steps and gives back the partitioner made of them."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

import hierpart
from hierpart.options import Options

RUNNER = "line"
"""The step that calls all others; a copy of it is the mutated partitioner."""
_FOLDER = Path(hierpart.__file__).parent
_IMPORT = re.compile(r"^from hierpart\.(\w+) import", re.MULTILINE)


class MutantLostError(LookupError):
    """The text that a mutant changes is not in the library, or is there more than once."""


@dataclass(frozen=True)
class Mutant:
    """A small fault.

    Attributes:
        name: What is wrong, in a few words.
        module: The module of ``hierpart`` that it is planted in.
        old: Text of the module, found there exactly once.
        new: What stands there instead.
        features: Features of the graphs that it is fuzzed with, separated by spaces; all if empty.
    """

    name: str
    module: str
    old: str
    new: str
    features: str = ""

    def source(self) -> str:
        """Return the module's text with the fault.

        Raises:
            MutantLostError: The text that the fault replaces is gone or is no longer unique.
        """
        text = (_FOLDER / f"{self.module}.py").read_text()
        if (found := text.count(self.old)) != 1:
            raise MutantLostError(
                f"mutant {self.name!r}: {found} times in hierpart/{self.module}.py, not once:\n"
                f"{self.old}\nWrite the mutant anew for what stands there now."
            )
        return text.replace(self.old, self.new)


def planted(mutant: Mutant) -> Callable[..., GraphModule]:
    """Return an adapter for a copy of the partitioner that has the fault.

    The copy does not verify its own plans: what finds the fault is the kit alone. The library that
    everyone else uses is not touched.
    """
    code = compile(mutant.source(), f"<{mutant.name}>", "exec")
    names = [f"hierpart.{name}" for name in _dependents(mutant.module)]
    package = vars(hierpart)
    saved = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    held = {name: package[name.partition(".")[2]] for name in saved}
    try:
        module = types.ModuleType(f"hierpart.{mutant.module}")
        sys.modules[module.__name__] = module
        exec(code, vars(module))
        line = importlib.import_module(f"hierpart.{RUNNER}")
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(saved)
        package.update({name.partition(".")[2]: module for name, module in held.items()})
    line.verify = lambda plan, facts: None

    def partition(gm: GraphModule, **options: Any) -> GraphModule:
        split: GraphModule = line.run_line(gm, Options.from_mapping(options)).split()
        return split

    return partition


@cache
def _dependents(module: str) -> tuple[str, ...]:
    """Return ``module``, the runner, and the steps between them that import one another."""
    importlib.import_module(f"hierpart.{RUNNER}")
    imports = {
        path.stem: set(_IMPORT.findall(path.read_text())) for path in sorted(_FOLDER.glob("*.py"))
    }
    affected, grown = {module, RUNNER}, True
    while grown:
        more = {name for name, used in imports.items() if used & {*affected} - {RUNNER}}
        grown = not more <= affected
        affected |= more
    return tuple(sorted(n for n in affected if f"hierpart.{n}" in sys.modules))
