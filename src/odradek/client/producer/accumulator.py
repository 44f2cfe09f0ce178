"""A producer's batches by partition: unsent ones, those in flight, and their sequences. No clock, no socket.

Rules, for idempotent producers those of Java's producer:
- A batch gets its sequence when it is first sent and keeps it over all retries, so that a broker recognises it.
- At most five batches of a partition are in flight, without idempotence one. Only one is in flight until the first is
  appended: a broker that does not know the producer accepts any sequence, so it could append a later batch first.
- After a failure no new batch is sent. The failed batches wait, in the order of their sequences, until none is in
  flight; then they are sent one by one. Batches after the last failed one also wait for its reply. The broker
  may have appended a failed batch, and it recognises only the last five batches. So the broker has to reply to the
  failed batch before it gets five later ones.
- OUT_OF_ORDER_SEQUENCE_NUMBER proves that a batch was not appended. If no earlier batch is left, the broker's sequences
  have a gap (an earlier batch was given up, or the log was truncated). Then the remaining batches get the next epoch
  and sequences from 0.
- A batch older than ``delivery_timeout_ms`` is given up, unless it is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from odradek.batches.encode import Headers, seal_records
from odradek.batches.header import HEADER_BYTES
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.core.varints import varint

MAX_IN_FLIGHT = 5
MAX_REQUEST_BYTES = 1 << 20
CONCURRENT_BACKOFF_MS = 20
"""The end of the previous transaction takes a few milliseconds at the broker. Java's producer waits for the same time.
"""
_MAX_SEQUENCE = 1 << 31
_REFUSED = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
    }
)

OnDelivery = Callable[[int, int, Exception | None], None]
"""Called with the first record's offset (-1 if unknown), the number of records, and an error or None."""


class DeliveredBatch(NamedTuple):
    """The part of a reply that says that a batch is in the log. Brokers do not reply under acks=0: there it has no
    offset."""

    base_offset: int = -1
    error_code: ErrorCode = ErrorCode.none


if TYPE_CHECKING:
    from kio.schema.produce.v12.response import PartitionProduceResponse

    BatchReply = PartitionProduceResponse | DeliveredBatch


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Encoded records of one partition. ``closed``: no record is added any more.

    ``outcome``: when the records are stored or given up, the first record's offset (-1 if unknown), and an error."""

    partition: TopicPartition
    created_ms: int
    base_timestamp: int
    max_timestamp: int
    body: bytearray = field(default_factory=bytearray)
    count: int = 0
    deliveries: list[tuple[int, int, OnDelivery]] = field(default_factory=list)
    silent: bool = False  # whether any record has no callback
    closed: bool = False
    sequence: int = -1
    epoch: int = -1
    refused: bool = False
    tries: int = 0
    outcome: tuple[int, Exception | None] | None = None
    is_with_caller: bool = False  # whether the thread that waits for it delivers it, and not the loop

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.body)

    def seal(self, codec: int, producer_id: int, attributes: int = 0) -> bytes:
        times, producer = (self.base_timestamp, self.max_timestamp), (producer_id, self.epoch, self.sequence)
        return seal_records(self.body, self.count, times, codec, producer, attributes=attributes)


