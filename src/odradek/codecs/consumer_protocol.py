"""Subscriptions and assignments of classic consumers, as bytes in JoinGroup and SyncGroup.

Subscription: version, topics, user data; from version 1 on the owned partitions, from version 2 on their generation,
from version 3 on the rack. Assignment: version, partitions by topic, user data. New versions only append fields, so a
reader reads the fields that it supports and ignores the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek.core.ids import TopicPartition

SUBSCRIPTION_VERSION = 3
NO_GENERATION = -1
MAX_PARTITIONS = 1_000_000
"""The largest number of partitions in one assignment or subscription. Their Python objects take twenty times the memory
of their bytes."""

PartitionsByTopic = Sequence[tuple[str, Sequence[int]]]


class MalformedProtocol(ValueError):
    """Bytes that are not a valid subscription or assignment."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics for the leader, and its owned partitions (only of cooperative members)."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None
    """From the group's list of members, not from the bytes."""


class SubscriptionFields(NamedTuple):
    """The fields of a subscription in the order of its bytes."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: PartitionsByTopic = ()
    generation: int = NO_GENERATION
    rack: str | None = None


class ProtocolReader:
    """Reads fields one after another. Each method raises MalformedProtocol.

    The coordinator reads with ``strict``, like Kafka's: no array may be null, and no field may be missing. A group's
    leader reads without ``strict``, because the leader must understand the subscriptions of all clients.

    ``most`` limits the number of partitions, or with ``counts_topics`` of topics and partitions together.
    """

    def __init__(
        self, data: bytes, *, strict: bool = False, most: int = MAX_PARTITIONS, counts_topics: bool = False
    ) -> None:
        self.strict = strict
        self._data, self._at = data, 0
        self._most, self._counts_topics = most, counts_topics
        self._counted = 0

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise MalformedProtocol("ends too early")
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def version(self) -> int:
        version = self.number(2)
        if version < 0:
            raise MalformedProtocol(f"version {version}")
        return version

    def text(self) -> str:
        return self._decoded(self.number(2))

    def nullable_text(self) -> str | None:
        size = self.number(2)
        return None if size == -1 or (size < 0 and not self.strict) else self._decoded(size)

    def _decoded(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedProtocol(str(error)) from error

    def size(self) -> int:
        """Reads an array's length; 0 for null."""
        size = self.number(4)
        if size == -1 and not self.strict:
            return 0
        if not 0 <= size <= len(self._data):
            raise MalformedProtocol(f"an array of {size}")
        return size

    def user_data(self) -> bytes:
        """Reads user data; no bytes for null."""
        size = self.number(4)
        return b"" if size == -1 or (size < 0 and not self.strict) else self.take(size)

    def topics(self) -> Iterator[str]:
        for _ in range(self._topic_count()):
            yield self.text()

    def partitions(self) -> list[tuple[str, list[int]]]:
        topics = []
        for _ in range(self._topic_count()):
            topic, size = self.text(), self.size()
            self._count(size)
            topics.append((topic, list(struct.unpack(f">{size}i", self.take(4 * size)))))
        return topics

    def _topic_count(self) -> int:
        size = self.size()
        if self._counts_topics:
            self._count(size)
        return size

    def _count(self, size: int) -> None:
        self._counted += size
        if self._counted > self._most:
            counted = "topics and partitions" if self._counts_topics else "partitions"
            raise MalformedProtocol(f"more than {self._most:,} {counted}")


# --- subscriptions ------------------------------------------------------------------------------------------------


def read_subscription(reader: ProtocolReader) -> SubscriptionFields:
    """Reads the supported fields of a subscription of any version. Raises MalformedProtocol."""
    version, strict = reader.version(), reader.strict
    topics = tuple(reader.topics())
    user_data = reader.user_data() if strict or reader.left else b""
    owned = reader.partitions() if version >= 1 and (strict or reader.left) else ()
    generation = reader.number(4) if version >= 2 and (strict or reader.left) else NO_GENERATION
    rack = reader.nullable_text() if version >= 3 and (strict or reader.left) else None
    return SubscriptionFields(min(version, SUBSCRIPTION_VERSION), topics, user_data, owned, generation, rack)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Reads a subscription for a group's leader. Raises MalformedProtocol."""
    _, topics, user_data, owned, generation, rack = read_subscription(ProtocolReader(data))
    return Subscription(topics, user_data, _flat(owned), generation, rack, instance_id)


def encode_subscription(subscription: Subscription) -> bytes:
    topics = sorted(subscription.topics)
    data = subscription.user_data
    return b"".join(
        [
            struct.pack(">hi", SUBSCRIPTION_VERSION, len(topics)),
            *map(_text, topics),
            struct.pack(">i", len(data) or -1) + data,
            _partitions(_by_topic(sorted(subscription.owned))),
            struct.pack(">i", subscription.generation),
            b"\xff\xff" if not subscription.rack else _text(subscription.rack),
        ]
    )


# --- assignments --------------------------------------------------------------------------------------------------


def read_assignment(reader: ProtocolReader) -> list[tuple[str, list[int]]]:
    """Reads the partitions by topic; the user data is the next field. Raises MalformedProtocol."""
    reader.version()
    return reader.partitions()


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Returns the partitions of an assignment; an empty tuple for empty bytes. Raises MalformedProtocol."""
    if not data:
        return ()
    partitions = _flat(read_assignment(ProtocolReader(data)))
    if (lowest := min((partition for _, partition in partitions), default=0)) < 0:
        raise MalformedProtocol(f"partition {lowest}")
    return partitions


def pack_assignment(version: int, partitions: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    """Returns an assignment without user data."""
    return struct.pack(">h", version) + _partitions(partitions) + b"\xff\xff\xff\xff"


def encode_assignment(partitions: Iterable[TopicPartition], version: int = 0) -> bytes:
    """Returns an assignment without user data."""
    return pack_assignment(version, _by_topic(partitions))


# --- the user data of the sticky assignor ---------------------------------------------------------------------------


def encode_sticky_memory(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Returns the sticky assignor's user data in a subscription: the last assignment and its generation."""
    return _partitions(_by_topic(sorted(owned))) + struct.pack(">i", generation)


def decode_sticky_memory(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Returns the last assignment and its generation (-1 from an old client). Raises MalformedProtocol."""
    reader = ProtocolReader(data)
    owned = _flat(reader.partitions())
    return owned, reader.number(4) if reader.left >= 4 else NO_GENERATION


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic.items()


def _flat(partitions: PartitionsByTopic) -> tuple[TopicPartition, ...]:
    return tuple([TopicPartition(topic, number) for topic, numbers in partitions for number in numbers])


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _partitions(partitions: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    rows = [_text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in partitions]
    return struct.pack(">i", len(rows)) + b"".join(rows)
