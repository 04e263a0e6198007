"""What a plan holds: who owns each node, in which block it runs, and why. Frozen, JSON.

Nodes are named by ``torch.fx.Node.name`` and never kept as objects, so a plan outlives its graph,
pickles, and reads back in another process.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self  # comes with torch; only the checker needs it

EAGER = "eager"
"""Name of the owner of last resort."""

P = TypeVar("P")


class Reason(str, enum.Enum):
    """Why a backend does not run a node, or why a node left the backend that said yes."""

    NOT_LISTED = "not listed"
    EXCLUDED_BY_USER = "excluded by the user"
    BACKEND_UNAVAILABLE = "backend not available"
    NO_METADATA = "no shape metadata"
    DTYPE = "dtype"
    LAYOUT = "layout or device"
    RANK = "rank"
    DYNAMIC = "dynamic shape"
    DATA_DEPENDENT = "data-dependent shape"
    VALIDATOR = "refused by the converter's validator"
    MUTATES = "writes or aliases a storage that is written"
    EFFECT = "side effect"
    NON_TENSOR_BOUNDARY = "non-tensor boundary"
    CONTROL_FLOW = "control flow"
    UNIT = "cannot be parted from a node that is refused"
    CONSTANT_ONLY = "constant-only work goes to its consumer"
    FOLLOWS_VALUE = "assertion goes where its value is read"
    FOLLOWS_CONSUMER = "shape arithmetic goes to its consumer"
    TOO_SMALL = "block under the minimum size"
    COMPILE_FAILED = "compile failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One backend's answer for one node: yes, or no with a reason and a detail."""

    backend: str
    supported: bool
    reason: Reason | None = None
    detail: str = ""

    def __str__(self) -> str:
        if self.supported:
            return f"{self.backend}: yes"
        why = self.reason.value if self.reason else "no"
        return f"{self.backend}: {why}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Block:
    """A set of nodes with one owner that runs as one submodule.

    Attributes:
        index: Position in the order of execution, from 0.
        backend: The owner; ``"eager"`` for blocks that run eagerly.
        nodes: Names of the callable nodes, in graph order.
        compute_ops: How many of them count for the minimum size (C5).
        inputs: Names of the values that the block takes from other blocks or from the caller, in
            the order in which its nodes read them; what only sizes are read from comes last.
        outputs: Names of the values that later blocks or the caller read.
        name: Name of the submodule.
    """

    index: int
    backend: str
    nodes: tuple[str, ...]
    compute_ops: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A ``get_attr`` of the graph and the blocks that hold it.

    Attributes:
        name: Node name.
        target: Qualified name of the attribute in the original module.
        kind: ``parameter``, ``buffer``, ``constant``, ``module``, ``treespec``, ``object``.
        blocks: Indices of the blocks that use it.
        in_parent: Whether the parent reads it (it is an output, or it is written by the graph).
    """

    name: str
    target: str
    kind: str
    blocks: tuple[int, ...]
    in_parent: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Nodes that changed owner in a step, and why."""

    nodes: tuple[str, ...]
    source: str
    target: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the line did. ``seconds`` does not take part in comparisons."""

    name: str
    blocks: int = 0
    moves: tuple[Move, ...] = ()
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Nested(Generic[P]):
    """The plan of one branch of a higher-order op that runs eagerly with split branches.

    Attributes:
        node: Name of the higher-order op's node.
        branch: Target of the branch's ``get_attr`` in the module that holds the node.
        plan: The branch's own plan.
    """

    node: str
    branch: str
    plan: P


@dataclass(frozen=True, slots=True)
class PlanData:
    """The ordered blocks, the owner and the verdicts of every node, and how they came about.

    Attributes:
        blocks: Blocks in an order that respects every dependency (C2).
        owner: Backend of each callable node, by node name.
        ops: Qualified operator name of each callable node, by node name.
        verdicts: Every backend's answer for each callable node, in priority order.
        attributes: Every ``get_attr`` with the blocks that use it.
        priority: Backends in order of priority, ``"eager"`` last.
        min_block_size: Minimum count of compute ops per accelerated backend.
        lower_bound: No order that respects the dependencies has fewer blocks with these owners.
        proved: True when the number of blocks is known to be the least possible.
        boundary_bytes: Bytes of the values that cross a boundary, once per reading block; values
            of unknown size count nothing, a symbolic size counts with its hint.
        peak_bytes: Estimated peak of live intermediate bytes when blocks run in order.
        original_peak_bytes: The same estimate for the graph's own order.
        steps: What each step did, in order.
        nested: Plans of the branches of control-flow ops.
    """

    blocks: tuple[Block, ...]
    owner: Mapping[str, str]
    ops: Mapping[str, str]
    verdicts: Mapping[str, tuple[Verdict, ...]]
    attributes: tuple[Attribute, ...] = ()
    priority: tuple[str, ...] = (EAGER,)
    min_block_size: Mapping[str, int] = field(default_factory=dict)
    lower_bound: int = 0
    proved: bool = False
    boundary_bytes: int = 0
    peak_bytes: int = 0
    original_peak_bytes: int = 0
    steps: tuple[Step, ...] = ()
    nested: tuple[Nested[Self], ...] = ()

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def block_of(self) -> dict[str, int]:
        """Return the index of the block of each callable node, by node name."""
        return {name: block.index for block in self.blocks for name in block.nodes}

    def moves(self) -> Iterator[Move]:
        """Yield every change of owner, in the order in which they were made."""
        for step in self.steps:
            yield from step.moves

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serialisable data; :meth:`from_dict` reads it back."""
        data = asdict(self) | {
            "nested": [asdict(n) | {"plan": n.plan.to_dict()} for n in self.nested]
        }
        data["owner"], data["ops"] = dict(self.owner), dict(self.ops)
        data["min_block_size"] = dict(self.min_block_size)
        data["format"] = 1
        return data

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, default=_enum_value)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan written by :meth:`to_json`."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a plan written by :meth:`to_dict`.

        Raises:
            ValueError: The data was written in a format that this version does not know.
        """
        if data.get("format") != 1:
            raise ValueError(
                f"plan format {data.get('format')!r} is not known to this hierpart; expected 1"
            )
        return cls(
            blocks=tuple(Block(**_tuples(b)) for b in data["blocks"]),
            owner=dict(data["owner"]),
            ops=dict(data["ops"]),
            verdicts={k: tuple(_verdict(v) for v in vs) for k, vs in data["verdicts"].items()},
            attributes=tuple(Attribute(**_tuples(a)) for a in data["attributes"]),
            priority=tuple(data["priority"]),
            min_block_size=dict(data["min_block_size"]),
            lower_bound=data["lower_bound"],
            proved=data["proved"],
            boundary_bytes=data["boundary_bytes"],
            peak_bytes=data["peak_bytes"],
            original_peak_bytes=data["original_peak_bytes"],
            steps=tuple(_step(s) for s in data["steps"]),
            nested=tuple(
                Nested(n["node"], n["branch"], cls.from_dict(n["plan"])) for n in data["nested"]
            ),
        )

    def fingerprint(self) -> str:
        """Return a hex digest of everything but timings; equal plans have equal fingerprints."""
        data = self.to_dict()
        for step in data["steps"]:
            step.pop("seconds")
        data["nested"] = [[n.node, n.branch, n.plan.fingerprint()] for n in self.nested]
        text = json.dumps(data, sort_keys=True, default=_enum_value)
        return hashlib.sha256(text.encode()).hexdigest()


def _enum_value(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not JSON serialisable")


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _verdict(data: Mapping[str, Any]) -> Verdict:
    reason = Reason(data["reason"]) if data["reason"] else None
    return Verdict(data["backend"], data["supported"], reason, data["detail"])


def _step(data: Mapping[str, Any]) -> Step:
    moves = tuple(
        Move(tuple(m["nodes"]), m["source"], m["target"], Reason(m["reason"]), m["detail"])
        for m in data["moves"]
    )
    return Step(data["name"], data["blocks"], moves, data["seconds"])
