"""Findings and expiry as they happen, with the rules of the batch analysis (``history.findings``).

Live are rewinds, jumps between two commits (``live_moves``), rebalance storms, offsets that expire soon, and groups
that never commit. Stalls, commit gaps and a reader's own fast jumps need the timestamps of records and the intervals of
all commits: ``odradek pipeline history`` finds them. Live, the states STALL and STOP show such partitions.

What is kept of a key are its newest commit and, while it is open, a few entries. What is kept of a group are its
members, its bursts of rebalances, and the time in which it had members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.commit_marks import CommitMarks
from odradek.history.findings import Evidence, Finding, FindingRules
from odradek.history.group_findings import empty_since, expiring, expiry_table, storm, without_commits
from odradek.history.log_ends import RETENTION_MS, Logs
from odradek.history.records.column_values import booleans, numbers
from odradek.history.records.group_events import GroupEvent, event_rows
from odradek.history.records.journal import Commits, Key
from odradek.monitor.group_tracks import GroupTrack, GroupTracks
from odradek.monitor.live_moves import EntryColumns, LiveMoves
from odradek.monitor.move_kernels import MARKED, NO_MEMBERS_KNOWN, NOT_OURS, WITHOUT_MEMBERS

MOST_COMMITTING = 100_000
"""The number of groups without keys of which the monitor knows that they have committed once."""
_COMMIT, _NEVER = -1, -2
"""Where the retention of an offset begins: at its commit, or never, because a member reads the topic."""


class GroupBatch(NamedTuple):
    """The groups of the commits of a batch: their names, and the index of each row's name."""

    names: list[str]
    rows: Array


class KeyColumns(NamedTuple):
    """The keys of the commits of a batch: their slots and topic ids (-1: none). ``fresh``: slots with a new key."""

    slots: Array
    topic_ids: Array
    fresh: Array


