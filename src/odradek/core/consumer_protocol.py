"""The bytes that classic consumers put into JoinGroup and SyncGroup: subscriptions and assignments.

Brokers pass them on unread. Versions 0 to 3 differ only in what they append, so a reader of the front reads all.
"""

from __future__ import annotations

import struct

from odradek.core.ids import TopicPartition

MAX_PARTITIONS = 1_000_000
"""Of one assignment or subscription: Python's objects for them take twenty times the bytes they come in."""


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a ConsumerProtocolAssignment; nothing assigned for empty bytes. Raises ValueError."""
    if not data:
        return ()
    try:
        (version, topics), at = struct.unpack_from(">hi", data), 6
        if version < 0 or topics < -1:
            raise ValueError(f"assignment of version {version} with {topics} topics")
        found: list[TopicPartition] = []
        for _ in range(max(topics, 0)):
            (length,) = struct.unpack_from(">h", data, at)
            at += 2
            if length < 0 or at + length > len(data):
                raise ValueError("topic name runs past the assignment")
            topic = data[at : at + length].decode()
            at += length
            (count,) = struct.unpack_from(">i", data, at)
            at += 4
            if count < 0 or at + 4 * count > len(data):
                raise ValueError("partitions run past the assignment")
            if len(found) + count > MAX_PARTITIONS:
                raise ValueError(f"more than {MAX_PARTITIONS:,} partitions")
            numbers = struct.unpack_from(f">{count}i", data, at)
            if min(numbers, default=0) < 0:
                raise ValueError(f"partition {min(numbers)} of {topic}")
            found += [TopicPartition(topic, number) for number in numbers]
            at += 4 * count
    except struct.error as error:
        raise ValueError(f"malformed assignment: {error}") from error
    return tuple(found)


def encode_assignment(partitions: tuple[TopicPartition, ...], version: int = 0) -> bytes:
    """A ConsumerProtocolAssignment without user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    out = [struct.pack(">hi", version, len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        out.append(struct.pack(">h", len(name)) + name)
        out.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    out.append(b"\xff\xff\xff\xff")
    return b"".join(out)
