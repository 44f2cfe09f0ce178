"""Identifiers and constants that all packages use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
PartitionKey: TypeAlias = tuple[str, int]
"""A topic\'s name and a partition\'s number, as a key of a dictionary: a plain tuple takes less time and memory."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
METADATA_TOPIC = "__cluster_metadata"
"""The controller's log. Clients may not create a topic with this name, because they could write and delete it."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC, "__share_group_state"})

MAX_STRING_BYTES = 0x7FFF
"""The largest UTF-8 size of a string in Kafka's messages and records."""

USUAL_NAME_CHARS = 256
"""The longest name that a cache uses as a key: thousands of longer names would take hundreds of megabytes."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_NODE = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

CORRELATION_IDS = 1 << 31
"""How many correlation ids a node uses for its requests to another node: after the last one it begins again at 0."""

RESET_POLICIES = ("earliest", "latest", "none")
"""The values of ``auto.offset.reset`` that are words; the other form is ``by_duration:`` and a span."""

# Special timestamps of ListOffsets; any other value is milliseconds since 1970.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

LAST_MS = (1 << 63) - 1
"""The largest timestamp of a record in milliseconds."""

INITIAL_EPOCH = 0
"""The epoch of a Fetch that creates a fetch session."""

# Special member epochs of a ConsumerGroupHeartbeat; any other value is the member's epoch.
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number. ``str`` returns Kafka's form: ``flights-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdentity(NamedTuple):
    """A producer id with its epoch. A larger epoch of the same id fences the smaller ones."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction in a partition, as the coordinator passes it to the log.

    ``transaction_version`` decides which epochs the marker may have. At version 2 the marker's epoch is one above the
    epoch of the transaction's records.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


NO_PRODUCER = ProducerIdentity()


class OffsetAndMetadata(NamedTuple):
    """A committed offset (the next record to read) with the commit's metadata."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


class ConsumerGroupMetadata(NamedTuple):
    """The identity of a consumer in its group, with which a transaction commits the group's offsets.

    ``generation`` is the member epoch in a KIP-848 group, and -1 for a consumer without a membership."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


def java_string_hash(text: str) -> int:
    """Returns Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int], capacity: int | None = None) -> list[T]:
    """Returns the keys in the order of a ``java.util.HashMap`` or ``HashSet`` that got them in the given order.

    ``capacity``: the size of its hash table; None: the size that the table has after these keys."""
    listed = list(keys)
    if capacity is None:
        capacity = 16
        while len(listed) > capacity * 3 // 4:
            capacity *= 2
    mask = capacity - 1

    def bucket(key: T) -> int:
        value = hash_of(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & mask

    return sorted(listed, key=bucket)


def is_longer(text: str, limit: int) -> bool:
    """Returns whether Java's ``String.length``, in UTF-16 code units, is above ``limit``."""
    if len(text) > limit:
        return True
    return 2 * len(text) > limit and len(text.encode("utf-16-be", "surrogatepass")) > 2 * limit


def partition_for_key(key: str, partition_count: int) -> int:
    """Returns the partition of a coordinator's topic for a key: a group, a transactional id, a share partition.

    It uses Kafka's ``Utils.abs``, which returns 0 for the smallest 32-bit number.
    """
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


partition_for_group = partition_for_key
"""Returns the partition of ``__consumer_offsets`` for a group."""


class FetchingReplica(NamedTuple):
    """A broker that fetches records because it follows their partitions, and may be in their ISR.

    ``broker_epoch``: that of its registration; −1 if it is not known, as before version 15 of Fetch.
    """

    broker_id: int
    broker_epoch: int = -1


class LogTail(NamedTuple):
    """The last record batch of a range of a partition. ``end``: the end offset of the range. ``base``, ``crc``: the
    batch's base offset and CRC32-C.

    A log has one batch at an offset, for ever, unless compaction rewrites it. If a batch with another base or CRC is in
    its place, other records stand at these offsets: the log was put back from an older copy and has grown again, or it
    was truncated.
    """

    end: int
    base: int
    crc: int


LogTails = Mapping[TopicPartition, LogTail]
NO_TAILS: LogTails = {}


def read_partitions(words: Iterable[str]) -> tuple[list[str], list[tuple[str, int]]]:
    """Returns the whole topics, and the partitions. Raises ValueError."""
    topics: list[str] = []
    partitions: list[tuple[str, int]] = []
    for word in words:
        name, colon, rest = word.partition(":")
        numbers = rest.split(",")
        if not name or (colon and not all(n.isascii() and n.isdigit() for n in numbers)):
            raise ValueError(f"{word!r}: expected TOPIC or TOPIC:0,1,2")
        if colon:
            partitions += [(name, int(n)) for n in numbers]
        else:
            topics.append(name)
    return topics, partitions
