"""The checks of a producer's batch before the log stores it, and the header fields that the log sets."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from support.logs import set_base_offset

from odradek.batches.encode import encode_batch, recompress
from odradek.batches.header import (
    ATTRIBUTES_OFFSET,
    CREATE_TIME,
    LOG_APPEND_TIME,
    crc_is_valid,
    read_header,
    scan,
    validate,
)
from odradek.batches.rows import iter_records
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError

NOW = 1_700_000_000_000


def batch(count: int = 3, **options: object) -> bytes:
    records = [SimpleRecord(b"k%d" % number, b"v" * number, NOW + number) for number in range(count)]
    return encode_batch(records, now_ms=NOW, **options)


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    """The batch with one header field changed and a correct CRC."""
    changed = bytearray(data)
    struct.pack_into(">" + layout, changed, offset, value)
    if offset >= ATTRIBUTES_OFFSET:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[ATTRIBUTES_OFFSET:])))
    return bytes(changed)


def code_of(data: bytes, **options: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate(data, **options)
    return caught.value.code


def test_the_header_has_the_values_that_were_encoded() -> None:
    data = batch(
        3, base_offset=40, leader_epoch=7, producer_id=9, producer_epoch=2, base_sequence=11, compression="zstd"
    )
    ((pos, header),) = scan(data)
    assert pos == 0
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (40, 42, 7)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 2, 11, 13)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (NOW, NOW + 2, 3)
    assert (header.compression, header.timestamp_type, header.is_transactional, header.is_control) == (
        4,
        0,
        False,
        False,
    )
    assert header.size_in_bytes == len(data)
    assert crc_is_valid(data, 0, header)


def test_the_sequence_wraps_at_2_31() -> None:
    header = read_header(batch(3, producer_id=1, producer_epoch=0, base_sequence=0x7FFFFFFE))
    assert header.last_sequence == 0


def test_a_scan_omits_a_last_batch_that_is_cut_off() -> None:
    data = batch() + batch()[:-1]
    assert [pos for pos, _ in scan(data)] == [0]
    assert [pos for pos, _ in scan(batch() + batch()[:30])] == [0]


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_scan_refuses_a_length_below_the_header(length: int) -> None:
    with pytest.raises(CorruptRecord):
        list(scan(patched(batch(), 8, "i", length)))


def test_each_changed_byte_after_the_crc_is_detected() -> None:
    data = batch()
    for pos in range(17, len(data)):
        changed = bytearray(data)
        changed[pos] ^= 0x10
        assert code_of(bytes(changed)) is ErrorCode.corrupt_message


@pytest.mark.behaviour(56, part="c")
def test_a_batch_larger_than_max_message_bytes_is_refused() -> None:
    data = batch()
    assert code_of(data, max_message_bytes=len(data) - 1) is ErrorCode.message_too_large
    assert len(validate(data, max_message_bytes=len(data))) == 1


@pytest.mark.parametrize(
    ("offset", "layout", "value", "code"),
    [
        (0, "q", 5, ErrorCode.invalid_record),  # a client's base offset is 0
        (8, "i", 12, ErrorCode.corrupt_message),
        (8, "i", 100_000, ErrorCode.corrupt_message),
        (16, "b", 0, ErrorCode.unsupported_for_message_format),
        (16, "b", 1, ErrorCode.unsupported_for_message_format),
        (16, "b", 3, ErrorCode.corrupt_message),
        (21, "h", 5, ErrorCode.invalid_record),  # no such codec
        (21, "h", 0x20, ErrorCode.invalid_record),  # control batch
        (23, "i", 1, ErrorCode.invalid_record),  # 3 records over 2 offsets
        (23, "i", -1, ErrorCode.invalid_record),
        (57, "i", 0, ErrorCode.invalid_record),
        (57, "i", -1, ErrorCode.invalid_record),
        (57, "i", 1 << 30, ErrorCode.invalid_record),
        (43, "q", 8, ErrorCode.invalid_record),  # producer id without a sequence
    ],
)
def test_bad_fields_are_refused(offset: int, layout: str, value: int, code: ErrorCode) -> None:
    assert code_of(patched(batch(), offset, layout, value)) is code


def test_an_empty_request_is_not_a_batch() -> None:
    assert code_of(b"") is ErrorCode.invalid_record


@pytest.mark.parametrize("size", [1, 16, 17, 60, 61])
def test_part_of_a_batch_is_corrupt(size: int) -> None:
    assert code_of(batch()[:size]) is ErrorCode.corrupt_message


def test_clients_may_send_one_batch_and_coordinators_several() -> None:
    two = batch() + batch(base_offset=3)
    assert code_of(two) is ErrorCode.invalid_record
    assert [pos for pos, _ in validate(two, client=False)] == [0, len(batch())]


def test_a_new_base_offset_and_epoch_do_not_change_the_crc() -> None:
    data = bytearray(batch())
    before = read_header(data)
    set_base_offset(data, 0, base_offset=1 << 40, leader_epoch=3)
    after = read_header(data)
    assert (after.base_offset, after.leader_epoch) == (1 << 40, 3)
    assert after.crc == before.crc
    assert crc_is_valid(data, 0, after)
    assert [row.offset for row in iter_records(data)] == [(1 << 40) + number for number in range(3)]


def test_the_log_append_time_is_the_time_of_all_records() -> None:
    data = bytearray(batch(compression="lz4"))
    set_base_offset(data, 0, base_offset=7, leader_epoch=1, log_append_time_ms=NOW + 5000)
    header = read_header(data)
    assert header.timestamp_type == LOG_APPEND_TIME
    assert header.max_timestamp == NOW + 5000
    assert crc_is_valid(data, 0, header)
    assert {row.timestamp for row in iter_records(data)} == {NOW + 5000}


def test_the_log_clears_a_timestamp_type_that_the_producer_set() -> None:
    data = bytearray(patched(batch(), 21, "h", 0x08))
    set_base_offset(data, 0, base_offset=0, leader_epoch=0)
    header = read_header(data)
    assert header.timestamp_type == CREATE_TIME
    assert crc_is_valid(data, 0, header)


@pytest.mark.parametrize("codec", range(5))
def test_recompression_changes_only_the_codec(codec: int) -> None:
    data = batch(50, compression="gzip", producer_id=4, producer_epoch=1, base_sequence=6)
    again = recompress(data, read_header(data), codec)
    ((_, header),) = validate(again)
    assert header.compression == codec
    assert list(iter_records(again)) == list(iter_records(data))
