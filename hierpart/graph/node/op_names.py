"""Names of operators: what a user may write for an op, and what of it matches a node."""

from __future__ import annotations

import functools
import logging
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from hierpart.errors import OptionError, nearest

_log = logging.getLogger(__name__)


def qualified_name(target: Any) -> str:
    """Return the field's name of an op, as ``torch.ops.aten.relu.default`` or ``torch.relu``."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{str(target).replace('::', '.')}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{target.__name__}"
    if isinstance(target, type):
        return f"{target.__module__}.{target.__qualname__}"
    try:
        return str(torch.fx.node._get_qualified_name(target))
    except (AttributeError, RuntimeError):  # a partial or another nameless callable
        return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


@functools.cache
def _names_of_function(target: Any) -> tuple[str, ...]:
    name = qualified_name(target)
    if isinstance(target, torch._ops.OpOverload):
        return (name, name.rsplit(".", 1)[0])
    return (name,)


def names_of(node: Node, module: Callable[[str], Any]) -> tuple[str, ...]:
    """Return every name that stands for the node's op, its own name first.

    An overload answers to its packet's name; a ``call_module`` to its path and to the qualified
    names of its type (``torch.nn.Linear`` too).
    """
    if node.op != "call_module":
        return _names_of_function(node.target)
    kind = type(module(str(node.target)))
    public = [f"torch.nn.{kind.__name__}"] if kind.__module__.startswith("torch.nn.modules") else []
    return (str(node.target), qualified_name(kind), *public)


@dataclass(frozen=True, slots=True)
class OpSet:
    """A collection of ops, normalised once."""

    names: frozenset[str]

    @classmethod
    def of(cls, ops: Iterable[Any]) -> OpSet:
        """Normalise overloads, packets, functions, module types and names."""
        return cls(frozenset(canonical(op) for op in ops))

    def matches(self, names: Iterable[str]) -> bool:
        """Whether one of the names of a node's op is in the collection."""
        return any(n in self.names for n in names)


def canonical(op: Any) -> str:
    """Return the qualified name for an op object or for any spelling of its name."""
    return _canonical_name(op) if isinstance(op, str) else qualified_name(op)


@functools.cache
def _canonical_name(op: str) -> str:
    name = op.strip().replace("::", ".")
    head = name.split(".", 1)[0]
    if head in ("aten", "prims", "higher_order") or (
        head not in ("torch", "_operator", "operator", "math", "builtins")
        and "." in name
        and hasattr(torch.ops, head)
        and _registered(head)
    ):
        return f"torch.ops.{name}"
    if "." not in name or name.startswith("torch.ops."):
        return name
    # Functions are known by where they are defined: torch.nn.functional.gelu is torch._C._nn.gelu.
    found = _lookup(name)
    return qualified_name(found) if callable(found) else name


@functools.cache
def _registered(namespace: str) -> bool:
    names = torch._C._dispatch_get_all_op_names()
    return any(n.startswith(f"{namespace}::") for n in names)


def exists(name: str, known: Collection[str] = ()) -> bool:
    """Whether a canonical name stands for something: an op, a function, a method or module here."""
    if name in known or hasattr(torch.Tensor, name):
        return True
    if name.startswith("torch.ops."):
        namespace, _, rest = name.removeprefix("torch.ops.").partition(".")
        if namespace != "higher_order" and not _registered(namespace):
            return True  # the library that registers it may not be imported yet
        return _resolves(getattr(torch.ops, namespace), rest)
    return "." in name and _lookup(name) is not None


@functools.cache
def _lookup(name: str) -> Any:
    """Return what a dotted name stands for in a package that is imported, None if nothing."""
    if name.partition(".")[0] not in sys.modules:
        return None
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


def _resolves(root: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(root, part):
            return False
        root = getattr(root, part)
    return True


def check_ops(option: str, ops: Iterable[Any], known: Collection[str], *, strict: bool) -> None:
    """Check that names given by the user stand for something.

    Args:
        option: Name of the option, for the message.
        ops: What the user gave.
        known: Names that occur in the graph.
        strict: Refuse any unknown name. Otherwise only names in ``torch.ops`` are refused, and
            other unknown names are logged, since a table of supported ops may be written for
            several versions of a library.

    Raises:
        OptionError: A name matches nothing that exists; the nearest legal one is named.
    """
    unknown = []
    for op in ops:
        if not isinstance(op, str):
            if not callable(op):
                raise OptionError(f"{option} takes ops and names of ops, not {op!r}")
            continue
        if exists(name := canonical(op), known):
            continue
        if strict or name.startswith("torch.ops."):
            legal = _legal(name, known)
            raise OptionError(f"{option} names {op!r}, which is no op{nearest(name, legal)}")
        unknown.append(op)
    if unknown:
        shown = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        _log.warning("%s names %d ops that do not exist here: %s", option, len(unknown), shown)


def _legal(name: str, known: Collection[str]) -> list[str]:
    if not name.startswith("torch.ops."):
        return [*known, *(n for n in dir(torch.Tensor) if not n.startswith("__"))]
    namespace = name.removeprefix("torch.ops.").partition(".")[0]
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{namespace}::")]
    return [f"torch.ops.{_with_overload(n).replace('::', '.')}" for n in names]


def _with_overload(name: str) -> str:
    return name if "." in name else f"{name}.default"
