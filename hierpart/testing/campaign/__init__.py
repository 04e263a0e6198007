"""Fuzzing for a given time: who judges, what was found, and the command."""

from __future__ import annotations

from hierpart.testing.campaign.command import add_arguments, run

__all__ = ["add_arguments", "run"]
