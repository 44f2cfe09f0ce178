"""The records that the analysis uses: commits in flat columns, and the few group records as ``GroupEvent``.

A commit takes about sixty bytes here, much less than its decoded record, so a hundred million commits fit into memory.
Batches are added as they are read. ``sorted_commits`` then sorts the commits by key and log order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.ids import TopicPartition
from odradek.history.coverage import Coverage
from odradek.lag.reset_mark import MARK, QUERY_MARK

Array = npt.NDArray[Any]

_RESET_OFFSET = r"^odradek-reset:1:(?P<offset>\d{1,18})(?::|$)"
_QUERY = r"^odradek-spark:1:\d+:[^:]*:(?P<query>[^:]+)$"

_MEMBERSHIP = ("consumer_group_member_metadata", "streams_group_member_metadata", "share_group_member_metadata")
_EPOCHS = ("consumer_group_metadata", "streams_group_metadata", "share_group_metadata")
GROUP_KINDS = ("group_metadata", *_EPOCHS, *_MEMBERSHIP)
COLUMNS = (
    "kind", "group", "topic", "partition", "committed_offset", "leader_epoch", "metadata", "commit_timestamp",
    "expire_timestamp", "topic_id", "is_tombstone", "generation", "protocol_type", "state_timestamp", "member_id",
    "members", "record_partition", "record_offset", "record_timestamp",
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


class GroupEvent(NamedTuple):
    """A record that changed a group. Times are microseconds since 1970 (-1: unknown).

    ``members`` is the number of members after the record. ``topics`` are the topics that these members subscribe to
    (None: unknown, or no members). ``is_rebalance``: the record began a classic generation with members, or a group
    epoch.
    """

    record_partition: int
    record_offset: int
    record_us: int
    kind: str
    generation: int
    members: int
    state_us: int
    protocol_type: str
    topics: frozenset[str] | None
    is_rebalance: bool


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
    _parts: list[dict[str, Array]] = field(default_factory=list)
    _keys: dict[Key, int] = field(default_factory=dict)
    _topic_ids: dict[bytes, int] = field(default_factory=dict)
    _queries: dict[str, int] = field(default_factory=dict)
    _members: dict[str, dict[str, frozenset[str] | None]] = field(default_factory=dict)

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
            rare = batch.filter(pc.is_in(_plain_text(batch.column("kind")), pa.array(GROUP_KINDS)))
            names = ("kind", "group", "generation", "protocol_type", "state_timestamp", "member_id", "members",
                     "is_tombstone", "record_partition", "record_offset", "record_timestamp")  # fmt: skip
            for row in _times_as_numbers(rare.select(names)).to_pylist():
                self._add_event(row)

    def _add_commits(self, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        offsets = _numbers(batch.column("committed_offset"))
        is_tombstone = _booleans(batch.column("is_tombstone"))
        record_times = _numbers(batch.column("record_timestamp"))
        times = np.where(is_tombstone, record_times, _numbers(batch.column("commit_timestamp")))
        ours = pc.fill_null(pc.starts_with(batch.column("metadata"), pattern=QUERY_MARK), False)
        self._parts.append({
            "key": self._key_numbers(batch),
            "offsets": offsets,
            "is_tombstone": is_tombstone | (offsets < 0),  # an offset below 0 is no commit for Kafka's clients
            "times": times,
            "expires": _numbers(batch.column("expire_timestamp")),
            "epochs": _numbers(batch.column("leader_epoch"), np.int32),
            "is_ours": _booleans(ours),
            "queries": self._query_numbers(batch.column("metadata"), ours),
            "is_marked_reset": _marked_resets(batch.column("metadata"), batch.column("committed_offset")),
            "topic_ids": self._id_numbers(batch.column("topic_id"), rows),
            "record_partitions": _numbers(batch.column("record_partition"), np.int32),
            "record_offsets": _numbers(batch.column("record_offset")),
            "record_times": record_times,
        })  # fmt: skip

    def _key_numbers(self, batch: pa.RecordBatch) -> Array:
        """Returns each row's key as a number. Python code runs once for each distinct key of the batch."""
        groups, topics = (pc.dictionary_encode(batch.column(name)) for name in ("group", "topic"))
        partitions = _numbers(batch.column("partition"))
        low = groups.indices.to_numpy() * np.int64(len(topics.dictionary)) + topics.indices.to_numpy()
        pairs = pc.dictionary_encode(pa.array(low))
        codes = (pairs.indices.to_numpy().astype(np.int64) << 32) | (partitions & 0xFFFFFFFF)
        found = pc.dictionary_encode(pa.array(codes))
        names, of_pairs = (groups.dictionary.to_pylist(), topics.dictionary.to_pylist()), pairs.dictionary.to_pylist()
        numbers = np.empty(len(found.dictionary), np.int32)
        for at, code in enumerate(found.dictionary.to_pylist()):
            group, topic = divmod(of_pairs[code >> 32], len(names[1]))
            partition = code & 0xFFFFFFFF
            key = Key(names[0][group], names[1][topic], partition - (1 << 32) if partition >> 31 else partition)
            numbers[at] = self._keys.setdefault(key, len(self._keys))
        of_rows: Array = numbers[found.indices.to_numpy()]
        return of_rows

    def _id_numbers(self, column: pa.Array, rows: int) -> Array:
        if column.null_count == rows:
            return np.full(rows, -1, np.int32)
        found = pc.dictionary_encode(column)
        known = [self._topic_ids.setdefault(one, len(self._topic_ids)) for one in found.dictionary.to_pylist()]
        indices = pc.fill_null(found.indices, len(known)).to_numpy(zero_copy_only=False)
        of_rows: Array = np.array([*known, -1], np.int32)[indices]
        return of_rows

    def _query_numbers(self, metadata: pa.Array, ours: pa.Array) -> Array:
        """Returns the number of the query in each row's mark; -1 without a mark or a query.

        A mark is ``odradek-spark:1:<offset>:<reset id or nothing>:<query>``.
        """
        numbers = np.full(len(metadata), -1, np.int32)
        rows = np.flatnonzero(_booleans(ours))
        if len(rows):
            marks = _plain_text(metadata.take(pa.array(rows)))
            found = pc.struct_field(pc.extract_regex(marks, pattern=_QUERY), "query")
            named = pc.dictionary_encode(found)
            known = [self._queries.setdefault(one, len(self._queries)) for one in named.dictionary.to_pylist()]
            indices = pc.fill_null(named.indices, len(known)).to_numpy(zero_copy_only=False)
            numbers[rows] = np.array([*known, -1], np.int32)[indices]
        return numbers

    def _add_event(self, row: dict[str, Any]) -> None:
        kind, group, is_tombstone = row["kind"], row["group"], row["is_tombstone"]
        events = self.events.setdefault(group, [])
        members = self._members.setdefault(group, {})
        before = events[-1] if events else None
        generation = -1 if row["generation"] is None else row["generation"]
        state_us = -1 if row["state_timestamp"] is None else row["state_timestamp"]
        protocol_type = row["protocol_type"] or ""
        if kind == "group_metadata":
            members.clear()
            members.update({one["member_id"]: _topics(one) for one in row["members"] or ()})
            is_rebalance = bool(members) and (before is None or before.generation != generation)
        else:
            protocol_type = kind.split("_")[0]
            if kind in _MEMBERSHIP:
                generation = before.generation if before else -1
                if is_tombstone:
                    members.pop(row["member_id"], None)
                else:
                    members[row["member_id"]] = _topics(row["members"][0]) if row["members"] else None
            is_rebalance = kind in _EPOCHS and not is_tombstone and (before is None or before.generation != generation)
        topics = None if not members or None in members.values() else frozenset().union(*filter(None, members.values()))
        events.append(
            GroupEvent(
                row["record_partition"],
                row["record_offset"],
                row["record_timestamp"],
                kind,
                generation,
                len(members),
                state_us,
                protocol_type,
                topics,
                is_rebalance,
            )
        )

    @property
    def groups(self) -> set[str]:
        return {key.group for key in self._keys} | self.events.keys()

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


