"""The file that a compiled module is saved to.

Takes a compiled module and its :class:`Origin`. Gives a zip of members under one digest: a
manifest, the plan, the exported program with its weights, and what backends made of the blocks.
:mod:`hierpart.build.loading` makes a module of it again.
"""

from __future__ import annotations

from hierpart.artefact.members import ArtefactError, read_members
from hierpart.artefact.origin import Frame, Kept, Origin, Saved
from hierpart.artefact.writing import CAREFUL, FORMAT, MANIFEST, PLAN, PROGRAM, save

__all__ = [
    "ArtefactError",
    "CAREFUL",
    "FORMAT",
    "Frame",
    "Kept",
    "MANIFEST",
    "Origin",
    "PLAN",
    "PROGRAM",
    "Saved",
    "read_members",
    "save",
]
