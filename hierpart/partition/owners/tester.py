"""Who takes a node: every backend's answer, with its reason."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from hierpart.backends import Backend, backend_named, entry_point_backends, get_backend
from hierpart.errors import OptionError, nearest
from hierpart.graph import (
    CALLABLE,
    OpSet,
    branches_of,
    check_ops,
    is_getitem,
    mode_of,
    names_of,
    op_of,
    resolve_attribute,
)
from hierpart.options import Options
from hierpart.partition.owners.exclusions import exclusion
from hierpart.plan import Reason, Verdict

_log = logging.getLogger(__name__)


class SupportResult(NamedTuple):
    """Whether a backend takes a node, and which; false in a boolean context when none does."""

    supported: bool
    backend: str

    def __bool__(self) -> bool:
        return self.supported


NO_BACKEND = "None"
"""What :class:`SupportResult` names when no backend takes a node."""

Verdicts = tuple[Verdict, ...]


class BackendOpSupportTester(OperatorSupportBase):
    """Answers which backend takes a node, in order of priority, and why the others do not.

    Args:
        backend_support_map: Per backend a collection of ops (overloads, packets, functions, module
            types or names), an ``OperatorSupportBase``, or a :class:`~hierpart.backends.Backend`.
            A backend in ``backend_priority`` that is not named here answers for itself.
        backend_priority: Backend names, best first.
        torch_executed_ops: Ops that no backend takes.
        exclude: Predicate on nodes that no backend takes.
        control_flow: Modes of higher-order ops; see :class:`hierpart.Options`.

    Raises:
        OptionError: A backend has neither an entry in the map nor a registration.
    """

    def __init__(
        self,
        backend_support_map: Mapping[str, Any] | None = None,
        backend_priority: Sequence[str] = (),
        torch_executed_ops: Collection[Any] = (),
        exclude: Callable[[Node], bool] | None = None,
        control_flow: Mapping[str, str] | None = None,
    ) -> None:
        self.backend_support_map = dict(backend_support_map or {})
        self.backend_priority = tuple(backend_priority)
        self.torch_executed_ops = tuple(torch_executed_ops)
        self._executed = OpSet.of(torch_executed_ops)
        self._exclude = exclude
        self.control_flow = dict(control_flow or {})
        self._sources = [(b, self._source(b)) for b in self.backend_priority]
        self._by_name: dict[tuple[str, ...], Verdicts | None] = {}
        self._traits: dict[str, Backend | None] = {}
        self._submodules: tuple[GraphModule, dict[str, torch.nn.Module]] | None = None
        self._counted: dict[str, dict[Node, None]] = {"yes": {}, "no": {}}

    def _source(self, backend: str) -> Any:
        if backend not in self.backend_support_map:
            return get_backend(backend)
        given = self.backend_support_map[backend]
        if isinstance(given, (OperatorSupportBase, OpSet, Backend)):
            return given
        if hasattr(given, "verdict"):
            wanted = [*Backend.__annotations__, "available", "verdict", "compile", "fingerprint"]
            missing = ", ".join(m for m in wanted if not hasattr(given, m))
            raise OptionError(f"backend_support_map[{backend!r}] is a backend without {missing}")
        if not isinstance(given, Collection):
            raise OptionError(
                f"backend_support_map[{backend!r}] takes a collection of ops, an "
                f"OperatorSupportBase or a backend object, not {given!r}"
            )
        return OpSet.of(given)

    def check_names(self, known: Collection[str]) -> None:
        """Check the op names that the user gave against what exists and what the graph holds.

        Raises:
            OptionError: A name matches nothing; the nearest legal one is named.
        """
        check_ops("torch_executed_ops", self.torch_executed_ops, known, strict=True)
        for backend, given in self.backend_support_map.items():
            if isinstance(given, Collection):
                check_ops(f"backend_support_map[{backend!r}]", given, known, strict=False)

    def traits(self, backend: str) -> Backend | None:
        """Return the object that tells how blocks of ``backend`` behave, if there is one."""
        if backend not in self._traits:
            given = self.backend_support_map.get(backend)
            if not isinstance(given, Backend):
                given = get_backend(backend) if backend in entry_point_backends() else None
            self._traits[backend] = given
        return self._traits[backend]

    def verdicts(self, node: Node) -> Verdicts:
        """Return every backend's answer for a callable node, in order of priority."""
        names = names_of(node, functools.partial(_module_of, node))
        if self._exclude is not None and self._exclude(node):
            return self._all(Reason.EXCLUDED_BY_USER, "excluded node")
        if self._executed.matches(names):
            return self._all(Reason.EXCLUDED_BY_USER, "torch_executed_ops")
        known = self._by_name.get(names)
        if known is None:
            found = tuple(self._ask(b, source, node, names) for b, source in self._sources)
            by_name_only = all(isinstance(s, OpSet) for _, s in self._sources)
            if by_name_only and not op_of(node):
                self._by_name[names] = found
            return found
        return known

    def _all(self, reason: Reason, detail: str) -> Verdicts:
        return tuple(Verdict(b, False, reason, detail) for b in self.backend_priority)

    def _ask(self, backend: str, source: Any, node: Node, names: tuple[str, ...]) -> Verdict:
        mode = mode_of(self.control_flow, op_of(node), backend) if op_of(node) else "auto"
        if mode in ("recurse", "opaque"):
            return Verdict(backend, False, Reason.CONTROL_FLOW, f"mode {mode}")
        if mode == "whole_if_supported" and (stop := self._stop_in_branches(backend, node)):
            return Verdict(backend, False, Reason.CONTROL_FLOW, stop)
        if mode != "auto" and isinstance(source, OpSet):
            return Verdict(backend, True)
        if isinstance(source, OpSet):
            if source.matches(names):
                return Verdict(backend, True)
            return Verdict(backend, False, Reason.NOT_LISTED, names[0])
        if isinstance(source, OperatorSupportBase):
            yes = bool(source.is_node_supported(self._submodules_of(node), node))
            return Verdict(
                backend, yes, None if yes else Reason.NOT_LISTED, "" if yes else names[0]
            )
        missing = source.available()
        if missing is not None:
            return Verdict(backend, False, Reason.BACKEND_UNAVAILABLE, missing)
        answer: Verdict = source.verdict(node)
        return answer

    def _submodules_of(self, node: Node) -> Mapping[str, torch.nn.Module]:
        """Return the submodules by name of the module that owns the node, looked up once."""
        owner = node.graph.owning_module
        if owner is None:
            return {}
        if self._submodules is None or self._submodules[0] is not owner:
            self._submodules = (owner, dict(owner.named_modules()))
        return self._submodules[1]

    def _stop_in_branches(self, backend: str, node: Node) -> str:
        """Return which op in the branches the backend refuses, empty if none."""
        column = self.backend_priority.index(backend)
        for source, body in branches_of(node, functools.partial(_module_of, node)):
            for inner in body.graph.nodes:
                if inner.op in CALLABLE and not is_getitem(inner):
                    verdict = self.verdicts(inner)[column]
                    if not verdict.supported:
                        return f"{source.target}: {verdict.detail or inner.name}"
                    # Also in an op of another kind, whose own mode may be to look no further.
                    if op_of(inner) and (stop := self._stop_in_branches(backend, inner)):
                        return f"{source.target}/{stop}"
        return ""

    def is_node_supported(  # type: ignore[override]  # a bool to all who only test it
        self, submodules: Mapping[str, torch.nn.Module], node: Node
    ) -> SupportResult:
        """Return ``(supported, backend)`` for the first backend in priority that takes the node.

        A ``get_attr`` goes wherever it is used and counts as supported by the first backend.
        """
        if node.op == "get_attr":
            return SupportResult(
                bool(self.backend_priority), (*self.backend_priority, NO_BACKEND)[0]
            )
        backend = next((v.backend for v in self.verdicts(node) if v.supported), NO_BACKEND)
        self.count(node, backend != NO_BACKEND)
        return SupportResult(backend != NO_BACKEND, backend)

    def count(self, node: Node, supported: bool) -> None:
        """Take a node into the counts, once however often it is asked about."""
        self._counted["yes" if supported else "no"][node] = None

    @property
    def supported_operators(self) -> dict[str, int]:
        """How many distinct nodes were found supported, by ``<backend>_<op name>``."""
        counts: dict[str, int] = {}
        for node in self._counted["yes"]:
            backend = next(v.backend for v in self.verdicts(node) if v.supported)
            key = f"{backend}_{_op_of(node)}"
            counts[key] = counts.get(key, 0) + 1
        return counts

    @property
    def unsupported_operators(self) -> dict[str, int]:
        """How many distinct nodes no backend takes, by op name."""
        counts: dict[str, int] = {}
        for node in self._counted["no"]:
            key = _op_of(node)
            counts[key] = counts.get(key, 0) + 1
        return counts

    def print_support_overview(self, num_acc_subgraphs: int | None = None) -> None:
        """Log the counts at DEBUG level; nothing is written to standard output."""
        if num_acc_subgraphs is not None:
            _log.debug("accelerated blocks: %d", num_acc_subgraphs)
        for title, counts in (
            ("supported", self.supported_operators),
            ("unsupported or excluded", self.unsupported_operators),
        ):
            rows = "".join(f"\n- {name}: {count}" for name, count in counts.items())
            _log.debug("%s nodes:%s", title, rows or " none")


