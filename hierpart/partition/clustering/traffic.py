"""The values that units hand to each other: bytes, readers, and whose memory they lie in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hierpart.graph import Facts, Kind

ELSEWHERE = -1
"""Memory of inputs and weights, which is there all the time."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Values that units hand to each other.

    Attributes:
        source: Unit that makes each value.
        size: Bytes of each value.
        readers: Units besides the source that read each value.
        made: Values of each unit.
        read: Values that each unit reads.
        memory: Value whose memory each value lies in: its own, that of what it is a view of, or
            ``ELSEWHERE``.
        forms: Gives a number for each unit, the same for equal ops on values of equal size.
    """

    source: tuple[int, ...]
    size: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]
    forms: Callable[[], tuple[int, ...]]


def traffic_of(facts: Facts) -> Traffic:
    """Return the values that leave their unit, with sizes and readers."""
    source: list[int] = []
    size: list[int] = []
    readers: list[tuple[int, ...]] = []
    made: list[list[int]] = [[] for _ in facts.units]
    read: list[list[int]] = [[] for _ in facts.units]
    memory: list[int] = []
    lies_in: dict[int, int | None] = {}
    for i in range(len(facts.nodes)):
        lies_in[i] = _viewed(facts, i, lies_in)
        if facts.recomputable[i] or facts.kinds[i] in (Kind.TUPLE, Kind.NONE):
            continue
        unit = facts.unit_of[i]
        users = sorted({u for u in _reading_units(facts, i) if u != unit})
        value = len(source)
        memory.append(value if (viewed := lies_in[i]) is None else viewed)
        lies_in[i] = memory[-1]
        source.append(unit)
        size.append(facts.bytes_of(i))
        readers.append(tuple(users))
        made[unit].append(value)
        for u in users:
            read[u].append(value)
    return Traffic(
        tuple(source), tuple(size), tuple(readers), tuple(map(tuple, made)),
        tuple(map(tuple, read)), tuple(memory), functools.cache(lambda: _forms(facts)),
    )  # fmt: skip


def _forms(facts: Facts) -> tuple[int, ...]:
    known: dict[Any, int] = {}
    keys = (tuple((facts.nodes[i].target, facts.bytes_of(i)) for i in unit) for unit in facts.units)
    return tuple(known.setdefault(key, len(known)) for key in keys)


def _viewed(facts: Facts, i: int, lies_in: Mapping[int, int | None]) -> int | None:
    """Return the memory of what a node's value surely is a view of; ``None`` if of nothing.

    What only may share memory (control flow, Python functions, methods) counts as its own.
    """
    effect, target = facts.effects[i], facts.nodes[i].target
    for source in effect.aliases[:1]:
        told = isinstance(target, torch._ops.OpOverload) or source in effect.writes
        if told or facts.unpacking[i]:
            j = facts.index.get(source)
            return ELSEWHERE if j is None else lies_in[j]
    return None


def _reading_units(facts: Facts, i: int) -> list[int]:
    found: list[int] = []
    for user in facts.nodes[i].users:
        j = facts.index.get(user)
        if j is None:
            continue
        found += _reading_units(facts, j) if facts.recomputable[j] else (facts.unit_of[j],)
    return found
