"""The backend protocol, the registry, and the backends that come with hierpart.

Takes a node and gives a verdict; takes a block and gives a callable. Each backend is alone in its
package and the only one that imports its compiler, and none is imported before it is asked for:
:func:`get_backend` and :func:`backend_named` load them by name.
"""

from __future__ import annotations

from hierpart.backends.protocol import Backend
from hierpart.backends.registry import backend_named, entry_point_backends, get_backend, own_options

__all__ = [
    "Backend",
    "backend_named",
    "entry_point_backends",
    "get_backend",
    "own_options",
]
