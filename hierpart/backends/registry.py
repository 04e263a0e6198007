"""The registry of backends: the built-in ones and those that other packages register.

A backend is one object that meets :class:`hierpart.backends.Backend`. Third parties register theirs
through the ``hierpart.backends`` entry-point group (name to class); a backend can also be passed in
directly as a value of ``backend_support_map``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from hierpart.backends.protocol import Backend
from hierpart.errors import OptionError, nearest
from hierpart.options import Options

ENTRY_POINT_GROUP = "hierpart.backends"
_BUILT_IN = (
    EntryPoint("inductor", "hierpart.backends.inductor:InductorBackend", ENTRY_POINT_GROUP),
    EntryPoint("tensorrt", "hierpart.backends.tensorrt:TensorRTBackend", ENTRY_POINT_GROUP),
)


@cache
def entry_point_backends() -> dict[str, EntryPoint]:
    """Return the built-in and the registered backends by name, sorted; nothing is imported.

    Raises:
        OptionError: Two packages register different backends under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted((*_BUILT_IN, *entry_points(group=ENTRY_POINT_GROUP)), key=_order):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise OptionError(
                f"two packages register the backend {point.name!r}: {other.value} and {point.value}"
            )
    return found


def _order(point: EntryPoint) -> tuple[str, str]:
    return point.name, point.value


@cache
def get_backend(name: str) -> Backend:
    """Return the backend registered as ``name``.

    Raises:
        OptionError: No backend has that name; the nearest one is named.
    """
    points = entry_point_backends()
    if name not in points:
        raise OptionError(
            f"no backend is registered as {name!r}" + nearest(name, [*points, "eager"])
        )
    backend: Backend = points[name].load()()
    return backend


def backend_named(name: str, options: Options) -> Backend | None:
    """Return the backend object of that name: the user's own, else the registered one, if any.

    A backend whose answers depend on its own options (it has ``configured``) is returned with them.
    """
    given = (options.backend_support_map or {}).get(name)
    if not isinstance(given, Backend):
        given = get_backend(name) if name in entry_point_backends() else None
    own, configure = own_options(name, given, options), getattr(given, "configured", None)
    if own and configure is not None:
        configured: Backend = configure(own)
        return configured
    return given


def own_options(name: str, backend: Backend | None, options: Options) -> Mapping[str, Any]:
    """Return a backend's own options; ``cache_dir`` gives it a folder unless it has one."""
    own, folder = options.options_of(name), getattr(backend, "cache_option", None)
    if options.cache_dir is None or folder is None or folder in own:
        return own
    return {**own, folder: str(Path(options.cache_dir, name))}
