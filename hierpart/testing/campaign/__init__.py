"""Fuzzing for a given time: who judges, what was found, and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hierpart.testing.campaign.command import add_arguments, run

if TYPE_CHECKING:
    from hierpart.testing.campaign.rounds import Campaign as Campaign
    from hierpart.testing.campaign.rounds import fuzz as fuzz
    from hierpart.testing.campaign.rounds import fuzz_backend as fuzz_backend

__all__ = ["Campaign", "add_arguments", "fuzz", "fuzz_backend", "run"]


def __getattr__(name: str) -> Any:
    # The command line lists its options without Hypothesis, which a campaign needs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hierpart.testing.campaign import rounds

    return getattr(rounds, name)
