"""How far a run of ``ingest`` is: what its tasks have read and what is in the table, as counts, a rate and a lag."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from odradek.core.ids import TopicPartition
from odradek.pipelines.checkpoint import GroupState
from odradek.pipelines.lake import Added
from odradek.pipelines.task_reports import TaskReport

# The rate is that of so many seconds back.
WINDOW_S = 10.0
_SAMPLES_S = 0.5


class Watch(Protocol):
    """What a run tells while it goes on, from threads of its own."""

    def passed(self, offsets: int) -> None:
        """Tasks of the batch that runs have read so many offsets more."""
        ...

    def added(self, added: Added, offsets: int, lag: int | None) -> None:
        """A batch of so many offsets is in the table; ``lag``: how many more the topics hold, where that was asked."""
        ...

    def ended(self, group: GroupState) -> None:
        """The run is over, and its group is in this state."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """``batch``: how many are in the table. ``records``: rows in the table, and what the batch that runs has read.
    ``lag``: offsets of the topics that are not read yet. ``eta_s``: seconds to the end of a run that has one. ``files``
    and ``bytes``: those of the table that this run has written. ``committed``: whether the group is where the table is,
    once the run is over. What is not known is None.
    """

    batch: int
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
    """Counts of one run. ``unread``: offsets that waited when it began. ``has_end``: whether it ends with those."""

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
        self._group: GroupState | None = None

    def passed(self, offsets: int) -> None:
        """As ``Watch``."""
        with self._lock:
            self._reading += offsets
            self._sample()

    def added(self, added: Added, offsets: int, lag: int | None) -> None:
        """As ``Watch``."""
        with self._lock:
            self._batches += 1
            self._total = sum_of([self._total, added])
            self._left = max(0, self._left - offsets)
            self._lag = max(0, self._lag - offsets) if lag is None else lag
            self._reading = 0
            self._sample()

    def ended(self, group: GroupState) -> None:
        """As ``Watch``."""
        with self._lock:
            self._group = group

    def snapshot(self) -> Snapshot:
        """The counts as they are now."""
        with self._lock:
            now = self._clock()
            rate = self._rate(now)
            left = max(0, self._left - self._reading)
            return Snapshot(
                batch=self._batches,
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
        """None before anything was read."""
        if not self._records:
            return None
        # Before the first sample nothing was read; a run shorter than the window is measured from its begin.
        at, records = self._samples[0] if now - self._begun_s > WINDOW_S else (self._begun_s, 0)
        return max(0, self._records - records) / (now - at) if now > at else None


def sum_of(parts: Iterable[Added]) -> Added:
    """What several batches brought; files and bytes are not known where they are not of one of them."""
    found = list(parts)
    files = [one.files for one in found if one.files is not None]
    sizes = [one.size for one in found if one.size is not None]
    known = len(files) == len(sizes) == len(found)
    rows, bad = sum(one.rows for one in found), sum(one.bad for one in found)
    return Added(rows, bad, sum(files) if known else None, sum(sizes) if known else None)


@dataclass(frozen=True)
class PartitionTime:
    """How long tasks have read, decoded and written rows of a partition; ``seconds`` of several tasks add up."""

    topic: str
    partition: int
    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class PartitionTimes:
    """Adds up what tasks report."""

    def __init__(self) -> None:
        self._times: dict[TopicPartition, PartitionTime] = {}

    def add(self, reports: Iterable[TaskReport]) -> None:
        """Counts what tasks report that have done their work."""
        for piece in (piece for report in reports for piece in report.pieces):
            tp = piece.partition
            held = self._times.get(tp, PartitionTime(*tp, 0, 0.0))
            self._times[tp] = PartitionTime(*tp, held.rows + piece.rows, held.seconds + piece.seconds)

    @property
    def slowest(self) -> PartitionTime | None:
        """The partition that took the most time; None where no task has reported."""
        return max(self._times.values(), key=lambda one: one.seconds, default=None)
