"""Inductor's compiled blocks as bytes, by torch's own format; reading them unpickles."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def dump(artifact: Any) -> bytes:
    """Return a compiled artifact as bytes.

    Raises:
        Exception: Inductor cannot write it.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "block"
        artifact.save(path=str(file), format="binary")
        return file.read_bytes()


def restore(data: bytes) -> Any:
    """Return the artifact that :func:`dump` wrote.

    Raises:
        Exception: It was written by another build of torch, or is damaged.
    """
    from torch._inductor.standalone_compile import CompiledArtifact

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "block"
        file.write_bytes(data)
        return CompiledArtifact.load(path=str(file), format="binary")
