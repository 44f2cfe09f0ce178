"""The records of ``__transaction_state`` as typed values.

A record has the last state of one transactional id. Its key has type 0 and the transactional id; in
``__consumer_offsets`` type 0 means something else. ``encode_value`` writes the versions of Apache Kafka 4.3: 0 while
the feature ``transaction.version`` is 0, otherwise 1. ``decode`` reads both.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple

from odradek.codecs.schemas import MalformedRecord, RecordType, decode_key, decode_value, string_length
from odradek.core.effects import SimpleRecord, result_of
from odradek.core.ids import NO_PRODUCER_ID, ProducerIdentity
from odradek.core.pace import Pace, sorted_in_steps
from odradek.core.varints import read_uvarint, uvarint

__all__ = [
    "TRANSACTION_LOG",
    "Decoded",
    "Transaction",
    "TransactionRecord",
    "TransactionState",
    "UnreadableTransaction",
    "decode",
    "decode_in_steps",
    "encode_key",
    "encode_value",
    "encode_value_in_steps",
    "stored_value",
]


class TransactionState(IntEnum):
    """The states that a record of a transactional id can have. ``title`` is Kafka's name in replies and tools."""

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

    ``producer_epoch`` is -1 before the first InitProducerId is written. ``previous_producer_id`` is the producer id in
    the previous state. ``next_producer_id`` is the id that replaces an id with exhausted epochs when the transaction is
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


@dataclass(slots=True, frozen=True)
class TransactionRecord(SimpleRecord):
    """A new record with the state that its bytes have, so that its replay need not decode them.

    ``last_producer`` is the producer's identity before its newest epoch, which the bytes do not have. None: unchanged.
    """

    transactional_id: str = ""
    transaction: Transaction | None = None
    last_producer: ProducerIdentity | None = None


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
_MOST_TAGS = 3
_STATES = tuple(TransactionState)
_TOPIC = itemgetter(0)
_NO_PARTITIONS: frozenset[tuple[str, int]] = frozenset()
_NUMBERS_LIKE_ONE = 10
"""This number of partitions of one topic takes as much time as one element of a step (``core/pace``)."""
_NUMBER_BYTES_AT_ONCE = 4 * 1000


def encode_key(transactional_id: str) -> bytes:
    """Returns the key. Raises ValueError for an id of more than 32,767 bytes."""
    packed = transactional_id.encode()
    return b"".join((b"\x00\x00", string_length(len(packed)), packed))


def stored_value(value: Transaction, version: int) -> Transaction:
    """Returns what ``decode`` returns for the record that ``encode_value`` makes of ``value`` in this version."""
    partitions = value.partitions if value.state is not TransactionState.EMPTY else frozenset()
    if version:
        return value if partitions is value.partitions else value._replace(partitions=partitions)
    return value._replace(
        previous_producer_id=NO_PRODUCER_ID, next_producer_id=NO_PRODUCER_ID, client_version=0, partitions=partitions
    )


def encode_value(value: Transaction, version: int) -> bytes:
    """Returns the value in version 0 or 1. Version 0 has no previous and next producer id and no client version."""
    return _join(value, version, [_pack(version, *topic) for topic in _by_topic(sorted(value.partitions))])


