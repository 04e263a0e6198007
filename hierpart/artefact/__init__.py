"""The file that a compiled module is saved to.

Takes a compiled module and its :class:`Origin`. Gives a zip of members under one digest: a
manifest, the plan, the exported program with its weights, and what backends made of the blocks.
:mod:`hierpart.build.loading` makes a module of it again.
"""

from __future__ import annotations

from hierpart.artefact.expressions import read_expressions
from hierpart.artefact.members import ArtefactError, read_members
from hierpart.artefact.origin import Frame, Kept, Origin, Saved
from hierpart.artefact.reading import (
    on_device,
    plain_options,
    read_manifest,
    read_program,
    readable_blocks,
)
from hierpart.artefact.writing import CAREFUL, PLAN, PROGRAM, save

__all__ = [
    "ArtefactError",
    "CAREFUL",
    "Frame",
    "Kept",
    "Origin",
    "PLAN",
    "PROGRAM",
    "Saved",
    "on_device",
    "plain_options",
    "read_expressions",
    "read_manifest",
    "read_members",
    "read_program",
    "readable_blocks",
    "save",
]
