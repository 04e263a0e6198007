"""Work in a child process under caps of time and memory, so that no backend can harm this one.

Takes a function, seconds and bytes. Comes back when the child has ended, and raises what it came
to; signals that arrive meanwhile are neither lost nor do they leave a child behind.
"""

from __future__ import annotations

from hierpart.sandbox.child_process import Child, cannot_contain, contained
from hierpart.sandbox.signals import signals_later

__all__ = ["Child", "cannot_contain", "contained", "signals_later"]
