"""Writes the history of a monitor to its directory while the reader follows the cluster.

The records of the offsets topic and the log bounds of the polls wait in memory, a limited number of rows, and go to a
file when there are enough of them or when they have waited long enough. A file says up to which offset of each
partition of the offsets topic the history reaches, so a restarted monitor leaves out what it has. What a killed monitor
had not written comes again from the topic; of the polls, those since the last file are lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from odradek.core.ids import TopicPartition
from odradek.history.kept.history_files import (
    ENDS,
    ENDS_SCHEMA,
    FOLDER,
    RECORDS,
    FileNotes,
    HistoryFolder,
    raise_bounds,
)
from odradek.history.records.columns import plain
from odradek.monitor.group_tracker import LogBoundsRow

logger = logging.getLogger("odradek.monitor")

KnownBounds = dict[TopicPartition, tuple[int, int] | None]
"""The log start offset and the log end offset of partitions; None without an answer."""
_MOST_ROWS = 250_000
_LONGEST_WAIT_MS = 60_000


@dataclass(slots=True)
class WaitingRows:
    """Rows that are not in a file yet."""

    records: list[pa.RecordBatch]
    record_rows: int
    times: list[int]
    topics: list[str | None]
    partitions: list[int | None]
    starts: list[int | None]
    ends: list[int | None]
    since_ms: int | None = None

    @property
    def rows(self) -> int:
        return self.record_rows + len(self.times)

    def end_table(self) -> pa.Table:
        columns = [
            pa.array([one * 1000 for one in self.times], pa.int64()).cast(ENDS_SCHEMA.field("time").type),
            self.topics, self.partitions, self.starts, self.ends,
        ]  # fmt: skip
        return pa.table(columns, schema=ENDS_SCHEMA)


def _nothing() -> WaitingRows:
    return WaitingRows([], 0, [], [], [], [], [])


class HistoryRecorder:
    """Threads may share it; ``HistoryUpkeep`` may run in another one. ``directory``: that of the monitor.

    Raises OSError if the folder cannot be read."""

    def __init__(self, directory: Path, now_ms: Callable[[], int]) -> None:
        self.folder = HistoryFolder(directory / FOLDER)
        self.trouble = ""
        """Why the newest rows are not on the disk; "" if they are or only wait."""
        self.retention: tuple[int, bool] = (-1, False)
        self._now_ms = now_ms
        self._access = threading.RLock()  # entries and polls come from two threads, the flush of the end from a third
        self._waiting = _nothing()
        self._known: KnownBounds = {}
        self.folder.clean()
        files = self.folder.files(RECORDS)
        self._positions: dict[int, int] = dict(files[-1].notes.positions) if files else {}
        self._incomplete: dict[int, int] = dict(files[-1].notes.incomplete_below) if files else {}
        self._at_start = dict(self._positions)
        self._number = 1 + max((one.number for kind in (RECORDS, ENDS) for one in self.folder.files(kind)), default=0)

    def add_records(self, batch: pa.RecordBatch) -> None:
        """Adds decoded records of one partition of the offsets topic, in log order. Those on the disk do not count."""
        with self._access:
            if not batch.num_rows:
                return
            number = batch.column("record_partition")[0].as_py()
            offsets = batch.column("record_offset").to_numpy()
            begin = int(np.searchsorted(offsets, self._positions.get(number, 0)))
            if begin == batch.num_rows:
                return
            self._positions[number] = int(offsets[-1]) + 1
            self._waiting.records.append(plain(batch.slice(begin)))
            self._waiting.record_rows += batch.num_rows - begin
            self._wait()

    def position(self, number: int) -> int:
        """Returns the offset of a partition of the offsets topic up to which the history reaches."""
        return self._positions.get(number, 0)

    def note_incomplete(self, below: Mapping[int, int]) -> None:
        """Notes, for partitions of the offsets topic, the offset below which records were removed before this read.
        What was on the disk before the start is not missing."""
        missing = {number: offset for number, offset in below.items() if offset > self._at_start.get(number, 0)}
        with self._access:
            raise_bounds(self._incomplete, missing)

    def begin_again(self) -> None:
        """The offsets topic is another one: the history of the former one moves to a folder beside it."""
        with self._access:
            self.flush()
            former = self.folder.directory.with_name(f"{FOLDER}-former-{self._now_ms()}")
            try:
                self.folder.directory.rename(former)
            except FileNotFoundError:
                return
            except OSError as error:
                self._note_trouble(error)
            logger.warning("the offsets topic was created again: its former history is in %s", former)
            self._positions, self._incomplete, self._known, self._at_start = {}, {}, {}, {}

    def add_poll(
        self, time_ms: int, bounds: Mapping[TopicPartition, LogBoundsRow], failed: Mapping[TopicPartition, str]
    ) -> None:
        """Adds the log bounds that a poll has found, and the partitions without an answer."""
        with self._access:
            self._add_row(time_ms, None, None, None, None)
            current: KnownBounds = {tp: (one.start, one.end) for tp, one in bounds.items()}
            current |= dict.fromkeys(failed)
            current |= dict.fromkeys(self._known.keys() - current.keys())  # no group has an offset there any more
            for tp, found in current.items():
                if tp not in self._known or self._known[tp] != found:
                    start, end = (None, None) if found is None else found
                    self._add_row(time_ms, tp.topic, tp.partition, start, end)
            self._known = {tp: one for tp, one in current.items() if tp in bounds or tp in failed}
            self._wait()
            if self._is_due():
                self.flush()

    def _add_row(
        self, time_ms: int, topic: str | None, partition: int | None, start: int | None, end: int | None
    ) -> None:  # fmt: skip
        waiting = self._waiting
        waiting.times.append(time_ms)
        waiting.topics.append(topic)
        waiting.partitions.append(partition)
        waiting.starts.append(start)
        waiting.ends.append(end)

    def _wait(self) -> None:
        if self._waiting.since_ms is None:
            self._waiting.since_ms = self._now_ms()
        if self._waiting.rows >= _MOST_ROWS:
            self.flush()

    def _is_due(self) -> bool:
        since_ms = self._waiting.since_ms
        return since_ms is not None and not 0 <= self._now_ms() - since_ms < _LONGEST_WAIT_MS

    def flush(self) -> None:
        """Writes the waiting rows. If that fails they stay, unless they are too many: then the oldest ones are read
        from the topic after the next start."""
        with self._access:
            waiting = self._waiting
            if not waiting.rows:
                return
            try:
                self._write(waiting)
            except OSError as error:
                self._note_trouble(error)
                if waiting.rows >= 2 * _MOST_ROWS:
                    self._drop()
                return
            if self.trouble:
                logger.warning("the history is written again")
            self.trouble = ""
            self._waiting, self._known = _nothing(), {}

    def _write(self, waiting: WaitingRows) -> None:
        now_ms = self._now_ms()
        notes = FileNotes(now_ms, now_ms, dict(self._positions), dict(self._incomplete), *self.retention)
        if waiting.records:
            table = pa.Table.from_batches(waiting.records)
            table = table.sort_by([("record_partition", "ascending"), ("record_offset", "ascending")])
            first, last = _range_ms(table, now_ms)
            self.folder.write(RECORDS, self._number, 0, table, replace(notes, first_ms=first, last_ms=last))
            waiting.records, waiting.record_rows = [], 0
        if waiting.times:
            notes = replace(notes, first_ms=min(waiting.times), last_ms=max(waiting.times))
            self.folder.write(ENDS, self._number, 0, waiting.end_table(), notes)
        self._number += 1

    def _drop(self) -> None:
        """Forgets the waiting rows: a full disk must not fill the memory, too. The history has a gap then."""
        for batch in self._waiting.records:
            number, first = batch.column("record_partition")[0].as_py(), batch.column("record_offset")[-1].as_py() + 1
            raise_bounds(self._incomplete, {number: first})
        logger.warning("the history has a gap: %s rows could not be written", f"{self._waiting.rows:,}")
        self._waiting, self._known = _nothing(), {}

    def _note_trouble(self, error: OSError) -> None:
        if not self.trouble:
            logger.warning("the history is not written, the next poll tries again: %s", error)
        self.trouble = str(error)


def _range_ms(table: pa.Table, now_ms: int) -> tuple[int, int]:
    """Returns the first and last time of records. Clocks ahead do not keep a file from being thinned."""
    times = table.column("record_timestamp").cast(pa.int64()).drop_null().to_numpy()
    if not len(times):
        return now_ms, now_ms
    last = min(int(times.max()) // 1000, now_ms)
    return min(int(times.min()) // 1000, last), last
