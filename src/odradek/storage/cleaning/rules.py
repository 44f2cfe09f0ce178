"""Kafka's rules of compaction for both engines of the cleaner.

The cleaner copies a batch without changes, rewrites it with fewer records, rewrites it as a header without records, or
removes it:

* The mapped section is the part of the log up to the last record whose key is in the offset map. A record of this
  section is removed if a later record of the section has the same key, or if it has no key.
* A tombstone stays until its delete horizon. The first cleaning that reads it sets the horizon to now plus
  ``delete.retention.ms`` and stores it by KIP-534: attribute bit 6, and the horizon as the base timestamp.
* Data of an aborted transaction is removed. A cleaning that reads a batch of a transaction keeps the transaction's
  marker. The first cleaning that reads the marker alone sets the marker's delete horizon (behaviour 39).
* The last batch of every active producer stays, if necessary without records, because it has the producer's sequence.
  The last batch of the cleaned section stays too, so that the log keeps its end.
* Base offset, last offset, leader epoch and producer do not change, and no record's timestamp changes. A batch with
  records keeps its codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from odradek.batches.compression import compress
from odradek.batches.control import ABORT, COMMIT, ControlRecord, read_control
from odradek.batches.header import (
    CHECKED,
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    crc_is_valid,
    seal,
)
from odradek.core.errors import CorruptRecord
from odradek.core.ids import NO_TIMESTAMP

_KEPT_BITS = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class AbortedTransactionSpan(NamedTuple):
    """An aborted transaction. ``first_offset`` is the base offset of its first batch, ``last_offset`` the offset of its
    marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class BatchAction(NamedTuple):
    """The decision about a batch before its records are read."""

    discards: bool
    """All its records are removed."""
    keeps_empty: bool
    """It stays as a header without records if no record remains."""
    starts_horizon: bool
    """It is a marker without a batch of its transaction before it. Its delete horizon starts, unless it has one."""


class ProducerStateEntry(NamedTuple):
    """An active producer. ``last_offset`` is the last offset of its last data batch; -1: it has only a marker."""

    producer_id: int
    epoch: int
    last_offset: int


class Transactions:
    """Follows the transactions of a log while the caller passes its batches in order.

    ``aborted``: the aborted transactions of the log.
    """

    def __init__(self, aborted: Iterable[AbortedTransactionSpan]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: dict[int, tuple[AbortedTransactionSpan, bool]] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransactionSpan] = []
        """Aborted transactions of which batches were read. The caller clears this list after each new segment."""

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            self._aborted.setdefault(transaction.producer_id, (transaction, False))

    def on_data(self, header: BatchHeader) -> bool:
        """Returns whether the batch belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        known = self._aborted.get(header.producer_id)
        if known is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (known[0], True)
        return True

    def on_control(self, buffer: Buffer, pos: int, header: BatchHeader) -> bool:
        """Returns whether the marker may be removed: no batch of its transaction was before it, or it is unreadable."""
        self._advance(header.last_offset)
        control = read_control(buffer, pos, header)
        if control is None:
            return True
        if control.kind == ABORT:
            transaction, seen = self._aborted.pop(header.producer_id, (None, False))
            if seen and transaction is not None:
                self.kept.append(transaction)
            return not seen
        if control.kind == COMMIT:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        return False


class AbortedSearch:
    """Finds the aborted transactions of a log: a producer's batches up to its next marker are one transaction."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self.spans: list[AbortedTransactionSpan] = []

    @property
    def is_open(self) -> bool:
        """Whether a transaction has no marker yet."""
        return bool(self._open)

    def on_batch(self, header: BatchHeader, control: ControlRecord | None) -> None:
        """Adds a batch, in log order. ``control`` is the record of a control batch."""
        if not header.is_control:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
            return
        first = self._open.pop(header.producer_id, None)
        if control is not None and control.kind == ABORT and first is not None:
            self.spans.append(AbortedTransactionSpan(header.producer_id, first, header.last_offset))


class CleaningRules:
    """The rules for one cleaning. ``end_offset`` is the end of the section that may be cleaned."""

    def __init__(
        self,
        *,
        now_ms: int,
        delete_retention_ms: int,
        end_offset: int,
        producers: Iterable[ProducerStateEntry],
        aborted: Iterable[AbortedTransactionSpan],
    ) -> None:
        self.now_ms = now_ms
        self.horizon_ms = now_ms + delete_retention_ms
        """The delete horizon that this cleaning sets."""
        self.end_offset = end_offset
        self.transactions = Transactions(aborted)
        self.producers: Mapping[int, ProducerStateEntry] = {producer.producer_id: producer for producer in producers}

    def keeps_empty(self, header: BatchHeader) -> bool:
        if header.last_offset + 1 == self.end_offset:
            return True
        if header.producer_id < 0:
            return False
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return header.last_offset == producer.last_offset
        return header.is_control and header.producer_epoch == producer.epoch

    def action(self, buffer: Buffer, pos: int, header: BatchHeader) -> BatchAction:
        """Returns the decision about a batch. It is called for each batch in log order."""
        empty = self.keeps_empty(header)
        if not header.is_control:
            return BatchAction(self.transactions.on_data(header), empty, False)
        due = self.transactions.on_control(buffer, pos, header)
        return BatchAction(due and self.is_past_horizon(header), empty, due)

    def is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self.now_ms


def check_crc(buffer: Buffer, pos: int, header: BatchHeader) -> None:
    """Raises CorruptRecord for a wrong CRC: corrupt bytes must not get a new, valid CRC."""
    if not crc_is_valid(buffer, pos, header):
        raise CorruptRecord(f"the CRC of the batch at offset {header.base_offset} does not match its bytes")


def rewritten(
    header: BatchHeader,
    records: Buffer,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    has_horizon: bool,
) -> bytes:
    """Returns the batch with other records, compressed by its codec. ``records`` are encoded for ``base_timestamp``."""
    codec = header.attributes & COMPRESSION_MASK
    attributes = header.attributes & _KEPT_BITS | codec | (DELETE_HORIZON_BIT if has_horizon else 0)
    return _assemble(header, attributes, compress(codec, records), count, (base_timestamp, max_timestamp))


def emptied(header: BatchHeader) -> bytes:
    """Returns the batch without records."""
    return _assemble(header, header.attributes & _KEPT_BITS, b"", 0, (NO_TIMESTAMP, header.max_timestamp))


def _assemble(header: BatchHeader, attributes: int, payload: bytes, count: int, times: tuple[int, int]) -> bytes:
    checked = CHECKED.pack(
        attributes,
        header.last_offset_delta,
        *times,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    return seal(checked, payload, header.base_offset, header.leader_epoch)
