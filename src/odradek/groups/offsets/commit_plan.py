"""Repeated commits of the same partitions: the constant parts of their records are packed once.

A ``CommitPlan`` has all of a commit's records except offset, leader epoch and time, packed as in a batch.
``PlannedCommits`` are requests of one plan that arrived together. A ``CommitBlock`` has their records: byte for byte
those that ``Offsets.handle_commit`` makes for each request (a property test checks this).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, ClassVar

from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.varints import varint
from odradek.groups.messages import OffsetCommit, OffsetCommitReply, PartitionCommit, TopicCommit

COMMITTED = OffsetCommitReply()
"""The reply to a commit without a failed partition."""

_OFFSET_AND_EPOCH = struct.Struct(">qi").pack
_METADATA_AT = 14  # after version, offset, leader epoch
DELTA_STEPS = (64, 8192, 1 << 20)  # from each of these numbers on, an offset delta has one byte more
DELTA_BYTES = 10  # the largest size of an offset delta and a record's length together
STEP_PARTITIONS = 500
_TOPIC_ROWS = 4  # a topic takes as much time as this number of partitions

_deltas: list[bytes] = []


def offset_deltas(first: int, end: int) -> list[bytes]:
    """Returns the packed offset deltas of a batch's records ``first`` to ``end``, from a cache."""
    if end > len(_deltas):
        _deltas.extend(varint(number) for number in range(len(_deltas), max(end, 1024)))
    return _deltas[first:end]


class _PlanRows(Sequence[PartitionCommit]):
    """The rows of a plan's topic, with offset 0 and leader epoch -1: these differ between commits."""

    __slots__ = ("_metadatas", "_partitions")

    def __init__(self, partitions: list[int], metadatas: list[str]) -> None:
        self._partitions = partitions
        self._metadatas = metadatas

    def __len__(self) -> int:
        return len(self._partitions)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[PartitionCommit]:
        return zip(self._partitions, repeat(0), repeat(-1), self._metadatas)


class CommitPlan:
    """The constant parts of the records of repeated commits.

    ``request`` is one commit of the plan. Other commits of the plan differ only in offsets and leader epochs. The
    request has no retention time, and its metadata is not too long.
    """

    __slots__ = (
        "_heads",
        "_sizes",
        "_tail_ends",
        "_tails",
        "_tails_ms",
        "_topics",
        "count",
        "keys",
        "middles",
        "request",
    )

    def __init__(self, request: OffsetCommit) -> None:
        self.keys: list[tuple[str, list[int], list[str], bytes | None]] = []
        self.middles: list[bytes] = []  # the bytes of each record between its offset delta and the committed offset
        self._tail_ends: list[tuple[bytes, bytes]] = []
        self._sizes: list[int] = []  # of each record, without its length and its offset delta
        self._heads: dict[int, list[bytes]] = {}
        self._tails: list[bytes] = []
        self._tails_ms: int | None = None
        self.count = 0
        """The number of partitions of one commit."""
        self._topics: list[TopicCommit] = []
        self.request = replace(request, topics=self._topics)
        for topic, topic_id, rows in request.topics:
            self.add(topic, topic_id, rows)

    def add(self, topic: str, topic_id: bytes | None, rows: Sequence[PartitionCommit]) -> int:
        """Adds partitions to the plan and returns the largest size of their records in bytes.

        Partitions with equal metadata share the packed parts that depend only on the metadata.
        """
        partitions = [row[0] for row in rows]
        metadatas = [row[3] or "" for row in rows]
        last = self.keys[-1] if self.keys else None
        if last is not None and last[0] == topic and last[3] == topic_id:  # the topic's ``_PlanRows`` share these lists
            last[1].extend(partitions)
            last[2].extend(metadatas)
        else:
            self.keys.append((topic, partitions, metadatas, topic_id))
            self._topics.append(TopicCommit(topic, topic_id, _PlanRows(partitions, metadatas)))
        group_id, begin = self.request.group_id, len(self._sizes)
        of_metadata: dict[str, tuple[bytes, tuple[bytes, bytes], int]] = {}
        for partition, metadata in zip(partitions, metadatas, strict=True):
            known = of_metadata.get(metadata)
            if known is None:
                known = of_metadata[metadata] = _value_parts(metadata, topic_id)
            value_head, tail_ends, value_size = known
            key = offset_key(group_id, topic, partition)
            packed = varint(len(key)) + key + value_head
            self.middles.append(packed)
            self._tail_ends.append(tail_ends)
            self._sizes.append(2 + len(packed) + value_size + 1)
        self.count = len(self.middles)
        return sum(self._sizes[begin:]) + DELTA_BYTES * len(partitions)

    @property
    def most_bytes(self) -> int:
        """The largest size of the records of one commit in a batch."""
        return sum(self._sizes) + DELTA_BYTES * self.count

    def heads(self, delta_bytes: int) -> list[bytes]:
        """Returns the bytes of each record before its offset delta, for an offset delta of ``delta_bytes``."""
        made = self._heads.get(delta_bytes)
        if made is None:
            of_size = {size: varint(size + delta_bytes) + b"\0\0" for size in set(self._sizes)}
            made = self._heads[delta_bytes] = [of_size[size] for size in self._sizes]
        return made

    def tails(self, now_ms: int) -> list[bytes]:
        """Returns the bytes of each record after its leader epoch, for commits at ``now_ms``."""
        if now_ms != self._tails_ms:
            time = now_ms.to_bytes(8, "big", signed=True)
            made = {ends: ends[0] + time + ends[1] for ends in set(self._tail_ends)}
            self._tails = [made[ends] for ends in self._tail_ends]
            self._tails_ms = now_ms
        return self._tails


