"""A corrupt batch hides no records before it, and its error names it and where a reader goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from odradek.batches import header as h
from odradek.batches.arrow import RecordSet
from odradek.batches.columns.arrow_rows import PlainRecordSet
from odradek.batches.encode import encode_batch
from odradek.batches.row_sets import RowSet, sound_records
from odradek.client.errors import corrupt_record
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord
from odradek.core.ids import TopicPartition

crc32c = h.crc32c


def batch(first: int, codec: str = "none") -> bytes:
    records = [SimpleRecord(b"k", b"v%d" % at) for at in range(first, first + 10)]
    return encode_batch(records, now_ms=1, base_offset=first, leader_epoch=0, compression=codec)


def with_crc(data: bytearray) -> bytes:
    start = h.ATTRIBUTES_OFFSET
    data[start - 4 : start] = crc32c(bytes(data[start:])).to_bytes(4, "big")
    return bytes(data)


def changed(at: int, to: int) -> bytes:
    data = bytearray(batch(10))
    data[at] = to
    return with_crc(data)


DAMAGES: dict[str, bytes] = {
    "another checksum": batch(10)[:-1] + b"?",
    "an unknown compression": changed(h.ATTRIBUTES_OFFSET + 1, 7),
    "no compressed data": changed(h.ATTRIBUTES_OFFSET + 1, 4),
    "a long varint": with_crc(bytearray(batch(10)[: h.HEADER_BYTES] + b"\xff" * (len(batch(10)) - h.HEADER_BYTES))),
    "a size that contradicts": changed(h.HEADER_BYTES, 0x7E),
    "a key longer than its record": changed(h.HEADER_BYTES + 4, 0x7E),
    "headers without room": changed(len(batch(10)) - 1, 0x7E),
}
KINDS: dict[str, Callable[[Any], Any]] = {"kernels": RecordSet, "plain": PlainRecordSet, "rows": RowSet}


def offsets_of(found: Any) -> list[int]:
    if isinstance(found, pa.RecordBatch):
        offsets: list[int] = found.column("offset").to_pylist()
        return offsets
    return [row.offset for row in found.rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_records_before_a_corrupt_batch_are_returned(kind: str, damage: str) -> None:
    data = batch(0) + DAMAGES[damage] + batch(20)
    decoded = KINDS[kind](data).record_batches("t", 3)
    assert offsets_of(next(decoded)) == list(range(10))
    for _ in range(2):
        with pytest.raises(CorruptRecord) as error:
            next(decoded)
        assert (error.value.offset, error.value.next_offset) == (10, 20)
    shown = corrupt_record(error.value, TopicPartition("t", 3), 12)
    assert str(shown).startswith("CORRUPT_MESSAGE: t-3 offset 12: ")
    assert str(shown).endswith(". Seek to offset 20, behind it, to read on")
    behind = KINDS[kind](data).record_batches("t", 3, start=20)
    assert [offset for one in behind for offset in offsets_of(one)] == list(range(20, 30))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("at", "to"), [(16, 9), (57, 0xFF), (23, 0xFF), (0, 0xFF), (8, 0xFF)])
def test_records_before_a_batch_with_a_wrong_header_are_returned(kind: str, at: int, to: int) -> None:
    """A magic byte, a record count, an offset delta, a base offset and a length that cannot be."""
    data = bytearray(batch(0) + batch(10) + batch(20))
    data[len(batch(0)) + at] = to
    made = sound_records(KINDS[kind], bytes(data))
    assert made.next_offset == 10
    assert offsets_of(next(made.record_batches("t", 3))) == list(range(10))
    with pytest.raises(CorruptRecord) as error:
        sound_records(KINDS[kind], bytes(data[len(batch(0)) :]))
    shown = corrupt_record(error.value, TopicPartition("t", 3), 10)
    assert "t-3 offset 10: " in str(shown)
    assert str(shown).endswith(". Seek to an offset behind it to read on")
