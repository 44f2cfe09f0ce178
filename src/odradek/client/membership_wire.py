"""The subscriptions that classic consumers send along with JoinGroup, and what sticky assignors write into them.

Versions only append: 1 the partitions owned, 2 the generation they were owned in, 3 the rack. A reader takes what it
knows and leaves the rest, so that members of every client can be led.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from odradek.core.consumer_protocol import MAX_PARTITIONS
from odradek.core.ids import TopicPartition

SUBSCRIPTION_VERSION = 3
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells the leader: the topics it reads, and what it holds already (cooperative members only)."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None
    """From the group's list of members, not from the bytes."""


class _Cursor:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise ValueError("a field runs past its end")
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def text(self) -> str:
        return self.take(self.int16()).decode()

    def count(self, smallest: int) -> int:
        """An array's length, 0 for null; refuses one that the rest cannot hold."""
        count = self.int32()
        if count < -1 or count * smallest > len(self.data) - self.at:
            raise ValueError(f"{count} elements cannot fit")
        return max(count, 0)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count(6)):
            topic, count = self.text(), self.count(4)
            if len(found) + count > MAX_PARTITIONS:
                raise ValueError(f"more than {MAX_PARTITIONS:,} partitions")
            found += [TopicPartition(topic, self.int32()) for _ in range(count)]
        return tuple(found)

    @property
    def left(self) -> int:
        return len(self.data) - self.at


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    out = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        out.append(_text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(out)


def encode_subscription(subscription: Subscription) -> bytes:
    topics = sorted(subscription.topics)
    data = subscription.user_data
    return b"".join(
        [
            struct.pack(">hi", SUBSCRIPTION_VERSION, len(topics)),
            *map(_text, topics),
            struct.pack(">i", len(data) or -1) + data,
            _partitions(subscription.owned),
            struct.pack(">i", subscription.generation),
            b"\xff\xff" if not subscription.rack else _text(subscription.rack),
        ]
    )


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """A subscription of any version, as far as it is known here. Raises ValueError."""
    cursor = _Cursor(data)
    version = cursor.int16()
    if version < 0:
        raise ValueError(f"subscription of version {version}")
    topics = tuple(cursor.text() for _ in range(cursor.count(2)))
    size = cursor.int32() if cursor.left else -1
    user_data = cursor.take(size) if size > 0 else b""
    owned = cursor.partitions() if version >= 1 and cursor.left else ()
    generation = cursor.int32() if version >= 2 and cursor.left else NO_GENERATION
    rack = None
    if version >= 3 and cursor.left:
        length = cursor.int16()
        rack = cursor.take(length).decode() if length >= 0 else None
    return Subscription(topics, user_data, owned, generation, rack, instance_id)


def encode_sticky_memory(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """What the sticky assignor writes into a subscription: the last assignment and its generation."""
    return _partitions(owned) + struct.pack(">i", generation)


def decode_sticky_memory(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """The last assignment and its generation (-1 where an older client wrote none). Raises ValueError."""
    cursor = _Cursor(data)
    owned = cursor.partitions()
    return owned, cursor.int32() if cursor.left >= 4 else NO_GENERATION
