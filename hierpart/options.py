"""The frozen options of a split; environment variables are read here and nowhere else.

``HIERPART_PRIORITY`` (a comma-separated list) replaces the default backend priority.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch.fx import Node

from hierpart.errors import OptionError, nearest
from hierpart.legal import one_of, ordered, path, positive, size, sizes, strings
from hierpart.plan import EAGER

DEFAULT_PRIORITY = ("tensorrt", "inductor")
DEFAULT_MIN_BLOCK_SIZE = 5
RESERVED_NAMES = ("None", "none", "")
DEMOTE = ("cascade", "eager")
DECOMPOSITIONS = ("minimal", "core_aten")
CONTROL_FLOW_MODES = ("auto", "whole", "whole_if_supported", "recurse", "opaque")

Support = Any
"""A collection of op names or targets, an ``OperatorSupportBase``, or a backend object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that a split depends on besides the graph.

    Attributes:
        backend_priority: Backends, first is best; ``"eager"`` is always the last resort and may be
            named only at the end.
        backend_support_map: What each backend supports; a backend that is not named here answers
            for itself. ``None``: every backend answers for itself.
        min_block_size: Fewest compute ops of an accelerated block, one for all backends or a
            mapping by backend name.
        torch_executed_ops: Ops that always run eagerly: overloads, packets (every overload of
            them), functions, module types, or their names.
        require_full_compilation: Fail when a compute op has to run eagerly; no minimum applies.
        skip_fusion: Accepted for compatibility and without effect: values that are not tensors
            never force nodes together here.
        demote: Where an undersized block goes: ``"cascade"`` to the next backend that supports its
            ops, ``"eager"`` straight to eager.
        allowed_single_node_partition_ops: Ops whose block may be under the minimum.
        exclude_nodes: Names of nodes that always run eagerly.
        exclude_modules: Qualified names of ``nn.Module``; everything traced in them runs eagerly.
        exclude: Predicate on nodes; true means eagerly.
        fallback: A block that fails goes to the next backend; ``False`` means ``strict=True``.
        strict: A block that fails raises :class:`hierpart.BackendCompileError`.
        check: Each compiled block is compared with eager on inputs made for it; one that does not
            agree goes to the next backend, or those of its nodes do that are to blame.
        check_tolerance: Largest relative distance of floats; ``None`` for what is usual for the
            dtype (see :mod:`hierpart.build.check.tolerance`).
        compile_timeout: Seconds that a backend may take to compile and first run one block.
        compile_memory: Bytes that it may allocate for that.
        compile_workers: Processes that compile distinct blocks side by side for a backend that
            caches on disk; ``None`` for the number of cores, 1 for this process alone.
        cache_dir: Folder in which backends keep what they compile from one process to the next,
            each in one of its own there; ``None`` for where each keeps it by itself.
        max_blocks: Accelerated blocks that are compiled, in order; the rest runs eagerly. ``None``
            for all.
        decompositions: ``"minimal"`` keeps composite ops whole (linear, attention, layer_norm);
            ``"core_aten"`` breaks them up.
        control_flow: Mode per higher-order op (``"cond"``) or per op and backend
            (``"cond:inductor"``): ``whole`` (the backend's compiler takes the op with its
            branches), ``whole_if_supported`` (where it takes every op in them), ``recurse`` (the
            op runs eagerly, each branch is split), ``opaque`` (all of it runs eagerly as it is),
            or ``auto`` (the first backend that takes it whole, else recurse).
        backend_options: Options of the backends' own, by backend name.
    """

    backend_priority: tuple[str, ...] = DEFAULT_PRIORITY
    backend_support_map: Mapping[str, Support] | None = None
    min_block_size: int | Mapping[str, int] = DEFAULT_MIN_BLOCK_SIZE
    torch_executed_ops: tuple[Any, ...] = ()
    require_full_compilation: bool = False
    skip_fusion: bool = False
    demote: str = "cascade"
    allowed_single_node_partition_ops: tuple[Any, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    exclude: Callable[[Node], bool] | None = None
    fallback: bool = True
    strict: bool = False
    check: bool = False
    check_tolerance: float | None = None
    compile_timeout: float | None = None
    compile_memory: int | None = None
    compile_workers: int | None = None
    cache_dir: str | None = None
    max_blocks: int | None = None
    decompositions: str = "minimal"
    control_flow: Mapping[str, str] = field(default_factory=dict)
    backend_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Normalise and check every field; raise :class:`OptionError` naming the bad value."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("backend_priority", _priority(self.backend_priority))
        put("backend_support_map", _support_map(self.backend_support_map, self.backend_priority))
        put("min_block_size", sizes(self.min_block_size, self.backend_priority))
        for name in ("torch_executed_ops", "allowed_single_node_partition_ops"):
            put(name, ordered(name, getattr(self, name)))
        for name in ("exclude_nodes", "exclude_modules"):
            put(name, strings(name, getattr(self, name)))
        for name in ("require_full_compilation", "skip_fusion", "fallback", "strict", "check"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} takes True or False, not {getattr(self, name)!r}")
        put("strict", self.strict or not self.fallback)
        put("fallback", not self.strict)
        for name in ("check_tolerance", "compile_timeout"):
            positive(name, getattr(self, name))
        for name in ("compile_memory", "compile_workers", "max_blocks"):
            if getattr(self, name) is not None:
                put(name, size(name, getattr(self, name)))
        put("cache_dir", path("cache_dir", self.cache_dir))
        if self.exclude is not None and not callable(self.exclude):
            raise OptionError(f"exclude takes a predicate on nodes, not {self.exclude!r}")
        one_of("demote", self.demote, DEMOTE)
        one_of("decompositions", self.decompositions, DECOMPOSITIONS)
        for op, mode in self.control_flow.items():
            one_of(f"control_flow[{op!r}]", mode, CONTROL_FLOW_MODES)
        for backend in self.backend_options:
            if backend not in self.backend_priority:
                raise OptionError(
                    f"options for backend {backend!r}, which is not in backend_priority"
                    + nearest(backend, self.backend_priority)
                )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> Options:
        """Build options from keyword-style data, as ``torch.compile(options=...)`` passes it.

        A key that names a backend holds that backend's own options.

        Raises:
            OptionError: A key is not known (the nearest legal one is named) or a value is bad.
        """
        mapping = dict(mapping or {})
        names = {f.name for f in dataclasses.fields(cls)}
        priority = _priority(mapping.get("backend_priority", default_priority()))
        own = {k: mapping.pop(k) for k in list(mapping) if k in priority and k not in names}
        for key in mapping:
            if key not in names:
                raise OptionError(f"unknown option {key!r}" + nearest(key, [*names, *priority]))
        for key, value in own.items():
            if not isinstance(value, Mapping):
                raise OptionError(f"options of backend {key!r} take a mapping, not {value!r}")
        mapping["backend_priority"] = priority
        mapping["backend_options"] = {**mapping.get("backend_options", {}), **own}
        return cls(**mapping)

    @property
    def has_caps(self) -> bool:
        """Whether blocks are first compiled in a child process, which may be ended."""
        return self.compile_timeout is not None or self.compile_memory is not None

    def size_of(self, backend: str) -> int:
        """Return the minimum block size of ``backend``."""
        sizes = self.min_block_size
        if isinstance(sizes, Mapping):
            return sizes.get(backend, DEFAULT_MIN_BLOCK_SIZE)
        return sizes

    def options_of(self, backend: str) -> Mapping[str, Any]:
        """Return the backend's own options."""
        return self.backend_options.get(backend, MappingProxyType({}))


