"""The house: packages lie in one order, imports point one way, no circles, nothing too large."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

import hierpart

HOUSE = Path(hierpart.__file__).parent
LAYERS = (
    "version", "page", "plan", "errors", "legal", "options",
    "graph", "backends", "partition", "capture", "report", "sandbox", "artefact", "runtime",
    "build", "debug", "api", "dynamo", "", "demo", "testing", "cli", "__main__",
)  # fmt: skip
"""Lowest first; ``""`` is ``hierpart/__init__.py``, the door, which no module of the library uses."""

DEEP = {
    "hierpart.partition.splitter": "torch's own splitter, which it derives from, reads the command "
    "line when it is imported; only those who name the class import it",
    "hierpart.backends.tensorrt.library": "a peer of the kit is in the same package as TensorRT",
}
"""Modules that other packages import by their own name, and why."""


@dataclass(frozen=True)
class Arrow:
    """One import: both modules by name, and where it stands."""

    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def modules(root: Path) -> dict[str, Path]:
    """Return every module by name; a package has the name of its folder."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(root: Path) -> Iterator[Arrow]:
    """Yield all imports of hierpart's modules, those in functions and for types only as well."""
    known = modules(root)
    for name, path in known.items():
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name}:{node.lineno}: relative import"
                targets = [f"{node.module}.{a.name}" for a in node.names]
            else:
                continue
            for target in targets:
                held = target if target in known else target.rpartition(".")[0]
                if held in known and "# layers:" not in lines[node.lineno - 1]:
                    yield Arrow(name, held, node.lineno)


def layer(module: str) -> int:
    return LAYERS.index(module.partition(".")[2].partition(".")[0])


def upward(found: list[Arrow]) -> list[str]:
    return [str(a) for a in found if layer(a.target) > layer(a.source)]


def circles(found: list[Arrow]) -> list[list[str]]:
    graph = networkx.DiGraph((a.source, a.target) for a in found)
    return [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]


def past_the_door(found: list[Arrow]) -> list[str]:
    """Imports of a module inside another package, past what its ``__init__`` gives."""
    free = (*DEEP, "hierpart.testing")  # the kit is public by its sub-packages
    return [
        str(a)
        for a in found
        if layer(a.source) != layer(a.target) and a.target.count(".") > 1
        and not a.target.startswith(free) and a.source != "hierpart"
    ]  # fmt: skip


def test_every_module_is_in_a_layer():
    assert {layer(name) for name in modules(HOUSE)} == set(range(len(LAYERS)))


def test_no_import_points_up():
    assert upward(list(arrows(HOUSE))) == []


def test_no_circle_among_modules():
    assert circles(list(arrows(HOUSE))) == []


def test_facts_of_one_node_know_nothing_of_graphs():
    inside = [a for a in arrows(HOUSE) if a.source.startswith("hierpart.graph.node")]
    assert [str(a) for a in inside if a.target.startswith("hierpart.graph.")
            and not a.target.startswith("hierpart.graph.node")] == []  # fmt: skip


def test_other_packages_are_entered_by_the_door():
    assert past_the_door(list(arrows(HOUSE))) == []


def test_packages_give_what_others_use_and_no_more():
    used = {(a.target, name) for a, name in names(HOUSE)}
    for package, path in modules(HOUSE).items():
        given = gives(path)
        spare = [n for n in given if (package, n) not in used and (package, n) not in PUBLIC]
        assert not spare, f"{package} gives {spare}, which no other package takes"


PUBLIC = {
    ("hierpart.debug", "Bisection"),
    ("hierpart.plan", "PlanData"),
    ("hierpart.plan", "Nested"),
    ("hierpart.testing.campaign", "Campaign"),
    ("hierpart.testing.campaign", "fuzz"),
    ("hierpart.testing.campaign", "fuzz_backend"),
}
"""Names for users, which nobody imports here."""


def names(root: Path) -> Iterator[tuple[Arrow, str]]:
    """Yield each imported name with its arrow."""
    for source, path in modules(root).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield Arrow(source, str(node.module), node.lineno), alias.name
    for name, home in hierpart._HOMES.items():
        yield Arrow("hierpart", home, 0), name


def gives(path: Path) -> list[str]:
    """Return ``__all__`` of a package below the top, if it has a literal one."""
    if path.name != "__init__.py" or path.parent in (HOUSE, HOUSE / "testing"):
        return []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_no_package_over_12_modules_and_no_module_over_300_lines():
    packages = Counter(path.parent for path in modules(HOUSE).values())
    large = [
        str(p) for p, n in packages.items() if n > 12 and HOUSE / "testing" not in (p, *p.parents)
    ]
    assert large == []
    long = {str(p): n for p in modules(HOUSE).values() if (n := p.read_text().count("\n")) > 300}
    assert long == {}


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("graph/units.py", "from hierpart.partition import run_line", upward),
        ("plan/records.py", "def f():\n    from hierpart.report import Report", upward),
        ("graph/units.py", "from hierpart.graph.facts import Facts", circles),
        ("build/parallel.py", "from hierpart.graph.node.values import hint", past_the_door),
    ],
)
def test_a_planted_arrow_is_seen(tmp_path, module, line, fault):
    for path in modules(HOUSE).values():
        copy = tmp_path / "hierpart" / path.relative_to(HOUSE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    planted = tmp_path / "hierpart" / module
    planted.write_text(planted.read_text() + line + "\n")
    assert fault(list(arrows(HOUSE))) == []
    assert fault(list(arrows(tmp_path / "hierpart"))) != []
