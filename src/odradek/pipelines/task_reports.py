"""What tasks that write a table report to the driver, and the driver's check of it.

A task reports the ranges that its reader went through, as the reader tells it, and each file that it has written.
Before the driver adds anything to a table the ranges must be the planned ones, each once, and it must see every file
with the reported size and the reported count of rows in its footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.pipelines.ranges import merge
from odradek.spark.offset_ranges import Range


class RangesNotRead(OdradekError):
    """The tasks have not read what was planned; the message says what is missing or was read twice."""


class FileReport(NamedTuple):
    """A file by its name below the folder that was written to; ``rows`` is counted while they are written."""

    name: str
    size: int
    rows: int


class BadValue(NamedTuple):
    """The place of a value that could not be read, and why."""

    topic: str
    partition: int
    offset: int
    error: str


class PieceReport(NamedTuple):
    """Rows of one range of a task, and the seconds to read, decode and write them."""

    partition: TopicPartition
    rows: int
    seconds: float


@dataclass(frozen=True)
class TaskReport:
    """``ranges``: what was read; ``lost``: what is gone from the topics and was left out, where the options allow it.
    ``attempt``: of Spark's, 0 for a task that was tried once. ``seconds``: how long it ran. ``peak_bytes``: the most
    memory that its process ever had. ``pieces``: each range for itself, in the order in which they were read.
    """

    host: str
    attempt: int
    ranges: tuple[Range, ...]
    files: tuple[FileReport, ...]
    bad: int
    first_bad: BadValue | None
    seconds: float
    peak_bytes: int = 0
    pieces: tuple[PieceReport, ...] = ()
    lost: tuple[Range, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def check_ranges(planned: Sequence[Range], reports: Iterable[TaskReport]) -> None:
    """Raises RangesNotRead."""
    read = [piece for report in reports for piece in (*report.ranges, *report.lost)]
    wanted = merge(planned)
    if sum(piece.size for piece in read) == sum(piece.size for piece in planned) and merge(read) == wanted:
        return
    missing = _less(wanted, merge(read))
    extra = _less(merge(read), wanted) or read
    what = (
        f"{_shown(missing[0])} was planned and is not read"
        if missing
        else f"{_shown(extra[0])} was read once too often"
    )
    raise RangesNotRead(f"{what}. Nothing was added and nothing is committed: run it again")


def _less(wanted: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What of the wanted ranges is in none of the others."""
    left: list[Range] = []
    for tp, start, end in wanted:
        at = start
        for other in sorted(others):
            if other.partition == tp and other.end > at and other.start < end:
                if other.start > at:
                    left.append(Range(tp, at, other.start))
                at = max(at, other.end)
        if at < end:
            left.append(Range(tp, at, end))
    return left


def _shown(piece: Range) -> str:
    return f"{piece.partition}, offsets {piece.start} to {piece.end - 1},"


def first_bad(reports: Iterable[TaskReport]) -> BadValue | None:
    """The first value by topic, partition and offset that could not be read."""
    return min((report.first_bad for report in reports if report.first_bad is not None), default=None)
