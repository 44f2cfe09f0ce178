"""Where long work may be interrupted: after so many elements."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.effects import Record, Result, Steps

STEP_WORK = 400
"""Elements of one step, each of about two microseconds."""
PART_RECORDS = 250
"""Records that are written before others are made."""


class Pace:
    """Counts the elements of one request's work. Where ``spend`` says so, its generator yields."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_WORK

    def spend(self, count: int = 1) -> bool:
        """Whether it is time to let others work."""
        self._left -= count
        if self._left > 0:
            return False
        self._left = STEP_WORK
        return True


def in_parts(found: Iterable[Record | None], out: Result) -> Steps:
    """Adds records to ``out``; where there are many, most of them are written before. None: something was looked at."""
    pace = Pace()
    for record in found:
        if record is not None:
            out.records.append(record)
        if len(out.records) >= PART_RECORDS:
            part, out.records = out.records, []
            yield part
        elif pace.spend():
            yield None
    return out