def default_priority() -> tuple[str, ...]:
    """Return the priority from ``HIERPART_PRIORITY``, else TensorRT first and Inductor next."""
    text = os.environ.get("HIERPART_PRIORITY", "")
    return tuple(n.strip() for n in text.split(",") if n.strip()) or DEFAULT_PRIORITY


def _priority(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise OptionError(f"backend_priority takes a list of backend names, not {names!r}")
    for name in names:
        if not isinstance(name, str) or name in RESERVED_NAMES or not _is_module_name(name):
            raise OptionError(
                f"backend name {name!r} cannot be used: it has to be letters, digits and "
                "underscores (it becomes part of a submodule's name) and 'None' is reserved"
            )
    if len(set(names)) != len(names):
        raise OptionError(f"backend_priority names a backend twice: {list(names)}")
    if EAGER in names[:-1]:
        raise OptionError("'eager' runs everything, so in backend_priority it can only be the last")
    return tuple(n for n in names if n != EAGER)


def _is_module_name(name: str) -> bool:
    return f"_{name}".isidentifier()


def _support_map(
    support: Mapping[str, Support] | None, priority: Sequence[str]
) -> Mapping[str, Support] | None:
    if support is None:
        return None
    if not isinstance(support, Mapping):
        raise OptionError(f"backend_support_map takes a mapping by backend name, not {support!r}")
    for name, value in support.items():
        if name not in priority:
            raise OptionError(
                f"backend_support_map names {name!r}, which is not in backend_priority"
                + nearest(str(name), priority)
            )
        if isinstance(value, str):
            raise OptionError(
                f"backend_support_map[{name!r}] takes a collection of ops, not the string {value!r}"
            )
    return dict(support)
