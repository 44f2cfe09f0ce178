"""The progress of a run of ``ingest`` or ``transform``: records read and rows added, with rate and lag."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.state import Added
from odradek.pipelines.files.task_reports import TaskReport
from odradek.pipelines.group_commit import CommitState

# The rate covers this many of the last seconds.
WINDOW_S = 10.0
_SAMPLES_S = 0.5


class Watch(Protocol):
    """Receives the progress of a run, from the run's own threads."""

    def on_read(self, offsets: int) -> None:
        """Notes that the tasks of the current micro-batch have read this many further offsets."""
        ...

    def on_micro_batch(self, added: Added, offsets: int, lag: int | None) -> None:
        """Notes that a micro-batch of this many offsets is in the table or topic that the run writes. ``lag``: unread
        offsets of the source's topics, or None if not known."""
        ...

    def on_end(self, group: CommitState) -> None:
        """Notes the end of the run; ``group`` is the state of its group."""
        ...


@dataclass(frozen=True)
class RunSnapshot:
    """The progress at one moment. ``micro_batches``: how many this run has added. ``records``: rows that the run has
    added, plus the records that the current micro-batch has read so far. ``lag``: unread offsets of the topics.
    ``eta_s``: seconds to the end of a run that has one. ``files``, ``bytes``: number and size of the files that this
    run has added to the table. ``unreadable``: rows with an unreadable value. ``committed``: after the end of the run,
    whether the group's offsets are those of the table. Unknown values are None.
    """

    micro_batches: int
    records: int
    rows_per_s: float | None
    lag: int
    eta_s: float | None
    files: int | None
    bytes: int | None
    unreadable: int
    seconds: float
    committed: bool | None = None


class RunProgress:
    """Counts of one run. ``unread``: unread offsets at its start. ``has_end``: the run ends when these are read."""

    def __init__(self, unread: int, *, has_end: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._has_end = has_end
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._left = self._lag = unread
        self._reading = 0
        self._batches = 0
        self._total = Added(0, 0, 0, 0)
        self._samples: deque[tuple[float, int]] = deque()
        self._group: CommitState | None = None

    def on_read(self, offsets: int) -> None:
        """See ``Watch``."""
        with self._lock:
            self._reading += offsets
            self._sample()

    def on_micro_batch(self, added: Added, offsets: int, lag: int | None) -> None:
        """See ``Watch``."""
        with self._lock:
            self._batches += 1
            self._total = sum_of([self._total, added])
            self._left = max(0, self._left - offsets)
            self._lag = max(0, self._lag - offsets) if lag is None else lag
            self._reading = 0
            self._sample()

    def on_end(self, group: CommitState) -> None:
        """See ``Watch``."""
        with self._lock:
            self._group = group

    def snapshot(self) -> RunSnapshot:
        """Returns the present counts."""
        with self._lock:
            now = self._clock()
            rate = self._rate(now)
            left = max(0, self._left - self._reading)
            return RunSnapshot(
                micro_batches=self._batches,
                records=self._records,
                rows_per_s=rate,
                lag=max(0, self._lag - self._reading),
                eta_s=left / rate if rate and self._has_end else None,
                files=self._total.files,
                bytes=self._total.size,
                unreadable=self._total.bad,
                seconds=now - self._begun_s,
                committed=None if self._group is None else self._group.is_committed,
            )

    @property
    def _records(self) -> int:
        return self._total.rows + self._reading

    def _sample(self) -> None:
        now = self._clock()
        if not self._samples or now - self._samples[-1][0] >= _SAMPLES_S:
            self._samples.append((now, self._records))
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()

    def _rate(self, now: float) -> float | None:
        """Returns the rate of the last seconds; None before anything is read."""
        if not self._records:
            return None
        # The first sample includes the first report, so a run shorter than the window is measured from its start.
        at, records = self._samples[0] if now - self._begun_s > WINDOW_S else (self._begun_s, 0)
        return max(0, self._records - records) / (now - at) if now > at else None


def sum_of(parts: Iterable[Added]) -> Added:
    """Returns the sum of several micro-batches. Both ``files`` and ``size`` are None if one micro-batch lacks one of
    them."""
    found = list(parts)
    files = [one.files for one in found if one.files is not None]
    sizes = [one.size for one in found if one.size is not None]
    known = len(files) == len(sizes) == len(found)
    rows, bad = sum(one.rows for one in found), sum(one.bad for one in found)
    return Added(rows, bad, sum(files) if known else None, sum(sizes) if known else None)


@dataclass(frozen=True)
class PartitionTime:
    """The time in which tasks have read, decoded and written rows of a partition; ``seconds`` is the sum over the
    tasks."""

    topic: str
    partition: int
    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class PartitionTimes:
    """The sums of the tasks' reports, by partition."""

    def __init__(self) -> None:
        self._times: dict[TopicPartition, PartitionTime] = {}

    def add(self, reports: Iterable[TaskReport]) -> None:
        """Adds the reports of finished tasks."""
        for piece in (piece for report in reports for piece in report.pieces):
            tp = piece.partition
            held = self._times.get(tp, PartitionTime(*tp, 0, 0.0))
            self._times[tp] = PartitionTime(*tp, held.rows + piece.rows, held.seconds + piece.seconds)

    @property
    def slowest(self) -> PartitionTime | None:
        """The partition that took the most time; None if no task has reported."""
        return max(self._times.values(), key=lambda one: one.seconds, default=None)
