"""Runs of commits in ``__consumer_offsets``, which a load replays without a decode of each record.

Most records of the topic are commits with the same layout and different offsets. One compiled ``struct`` cuts all
records of such a run. The constant parts are compared, not decoded. ``drain`` makes an object only of the last commit
of each group, topic and partition since the drain before it (``GroupShard.replay_commits``), and skips the earlier
commits. Records that are not plain commits or their tombstones are replayed one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from mmap import mmap
from typing import NamedTuple

from odradek.codecs.offsets_topic import StoredOffset
from odradek.core.effects import Warn
from odradek.core.varints import OverlongVarint, read_uvarint
from odradek.groups.shard import GroupShard

COMMITS_AT_ONCE = 2000
"""The number of commits that are replayed between two yields: about one millisecond of work."""
PENDING_AT_MOST = 20_000
MAX_SHAPES = 1000

_OFFSET_AND_EPOCH = struct.Struct(">qi").unpack
_TIME = struct.Struct(">q").unpack
_PARTITION = struct.Struct(">i").unpack
_INT16 = struct.Struct(">h").unpack_from
_COMMIT_KEY = b"\x00\x01"
_VALUE_4 = b"\x00\x04"
_NO_TOPIC_ID = b"\x00\x00"  # no tagged field, no record header
_TOPIC_ID = b"\x01\x00\x10"

Cut = tuple[bytes, ...]
"""The parts of a record: head, offset delta, key length, key before the partition, an empty part, partition, value
length and version, offset and leader epoch, metadata, time, rest. The parts with even numbers (from 0) are equal within
a run."""


class RecordLayout(NamedTuple):
    """The layout of the records of a run, and the parts that are equal in all of them."""

    cut: struct.Struct
    same: Cut
    delta_bytes: int
    has_value: bool
    """Whether the records are commits and not tombstones."""


class CommitRuns:
    """The runs of one log; a ``coordinator_runtime.loader.RecordRuns``.

    ``replay`` replays one record and never raises."""

    def __init__(self, shard: GroupShard, replay: Callable[[int, bytes, bytes | None], None]) -> None:
        self._shard = shard
        self._replay = replay
        self._shapes: dict[bytes, RecordLayout] = {}
        self._pending: dict[bytes, dict[bytes, Cut]] = {}
        self._pending_count = 0
        self._holds_tombstones = False
        self._names: dict[bytes, tuple[str, str] | None] = {}
        self._texts: dict[bytes, str] = {}
        self._topic_ids: dict[bytes, bytes | None] = {_NO_TOPIC_ID: None}

    @property
    def is_full(self) -> bool:
        if self._holds_tombstones and self._shard.has_pending_offsets:
            return True  # a tombstone drops the pending offsets of its partition, also if a commit follows it
        return self._pending_count > PENDING_AT_MOST

    def take(self, payload: bytes | mmap, at: int, most: int) -> tuple[int, int]:
        """Reads a run of plain commits, or of their tombstones, from ``at``: at most ``most`` records.

        Returns the number of records and the position after them; 0 records if no such record starts at ``at``.
        """
        known = self._shapes.get(payload[at : at + 4])
        if known is not None:
            taken = self._cut(known, payload, at, most)
            if taken:
                return taken, at + taken * known.cut.size
        shape = shape_of(payload, at)
        if shape is None:
            return 0, at
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes[payload[at : at + 4]] = shape
        taken = self._cut(shape, payload, at, most)
        return taken, at + taken * shape.cut.size

    def _cut(self, shape: RecordLayout, payload: bytes | mmap, at: int, most: int) -> int:
        cut, same, delta_bytes, _ = shape
        fits = min(most, (len(payload) - at) // cut.size)
        pending = self._pending
        rows: dict[bytes, Cut] = {}
        taken, last, before = 0, b"", 0
        is_short = delta_bytes == 1
        for record in cut.iter_unpack(memoryview(payload)[at : at + fits * cut.size]):
            delta, prefix = record[1], record[3]
            first = delta[0]
            if record[::2] != same or first & 1 or (first >= 0x80 if is_short else delta[1] >= 0x80 or first < 0x80):
                break
            if prefix != last:
                if not prefix.startswith(_COMMIT_KEY):
                    break  # another kind of record with the same layout
                self._pending_count += len(rows) - before
                last = prefix
                former = pending.get(prefix)
                rows = pending[prefix] = {} if former is None else former
                before = len(rows)
            rows[record[5]] = record
            taken += 1
        self._pending_count += len(rows) - before
        if taken and not shape.has_value:
            self._holds_tombstones = True
        return taken

    def drain(self) -> Generator[Warn | None, object, None]:
        """Replays the last commit of each partition since the last drain. Yields a warning for the commits of a topic
        that cannot be replayed together, and replays them one by one."""
        pending, self._pending, self._pending_count = self._pending, {}, 0
        self._holds_tombstones = False
        done = 0
        for prefix, rows in pending.items():
            names = self._names_in(prefix)
            commits: dict[int, StoredOffset | None] = {}
            for partition, record in rows.items():
                text = self._text_in(record[8]) if record[7] else ""
                if names is None or text is None:
                    self._replay(-1, prefix + partition, _value(record))
                elif record[7]:
                    commits[_PARTITION(partition)[0]] = (
                        *_OFFSET_AND_EPOCH(record[7]), text, _TIME(record[9])[0], -1, self._topic_id_in(record[10])
                    )  # fmt: skip
                else:
                    commits[_PARTITION(partition)[0]] = None
                done += 1
                if done % COMMITS_AT_ONCE == 0:
                    yield None
            if names is not None and commits:
                yield from self._replay_commits(names, commits, prefix, rows)

    def _replay_commits(
        self, names: tuple[str, str], commits: dict[int, StoredOffset | None], prefix: bytes, rows: dict[bytes, Cut]
    ) -> Generator[Warn, object, None]:
        group_id, topic = names
        try:
            self._shard.replay_commits(group_id, topic, commits)
        except Exception as error:
            yield Warn(f"the commits of group {group_id} for topic {topic} cannot be replayed together: {error!r}")
            for partition, record in rows.items():
                self._replay(-1, prefix + partition, _value(record))

    def _names_in(self, prefix: bytes) -> tuple[str, str] | None:
        """Returns group and topic of a key, or None if the key is malformed."""
        if prefix not in self._names:
            if len(self._names) > PENDING_AT_MOST:
                self._names.clear()
            self._names[prefix] = _read_names(prefix)
        return self._names[prefix]

    def _text_in(self, packed: bytes) -> str | None:
        text = self._texts.get(packed)
        if text is None:
            try:
                text = packed[1:].decode()
            except UnicodeDecodeError:
                return None
            if len(self._texts) > PENDING_AT_MOST:
                self._texts.clear()
            self._texts[packed] = text
        return text

    def _topic_id_in(self, rest: bytes) -> bytes | None:
        if rest not in self._topic_ids:
            topic_id = rest[3:19]
            self._topic_ids[rest] = topic_id if any(topic_id) else None
        return self._topic_ids[rest]


def _value(record: Cut) -> bytes | None:
    """Returns the value of a record from its parts; None for a tombstone."""
    return b"".join((record[6][-2:], *record[7:10], record[10][:-1])) if record[7] else None


def _read_names(prefix: bytes) -> tuple[str, str] | None:
    group_bytes = _INT16(prefix, 2)[0]
    topic_at = 4 + group_bytes
    if group_bytes < 0 or topic_at + 2 > len(prefix) or _INT16(prefix, topic_at)[0] != len(prefix) - topic_at - 2:
        return None
    try:
        return prefix[4:topic_at].decode(), prefix[topic_at + 2 :].decode()
    except UnicodeDecodeError:
        return None


def shape_of(payload: bytes | mmap, at: int) -> RecordLayout | None:
    """Returns the layout of the commit or tombstone at ``at``, or None if none in the usual form starts there."""
    try:
        ends = _ends_of(payload, at)
    except (IndexError, OverlongVarint):
        return None
    if ends is None or ends[-1] > len(payload):
        return None
    sizes = [end - start for start, end in zip((at, *ends[:-1]), ends, strict=True)]
    cut = struct.Struct("".join(f"{size}s" for size in sizes))
    first: Cut = cut.unpack_from(payload, at)
    return RecordLayout(cut, first[::2], sizes[1], bool(first[7]))


def _ends_of(payload: bytes | mmap, start: int) -> tuple[int, ...] | None:
    """Returns the end of each part of a ``Cut``, or None if the record is not a plain commit or its tombstone."""
    size, at = _length(payload, start)
    end = at + size
    _, at = read_uvarint(payload, at + 1)
    head_end = at
    _, delta_end = read_uvarint(payload, at)
    if delta_end - head_end > 2:
        return None
    size, key_at = _length(payload, delta_end)
    key_end = key_at + size
    if size < 10 or payload[key_at : key_at + 2] != _COMMIT_KEY:
        return None
    front = (head_end, delta_end, key_at, key_end - 4, key_end - 4, key_end)
    if payload[key_end] == 1:  # a tombstone
        at = key_end + 1
        return (*front, at, at, at, at, at + 1) if at + 1 == end and payload[at] == 0 else None
    size, at = _length(payload, key_end)
    value_end, version_end = at + size, at + 2
    metadata_at = version_end + 12
    if size < 24 or payload[at:version_end] != _VALUE_4 or value_end + 1 != end or payload[value_end] != 0:
        return None
    length = payload[metadata_at]
    time_at = metadata_at + length
    if not 1 <= length < 0x80 or time_at + 8 >= end:
        return None
    rest = payload[time_at + 8 : end]
    if rest != _NO_TOPIC_ID and not (len(rest) == 20 and rest[:3] == _TOPIC_ID):
        return None
    return (*front, version_end, metadata_at, time_at, time_at + 8, end)


def _length(payload: bytes | mmap, at: int) -> tuple[int, int]:
    """Returns a zigzag length of one or two bytes and the position after it. Raises IndexError for a
    negative or longer length."""
    first = payload[at]
    if first & 1:
        raise IndexError(at)
    if first < 0x80:
        return first >> 1, at + 1
    second = payload[at + 1]
    if second >= 0x80:
        raise IndexError(at)
    return (first & 0x7F | second << 7) >> 1, at + 2