def _value_parts(metadata: str, topic_id: bytes | None) -> tuple[bytes, tuple[bytes, bytes], int]:
    """Returns three things about the value of a record.

    They are the packed length and version of the value, its bytes from the metadata to the commit time and those after
    this time, and the size of the value without the version.
    """
    value = offset_value(OffsetCommitValue(0, 0, metadata, 0, -1, topic_id))
    time_at = _METADATA_AT + 1 + len(value) - len(offset_value(OffsetCommitValue(0, 0, "", 0, -1, topic_id)))
    return varint(len(value)) + value[:2], (value[_METADATA_AT:time_at], value[time_at + 8 :] + b"\0"), len(value) - 2


def parts_of(request: OffsetCommit) -> Iterator[OffsetCommit]:
    """Yields a commit of many partitions as several commits of a few partitions each."""
    topics: list[TopicCommit] = []
    left = STEP_PARTITIONS
    for topic, topic_id, rows in request.topics:
        for first in range(0, len(rows), STEP_PARTITIONS):
            some = rows[first : first + STEP_PARTITIONS]
            topics.append(TopicCommit(topic, topic_id, some))
            left -= _TOPIC_ROWS + len(some)
            if left <= 0:
                yield replace(request, topics=topics)
                topics, left = [], STEP_PARTITIONS
    if topics:
        yield replace(request, topics=topics)


class PlannedCommits:
    """Successive commits of one plan; ``offsets`` has ``plan.count`` offsets for each of them, in order."""

    __slots__ = ("leader_epochs", "offsets", "plan")
    batched: ClassVar[bool] = True

    def __init__(self, plan: CommitPlan, offsets: Sequence[int], leader_epochs: Sequence[int] | None) -> None:
        self.plan = plan
        self.offsets = offsets
        self.leader_epochs = leader_epochs  # None: unknown

    @property
    def group_id(self) -> str:
        return self.plan.request.group_id

    def error_reply(self, error: ErrorCode) -> OffsetCommitReply:
        return self.plan.request.error_reply(error)

    def block(self, now_ms: int) -> CommitBlock:
        epochs = self.leader_epochs
        return CommitBlock(self.plan, now_ms, self.offsets, (-1,) * len(self.offsets) if epochs is None else epochs)


class CommitBlock:
    """The records of ``PlannedCommits``; a ``core.effects.Block``."""

    __slots__ = ("_epochs", "_offsets", "now_ms", "plan")

    def __init__(self, plan: CommitPlan, now_ms: int, offsets: Sequence[int], epochs: Sequence[int]) -> None:
        self.plan = plan
        self.now_ms = now_ms
        self._offsets = offsets
        self._epochs = epochs

    @property
    def count(self) -> int:
        return len(self._offsets)

    @property
    def most_bytes(self) -> int:
        return self.plan.most_bytes * (len(self._offsets) // self.plan.count)

    @property
    def last(self) -> tuple[Sequence[int], Sequence[int]]:
        """Offsets and leader epochs of the last commit, which replaces the others."""
        return self._offsets[-self.plan.count :], self._epochs[-self.plan.count :]

    def records(self) -> list[SimpleRecord]:
        plan, group_id = self.plan, self.plan.request.group_id
        rows = [
            (topic, partition, metadata, topic_id)
            for topic, partitions, metadatas, topic_id in plan.keys
            for partition, metadata in zip(partitions, metadatas, strict=True)
        ]
        every = chain.from_iterable(repeat(rows, self.count // plan.count))
        return [
            SimpleRecord(
                offset_key(group_id, topic, partition),
                offset_value(OffsetCommitValue(offset, epoch, metadata, self.now_ms, -1, topic_id)),
            )
            for (topic, partition, metadata, topic_id), offset, epoch in zip(
                every, self._offsets, self._epochs, strict=True
            )
        ]

    def pack(self, first: int) -> list[bytes]:
        plan, count = self.plan, len(self._offsets)
        end, times = first + count, count // plan.count
        parts: list[bytes] = [b""] * (5 * count)
        at = first
        for size, step in enumerate((*DELTA_STEPS, end), 1):
            until = min(step, end)
            if at < until:
                parts[5 * (at - first) : 5 * (until - first) : 5] = _cycle(plan.heads(size), at - first, until - first)
                at = until
        parts[1::5] = offset_deltas(first, end)
        parts[2::5] = plan.middles * times
        parts[3::5] = map(_OFFSET_AND_EPOCH, self._offsets, self._epochs)
        parts[4::5] = plan.tails(self.now_ms) * times
        return parts


def _cycle(items: list[bytes], start: int, end: int) -> list[bytes]:
    """Returns elements ``start`` to ``end`` of the endless repetition of ``items``."""
    count = len(items)
    first = start // count
    return (items * (-(-end // count) - first))[start - first * count : end - first * count]