class LiveFindings:
    """See the module. ``key_of`` returns the key of a slot, ``has_keys`` whether a group has a committed offset."""

    def __init__(self, rules: FindingRules, key_of: Callable[[int], Key], has_keys: Callable[[str], bool]) -> None:
        self.rules = rules
        self.retention_ms, self.retention_is_known = RETENTION_MS, False
        self.incomplete_below: dict[int, int] = {}
        """For partitions of the offsets topic with removed records: an offset above all of them."""
        self._key_of, self._has_keys = key_of, has_keys
        self._tracks = GroupTracks(rules)
        self._moves = LiveMoves(rules, self._tracks, key_of)
        self._marks = CommitMarks()
        self._expires: dict[int, int] = {}
        self._partitions: dict[str, int] = {}  # of the offsets topic, for each group that has ever committed
        self._most_partitions = MOST_COMMITTING
        self._states: dict[str, list[tuple[int, int]]] = {}  # the bits of the groups of this batch, place by place

    @property
    def nbytes(self) -> int:
        return self._moves.nbytes

    # --- input --------------------------------------------------------------------------------------------------------

    def add_events(self, batch: pa.RecordBatch) -> None:
        """Adds the records of groups. To be called before ``add_commits`` with the commits of the same entries."""
        for row in event_rows(batch):
            group = row["group"]
            if group not in self._states:
                self._states[group] = [(-1, _bits(self._tracks.get(group)))]
                self._moves.begin_event(group)
            event = self._tracks.add(row)
            self._states[group].append((event.record_offset, _bits(self._tracks.get(group))))

    def add_commits(self, batch: pa.RecordBatch, groups: GroupBatch, keys: KeyColumns) -> None:
        """Adds commits and deletions of one partition of the offsets topic, in log order."""
        self._moves.grow(int(keys.slots.max()) + 1)
        partition = batch.column("record_partition")[0].as_py()
        self._note_groups(groups, keys.fresh, partition)
        offsets, record_offsets = numbers(batch.column("committed_offset")), numbers(batch.column("record_offset"))
        is_tombstone = booleans(batch.column("is_tombstone"))
        record_times = numbers(batch.column("record_timestamp"))
        times = np.where(is_tombstone, record_times, numbers(batch.column("commit_timestamp")))
        queries, is_reset = self._mark_columns(batch)
        bits = self._group_bits(groups, record_offsets) | np.where(is_reset, MARKED, 0).astype(np.uint8)
        self._note_expiry(batch.column("expire_timestamp"), keys.slots)
        entries = EntryColumns(
            offsets, times, record_offsets, record_times, queries, keys.topic_ids, bits, is_tombstone | (offsets < 0)
        )
        self._moves.add(keys.slots, entries, partition)

    def end_batch(self) -> None:
        """To be called after each batch."""
        self._states.clear()

    def _note_groups(self, groups: GroupBatch, fresh: Array, partition: int) -> None:
        self._partitions.update(dict.fromkeys(groups.names, partition))
        if len(self._partitions) > self._most_partitions:
            kept = {name: value for name, value in self._partitions.items() if self._has_keys(name)}
            self._partitions, self._most_partitions = kept, len(kept) + MOST_COMMITTING
        if len(fresh) and not self._moves.groups_with_deletions.isdisjoint(groups.names):
            for slot in fresh.tolist():
                self._moves.reopen(slot)

    def _mark_columns(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Returns the number of each row's query, and whether the row has the mark of a reset."""
        metadata, rows = batch.column("metadata"), batch.num_rows
        if not pc.max(pc.binary_length(metadata)).as_py():
            return np.full(rows, NOT_OURS, np.int32), np.zeros(rows, np.bool_)
        marks = self._marks.columns(metadata, batch.column("committed_offset"))
        return np.where(marks.is_ours, marks.queries, NOT_OURS), marks.is_reset

    def _group_bits(self, groups: GroupBatch, record_offsets: Array) -> Array:
        """Returns the bits of each row: what was known about its group's members at that place of the log."""
        of_names = np.array([_bits(self._tracks.get(name)) for name in groups.names], np.uint8)
        bits = of_names[groups.rows]
        for number, name in enumerate(groups.names if self._states else ()):
            if name in self._states:
                rows = np.flatnonzero(groups.rows == number)
                places, values = zip(*self._states[name], strict=True)
                at = np.searchsorted(places, record_offsets[rows]) - 1
                bits[rows] = np.array(values, np.uint8)[at]
        group_bits: Array = bits
        return group_bits

    def _note_expiry(self, column: pa.Array, slots: Array) -> None:
        """Keeps the times of commits with an expiry of their own: few, from old clients."""
        if column.null_count == len(column) and not self._expires:
            return
        times = numbers(column)
        known = np.fromiter(self._expires, np.int64, len(self._expires))
        wanted = np.isin(slots, np.append(known, slots[times >= 0]))
        for at in np.flatnonzero(wanted).tolist():
            if times[at] >= 0:
                self._expires[int(slots[at])] = int(times[at])
            else:
                self._expires.pop(int(slots[at]), None)

    def remove(self, slots: Array, *, forget: bool = False) -> None:
        """Removes keys without a committed offset; with ``forget`` also what is known about them."""
        self._moves.remove(slots.tolist(), forget=forget)
        for slot in slots.tolist() if self._expires else ():
            self._expires.pop(slot, None)

    def forget_group(self, group: str) -> None:
        self._tracks.forget(group)
        self._partitions.pop(group, None)

    def review(self) -> None:
        """Judges the entries since the last review. Polls call it."""
        self._moves.review(self.incomplete_below)

    # --- output -------------------------------------------------------------------------------------------------------

    def findings(
        self, now_us: int, expiring_slots: Array, end_of: Callable[[TopicPartition], int], group: str | None = None
    ) -> list[Finding]:
        """Returns the findings up to the newest review, of all groups or of one, without an order.

        ``expiring_slots``: keys whose offsets may expire soon. ``end_of`` returns a log end offset; -1: unknown.
        """
        evidence = self._evidence(now_us, expiring_slots)
        findings = [*self._moves.findings(end_of, group), *expiring(evidence)]
        for name, track in self._tracks.items() if group is None else self._track(group):
            findings += [storm(evidence, name, burst) for burst in track.bursts.bursts]
            if name not in self._partitions:
                findings += without_commits(evidence, name, track.times)
        return findings

    def counts(self, now_us: int, end_of: Callable[[TopicPartition], int]) -> Counter[str]:
        """Returns the number of findings of each group, without those about expiry."""
        return Counter(one.group for one in self.findings(now_us, np.zeros(0, np.int64), end_of))

    def expiry(self, now_us: int, slots: Array) -> pa.Table:
        """Returns the table ``expiry`` of the batch analysis for some keys."""
        return expiry_table(self._evidence(now_us, slots))

    def last_event(self, group: str) -> GroupEvent | None:
        """Returns the newest record of a group's own; None if it has none."""
        track = self._tracks.get(group)
        return None if track is None else track.last

    def _track(self, group: str) -> list[tuple[str, GroupTrack]]:
        track = self._tracks.get(group)
        return [] if track is None else [(group, track)]

    def _evidence(self, now_us: int, slots: Array) -> Evidence:
        """Returns the newest commit of each of these keys, and the newest event of their groups."""
        keys, count = [self._key_of(slot) for slot in slots.tolist()], len(slots)
        newest, nothing, no = self._moves.newest[slots], np.full(count, -1, np.int64), np.zeros(count, np.bool_)
        commits = Commits(
            keys, np.arange(count + 1), np.arange(count), newest[:, 0], no, newest[:, 1],
            np.array([self._expires.get(slot, -1) for slot in slots.tolist()], np.int64),
            nothing, no, nothing, no, nothing,
            np.array([self._partitions.get(key.group, -1) for key in keys], np.int64), newest[:, 2], newest[:, 3],
        )  # fmt: skip
        events = {group: [track.last] for group in {key.group for key in keys} for _, track in self._track(group)}
        logs = Logs(now_us, np.zeros(0, np.int64), self.retention_ms, self.retention_is_known)
        return Evidence(commits, events, self.incomplete_below, logs, lambda records: {}, self.rules)

    def expires_us(self, slots: Array, pairs: Array, names_of: Callable[[int], tuple[str, str]]) -> Array:
        """Returns when the offsets of keys expire, in microseconds; -1: not in the present state of the group.

        ``pairs``: a number for group and topic of each key. ``names_of`` returns the names of such a number.
        """
        distinct, rows = np.unique(pairs, return_inverse=True)
        starts = np.array([self._start_us(*names_of(pair)) for pair in distinct.tolist()], np.int64)[rows]
        times = np.where(starts >= 0, starts, self._moves.newest[slots, 1]) + self.retention_ms * 1000
        for at in np.flatnonzero(np.isin(slots, list(self._expires))).tolist() if self._expires else ():
            times[at] = self._expires[int(slots[at])]
        times[starts == _NEVER] = -1
        expiries: Array = times
        return expiries

    def _start_us(self, group: str, topic: str) -> int:
        """Returns the start of the retention of a group's offsets in a topic: a time, _COMMIT or _NEVER."""
        track = self._tracks.get(group)
        if track is None:
            return _COMMIT
        last = track.last
        if last.members and (last.topics is None or topic in last.topics):
            return _NEVER
        return empty_since(last)


def _bits(track: GroupTrack | None) -> int:
    """Returns the bits of a commit of this group."""
    if track is None or track.last.members < 0:
        return NO_MEMBERS_KNOWN
    if track.last.members:
        return 0
    return NO_MEMBERS_KNOWN | (WITHOUT_MEMBERS if track.has_had_members else 0)
