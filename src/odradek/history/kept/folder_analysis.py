"""The analysis of a history in a folder: the findings, lag and verdicts of ``odradek.history.analysis``, without a
cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.errors import StorageError
from odradek.history.analysis import POINTS, Analysis, analyse
from odradek.history.coverage import CoverageRow
from odradek.history.findings import FindingRules
from odradek.history.kept.history_files import ENDS, RECORDS, HistoryFile, HistoryFolder, raise_bounds
from odradek.history.kept.known_ends import KnownEnds
from odradek.history.log_ends import RETENTION_MS
from odradek.history.records.journal import Journal
from odradek.history.verdict_rules import VerdictRules

_VERDICT_POLLS = 250
"""How many of the newest polls are the moments of the verdicts, as in a running monitor."""


class FolderHistory(NamedTuple):
    """What a folder has. ``unreadable``: names of damaged files, which are left out."""

    records: list[HistoryFile]
    ends: list[HistoryFile]
    unreadable: tuple[str, ...]


def read_folder(folder: HistoryFolder) -> FolderHistory:
    """Returns the files that count. Raises OSError."""
    records = folder.files(RECORDS)
    unreadable = list(folder.unreadable)
    ends = folder.files(ENDS)
    return FolderHistory(records, ends, (*unreadable, *folder.unreadable))


def analyse_folder(
    folder: HistoryFolder,
    *,
    group: str | None = None,
    since_us: int | None = None,
    rules: FindingRules | None = None,
    verdict_rules: VerdictRules | None = None,
    points: int = POINTS,
    on_batch: Callable[[pa.RecordBatch], None] = lambda batch: None,
    on_damaged: Callable[[str], None] = lambda name: None,
) -> Analysis:
    """Analyses the history in a folder, or only the records of ``group``. ``on_batch`` gets the records, ``on_damaged``
    the names of damaged files, which are left out.

    The end of the analysed time is that of the newest poll or record. Raises StorageError."""
    history = read_folder(folder)
    for name in history.unreadable:
        on_damaged(name)
    if not history.records and not history.ends:
        raise StorageError(f"{folder.directory}: it has no history that can be read")
    try:
        journal = _journal(history.records, group, on_batch)
        ends = KnownEnds([one.read() for one in history.ends])
    except FileNotFoundError:  # a few times an hour
        raise StorageError(f"{folder.directory}: the monitor has joined files meanwhile: run it again") from None
    judging = verdict_rules or VerdictRules()
    now_us = max(ends.last_ms * 1000, journal.latest_us)
    newest = (history.records or history.ends)[-1].notes
    retention = (newest.retention_ms, newest.retention_is_known) if newest.retention_ms >= 0 else (RETENTION_MS, False)
    moments = journal.moments(since_us, now_us, points)
    polls = ends.polls[-_VERDICT_POLLS:] * 1000
    recent_ms = now_us // 1000 - judging.recent_ms
    return analyse(
        journal, ends.logs(moments, now_us, retention), rules=rules, since_us=since_us, verdict_rules=judging,
        ends_of=lambda wanted: ends.ends_of([one for one in wanted if one[1] != recent_ms], judging.known_for_ms),
        verdict_logs=ends.logs(polls, now_us, retention),
    )  # fmt: skip


def _journal(files: list[HistoryFile], group: str | None, on_batch: Callable[[pa.RecordBatch], None]) -> Journal:
    journal, counts = Journal(), FolderCounts({}, {})
    for one in files:
        for batch in one.read().to_batches():
            counts.add(batch)
            chosen = batch if group is None else batch.filter(pc.equal(batch.column("group"), group))
            if chosen.num_rows:
                journal.add(chosen)
                on_batch(chosen)
    journal.coverage.rows += _coverage(files, counts)
    return journal


class FolderCounts(NamedTuple):
    """For each partition of the offsets topic: the first offset, and the number of records."""

    firsts: dict[int, int]
    records: dict[int, int]

    def add(self, batch: pa.RecordBatch) -> None:
        partitions, offsets = (batch.column(name).to_numpy() for name in ("record_partition", "record_offset"))
        for number in np.unique(partitions).tolist():
            mine = offsets[partitions == number]
            self.records[number] = self.records.get(number, 0) + len(mine)
            self.firsts.setdefault(number, int(mine.min()))


def _coverage(files: list[HistoryFile], counts: FolderCounts) -> list[CoverageRow]:
    """Returns the coverage of the offsets topic. What a monitor did not note is unknown."""
    below: dict[int, int] = {}
    for one in files:
        raise_bounds(below, one.notes.incomplete_below)
    return [
        CoverageRow(
            number, counts.firsts.get(number, end), end, count := counts.records.get(number, 0), 0, 0, 0, end - count,
            below.get(number, 0),
        )
        for number, end in sorted((files[-1].notes.positions if files else {}).items())
        if end
    ]  # fmt: skip
