"""The whole audit of a table: its rows, the log, and the group that feeds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek.audit import log_check
from odradek.audit.log_check import DELETED, LOST, AuditedLog, GapCauses
from odradek.audit.table_audit import PartitionRows, Repeat, audit, repeats
from odradek.audit.table_notes import NotedRange
from odradek.audit.tables import AuditedTable, FilesMissing, TableUnreadable
from odradek.audit.uncommitted_rows import UncommittedRows, uncommitted_rows
from odradek.client.errors import UnknownTopic
from odradek.core.counts import counted
from odradek.core.ids import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from odradek.client.admin import Admin

MOST_REPEATS = 20
Stage = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]
"""``stage(label, total, unit)``: a context whose value is called with the number of further finished units."""


@dataclass(slots=True)
class PartitionAudit:
    """The audit of one partition. ``rows`` is None for a partition of which the table has no row.

    ``bounds``, ``gaps``, ``passed`` and ``committed`` are None without a cluster (or without a group)."""

    tp: TopicPartition
    rows: PartitionRows | None
    repeated: list[Repeat] = field(default_factory=list)
    bounds: AuditedLog | None = None
    gaps: GapCauses | None = None
    """The causes of the offsets that the table lacks between its lowest and its highest one."""
    committed: int | None = None
    passed: GapCauses | None = None
    """The causes of the offsets behind the last row of the table that the group or the table has passed."""
    noted: NotedRange = field(default_factory=NotedRange)
    """The offsets that the table has read, by its own notes."""
    before: GapCauses | None = None
    """The causes of the offsets from ``start`` to the first row; None if there are none, or if ``start`` is None."""
    uncommitted: UncommittedRows = field(default_factory=UncommittedRows)
    """The rows of transactions that were not committed."""
    reads_committed: bool = False
    """Whether the table was read with ``read_committed`` only, by its own notes."""
    topic_is_missing: bool = False
    partition_is_missing: bool = False
    """Whether the topic is in the cluster, and does not have this partition."""

    @property
    def start(self) -> int | None:
        """The offset at which the table began to read the partition, by its own notes; None if it is not known."""
        return self.noted.start

    @property
    def end(self) -> int:
        """The offset at which the table goes on: by its own notes, else the one after its last row."""
        return self.first_passed if self.noted.end is None else self.noted.end

    @property
    def has_rows_of_others(self) -> bool:
        """Whether the table has rows behind its notes: of an earlier topic of the same name, or of another writer."""
        return self.rows is not None and self.noted.end is not None and self.noted.end < self.rows.next_offset

    @property
    def missing(self) -> int:
        return 0 if self.rows is None else self.rows.missing

    @property
    def is_ahead(self) -> bool:
        """Whether the table has offsets that the log has not reached: the log was truncated, or the topic replaced."""
        return self.rows is not None and self.bounds is not None and self.rows.next_offset > self.bounds.end

    @property
    def is_behind_group(self) -> bool:
        """Whether the group stands before the end of the table: the next reader of the group repeats rows."""
        return self.rows is not None and self.committed is not None and self.committed < self.end

    @property
    def lost(self) -> int:
        """The number of records that consumers can read and that the table lacks."""
        return self._count(LOST, self.before, self.gaps, self.passed)

    @property
    def unknown_at_ends(self) -> int:
        """The number of offsets before the first and behind the last row that the table should have read, and whose
        records were deleted from the log."""
        return self._count(DELETED, self.before, self.passed)

    @property
    def unknown(self) -> int:
        """The number of offsets of which it is not known whether the table lacks a record: those below the log start,
        those of the log before the first row if it is not known where the table began, and those that the group has
        passed before the table began."""
        return self._count(DELETED, self.before, self.gaps, self.passed) + self.earlier + self.before_start

    @property
    def earlier(self) -> int:
        """The number of offsets that the log has before the first row, if it is not known where the table began.
        Without any row and any note, all offsets of the log, except those that the group has not passed."""
        if self.bounds is None or self.start is not None:
            return 0
        if self.rows is not None:
            return max(0, min(self.rows.first, self.bounds.end) - self.bounds.start)
        return 0 if self.committed is not None or self.noted.end is not None else self.bounds.end - self.bounds.start

    @property
    def before_start(self) -> int:
        """The number of offsets of the log that the group has passed, and that are before the offset at which the table
        began, by its own notes. Another reader of the group has read them, or the table had them and lost them."""
        if self.bounds is None or self.start is None or self.committed is None:
            return 0
        return max(0, min(self.start, self.committed, self.bounds.end) - self.bounds.start)

    @property
    def first_passed(self) -> int:
        """The offset after the last row; without rows, the offset at which the table began, or 0."""
        return (self.start or 0) if self.rows is None else self.rows.next_offset

    @staticmethod
    def _count(cause: str, *by_log: GapCauses | None) -> int:
        return sum(causes.counts.get(cause, 0) for causes in by_log if causes is not None)

    @property
    def unexplained(self) -> int:
        """The number of missing offsets whose cause was not looked for, because there was no cluster or topic."""
        return self.missing + self.missing_before if self.gaps is None else 0

    @property
    def missing_before(self) -> int:
        """The number of offsets from the start of the table to its first row; 0 if the start is not known."""
        return 0 if self.rows is None or self.start is None else max(0, self.rows.first - self.start)

    @property
    def has_uncommitted_rows(self) -> bool:
        """Whether a table that was read with ``read_committed`` has rows that such a reader cannot get."""
        return self.reads_committed and bool(self.uncommitted.aborted or self.uncommitted.undecided)

    @property
    def is_whole(self) -> bool:
        """Whether there is no repeat, no loss, no missing offset without a cause, and no contradiction to the log."""
        repeated = self.rows is not None and self.rows.repeated > 0
        lacking = self.lost or self.unexplained or self.unknown_at_ends
        contradicted = self.is_ahead or self.is_behind_group or self.partition_is_missing or self.has_uncommitted_rows
        return not (repeated or lacking or contradicted)


@dataclass(frozen=True, slots=True)
class TableAudit:
    """The audit of a table: one entry for each partition, sorted. ``missing_files``: data files that the table names,
    and that are not there. ``added_by``: what has added files with repeated offsets, as far as the table knows it."""

    table: AuditedTable
    partitions: tuple[PartitionAudit, ...]
    missing_files: tuple[str, ...] = ()
    added_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return not self.missing_files and all(one.is_whole for one in self.partitions)

    @property
    def referenced_again(self) -> dict[str, int]:
        """The files that the table references more than once, and how often."""
        return {name: count for name, count in Counter(self.table.files).items() if count > 1}


def verify_table(
    table: AuditedTable,
    admin: Admin | None = None,
    *,
    group: str | None = None,
    topic: str | None = None,
    columns: Sequence[str | None] = (None, None, None),
    stage: Stage,
) -> TableAudit:
    """Audits a table. ``columns``: the names of the columns of topics, partitions and offsets; None: usual names.

    ``topic``: the topic of a table without a column of topics. With ``admin``, the log explains missing offsets. With
    ``group``, too, the commits of the group are compared with the table. Raises TableUnreadable, StorageError, and the
    errors of the cluster."""
    chosen = table.columns(columns, topic)
    with stage("Reading", len(table.files), "files") as advance:
        rows, missing = audit(table, chosen, advance)
    audits = {tp: PartitionAudit(tp, one) for tp, one in rows.items()}
    for tp, one in rows.items():
        if one.repeated:
            audits[tp].repeated = repeats(table, chosen, tp, one, MOST_REPEATS)
    notes = table.notes(audits, {})
    _add_notes(audits, notes)
    if admin is not None:
        _look_at_log(admin, table, audits, {tp.topic for tp in (*audits, *notes)}, group=group, stage=stage)
    if not audits and missing:
        raise FilesMissing(f"{table.uri} names {counted(len(missing), 'data file')}, and none is there: put them back")
    if not audits:
        raise TableUnreadable(
            f"{table.uri} has no row, and nothing says which records it should have. With -b HOST:PORT and --group"
            " GROUP, the commits of its group say it"
        )
    repeated = {name for one in audits.values() for repeat in one.repeated for name in repeat.files}
    added_by = table.added_by(repeated) if repeated else {}
    return TableAudit(table, tuple(audits[tp] for tp in sorted(audits)), tuple(missing), added_by)


def _add_notes(audits: dict[TopicPartition, PartitionAudit], notes: Mapping[TopicPartition, NotedRange]) -> None:
    for tp, noted in notes.items():
        if tp in audits:
            audits[tp].noted = noted


def _look_at_log(
    admin: Admin,
    table: AuditedTable,
    audits: dict[TopicPartition, PartitionAudit],
    known: set[str],
    *,
    group: str | None,
    stage: Stage,
) -> None:
    """Adds what the log and the group say. ``known``: the topics of the table's rows and notes."""
    commits = {} if group is None else {tp: at.offset for tp, at in admin.list_group_offsets(group).items()}
    if group is not None and not commits:
        admin.describe_groups([group])  # an audit with a group that does not exist would compare nothing
    described = admin.describe_topics(sorted(known | {tp.topic for tp in commits}), missing_ok=True)
    for tp, one in audits.items():
        one.topic_is_missing = tp.topic not in described
    there = [TopicPartition(name, row.partition) for name, topic in described.items() for row in topic.partitions]
    ids = {name: str(topic.topic_id) for name, topic in described.items() if topic.topic_id is not None}
    notes = table.notes(there, ids)  # also of the partitions of which the table has no row
    for tp in audits.keys() - set(there):
        audits[tp].partition_is_missing = tp.topic in described
    noted = {tp.topic for tp in notes}  # a table that notes a topic says by it which partitions it has not read yet
    with_rows = {tp.topic for tp in audits}
    for tp, bounds in _bounds(admin, there).items():
        is_silent = tp.topic in with_rows - noted and bounds.start < bounds.end
        if tp in audits or tp in commits or tp in notes or is_silent:
            audits.setdefault(tp, PartitionAudit(tp, None)).bounds = bounds
    _add_notes(audits, notes)
    looked_at = [one for one in audits.values() if one.bounds is not None]
    total = sum(one.rows.next_offset - one.rows.first for one in looked_at if one.rows is not None and one.missing)
    with stage("Looking for missing offsets", total, "offsets") as advance:
        for one in looked_at:
            one.reads_committed = table.reads_committed
            _explain(admin, one, commits.get(one.tp), advance)


def _explain(admin: Admin, one: PartitionAudit, committed: int | None, advance: Callable[[int], None]) -> None:
    assert one.bounds is not None
    one.committed = committed
    rows = one.rows or PartitionRows()
    one.gaps = log_check.causes_of(admin.config, one.tp, rows.seen, rows.seen.gaps(), one.bounds, advance=advance)
    if one.start is not None and one.missing_before:
        one.before = log_check.causes_of(admin.config, one.tp, rows.seen, [(one.start, rows.first)], one.bounds)
    if one.rows is not None:
        one.uncommitted = uncommitted_rows(admin.config, one.tp, one.rows, one.bounds, one.gaps.aborted)
    passed = max(one.end, committed or 0)
    if passed > one.first_passed:
        one.passed = log_check.causes_of(admin.config, one.tp, rows.seen, [(one.first_passed, passed)], one.bounds)


def _bounds(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, AuditedLog]:
    if not partitions:
        return {}
    try:
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
        stable = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level="read_committed")
    except UnknownTopic as error:
        raise UnknownTopic(f"{error}: it was deleted during the audit: run it again") from error
    return {tp: AuditedLog(starts[tp].offset, ends[tp].offset, stable[tp].offset) for tp in partitions}
