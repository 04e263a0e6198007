"""The file that a compiled module is saved to: members in a zip, with a digest of the whole.

The digest is the comment at the end of the zip, so any change to any byte shows before a member is
read. It protects against accidents; it is no signature.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hierpart.errors import HierpartError

_DIGEST = 64
_CHUNK = 1 << 20


class ArtefactError(HierpartError, ValueError):
    """A file of a compiled module cannot be written or read; the message says why.

    Save the module again, with the versions that it is to be loaded with.
    """


def write_members(path: Path, members: Mapping[str, bytes]) -> None:
    """Write a file of these members; the file is put in place whole or not at all.

    Raises:
        ArtefactError: The folder is not there or cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}.part")
    _remove_left_behind(path)
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
            archive.comment = b"0" * _DIGEST
        with part.open("r+b") as file:
            file.seek(-_DIGEST, os.SEEK_END)
            file.write(_digest(part).encode())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ArtefactError(f"{path} cannot be written: {error}") from error


def read_members(path: Path) -> dict[str, bytes]:
    """Return the members of a file written by :func:`write_members`.

    Raises:
        ArtefactError: There is no such file, it is something else, or a byte of it was changed.
    """
    if not path.is_file():
        raise ArtefactError(f"{path}: no such file")
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0, os.SEEK_END)
        length = file.tell()
        file.seek(max(length - _DIGEST, 0))
        recorded = file.read()
    if start != b"PK\x03\x04" or length <= _DIGEST:
        raise ArtefactError(f"{path}: not a file written by compiled.save")
    if recorded != _digest(path).encode():
        raise ArtefactError(f"{path}: truncated or changed since it was written; save it again")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ArtefactError(f"{path}: holds {', '.join(twice)} twice; save it again")
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ArtefactError(f"{path}: holds packed members; save it again")
            return {name: archive.read(name) for name in names}
    except ArtefactError:
        raise
    except Exception as error:  # zipfile raises whatever the first odd field makes it do
        raise ArtefactError(f"{path}: not a file written by compiled.save: {error}") from error


def _remove_left_behind(path: Path) -> None:
    """Remove the unfinished files of saves to this path whose process is no more.

    Another process may be saving to the same path right now; its file is left alone.
    """
    pattern = re.compile(re.escape(f".{path.name}.") + r"(?:(\d+)\.)?[0-9a-f]{16}\.part")
    try:
        for entry in path.parent.iterdir():
            found = pattern.fullmatch(entry.name)
            if found and not (found[1] and _is_alive(int(found[1]))):
                entry.unlink(missing_ok=True)
    except OSError as error:
        raise ArtefactError(f"{path} cannot be written: {error}") from error


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _digest(path: Path) -> str:
    """Return the digest of all of a file but its last bytes, where the digest itself is."""
    left, digest = path.stat().st_size - _DIGEST, hashlib.sha256()
    with path.open("rb") as file:
        while left > 0:
            chunk = file.read(min(_CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