def encode_value_in_steps(value: Transaction, version: int) -> Generator[None, None, bytes]:
    """Returns what ``encode_value`` returns, in steps, for a transaction of many partitions."""
    partitions = yield from sorted_in_steps(value.partitions)
    packed: list[bytes] = []
    pace = Pace()
    for name, numbers in _by_topic(partitions):
        packed.append(_pack(version, name, numbers))
        if pace.spend(1 + len(numbers) // _NUMBERS_LIKE_ONE):
            yield
    return _join(value, version, packed)


def _by_topic(partitions: list[tuple[str, int]]) -> Iterator[tuple[bytes, list[int]]]:
    for topic, numbers in groupby(partitions, key=_TOPIC):
        yield topic.encode(), [number for _, number in numbers]


def _pack(version: int, name: bytes, numbers: list[int]) -> bytes:
    """Returns one topic of a value."""
    count = len(numbers)
    packed = struct.pack(f">{count}i", *numbers)
    if version:
        return b"".join((uvarint(len(name) + 1), name, uvarint(count + 1), packed, b"\0"))  # no tagged fields
    return b"".join((string_length(len(name)), name, count.to_bytes(4, "big"), packed))


def _join(value: Transaction, version: int, topics: list[bytes]) -> bytes:
    head = _VALUE_HEAD.pack(version, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    times = _TWO_INT64.pack(value.last_update_ms, value.start_ms)
    is_null = value.state is TransactionState.EMPTY
    if is_null:
        topics = []
    if not version:
        count = b"\xff\xff\xff\xff" if is_null else len(topics).to_bytes(4, "big")
        return b"".join((head, count, *topics, times))
    tags = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PREVIOUS_ID.pack(_PREVIOUS_TAG, 8, value.previous_producer_id))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append(_PREVIOUS_ID.pack(_NEXT_TAG, 8, value.next_producer_id))
    if value.client_version:
        tags.append(_CLIENT_VERSION.pack(_VERSION_TAG, 2, value.client_version))
    count = b"\0" if is_null else uvarint(len(topics) + 1)
    return b"".join((head, count, *topics, times, uvarint(len(tags)), *tags))


Decoded = tuple[str, Transaction | None] | UnreadableTransaction


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Returns the transactional id and its state (None: a tombstone), or UnreadableTransaction. Never raises.

    A record with a null key, an unknown type, version or state, or malformed bytes is unreadable.
    """
    return result_of(decode_in_steps(key, value))


def decode_in_steps(key: bytes | None, value: bytes | None) -> Generator[None, None, Decoded]:
    """Returns what ``decode`` returns, in steps, for a transaction of many partitions.

    Values of version 1 with the tagged fields that ``encode_value`` writes are read here, in a tenth of the time. All
    other values, also malformed ones, are read by their schema.
    """
    if key is not None and value is not None and key[:2] == b"\0\0" and value[:2] == b"\0\1":
        try:
            if int.from_bytes(key[2:4], "big") == len(key) - 4:
                return key[4:].decode(), (yield from _read_value(value))
        except (_NotInUsualForm, IndexError, ValueError, struct.error):
            pass
    return _decode_by_schema(key, value)


class _NotInUsualForm(Exception):
    """The value has to be read by its schema."""


def _read_value(data: bytes) -> Generator[None, None, Transaction]:
    """Reads a value of version 1 in the usual form. Raises _NotInUsualForm, IndexError, ValueError or struct.error."""
    _, producer_id, epoch, timeout_ms, number = _VALUE_HEAD.unpack_from(data)
    if number < 0:
        raise _NotInUsualForm
    state = _STATES[number]
    at = _VALUE_HEAD.size + 1
    partitions = _NO_PARTITIONS
    if data[at - 1] > 1:  # the compact length of the topics; 0: null, 1: none
        partitions, at = yield from _read_partitions(data, at - 1)
    last_update_ms, start_ms = _TWO_INT64.unpack_from(data, at)
    at += _TWO_INT64.size
    previous = following = NO_PRODUCER_ID
    client_version = 0
    count = data[at]
    if count > _MOST_TAGS:
        raise _NotInUsualForm
    at += 1
    for _ in range(count):
        tag, size = data[at], data[at + 1]
        if tag == _PREVIOUS_TAG and size == 8:
            _, _, previous = _PREVIOUS_ID.unpack_from(data, at)
        elif tag == _NEXT_TAG and size == 8:
            _, _, following = _PREVIOUS_ID.unpack_from(data, at)
        elif tag == _VERSION_TAG and size == 2:
            _, _, client_version = _CLIENT_VERSION.unpack_from(data, at)
        else:
            raise _NotInUsualForm
        at += 2 + size
    if at != len(data):
        raise _NotInUsualForm
    if state is TransactionState.EMPTY:
        partitions = _NO_PARTITIONS
    return Transaction(
        producer_id, previous, following, epoch, timeout_ms, state, partitions, start_ms, last_update_ms, client_version
    )


def _read_partitions(data: bytes, at: int) -> Generator[None, None, tuple[frozenset[tuple[str, int]], int]]:
    """Reads the topics of a value of version 1. Returns their partitions and the position after them."""
    partitions: set[tuple[str, int]] = set()
    pace = Pace()
    topics, at = read_uvarint(data, at)
    for _ in range(topics - 1):
        size, at = read_uvarint(data, at)
        if not 0 < size <= len(data) - at:
            raise _NotInUsualForm
        topic = data[at : at + size - 1].decode()
        count, at = read_uvarint(data, at + size - 1)
        if not 0 < count <= len(data) - at:
            raise _NotInUsualForm
        end = at + 4 * (count - 1)
        for start in range(at, end, _NUMBER_BYTES_AT_ONCE):
            part = data[start : min(start + _NUMBER_BYTES_AT_ONCE, end)]
            partitions.update(zip(repeat(topic), struct.unpack(f">{len(part) // 4}i", part), strict=False))
            if pace.spend(1 + len(part) // 4 // _NUMBERS_LIKE_ONE):
                yield
        if data[end]:
            raise _NotInUsualForm  # a tagged field
        at = end + 1
    return frozenset(partitions), at


def _decode_by_schema(key: bytes | None, value: bytes | None) -> Decoded:
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