def pack(delta: int, time_delta: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Encodes one record in the format of a batch."""
    parts = [
        b"\0",
        varint(time_delta),
        varint(delta),
        b"\1" if key is None else varint(len(key)),
        key or b"",
        b"\1" if value is None else varint(len(value)),
        value or b"",
        varint(len(headers)),
    ]
    for name, content in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded, b"\1" if content is None else varint(len(content)), content or b"")
    record = b"".join(parts)
    return varint(len(record)) + record


class PartitionQueue:
    """The batches of one partition."""

    def __init__(
        self, partition: TopicPartition, *, idempotent: bool, epoch: int = 0, in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.not_before_ms = 0
        self.last_error: Exception | None = None
        """Why the oldest records are not delivered yet."""
        self._idempotent = idempotent
        self._most_in_flight = in_flight if idempotent else 1
        self._epoch = epoch
        self.next_sequence = 0
        self._is_known = not idempotent  # whether the broker has a sequence of this producer

    def append(
        self, now_ms: int, limit: int, record: tuple[bytes | None, bytes | None, Headers, int], on: OnDelivery | None
    ) -> int:
        """Adds a record to the newest batch or to a new one; returns the number of added bytes."""
        key, value, headers, timestamp = record
        batch = self.waiting[-1] if self.waiting else None
        if batch is not None and not batch.closed and batch.sequence < 0:
            packed = pack(batch.count, timestamp - batch.base_timestamp, key, value, headers)
            if batch.size + len(packed) <= limit:
                return self._add(batch, packed, timestamp, on)
            batch.closed = True
        packed = pack(0, 0, key, value, headers)
        batch = ProducerBatch(self.partition, now_ms, timestamp, timestamp)
        self.waiting.append(batch)
        return HEADER_BYTES + self._add(batch, packed, timestamp, on)

    def _add(self, batch: ProducerBatch, packed: bytes, timestamp: int, on: OnDelivery | None) -> int:
        if on is None:
            batch.silent = True
        else:
            batch.deliveries.append((batch.count, 1, on))
        batch.body += packed
        batch.count += 1
        batch.max_timestamp = max(batch.max_timestamp, timestamp)
        return len(packed)

    def add_packed(self, batch: ProducerBatch) -> None:
        """Adds a complete batch."""
        if self.waiting:
            self.waiting[-1].closed = True
        batch.closed = True
        self.waiting.append(batch)

    def take(self, now_ms: int, linger_ms: int, *, flushing: bool, limit: int) -> ProducerBatch | None:
        """Returns the next batch to send; None if none is due or the batches in flight need a reply first."""
        if not self.waiting or now_ms < self.not_before_ms or any(one.tries > 1 for one in self.in_flight):
            return None
        batch = self.waiting[0]
        if batch.sequence >= 0 or batch.tries:
            if self.in_flight:
                return None
            if batch.refused:
                self._renumber()
        elif len(self.in_flight) >= (self._most_in_flight if self._is_known else 1) or (
            now_ms < batch.created_ms + linger_ms
            and not (batch.closed or flushing or len(self.waiting) > 1 or batch.size >= limit)
        ):
            return None
        self.waiting.popleft()
        batch.closed = True
        batch.tries += 1
        if self._idempotent and batch.sequence < 0:
            self._number(batch)
        self.in_flight.append(batch)
        return batch

    def take_single(self, batch: ProducerBatch, now_ms: int) -> bool:
        """Takes a batch for its caller's thread, if it is the only one of the partition and was never sent."""
        if self.in_flight or len(self.waiting) != 1 or self.waiting[0] is not batch or batch.tries:
            return False
        if self.take(now_ms, 0, flushing=True, limit=0) is None:
            return False
        batch.is_with_caller = True
        return True

    def _number(self, batch: ProducerBatch) -> None:
        batch.epoch, batch.sequence, batch.refused = self._epoch, self.next_sequence, False
        self.next_sequence = (self.next_sequence + batch.count) % _MAX_SEQUENCE

    def _renumber(self) -> None:
        self._epoch, self.next_sequence = self._epoch + 1, 0
        for batch in self.waiting:
            if batch.sequence >= 0:
                self._number(batch)

    def remove_answered(self, batch: ProducerBatch, *, appended: bool) -> None:
        """Removes a batch that is not sent again. If it was ``appended``, refused batches keep their sequences."""
        if batch in self.in_flight:  # not after a signal during an earlier call
            self.in_flight.remove(batch)
        if appended:
            self._is_known, self.last_error = True, None
            for other in self.waiting:
                other.refused = False

    def put_back(self, batch: ProducerBatch, now_ms: int, backoff_ms: int, code: ErrorCode | None) -> None:
        """Puts a batch back for a retry, before all later batches."""
        self.in_flight.remove(batch)
        batch.refused = code in _REFUSED
        self.not_before_ms = now_ms + backoff_ms
        at = 0
        for other in self.waiting:
            if not other.tries or self._follows(other, batch):
                break
            at += 1
        self.waiting.insert(at, batch)

    @staticmethod
    def _follows(one: ProducerBatch, other: ProducerBatch) -> bool:
        """Returns whether ``one`` follows ``other``; after 2**31 - 1, sequences restart at 0."""
        return (one.sequence - other.sequence) % _MAX_SEQUENCE < _MAX_SEQUENCE // 2

    def has_earlier(self, batch: ProducerBatch) -> bool:
        """Returns whether a batch with an earlier sequence is in flight or waits for a retry."""
        others = [one for one in (*self.in_flight, *self.waiting) if one.sequence >= 0]
        return any(self._follows(batch, one) and one is not batch for one in others)

    def remove_expired(self, now_ms: int, delivery_timeout_ms: int) -> Sequence[ProducerBatch]:
        """Removes and returns the waiting batches that are older than ``delivery_timeout_ms``."""
        old = [batch for batch in self.waiting if now_ms >= batch.created_ms + delivery_timeout_ms]
        for batch in old:
            self.waiting.remove(batch)
        return old


def is_refused(code: object) -> bool:
    """Returns whether the code means that the broker refused a batch for its producer id, epoch or sequence."""
    return code in _REFUSED


def requests_of(batches: list[ProducerBatch]) -> list[list[ProducerBatch]]:
    """Splits batches into requests with at most one batch per partition and 1 MiB, unless one batch is larger."""
    made: list[list[ProducerBatch]] = []
    for batch in batches:
        last = made[-1] if made else []
        size = sum(other.size for other in last)
        if not last or size + batch.size > MAX_REQUEST_BYTES or any(o.partition == batch.partition for o in last):
            made.append([batch])
        else:
            last.append(batch)
    return made
