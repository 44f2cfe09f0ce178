"""Linearizability of a register in which no two writes have one value: it follows from the zone of each value.

Then each read has one source, and the check takes n log n steps (Gibbons and Korach, Testing shared memories, 1997).
The *zone* of a value lies between the first end and the last begin of its write and reads. If the end comes first, the
register has the value from there to the begin; two of such zones must not overlap. Otherwise the value may stand for a
moment between both; a part of that time must be outside of the zones of the first kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Protocol

Value = int | None


class _Operation(Protocol):
    @property
    def is_write(self) -> bool: ...
    @property
    def value(self) -> Value: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def earliest(self) -> float: ...


def have_order(operations: Iterable[_Operation], initial: Value) -> bool | None:
    """Returns whether the operations are linearizable; None if two writes have one value.

    A write without an answer whose value no read has counts for nothing."""
    written: dict[Value, tuple[float, float]] = {initial: (-inf, -inf)}
    unseen_from: dict[Value, float] = {}
    reads: dict[Value, tuple[float, float]] = {}
    unanswered: dict[Value, tuple[float, float]] = {}
    for one in operations:
        if not one.is_write:
            first, last = reads.get(one.value, (inf, -inf))
            reads[one.value] = min(first, one.end), max(last, one.start)
        elif one.end == inf:
            if one.value in unanswered:
                unanswered[one.value] = (-inf, inf)  # more than one
            else:
                unanswered[one.value] = one.start, inf
        elif one.value in written:
            return None
        else:
            written[one.value] = one.start, one.end
            unseen_from[one.value] = one.earliest
    for value in reads.keys() & unanswered.keys():
        if value in written or unanswered[value][0] == -inf:
            return None
        written[value] = unanswered[value]
    if any(value not in written or first < written[value][0] for value, (first, _) in reads.items()):
        return False
    for value in unseen_from.keys() - reads.keys():
        written[value] = unseen_from[value], written[value][1]
    zones = [_zone(*written[value], *reads.get(value, (inf, -inf))) for value in written]
    return _are_apart(zones)


def _zone(start: float, end: float, first: float, last: float) -> tuple[float, float]:
    """Returns the first end and the last begin."""
    return min(end, first), max(start, last)


def _are_apart(zones: Iterable[tuple[float, float]]) -> bool:
    standing = sorted(zone for zone in zones if zone[0] < zone[1])
    begins = [begin for begin, _ in standing]
    if any(after < until for (_, until), (after, _) in pairwise(standing)):
        return False
    for until, begin in zones:
        at = bisect_right(begins, begin) - 1
        if until >= begin and at >= 0 and begins[at] < begin and until < standing[at][1]:
            return False
    return True
