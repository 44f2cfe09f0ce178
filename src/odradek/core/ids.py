"""Identifiers that travel through every room."""

from __future__ import annotations

from typing import NamedTuple, NewType

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)

OFFSETS_TOPIC = "__consumer_offsets"
METADATA_TOPIC = "__cluster_metadata"
"""The controller's log, which no client may have as a topic: it would be written and deleted like one."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})

MAX_STRING_BYTES = 0x7FFF
"""Bytes of a string in UTF-8. Kafka's parsers take no longer one, in any message or record."""

USUAL_NAME_CHARS = 256
"""Nothing is remembered by a longer name: a table of thousands of names would take hundreds of megabytes."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number; prints as Kafka prints it: ``flights-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the next record to read, with what the committer wrote beside it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def is_longer(text: str, limit: int) -> bool:
    """Whether ``String.length`` of Java, which counts UTF-16 code units, is above ``limit``."""
    if len(text) > limit:
        return True
    return 2 * len(text) > limit and len(text.encode("utf-16-be", "surrogatepass")) > 2 * limit


def partition_for_group(group_id: str, partition_count: int) -> int:
    """The partition of ``__consumer_offsets`` that keeps a group.

    Kafka's ``Utils.abs``: the smallest 32-bit number, which has no positive twin, goes to 0.
    """
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
