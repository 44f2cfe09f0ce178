"""The records that the analysis uses: commits in flat columns, and the few group records as ``GroupEvent``.

A commit takes about sixty bytes here, much less than its decoded record, so a hundred million commits fit into memory.
Batches are added as they are read. ``sorted_commits`` then sorts the commits by key and log order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.commit_marks import CommitMarks
from odradek.history.coverage import Coverage
from odradek.history.records.column_values import booleans, numbers
from odradek.history.records.columns import Row
from odradek.history.records.group_events import GroupEvent, MemberChanges, event_rows
from odradek.history.records.unreadable import UnreadableRecords

COLUMNS = (
    "kind", "group", "topic", "partition", "committed_offset", "leader_epoch", "metadata", "commit_timestamp",
    "expire_timestamp", "topic_id", "is_tombstone", "generation", "protocol_type", "state_timestamp", "member_id",
    "members", "reason", "record_partition", "record_offset", "record_timestamp",
)  # fmt: skip
"""The columns of ``columns.SCHEMA`` that the journal uses."""


class Key(NamedTuple):
    """The key of commits: a group and a partition."""

    group: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(slots=True)
class Commits:
    """Commits and their tombstones, by key and then in log order. Rows ``starts[k]:starts[k + 1]`` belong to key k.

    ``queries``: the number of the Spark query in the commit's mark; -1 without a mark or where the mark names no query.
    ``is_marked_reset``: the commit has the mark of a reset to its own offset.
    ``times``: the commit timestamp, for tombstones the record timestamp, in microseconds since 1970.
    """

    keys: list[Key]
    starts: Array
    key: Array
    offsets: Array
    is_tombstone: Array
    times: Array
    expires: Array
    epochs: Array
    is_ours: Array
    queries: Array
    is_marked_reset: Array
    topic_ids: Array
    record_partitions: Array
    record_offsets: Array
    record_times: Array

    def __len__(self) -> int:
        return len(self.key)

    def rows_of(self, key: int) -> slice:
        return slice(int(self.starts[key]), int(self.starts[key + 1]))


_FIELDS = {
    "key": np.int32, "offsets": np.int64, "is_tombstone": np.bool_, "times": np.int64, "expires": np.int64,
    "epochs": np.int32, "is_ours": np.bool_, "queries": np.int32, "is_marked_reset": np.bool_, "topic_ids": np.int32,
    "record_partitions": np.int32, "record_offsets": np.int64, "record_times": np.int64,
}  # fmt: skip


@dataclass(slots=True)
class Journal:
    """The commits and group events of decoded batches (``COLUMNS`` at least).

    Batches of one partition of the offsets topic are added in log order.
    """

    record_count: int = 0
    latest_us: int = -1
    events: dict[str, list[GroupEvent]] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    unreadable: UnreadableRecords = field(default_factory=UnreadableRecords)
    _parts: list[dict[str, Array]] = field(default_factory=list)
    _keys: dict[Key, int] = field(default_factory=dict)
    _topic_ids: dict[bytes, int] = field(default_factory=dict)
    _marks: CommitMarks = field(default_factory=CommitMarks)
    _members: dict[str, MemberChanges] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.record_count += batch.num_rows
        self.latest_us = max(self.latest_us, _latest(batch.column("record_timestamp")))
        is_key = pc.is_valid(batch.column("partition"))
        commits = batch if pc.all(is_key).as_py() else batch.filter(is_key)
        if commits.num_rows:
            self._add_commits(commits)
        if commits.num_rows < batch.num_rows:
            self.unreadable.add(batch)
            for row in event_rows(batch):
                self._add_event(row)

    def _add_commits(self, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        offsets = numbers(batch.column("committed_offset"))
        is_tombstone = booleans(batch.column("is_tombstone"))
        record_times = numbers(batch.column("record_timestamp"))
        times = np.where(is_tombstone, record_times, numbers(batch.column("commit_timestamp")))
        marks = self._marks.columns(batch.column("metadata"), batch.column("committed_offset"))
        self._parts.append({
            "key": self._key_codes(batch),
            "offsets": offsets,
            "is_tombstone": is_tombstone | (offsets < 0),  # an offset below 0 is no commit for Kafka's clients
            "times": times,
            "expires": numbers(batch.column("expire_timestamp")),
            "epochs": numbers(batch.column("leader_epoch"), np.int32),
            "is_ours": marks.is_ours,
            "queries": marks.queries,
            "is_marked_reset": marks.is_reset,
            "topic_ids": self._id_codes(batch.column("topic_id"), rows),
            "record_partitions": numbers(batch.column("record_partition"), np.int32),
            "record_offsets": numbers(batch.column("record_offset")),
            "record_times": record_times,
        })  # fmt: skip

    def _key_codes(self, batch: pa.RecordBatch) -> Array:
        """Returns each row's key as a number. Python code runs once for each distinct key of the batch."""
        groups, topics = (pc.dictionary_encode(batch.column(name)) for name in ("group", "topic"))
        partitions = numbers(batch.column("partition"))
        low = groups.indices.to_numpy() * np.int64(len(topics.dictionary)) + topics.indices.to_numpy()
        pairs = pc.dictionary_encode(pa.array(low))
        codes = (pairs.indices.to_numpy().astype(np.int64) << 32) | (partitions & 0xFFFFFFFF)
        encoded = pc.dictionary_encode(pa.array(codes))
        names, of_pairs = (groups.dictionary.to_pylist(), topics.dictionary.to_pylist()), pairs.dictionary.to_pylist()
        codes_of = np.empty(len(encoded.dictionary), np.int32)
        for at, code in enumerate(encoded.dictionary.to_pylist()):
            group, topic = divmod(of_pairs[code >> 32], len(names[1]))
            partition = code & 0xFFFFFFFF
            key = Key(names[0][group], names[1][topic], partition - (1 << 32) if partition >> 31 else partition)
            codes_of[at] = self._keys.setdefault(key, len(self._keys))
        of_rows: Array = codes_of[encoded.indices.to_numpy()]
        return of_rows

    def _id_codes(self, column: pa.Array, rows: int) -> Array:
        if column.null_count == rows:
            return np.full(rows, -1, np.int32)
        encoded = pc.dictionary_encode(column)
        known = [self._topic_ids.setdefault(one, len(self._topic_ids)) for one in encoded.dictionary.to_pylist()]
        indices = pc.fill_null(encoded.indices, len(known)).to_numpy(zero_copy_only=False)
        of_rows: Array = np.array([*known, -1], np.int32)[indices]
        return of_rows

    def _add_event(self, row: Row) -> None:
        group = row["group"]
        event = self._members.setdefault(group, MemberChanges()).event(row)
        self.events.setdefault(group, []).append(event)

    @property
    def groups(self) -> set[str]:
        return {key.group for key in self._keys} | self.events.keys() | self.unreadable.groups

    def partitions(self) -> set[TopicPartition]:
        """Returns the partitions that were committed."""
        return {key.topic_partition for key in self._keys}

    def moments(self, since_us: int | None, now_us: int, points: int) -> Array:
        """Returns the moments of the lag table, in microseconds since 1970.

        One half is spread evenly from ``since_us`` (None: the first commit) to ``now_us``, the other half evenly over
        the commits in that time.
        """
        times = np.concatenate([part["times"] for part in self._parts]) if self._parts else np.empty(0, np.int64)
        return moments(times, since_us, now_us, points)

    def sorted_commits(self) -> Commits:
        """Returns all commits, sorted by key and log order. Can be called once, after the last batch."""
        whole = {
            name: np.concatenate([part.pop(name) for part in self._parts]) if self._parts else np.empty(0, kind)
            for name, kind in _FIELDS.items()
        }
        self._parts.clear()
        order = np.argsort(whole["key"], kind="stable")
        counts = np.bincount(whole["key"], minlength=len(self._keys))
        starts = np.concatenate(([0], np.cumsum(counts)))
        return Commits(list(self._keys), starts, **{name: column[order] for name, column in whole.items()})


def moments(times: Array, since_us: int | None, now_us: int, points: int) -> Array:
    """Returns the moments of ``Journal.moments`` from the times of all commits."""
    even = even_moments(int(times.min()) if len(times) else None, since_us, now_us, points)
    times = times[(times >= even[0]) & (times <= now_us)]
    ranks = busy_ranks(len(times), points - len(even))
    return np.union1d(even, np.partition(times, ranks)[ranks])


def even_moments(first_us: int | None, since_us: int | None, now_us: int, points: int) -> Array:
    """Returns the evenly spread half of the moments. ``first_us``: the time of the first commit (None: no commit)."""
    begin = since_us if since_us is not None else now_us if first_us is None else first_us
    return np.linspace(min(begin, now_us), now_us, max(2, points // 2)).astype(np.int64)


def busy_ranks(count: int, points: int) -> Array:
    """Returns evenly spread indexes into ``count`` sorted commit times: the other half of the moments."""
    ranks: Array = np.ceil(np.linspace(0, 1, points if count else 0) * (count - 1)).astype(np.int64)
    return ranks


def _latest(column: pa.Array) -> int:
    newest = pc.max(column.cast(pa.int64())).as_py()
    return -1 if newest is None else int(newest)
