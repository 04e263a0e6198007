"""What differs between two plans of one graph, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hierpart.page import Page, Table, capped, counted, tallied, to_text
from hierpart.plan.records import EAGER, PlanData, Verdict
from hierpart.plan.tables import LIMIT, blocks_by_backend, short_name, tree


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes that another backend runs, all for one reason.

    Attributes:
        nodes: Their names, in graph order.
        source: Who ran them.
        target: Who runs them in the other plan.
        why: The reason, in words.
        branch: Path of op and branch, empty for the plan itself.
    """

    nodes: tuple[str, ...]
    source: str
    target: str
    why: str
    branch: str = ""


@dataclass(frozen=True)
class PlanDiff:
    """The difference of two plans; true where there is one, prints as text.

    Attributes:
        before: The one plan.
        after: The other.
        changes: Nodes whose owner differs, by reason.
        removed: Nodes that only the one plan has, branches included.
        added: Nodes that only the other has.
    """

    before: PlanData
    after: PlanData
    changes: tuple[Change, ...]
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes or self.removed or self.added or self._blocks().rows)

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int = LIMIT) -> str:
        """Return the difference as text with at most ``limit`` rows a table; 0 shows all."""
        if not self:
            return "no difference in owners or blocks"
        moved = sum(len(change.nodes) for change in self.changes)
        lines = [f"{counted(moved, 'node')} moved"]
        for word, names in (("removed", self.removed), ("added", self.added)):
            if names:
                lines.append(f"{counted(len(names), 'node')} {word}: {tallied(names, 6)}")
        tables = [self._blocks(), self._moved(limit)]
        return to_text(Page(lines[0], (*lines[1:], *(t for t in tables if t.rows))))

    def _blocks(self) -> Table:
        """Return the table of backends whose number of blocks or nodes differs."""
        rows = []
        old, new = tuple(tree(self.before)), tuple(tree(self.after))
        was, now = blocks_by_backend(*old), blocks_by_backend(*new)
        for name in dict.fromkeys((*was, *now)):
            sides = (
                (was.get(name, 0), now.get(name, 0)),
                (_nodes(old, name), _nodes(new, name)),
                (_placed(old, name), _placed(new, name)),
            )
            if any(a != b for a, b in sides):
                rows.append((name, *(f"{a} -> {b}" for a, b in sides[:2])))
        return Table("blocks and nodes", ("backend", ">blocks", ">nodes"), tuple(rows))

    def _moved(self, limit: int) -> Table:
        rows = [
            (
                str(len(change.nodes)), f"{change.source} -> {change.target}", change.branch,
                tallied(short_name(_op(self, name)) for name in change.nodes), change.why,
            )
            for change in self.changes
        ]  # fmt: skip
        header = (">nodes", "from -> to", "branch", "which", "why")
        return capped("moved", header, rows, limit, "diff.changes")


def _op(diff: PlanDiff, name: str) -> str:
    return next((p.ops[name] for p in tree(diff.after) if name in p.ops), name)


def _nodes(plans: tuple[PlanData, ...], backend: str) -> int:
    return sum(owner == backend for plan in plans for owner in plan.owner.values())


def _placed(plans: tuple[PlanData, ...], backend: str) -> list[tuple[str, ...]]:
    return [b.nodes for plan in plans for b in plan.blocks if b.backend == backend]


def diff(before: PlanData, after: PlanData) -> PlanDiff:
    """Return what changed from one plan to another.

    Nodes are matched by name and branches by op and branch, as when the same graph is planned
    with other options.
    """
    changes: list[Change] = []
    removed: list[str] = []
    added: list[str] = []
    for old, new, branch in _matched(before, after, ""):
        grouped: dict[tuple[str, str, str], list[str]] = {}
        for name, source in old.owner.items():
            target = new.owner.get(name)
            if target is None:
                removed.append(name)
            elif target != source:
                key = (source, target, why_moved(old, new, name))
                grouped.setdefault(key, []).append(name)
        added += [name for name in new.owner if name not in old.owner]
        changes += [
            Change(tuple(names), source, target, why, branch)
            for (source, target, why), names in grouped.items()
        ]
    return PlanDiff(before, after, tuple(changes), tuple(removed), tuple(added))


def _matched(old: PlanData, new: PlanData, branch: str) -> Iterator[tuple[PlanData, PlanData, str]]:
    yield old, new, branch
    nothing = PlanData((), {}, {}, {})
    left = {(n.node, n.branch): n.plan for n in old.nested}
    right = {(n.node, n.branch): n.plan for n in new.nested}
    for key in dict.fromkeys((*left, *right)):
        path = f"{branch}{' / ' if branch else ''}{key[0]}: {key[1]}"
        yield from _matched(left.get(key, nothing), right.get(key, nothing), path)


def why_moved(old: PlanData, new: PlanData, node: str) -> str:
    """Return why ``node`` has another owner in ``new`` than in ``old``.

    First what the new plan says of the old owner; else what the old plan had against the new one.
    """
    source, target = old.owner[node], new.owner[node]
    if source != EAGER and source not in new.priority:
        return f"{source} is no longer in the priority"
    now = _against(new, node, source)
    if now:
        return now
    if target != EAGER and target not in old.priority:
        return f"{target} was not in the priority"
    before = _against(old, node, target)
    if before:
        return f"no longer: {before}"
    if _rank(new, target) < _rank(new, source):
        return f"{target} comes before {source}"
    return "goes with the nodes around it"


def _against(plan: PlanData, node: str, backend: str) -> str:
    """Return the plan's reason why the backend does not run the node, empty where it has none."""
    for verdict in plan.verdicts.get(node, ()):
        if verdict.backend == backend and not verdict.supported:
            return _words(verdict)
    for move in plan.moves():
        if move.source == backend and node in move.nodes:
            return move.reason.value + (f" ({move.detail})" if move.detail else "")
    return ""


def _words(verdict: Verdict) -> str:
    return str(verdict).removeprefix(f"{verdict.backend}: ")


def _rank(plan: PlanData, backend: str) -> int:
    return plan.priority.index(backend) if backend in plan.priority else len(plan.priority)