def _marked_resets(metadata: pa.Array, offsets: pa.Array) -> Array:
    """Returns whether each row has the mark of a reset to its own offset. MirrorMaker copies marks to other offsets."""
    marked = np.zeros(len(metadata), bool)
    rows = np.flatnonzero(_booleans(pc.fill_null(pc.starts_with(metadata, pattern=MARK), False)))
    if len(rows):
        marks = _plain_text(metadata.take(pa.array(rows)))
        named = pc.struct_field(pc.extract_regex(marks, pattern=_RESET_OFFSET), "offset")
        marked[rows] = _numbers(named.cast(pa.int64())) == _numbers(offsets)[rows]
    return marked


def _plain_text(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _topics(member: dict[str, Any]) -> frozenset[str] | None:
    """Returns the topics of a member's subscription; None if it is unknown or a regular expression."""
    if member["subscription_regex"]:
        return None
    return None if member["subscription"] is None else frozenset(member["subscription"])


def _latest(column: pa.Array) -> int:
    found = pc.max(column.cast(pa.int64())).as_py()
    return -1 if found is None else int(found)


def _numbers(column: pa.Array, kind: type = np.int64) -> Array:
    """Returns the numbers with -1 for null."""
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    found: Array = pc.fill_null(plain, -1).to_numpy(zero_copy_only=False).astype(kind, copy=False)
    return found


def _booleans(column: pa.Array) -> Array:
    found: Array = column.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return found


def _times_as_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Casts timestamps to numbers, because a record's timestamp can be after 9999, the last year of a datetime."""
    for at, column in enumerate(batch.schema):
        if pa.types.is_timestamp(column.type):
            batch = batch.set_column(at, column.name, batch.column(at).cast(pa.int64()))
    return batch
