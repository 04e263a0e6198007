"""Engines on disk, for the next process.

One file an engine, named by the digest of everything that it depends on. Files are written aside
and moved into place, and processes that want the same engine wait for the one that builds it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from hierpart.backends.tensorrt.engine import DamagedEngineError, Engine
from hierpart.errors import OptionError

_log = logging.getLogger("hierpart")


def kept_or_built(folder: Path, key: str, make: Callable[[], Engine]) -> tuple[Engine, bool]:
    """Return the engine of that key and whether it came from the folder.

    Args:
        folder: Where engines are kept; made where it is not there.
        key: Digest of what the engine depends on.
        make: Builds the engine; called by one process at a time.

    Raises:
        OptionError: The folder cannot be made or written.
        Exception: Whatever ``make`` raises; nothing is kept then.
    """
    from filelock import FileLock

    path = folder / f"{key}.engine"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{key}.lock")
        lock.acquire()
    except OSError as error:
        raise OptionError(f"engine_cache={str(folder)!r} cannot be used: {error}") from error
    try:
        found = _read(path)
        if found is not None:
            return found, True
        made = make()
        _write(path, made.to_bytes())
        return made, False
    finally:
        lock.release()


def _read(path: Path) -> Engine | None:
    """Return the engine in a file, ``None`` where there is none that is whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("engine cache: %s cannot be read and is built again: %s", path, error)
        return None
    try:
        return Engine.from_bytes(data)
    except (DamagedEngineError, ValueError, KeyError, TypeError) as error:
        _log.warning("engine cache: %s is not used and built again: %s", path, error)
        return None


def _write(path: Path, data: bytes) -> None:
    """Put a file in place whole or not at all; a full disk costs the entry and no more."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        _log.warning("engine cache: %s could not be written: %s", path, error)
        part.unlink(missing_ok=True)
