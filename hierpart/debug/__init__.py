"""Which block makes a compiled module wrong.

Takes a compiled module and a call of it. Gives a :class:`Bisection`: the block, or the first values
that differ from eager's.
"""

from __future__ import annotations

from hierpart.debug.bisection import Bisection, bisect

__all__ = ["Bisection", "bisect"]
