"""The live state of all groups, from the entries of ``__consumer_offsets`` and from polls of the logs.

A state tracker without clock, socket or file. It takes batches of decoded entries (``history.columns.SCHEMA``), log
bounds and group states, each with its time, and judges the partitions with the rules of ``history.verdicts``. However
the entries are cut into batches, the verdicts are those of the batch analysis for the same entries and log ends.

A group's partition is a key: the number of its group in the high 32 bits, and the number of its partition in the low
ones. ``CodeTable`` gives it a slot, which is its row in ``CommitWindows``. So a million keys take about 200 bytes each,
and none of them is a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.findings import FindingRules, as_table
from odradek.history.records.journal import Key
from odradek.history.records.unreadable import UnreadableRecords
from odradek.history.verdict_rules import VerdictRules
from odradek.history.verdicts import SCHEMA, LogBoundColumns, Verdicts, judge_keys, verdict_table
from odradek.history.windows.commit_windows import CommitColumns, CommitWindows
from odradek.monitor.code_table import CodeTable, NameCodes
from odradek.monitor.group_sums import GroupColumns, GroupSums
from odradek.monitor.live_findings import GroupBatch, KeyColumns, LiveFindings
from odradek.monitor.log_samples import LogSamples

_LOW = (1 << 32) - 1
_CHUNK = 1 << 14


class ListedState(NamedTuple):
    """A group's state and type, with the broker's names (Stable, Empty, …; classic, consumer); "" if unknown."""

    state: str
    type: str
    protocol_type: str = "consumer"


class LogBoundsRow(NamedTuple):
    """The log start offset and log end offset of one partition."""

    start: int
    end: int


class GroupTracker:
    """See the module. ``polls``: the number of polls of log bounds to keep."""

    def __init__(self, rules: VerdictRules, polls: int = 16, finding_rules: FindingRules | None = None) -> None:
        self.rules = rules
        self.live = LiveFindings(finding_rules or FindingRules(), self._key_of, self._has_keys)
        self.group_states: dict[str, ListedState] = {}
        self.next_offsets: dict[int, int] = {}
        """For each partition of the offsets topic: the offset after the newest entry."""
        self.stale_logs: dict[TopicPartition, str] = {}
        """Partitions whose newest poll failed, and why."""
        self.stale_sources: dict[int, str] = {}
        """Partitions of the offsets topic that are not followed up to their end, and why."""
        self.entry_count = 0
        self.unreadable = UnreadableRecords()
        """Entries that cannot be decoded: no verdict counts them."""
        self._groups, self._topics = NameCodes(), NameCodes()
        self._partitions, self._keys = CodeTable(), CodeTable()
        self._windows = CommitWindows(rules)
        self._samples = LogSamples(rules, polls)
        self._partition_keys = np.zeros(0, np.int32)
        self._topic_ids: dict[bytes, int] = {}

    @property
    def key_count(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the arrays."""
        parts = (self._windows, self._keys, self._partitions, self._samples, self.live)
        return sum(part.nbytes for part in parts) + self._partition_keys.nbytes

    # --- input --------------------------------------------------------------------------------------------------------

    def add_entries(self, batch: pa.RecordBatch) -> None:
        """Adds decoded entries of one partition of the offsets topic, in log order. Those seen before do not count."""
        if not batch.num_rows:
            return
        partition = batch.column("record_partition")[0].as_py()
        offsets = batch.column("record_offset").to_numpy()
        begin = int(np.searchsorted(offsets, self.next_offsets.get(partition, 0)))
        if begin == batch.num_rows:
            return
        self.next_offsets[partition] = int(offsets[-1]) + 1
        batch = batch.slice(begin)
        self.entry_count += batch.num_rows
        is_commit = pc.is_valid(batch.column("partition"))
        if not pc.all(is_commit).as_py():
            self.unreadable.add(batch)
            self.live.add_events(batch.filter(pc.invert(is_commit)))
            batch = batch.filter(is_commit)
        if batch.num_rows:
            self._add_commits(batch)
        self.live.end_batch()

    def _add_commits(self, batch: pa.RecordBatch) -> None:
        names = _group_batch(batch)
        groups, logs = self._groups.codes(names.names)[names.rows], self._log_rows(batch)
        offsets = _numbers(batch.column("committed_offset"))
        deleted = batch.column("is_tombstone").to_numpy(zero_copy_only=False) | (offsets < 0)
        times = np.where(
            deleted, _numbers(batch.column("record_timestamp")), _numbers(batch.column("commit_timestamp"))
        )
        known = self._samples.known_ends(logs, times // 1000)
        lags = np.where(known >= 0, np.maximum(known - offsets, 0), -1)
        before = self._keys.slot_count
        codes = (groups << 32) | logs
        count = len(self._keys)
        is_new = self._keys.find(codes) < 0 if count else np.ones(len(codes), np.bool_)
        slots = self._keys.find_or_add(codes)
        fresh_slots = np.unique(slots[is_new])
        if len(fresh_slots):
            fresh = self._keys.codes(fresh_slots)
            self._groups.add_users(fresh >> 32, 1)
            np.add.at(self._partition_keys, fresh & _LOW, 1)
        if self._keys.slot_count > before:
            self._windows.grow(self._keys.slot_count)
        ids = self._topic_id_codes(batch.column("topic_id"))
        self._windows.store(slots, CommitColumns(offsets, times // 1000, lags, ids, deleted))
        self.live.add_commits(batch, names, KeyColumns(slots, ids, fresh_slots))
        if deleted.any():
            candidates = np.unique(slots[deleted])
            self._remove_keys(candidates[self._windows.counts[candidates] == 0])
            self._drop_unused_groups(np.unique(groups[deleted]).tolist())

    def _log_rows(self, batch: pa.RecordBatch) -> Array:
        """Returns the number of the partition of each row; new partitions get numbers."""
        names = batch.column("topic").dictionary_encode()
        topics = self._topics.codes(names.dictionary.to_pylist())[names.indices.to_numpy()]
        return self._partition_rows((topics << 32) | (_numbers(batch.column("partition")) & _LOW))

    def _partition_rows(self, codes: Array) -> Array:
        count = len(self._partitions)
        is_new = self._partitions.find(codes) < 0
        rows = self._partitions.find_or_add(codes)
        if len(self._partitions) > count:
            fresh = np.unique(rows[is_new])
            self._topics.add_users(self._partitions.codes(fresh) >> 32, 1)
            size = self._partitions.slot_count
            self._samples.grow(size)
            if size > len(self._partition_keys):
                self._partition_keys.resize(size + max(64, size // 4), refcheck=False)
        return rows

    def _topic_id_codes(self, column: pa.Array) -> Array:
        if column.null_count == len(column):
            return np.full(len(column), -1, np.int32)
        encoded = column.dictionary_encode()
        known = [self._topic_ids.setdefault(one, len(self._topic_ids)) for one in encoded.dictionary.to_pylist()]
        indices = pc.fill_null(encoded.indices, len(known)).to_numpy(zero_copy_only=False)
        codes: Array = np.array([*known, -1], np.int32)[indices]
        return codes

    def _remove_keys(self, slots: Array, *, forget: bool = False) -> None:
        """Removes keys whose windows are empty; with ``forget`` also what the findings know about them."""
        if not len(slots):
            return
        codes = self._keys.codes(slots)
        self.live.remove(slots, forget=forget)
        self._keys.remove(slots)
        self._groups.add_users(codes >> 32, -1)
        np.add.at(self._partition_keys, codes & _LOW, -1)

    def _drop_unused_partitions(self) -> None:
        """Removes partitions without keys. Polls call it, so that the order of entries between polls has no effect."""
        rows = self._partitions.used()
        unused = rows[self._partition_keys[rows] == 0].astype(np.int32)
        if len(unused):
            topics = self._partitions.codes(unused) >> 32
            self._partitions.remove(unused)
            self._samples.forget(unused)
            self._topics.add_users(topics, -1)
            self._topics.drop_unused(np.unique(topics).tolist())

    def _drop_unused_groups(self, codes: Iterable[int]) -> None:
        self._groups.drop_unused(codes)

    def add_bounds(
        self, time_ms: int, bounds: Mapping[TopicPartition, LogBoundsRow], failed: Mapping[TopicPartition, str]
    ) -> None:
        """Adds a poll of log bounds that ended at ``time_ms``. Partitions that no group has committed do not count.

        ``failed`` has the partitions without an answer, and why.
        """
        self._drop_unused_partitions()
        rows, new_bounds = [], []
        for row, tp in self._partition_items():
            if tp in bounds:
                rows.append(row)
                new_bounds.append(bounds[tp])
        self._samples.add(
            time_ms,
            np.array(rows, np.int64),
            np.array([one.start for one in new_bounds], np.int64),
            np.array([one.end for one in new_bounds], np.int64),
        )
        self.stale_logs = dict(failed)
        self.live.review()

    def set_groups(self, states: Mapping[str, ListedState]) -> None:
        """Sets the states of all groups that the brokers list. A group may be listed and have no commit."""
        self.group_states = dict(states)

    def forget_group(self, group: str) -> bool:
        """Removes a group from this view until its next entry. Returns whether it was there."""
        code = self._groups.code(group)
        was_listed = group in self.group_states
        # A new dict, because requests read the former one without the lock.
        self.group_states = {name: state for name, state in self.group_states.items() if name != group}
        if code is None:
            return was_listed
        slots = self._slots_of(code)
        self._clear(slots)
        self._drop_unused_groups([code])
        self.live.forget_group(group)
        return True

    def forget_topic(self, group: str, topic: str) -> bool:
        """Removes a group's partitions of a topic from this view. Returns whether there were any."""
        slots = self.slots(group)
        slots = slots[[tp.topic == topic for tp in self.partitions_of(slots)]] if len(slots) else slots
        code = self._groups.code(group)
        if code is None or not len(slots):
            return False
        self._clear(slots)
        self._drop_unused_groups([code])
        return True

    def _clear(self, slots: Array) -> None:
        nothing = np.full(len(slots), -1, np.int64)
        self._windows.store(slots, CommitColumns(nothing, nothing, nothing, nothing, np.ones(len(slots), np.bool_)))
        self._remove_keys(slots, forget=True)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def last_poll_ms(self) -> int:
        """Returns the time of the newest poll of log bounds; -1 before the first one."""
        return self._samples.last_ms

    def partitions(self) -> list[TopicPartition]:
        """Returns the partitions that have a committed offset."""
        return [tp for _, tp in self._partition_items()]

    def _partition_items(self) -> Iterator[tuple[int, TopicPartition]]:
        rows = self._partitions.used()
        rows = rows[self._partition_keys[rows] > 0]
        for row, code in zip(rows.tolist(), self._partitions.codes(rows).tolist(), strict=True):
            yield row, TopicPartition(self._topics.name(code >> 32), _signed(code & _LOW))

    def group_names(self) -> list[str]:
        """Returns the groups with commits and the groups that the brokers list, sorted."""
        return sorted({*(name for name, _ in self._groups.items()), *self.group_states})

    def slots(self, group: str) -> Array:
        """Returns the slots of a group's partitions."""
        code = self._groups.code(group)
        return np.zeros(0, np.int64) if code is None else self._slots_of(code)

    def _slots_of(self, group_code: int) -> Array:
        used = self._keys.used()
        slots: Array = used[(self._keys.codes(used) >> 32) == group_code]
        return slots

    def partitions_of(self, slots: Array) -> list[TopicPartition]:
        """Returns the partition of each slot."""
        codes = self._partitions.codes(self._keys.codes(slots) & _LOW)
        return [TopicPartition(self._topics.name(code >> 32), _signed(code & _LOW)) for code in codes.tolist()]

    def groups_of_topic(self, topic: str) -> list[str]:
        """Returns the groups with a committed offset in a topic, sorted."""
        groups = np.unique(self._keys.codes(self.topic_slots(topic)) >> 32)
        return sorted(self._groups.name(one) for one in groups.tolist())

    def topic_slots(self, topic: str) -> Array:
        """Returns the slots of all keys in a topic."""
        code, used = self._topics.code(topic), self._keys.used()
        if code is None:
            return used[:0]
        rows = self._partitions.used()
        is_of_topic = np.zeros(self._partitions.slot_count, np.bool_)
        is_of_topic[rows[(self._partitions.codes(rows) >> 32) == code]] = True
        slots: Array = used[is_of_topic[self._keys.codes(used) & _LOW]]
        return slots

    def bounds(self, now_ms: int) -> tuple[list[TopicPartition], LogBoundColumns]:
        """Returns the partitions with a committed offset, and their bounds in the same order."""
        items = list(self._partition_items())
        return [tp for _, tp in items], self._samples.bounds(now_ms).take(np.array([row for row, _ in items], np.int64))

    def judge(self, slots: Array, now_ms: int) -> tuple[Verdicts, LogBoundColumns]:
        """Returns the verdicts on slots, and the bounds of their logs, in the same order."""
        bounds, logs = self._samples.bounds(now_ms), self._keys.codes(slots) & _LOW
        return judge_keys(self._windows, slots, bounds, logs, now_ms), bounds.take(logs)

    def judged_chunks(self, now_ms: int) -> Iterator[tuple[Array, Verdicts, LogBoundColumns]]:
        """Yields all slots with their verdicts and bounds, in pieces: a view of all keys needs little memory."""
        used, bounds = self._keys.used(), self._samples.bounds(now_ms)
        for begin in range(0, len(used), _CHUNK):
            slots = used[begin : begin + _CHUNK]
            logs = self._keys.codes(slots) & _LOW
            yield slots, judge_keys(self._windows, slots, bounds, logs, now_ms), bounds.take(logs)

    def ages(self, slots: Array, offsets: Array, now_ms: int) -> tuple[Array, Array]:
        """Returns the time lag of slots with these committed offsets, and its error, in ms; ``LogSamples.ages``."""
        return self._samples.ages(self._keys.codes(slots) & _LOW, offsets, now_ms)

    def group_codes(self, slots: Array) -> Array:
        """Returns the number of the group of each slot; ``group_name`` has its name."""
        codes: Array = self._keys.codes(slots) >> 32
        return codes

    def group_name(self, code: int) -> str:
        return self._groups.name(code)

    def topic_codes(self, slots: Array) -> Array:
        """Returns the number of the topic of each slot; ``topic_name`` has its name."""
        codes: Array = self._partitions.codes(self._keys.codes(slots) & _LOW) >> 32
        return codes

    def topic_name(self, code: int) -> str:
        return self._topics.name(code)

    def _has_keys(self, group: str) -> bool:
        return group in self._groups

    def _key_of(self, slot: int) -> Key:
        code = int(self._keys.codes(np.array([slot]))[0])
        (tp,) = self.partitions_of(np.array([slot]))
        return Key(self._groups.name(code >> 32), tp.topic, tp.partition)

    def _end_of(self, tp: TopicPartition) -> int:
        """Returns the newest known log end offset; -1 without one."""
        topic = self._topics.code(tp.topic)
        row = -1 if topic is None else int(self._partitions.find(np.array([(topic << 32) | (tp.partition & _LOW)]))[0])
        return -1 if row < 0 else self._samples.end(row)

    def expires_us(self, slots: Array) -> Array:
        """Returns when the offsets of these keys expire; ``LiveFindings.expires_us``."""
        codes = self._keys.codes(slots)
        topics = self._partitions.codes(codes & _LOW) >> 32
        pairs = (codes >> 32 << 32) | topics
        return self.live.expires_us(
            slots, pairs, lambda pair: (self._groups.name(pair >> 32), self._topics.name(pair & _LOW))
        )

    def expiry(self, now_ms: int, group: str | None = None) -> pa.Table:
        """Returns the table ``expiry`` of the batch analysis, of all groups or of one."""
        return self.live.expiry(now_ms * 1000, self._keys.used() if group is None else self.slots(group))

    def findings(self, now_ms: int, group: str | None = None) -> pa.Table:
        """Returns the findings of ``live_findings`` up to the newest poll, as the table of the batch analysis."""
        slots = self._keys.used() if group is None else self.slots(group)
        times = self.expires_us(slots) if len(slots) else slots
        soon = slots[(times >= 0) & (times <= (now_ms + self.live.rules.expires_within_ms) * 1000)]
        return as_table(self.live.findings(now_ms * 1000, soon, self._end_of, group))

    def window(self, slot: int) -> list[tuple[int, int, int]]:
        """Returns the commits of a slot's window, oldest first: offset, time in ms, lag (-1: unknown)."""
        row = self._windows.rows(np.array([slot]))
        columns = (row.offsets[0].tolist(), row.times[0].tolist(), row.lags[0].tolist())
        return list(zip(*columns, strict=True))[: int(row.counts[0])]

    def log_ends(self, slot: int) -> list[tuple[int, int]]:
        """Returns the times in ms and the log end offsets of a slot's partition at the newest polls, oldest first."""
        return self._samples.series(int(self._keys.codes(np.array([slot]))[0] & _LOW))

    def table(self, now_ms: int, group: str | None = None) -> pa.Table:
        """Returns the table ``verdicts`` of the batch analysis, of all groups or of one."""
        slots = self._keys.used() if group is None else self.slots(group)
        if not len(slots):
            return SCHEMA.empty_table()
        verdicts, bounds = self.judge(slots, now_ms)
        partitions = self.partitions_of(slots)
        names = (
            pa.array([self._groups.name(code) for code in (self._keys.codes(slots) >> 32).tolist()], pa.string()),
            pa.array([tp.topic for tp in partitions], pa.string()),
            np.array([tp.partition for tp in partitions], np.int32),
        )
        return verdict_table(verdicts, bounds, self.rules.intervals, names)

    def groups(self, now_ms: int) -> GroupColumns:
        """Returns all groups, judged. Takes about 0.6 µs for each key."""
        names = self.group_names()
        place = {name: number for number, name in enumerate(names)}
        row_of_code = np.zeros(max(1, self._groups.code_count), np.int64)
        for name, code in self._groups.items():
            row_of_code[code] = place[name]
        stale = np.array([row for row, tp in self._partition_items() if tp in self.stale_logs], np.int64)
        sums = GroupSums(len(names), self.rules)
        for slots, verdicts, _ in self.judged_chunks(now_ms):
            codes = self._keys.codes(slots)
            rows = row_of_code[codes >> 32]
            sums.add(rows, slots, verdicts, np.isin(codes & _LOW, stale))
            sums.add_expiry(rows, self.expires_us(slots) // 1000, now_ms + self.live.rules.expires_within_ms)
        counts = self.live.counts(now_ms * 1000, self._end_of)
        listed = {place[name]: count for name, count in counts.items() if name in place}
        sums.add_findings(np.array(list(listed), np.int64), np.array(list(listed.values()), np.int64))
        columns = sums.columns(now_ms, names)
        self._add_time_lags(columns)
        return columns

    def _add_time_lags(self, columns: GroupColumns) -> None:
        rows = np.flatnonzero(columns.worst >= 0)
        slots = columns.worst[rows]
        verdicts, bounds = self.judge(slots, columns.now_ms)
        ages, errors = self.ages(slots, np.maximum(verdicts.offsets, bounds.starts), columns.now_ms)
        columns.time_lags[rows], columns.time_lag_errors[rows] = ages, errors


def _group_batch(batch: pa.RecordBatch) -> GroupBatch:
    names = batch.column("group").dictionary_encode()
    return GroupBatch(names.dictionary.to_pylist(), names.indices.to_numpy())


def _signed(low: int) -> int:
    return low - (1 << 32) if low >> 31 else low


def _numbers(column: pa.Array) -> Array:
    """Returns 64-bit numbers with -1 for null."""
    plain = column.cast(pa.int64())
    numbers: Array = pc.fill_null(plain, -1).to_numpy(zero_copy_only=False)
    return numbers
