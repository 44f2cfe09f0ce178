"""The size of the steps of long work, in elements."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from heapq import merge
from typing import Any, TypeVar

from odradek.core.effects import Result, ResultSteps, SimpleRecord

T = TypeVar("T", bound=Any)
R = TypeVar("R")

STEP_WORK = 400
"""The number of elements in one step. An element takes about two microseconds."""
PART_RECORDS = 250
"""The number of records in a part. A part is written before the records of the next part are made."""


class Pace:
    """A counter of the elements of one request's work. A generator yields when ``spend`` returns True."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_WORK

    def spend(self, count: int = 1) -> bool:
        """Counts elements and returns whether the step is over."""
        self._left -= count
        if self._left > 0:
            return False
        self._left = STEP_WORK
        return True


def in_parts(records: Iterable[SimpleRecord | None], out: Result[R]) -> ResultSteps[R]:
    """Adds records to ``out``. Yields each full part, which the caller writes before the next one is made.

    A None in ``records`` counts as an element of work.
    """
    pace = Pace()
    for record in records:
        if record is not None:
            out.records.append(record)
        if len(out.records) >= PART_RECORDS:
            part, out.records = out.records, []
            yield part
        elif pace.spend():
            yield None
    return out


def sorted_in_steps(values: Iterable[T]) -> Generator[None, None, list[T]]:
    """Returns the values in order. The caller must not change ``values`` until the last step."""
    runs: list[list[T]] = []
    run: list[T] = []
    for value in values:
        run.append(value)
        if len(run) == STEP_WORK:
            run.sort()
            runs.append(run)
            run = []
            yield
    run.sort()
    if not runs:
        return run
    merged: list[T] = []
    pace = Pace()
    for value in merge(*runs, run):
        merged.append(value)
        if pace.spend():
            yield
    return merged
