"""Parser of Metadata replies in steps: a reply can have a million elements, and heartbeats must be sent in between.

The versions of the reply add these fields: 1 rack, controller and internal topics, 2 cluster id, 3 throttle time, 5
offline replicas, 7 leader epoch, 8 authorized operations, 9 compact lengths and tagged fields, 10 topic ids, 12 topics
without a name, 13 an error code of the whole reply. Version 11 removes the authorized operations of the cluster.

The limits for brokers, topics and partitions of a topic are those of librdkafka. The reply to a request for named
topics has a row for each of them; the parser skips other rows.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from odradek.client.model import Node, PartitionDescription, TopicDescription
from odradek.core.errors import ErrorCode
from odradek.core.varints import read_uvarint, skip_tagged_fields
from odradek.wire.request_limits import MAX_TAGGED_FIELDS, TooManyElements

NEWEST = 13
MAX_BROKERS = 10_000
MAX_TOPICS = 1_000_000
MAX_PARTITIONS = 100_000
"""The maximum number of partitions of one topic."""
MAX_PARTITIONS_IN_ALL = 2_000_000
MORE_TOPICS = 1_000
"""A reply may have twice the requested topics and this many more."""
STEP = 500
"""The number of elements between two yields."""

_NO_ID = bytes(16)
_CODES = {int(code.value): code for code in ErrorCode}


@dataclass(slots=True)
class TopicMetadata:
    """A topic in a Metadata reply."""

    description: TopicDescription
    partitions: dict[int, PartitionDescription]
    reply_s: dict[int, float]
    """For each partition, the time of the reply that its leader epoch comes from."""


@dataclass(slots=True)
class Metadata:
    """A reply. ``topics`` are those without an error, ``errors`` has the codes of the others.

    Neither has topics that were requested by an unknown id."""

    throttle_ms: int = 0
    error_code: ErrorCode = ErrorCode.none
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    errors: dict[str, ErrorCode] = field(default_factory=dict)


def read(
    version: int,
    data: memoryview,
    now_s: float,
    asked: Collection[str | UUID] | None,
    most_partitions: int = MAX_PARTITIONS_IN_ALL,
) -> Generator[None, None, Metadata]:
    """Reads a reply, correlation id first; yields after each ``STEP`` elements. ``asked``: names or ids, None for all.

    Raises ValueError, also for more than ``most_partitions`` of all topics.
    """
    reader = _Reader(version, data, now_s, asked, most_partitions)
    try:
        return (yield from reader.reply())
    except (struct.error, IndexError) as error:
        raise ValueError(f"metadata reply ends early: {error}") from error


_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_PARTITION, _PARTITION_V7 = struct.Struct(">hii"), struct.Struct(">hiii")
_NUMBERS = [struct.Struct(f">{count}i") for count in range(8)]


class _Reader:
    """Most methods read at the position ``at``. They return the position after the read bytes, most with a value."""

    def __init__(
        self,
        version: int,
        data: memoryview,
        now_s: float,
        asked: Collection[str | UUID] | None,
        most_partitions: int,
    ) -> None:
        self._most_partitions = most_partitions
        self._version, self._data, self._now_s, self._asked = version, data, now_s, asked
        self._ids = {one.bytes for one in asked or () if isinstance(one, UUID)}
        self._is_flexible = version >= 9
        self._done = 0
        self._partitions = 0

    def reply(self) -> Generator[None, None, Metadata]:
        data, version, reply = self._data, self._version, Metadata()
        at = self._after_tags(4)
        if version >= 3:
            (reply.throttle_ms,), at = _INT32.unpack_from(data, at), at + 4
        count, at = self._count(at, 10, MAX_BROKERS, "brokers")
        for _ in range(count):
            node, at = self._broker(at)
            reply.nodes[node.node_id] = node
            if self._is_due():
                yield
        if version >= 2:
            reply.cluster_id, at = self._text(at)
        if version >= 1:
            (reply.controller_id,), at = _INT32.unpack_from(data, at), at + 4
        count, at = self._count(at, 8, MAX_TOPICS, "topics")
        if self._asked is not None and count > 2 * len(self._asked) + MORE_TOPICS:
            raise TooManyElements(f"{count} topics, but {len(self._asked)} were requested")
        for _ in range(count):
            at = yield from self._topic(at, reply)
            if self._is_due():
                yield
        at += 4 if 8 <= version <= 10 else 0
        if version >= 13:
            (code,), at = _INT16.unpack_from(data, at), at + 2
            reply.error_code = _error_code(code)
        if self._after_tags(at) > len(data):
            raise ValueError("metadata reply ends early")
        return reply

    def _is_due(self) -> bool:
        self._done += 1
        if self._done < STEP:
            return False
        self._done = 0
        return True

    def _broker(self, at: int) -> tuple[Node, int]:
        (node_id,) = _INT32.unpack_from(self._data, at)
        host, at = self._text(at + 4)
        (port,) = _INT32.unpack_from(self._data, at)
        rack, at = self._text(at + 4) if self._version >= 1 else (None, at + 4)
        if host is None:
            raise ValueError("a broker without a host")
        return Node(node_id, host, port, rack), self._after_tags(at)

    def _topic(self, at: int, reply: Metadata) -> Generator[None, None, int]:
        data, version = self._data, self._version
        (code,) = _INT16.unpack_from(data, at)
        name, at = self._text(at + 2)
        topic_id = bytes(self._bytes_at(at, 16)) if version >= 10 else _NO_ID
        at += 16 if version >= 10 else 0
        is_internal = False
        if version >= 1:
            is_internal, at = bool(data[at]), at + 1
        is_wanted = self._asked is None or name in self._asked or topic_id in self._ids
        partitions: dict[int, PartitionDescription] = {}
        count, at = self._count(at, 18, MAX_PARTITIONS, "partitions of a topic")
        self._partitions += count
        if self._partitions > self._most_partitions:
            raise TooManyElements(f"more than {self._most_partitions:,} partitions")
        for _ in range(count):
            partition, at = self._partition(at)
            if is_wanted:
                partitions[partition.partition] = partition
            if self._is_due():
                yield
        at = self._after_tags(at + 4 if version >= 8 else at)
        if not is_wanted or name is None:
            return at
        error = _error_code(code)
        if error is not ErrorCode.none:
            reply.errors[name] = error
            return at
        description = TopicDescription(
            name,
            None if topic_id == _NO_ID else UUID(bytes=topic_id),
            is_internal,
            tuple(partitions[index] for index in sorted(partitions)),
        )
        reply.topics[name] = TopicMetadata(description, partitions, dict.fromkeys(partitions, self._now_s))
        return at

    def _partition(self, at: int) -> tuple[PartitionDescription, int]:
        if self._version >= 7:
            _, index, leader, leader_epoch = _PARTITION_V7.unpack_from(self._data, at)
            at += 14
        else:
            _, index, leader = _PARTITION.unpack_from(self._data, at)
            leader_epoch, at = -1, at + 10
        replicas, at = self._numbers(at)
        isr, at = self._numbers(at)
        offline: tuple[int, ...] = ()
        if self._version >= 5:
            offline, at = self._numbers(at)
        if isr == replicas:
            isr = replicas  # one object for both
        at = self._after_tags(at) if self._is_flexible else at
        return PartitionDescription(index, leader, leader_epoch, replicas, isr, offline), at

    def _numbers(self, at: int) -> tuple[tuple[int, ...], int]:
        if self._is_flexible and 0 < (packed := self._data[at]) <= len(_NUMBERS):  # the fast way for short arrays
            return _NUMBERS[packed - 1].unpack_from(self._data, at + 1), at + 4 * packed - 3
        count, at = self._count(at, 4, MAX_BROKERS, "replicas")
        return struct.unpack_from(f">{count}i", self._data, at), at + 4 * count

    def _count(self, at: int, smallest: int, most: int, what: str) -> tuple[int, int]:
        """Reads an array's length. Raises ValueError if it is null, above ``most`` or too large for the rest."""
        count, at = self._length(at, _INT32)
        left = len(self._data) - at
        if count < 0 or count * smallest > left:
            raise ValueError(f"{count} {what} in {left} bytes")
        if count > most:
            raise TooManyElements(f"{count} {what} (the limit is {most:,})")
        return count, at

    def _text(self, at: int) -> tuple[str | None, int]:
        size, at = self._length(at, _INT16)
        if size < 0:
            return None, at
        return str(self._bytes_at(at, size), "utf-8"), at + size

    def _bytes_at(self, at: int, size: int) -> memoryview:
        if size > len(self._data) - at:
            raise ValueError("a field runs past the end")
        return self._data[at : at + size]

    def _length(self, at: int, legacy: struct.Struct) -> tuple[int, int]:
        """Reads a length, -1 for null. Returns it with the position after it."""
        if not self._is_flexible:
            return int(legacy.unpack_from(self._data, at)[0]), at + legacy.size
        byte = self._data[at]
        if byte < 0x80:
            return byte - 1, at + 1
        value, at = read_uvarint(self._data, at)
        return value - 1, at

    def _after_tags(self, at: int) -> int:
        if not self._is_flexible:
            return at
        if not self._data[at]:
            return at + 1
        count, at = read_uvarint(self._data, at)
        if count > MAX_TAGGED_FIELDS:
            raise TooManyElements(f"{count} tagged fields (the limit is {MAX_TAGGED_FIELDS:,})")
        return skip_tagged_fields(self._data, at, count)


def _error_code(code: int) -> ErrorCode:
    return _CODES.get(code, ErrorCode.unknown_server_error)  # a newer broker has codes that this list lacks


# --- leaders that an error's reply names, with their addresses (KIP-951): used without a Metadata request -------------

NAMES_LEADER = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
"""The errors whose replies name the leader."""


def with_leader(
    topic: TopicMetadata, index: int, leader: int, leader_epoch: int, nodes: Mapping[int, Node]
) -> TopicMetadata | None:
    """Returns the topic with another leader of one partition.

    As in Java's client, None if the leader epoch is not newer than the known one, or the leader has no address."""
    known = topic.partitions.get(index)
    if known is None or leader not in nodes or not 0 <= known.leader_epoch < leader_epoch:
        return None
    partitions = topic.partitions | {
        index: dataclasses.replace(known, leader=leader, leader_epoch=leader_epoch),
    }
    rows = tuple(partitions[number] for number in sorted(partitions))
    return dataclasses.replace(
        topic, description=dataclasses.replace(topic.description, partitions=rows), partitions=partitions
    )
