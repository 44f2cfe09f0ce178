"""The records of ``__transaction_state`` as typed values.

A record has the last state of one transactional id. Its key has type 0 and the transactional id; in
``__consumer_offsets`` type 0 means something else. ``encode_value`` writes the versions of Apache Kafka 4.3: 0 while
the feature ``transaction.version`` is 0, otherwise 1. ``decode`` reads both.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from odradek.core.ids import NO_PRODUCER_ID
from odradek.core.record_schemas import MalformedRecord, RecordType, decode_key, decode_value, string_length
from odradek.core.varints import uvarint

__all__ = [
    "TRANSACTION_LOG",
    "EndTransactionMarker",
    "Transaction",
    "TransactionState",
    "UnreadableTransaction",
    "decode",
    "encode_key",
    "encode_value",
]


class TransactionState(IntEnum):
    """The states of a transactional id that its records have. ``title`` is Kafka's name in replies and tools."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        return self.name.title().replace("_", "")


class Transaction(NamedTuple):
    """The durable state of a transactional id. Times are in ms since 1970.

    ``producer_epoch`` is -1 before the first InitProducerId is written. ``previous_producer_id`` is the producer id of
    the state before. ``next_producer_id`` is the id that replaces an id with exhausted epochs when the transaction is
    complete, or -1. ``client_version`` is the client's version of the protocol (the feature ``transaction.version``).
    """

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[tuple[str, int]]
    start_ms: int
    last_update_ms: int
    client_version: int


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction in a partition. ``transaction_version`` decides which epochs it may have.

    With version 2 its epoch is one above the epoch of the transaction's records.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class UnreadableTransaction(NamedTuple):
    """A record that cannot be decoded, with the reason."""

    reason: str


_PARTITIONS = "[{topic:string partition_ids:[int32]}]?"
_TIMES = "last_update_timestamp:int64 start_timestamp:int64"
_HEAD = "producer_id:int64 producer_epoch:int16 timeout:int32 state:int8"

TRANSACTION_LOG = RecordType(
    0,
    "transaction_log",
    "transactional_id:string",
    (
        f"{_HEAD} partitions:{_PARTITIONS} {_TIMES}",
        f"~{_HEAD} partitions:{_PARTITIONS} {_TIMES} #0:previous_producer_id:int64 #1:next_producer_id:int64"
        " #2:client_transaction_version:int16 #3:next_producer_epoch:int16",
    ),
)

_VALUE_HEAD = struct.Struct(">hqhib")
_TWO_INT64 = struct.Struct(">qq")
_PREVIOUS_ID = struct.Struct(">BBq")
_CLIENT_VERSION = struct.Struct(">BBh")
_PREVIOUS_TAG, _NEXT_TAG, _VERSION_TAG = 0, 1, 2


def encode_key(transactional_id: str) -> bytes:
    """Returns the key. Raises ValueError for an id of more than 32,767 bytes."""
    packed = transactional_id.encode()
    return b"".join((b"\x00\x00", string_length(len(packed)), packed))


def encode_value(value: Transaction, version: int) -> bytes:
    """Returns the value in version 0 or 1. Version 0 has no previous and next producer id and no client version."""
    head = _VALUE_HEAD.pack(version, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    times = _TWO_INT64.pack(value.last_update_ms, value.start_ms)
    pack_partitions = _compact_partitions if version else _plain_partitions
    out = [head, *pack_partitions(value), times]
    if version:
        tags = []
        if value.previous_producer_id != NO_PRODUCER_ID:
            tags.append(_PREVIOUS_ID.pack(_PREVIOUS_TAG, 8, value.previous_producer_id))
        if value.next_producer_id != NO_PRODUCER_ID:
            tags.append(_PREVIOUS_ID.pack(_NEXT_TAG, 8, value.next_producer_id))
        if value.client_version:
            tags.append(_CLIENT_VERSION.pack(_VERSION_TAG, 2, value.client_version))
        out += (uvarint(len(tags)), *tags)
    return b"".join(out)


def _by_topic(value: Transaction) -> list[tuple[bytes, list[int]]]:
    grouped = groupby(sorted(value.partitions), key=lambda partition: partition[0])
    return [(topic.encode(), [number for _, number in numbers]) for topic, numbers in grouped]


def _compact_partitions(value: Transaction) -> list[bytes]:
    if value.state is TransactionState.EMPTY:
        return [b"\x00"]
    topics = _by_topic(value)
    out = [uvarint(len(topics) + 1)]
    for name, numbers in topics:
        out += (uvarint(len(name) + 1), name, uvarint(len(numbers) + 1), struct.pack(f">{len(numbers)}i", *numbers))
        out.append(b"\x00")  # no tagged fields
    return out


def _plain_partitions(value: Transaction) -> list[bytes]:
    if value.state is TransactionState.EMPTY:
        return [b"\xff\xff\xff\xff"]
    topics = _by_topic(value)
    out = [len(topics).to_bytes(4, "big")]
    for name, numbers in topics:
        out += (string_length(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return out


def decode(key: bytes | None, value: bytes | None) -> tuple[str, Transaction | None] | UnreadableTransaction:
    """Returns the transactional id and its state, None for a tombstone. Never raises.

    A record with a null key, an unknown type, version or state, or malformed bytes is unreadable.
    """
    if key is None or len(key) < 2:
        return UnreadableTransaction("no key" if key is None else "key shorter than its type")
    number = int.from_bytes(key[:2], "big", signed=True)
    if number != TRANSACTION_LOG.number:
        return UnreadableTransaction(f"key type {number} is unknown")
    try:
        transactional_id = decode_key(TRANSACTION_LOG, key)["transactional_id"]
        if value is None:
            return transactional_id, None
        _, fields = decode_value(TRANSACTION_LOG, value)
        state = TransactionState(fields["state"])
    except MalformedRecord as error:
        return UnreadableTransaction(str(error))
    except ValueError:
        return UnreadableTransaction(f"transaction state {fields['state']} is unknown")
    partitions = frozenset(
        (topic["topic"], number) for topic in fields["partitions"] or () for number in topic["partition_ids"]
    )
    return transactional_id, Transaction(
        fields["producer_id"],
        fields.get("previous_producer_id", NO_PRODUCER_ID),
        fields.get("next_producer_id", NO_PRODUCER_ID),
        fields["producer_epoch"],
        fields["timeout"],
        state,
        frozenset() if state is TransactionState.EMPTY else partitions,
        fields["start_timestamp"],
        fields["last_update_timestamp"],
        fields.get("client_transaction_version", 0),
    )
