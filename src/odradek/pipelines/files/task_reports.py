"""The reports of tasks that write a table, and the driver's check of them.

A task reports the ranges that its reader has read, and each file that it has written. Before the driver adds anything
to a table, it checks that the tasks have read each planned range once. The driver also opens every file and checks that
its size, and the number of rows in its footer, are as reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from odradek.core.counts import span
from odradek.core.errors import OdradekError
from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.ranges import merge, subtract
from odradek.spark.offsets.offset_ranges import Range


class RangesNotRead(OdradekError):
    """The tasks have not read the planned ranges; the message has the missing or repeated range."""


class FileReport(NamedTuple):
    """A written file. ``name`` is relative to the table's folder. The task counts ``rows`` while it writes.
    ``partition``: the values of its partition, as in ``LaidOutRows``."""

    name: str
    size: int
    rows: int
    partition: tuple[Any, ...] = ()


class BadValue(NamedTuple):
    """The offset of an unreadable value. ``error`` says why the value cannot be read."""

    topic: str
    partition: int
    offset: int
    error: str


class PieceReport(NamedTuple):
    """The number of rows of one range of a task, and the seconds to read, decode and write them."""

    partition: TopicPartition
    rows: int
    seconds: float


@dataclass(frozen=True)
class TaskReport:
    """The report of a task.

    ``ranges``: the ranges that were read. ``lost``: ranges that no longer exist; the task has skipped them, which the
    options allow. ``attempt``: Spark's attempt number, 0 for the first. ``bad``: the number of unreadable values.
    ``seconds``: the duration. ``peak_bytes``: the peak memory of the task's process. ``pieces``: each range
    separately, in reading order. ``tails``: the last batches of the pieces that were read to their end. ``undecided``:
    the partitions in which the last batch before a piece could not be compared.
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
    tails: tuple[tuple[TopicPartition, LogTail], ...] = ()
    undecided: tuple[TopicPartition, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def tails_of(planned: Sequence[Range], reports: Iterable[TaskReport]) -> dict[TopicPartition, LogTail]:
    """Returns the last batches of the planned ranges, as far as they are known."""
    ends = {(piece.partition, piece.end) for piece in planned}
    return {tp: tail for report in reports for tp, tail in report.tails if (tp, tail.end) in ends}


def check_ranges(planned: Sequence[Range], reports: Iterable[TaskReport]) -> None:
    """Raises RangesNotRead if the read and lost ranges of the reports are not the planned ones."""
    read = [piece for report in reports for piece in (*report.ranges, *report.lost)]
    wanted = merge(planned)
    if sum(piece.size for piece in read) == sum(piece.size for piece in planned) and merge(read) == wanted:
        return
    missing = subtract(wanted, merge(read))
    extra = subtract(merge(read), wanted) or read
    what = (
        f"{_shown(missing[0])} was planned but not read"
        if missing
        else f"{_shown(extra[0])} was read more often than planned"
    )
    raise RangesNotRead(f"{what}. Nothing was added and nothing is committed: run the command again")


def _shown(piece: Range) -> str:
    return f"{piece.partition}, {span(piece.start, piece.end)},"


def first_bad(reports: Iterable[TaskReport]) -> BadValue | None:
    """Returns the first unreadable value by topic, partition and offset."""
    return min((report.first_bad for report in reports if report.first_bad is not None), default=None)
