"""The command line: ``python -m hierpart COMMAND``, or ``hierpart COMMAND``.

Takes arguments and what they name (a ``.pt2`` file, ``module:factory``). Prints, and gives an exit
code; nothing else in hierpart prints.
"""

from __future__ import annotations

from hierpart.cli.command_line import main

__all__ = ["main"]
