"""Plants one fault in copies of the steps and gives back the partitioner made of them."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

import hierpart
from hierpart.options import Options

RUNNER = "partition.pipeline"
"""The module that calls all steps; a copy of it is the mutated partitioner."""
_FOLDER = Path(hierpart.__file__).parent
_IMPORT = re.compile(r"^from hierpart\.([\w.]+) import", re.MULTILINE)


class MutantLostError(LookupError):
    """The text that a mutant changes is not in the library, or is there more than once."""


@dataclass(frozen=True)
class Mutant:
    """A small fault.

    Attributes:
        name: What is wrong, in a few words.
        module: The module that it is planted in, without ``hierpart.`` before it.
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
        path = _FOLDER.joinpath(*self.module.split(".")).with_suffix(".py")
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise MutantLostError(
                f"mutant {self.name!r}: {found} times in hierpart.{self.module}, not once:\n"
                f"{self.old}\nWrite the mutant anew for what stands there now."
            )
        return text.replace(self.old, self.new)


def planted(mutant: Mutant) -> Callable[..., GraphModule]:
    """Return an adapter for a copy of the partitioner that has the fault.

    The copy does not verify its own plans: what finds the fault is the kit alone. The library that
    everyone else uses is not touched.
    """
    planter = _Planter(f"hierpart.{mutant.module}", mutant.source())
    names = [f"hierpart.{name}" for name in _dependents(mutant.module)]
    saved = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.meta_path.insert(0, planter)
    try:
        line: Any = importlib.import_module(f"hierpart.{RUNNER}")
    finally:
        sys.meta_path.remove(planter)
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(saved)
        for name, module in saved.items():  # importing the copy set it on its package
            package, _, last = name.rpartition(".")
            setattr(sys.modules[package], last, module)
    line.verify = lambda plan, facts: None

    def partition(gm: GraphModule, **options: Any) -> GraphModule:
        split: GraphModule = line.run_line(gm, Options.from_mapping(options)).split()
        return split

    return partition


class _Planter(MetaPathFinder, InspectLoader):
    """Imports one module from a given source."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname == self.name else None

    def get_source(self, fullname: str) -> str:
        return self.source


@cache
def _dependents(module: str) -> tuple[str, ...]:
    """Return ``module`` and every loaded module, package or not, that imports it in some way."""
    importlib.import_module(f"hierpart.{RUNNER}")
    imports = {_name(path): set(_IMPORT.findall(path.read_text())) for path in _sources()}
    affected, grown = {module}, True
    while grown:
        more = {name for name, used in imports.items() if used & affected}
        more |= {name.rpartition(".")[0] for name in affected if "." in name}
        grown = not more <= affected
        affected |= more
    return tuple(sorted(n for n in affected if f"hierpart.{n}" in sys.modules))


def _sources() -> list[Path]:
    return [p for p in sorted(_FOLDER.rglob("*.py")) if p.parent != _FOLDER]


def _name(path: Path) -> str:
    parts = path.relative_to(_FOLDER).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