def _op_of(node: Node) -> str:
    return names_of(node, functools.partial(_module_of, node))[0]


def _module_of(node: Node, target: str) -> Any:
    owner = node.graph.owning_module
    if owner is None:
        raise OptionError(f"node {node.name!r} belongs to no GraphModule, so {target!r} is unknown")
    return resolve_attribute(owner, target)


def _support_map(options: Options) -> dict[str, Any]:
    """Return the support map with backends that have options of their own as objects with them."""
    support = dict(options.backend_support_map or {})
    for name in options.backend_priority:
        if options.options_of(name) and isinstance(support.get(name), (Backend, type(None))):
            backend = backend_named(name, options)
            if backend is not None:
                support[name] = backend
    return support


def tester_of(options: Options) -> BackendOpSupportTester:
    """Return the tester that ``options`` describe.

    Raises:
        OptionError: A backend is not registered and has no entry in the support map.
    """
    known = {*entry_point_backends(), *(options.backend_support_map or {})}
    for backend in options.backend_priority:
        if backend not in known:
            raise OptionError(
                f"backend {backend!r} is not registered and backend_support_map does not say what "
                f"it supports" + nearest(backend, known)
            )
    return BackendOpSupportTester(
        _support_map(options), options.backend_priority, options.torch_executed_ops,
        exclusion(options), options.control_flow,
    )  # fmt: skip
