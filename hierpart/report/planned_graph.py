"""What a report keeps of the graph that it tells of, for those who plan it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hierpart.options import Options
    from hierpart.partition import Result


@dataclass(frozen=True)
class Planned:
    """The graph that was planned.

    It stays with its process: a copy of a report shares it and a pickled report is without it.

    Attributes:
        result: What the line found out.
        options: The options of the split.
    """

    result: Result
    options: Options

    def __copy__(self) -> Planned:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _nothing, ()


def _nothing() -> None:
    """Stand for an origin in a pickled report."""
