"""The control batch with the marker that ends a transaction, in Kafka's bytes.

It has one record. The key is the version (int16, 0) and the type (int16). The value is the version (int16, 0) and the
coordinator epoch (int32).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from odradek.batches.encode import encode_batch
from odradek.batches.header import BatchHeader, Buffer
from odradek.batches.rows import batch_rows
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord
from odradek.core.ids import EndTransactionMarker

ABORT, COMMIT = 0, 1
NO_COORDINATOR_EPOCH = -1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class ControlRecord(NamedTuple):
    """The record of a control batch. ``kind`` is ABORT, COMMIT or the type of another control record.

    ``coordinator_epoch`` is -1 for another control record, and for a marker whose value is too short."""

    kind: int
    coordinator_epoch: int


def encode_marker(marker: EndTransactionMarker, now_ms: int) -> bytes:
    """Returns the batch with the marker. Its base offset is 0."""
    key = _KEY.pack(0, COMMIT if marker.commit else ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [SimpleRecord(key, value)],
        now_ms=now_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def read_control(buffer: Buffer, pos: int, header: BatchHeader) -> ControlRecord | None:
    """Returns the record of the control batch at ``pos``; None if the cleaner has removed the record.

    A value of a later version is read like version 0, as in Kafka. Raises CorruptRecord.
    """
    for row in batch_rows(buffer, pos, header):
        key, value = row.key or b"", row.value or b""
        if len(key) < _KEY.size:
            raise CorruptRecord(f"the control record at offset {row.offset} has no type")
        kind = _KEY.unpack_from(key)[1]
        if kind not in {ABORT, COMMIT}:
            return ControlRecord(kind, NO_COORDINATOR_EPOCH)
        epoch = _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else NO_COORDINATOR_EPOCH
        return ControlRecord(kind, epoch)
    return None
