"""The broker's check of records before it stores them, compared with a reader that parses each record."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.whole_steps import check_batch

from odradek.batches import record_validation
from odradek.batches.compression import CODES, compress
from odradek.batches.encode import encode_batch
from odradek.batches.header import HEADER_BYTES, read_header
from odradek.batches.record_validation import RecordSummary, records_in_steps, walk
from odradek.batches.rows import batch_rows
from odradek.batches.steps import finish
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.varints import varint

T0 = 1_700_000_000_000
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=70)), max_size=3)


def one(
    key: bytes | None, value: bytes | None, delta: int, offset: int, headers: list[tuple[str, bytes | None]]
) -> bytes:
    """The bytes of a record."""

    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(delta) + varint(offset) + field(key) + field(value) + varint(len(headers))
    body += b"".join(field(name.encode()) + field(text) for name, text in headers)
    return varint(len(body)) + body


def batch_of(records: list[bytes], codec: str = "none", count: int | None = None) -> bytes:
    """A batch whose header may have a wrong count. The CRC is not checked here."""
    data = bytearray(encode_batch([SimpleRecord(b"", b"")], now_ms=T0))[:HEADER_BYTES]
    payload = compress(CODES[codec], b"".join(records))
    data[8:12] = (HEADER_BYTES - 12 + len(payload)).to_bytes(4, "big")
    data[22] = CODES[codec]
    data[57:61] = (len(records) if count is None else count).to_bytes(4, "big", signed=True)
    return bytes(data) + payload


def checked(data: bytes) -> RecordSummary:
    """The result of the broker's check. KafkaError if it refuses the batch. A check in small steps must agree."""
    header = read_header(data)
    at_once = verdict(lambda: check_batch(data, header))
    assert verdict(lambda: in_small_steps(data)) == at_once
    if isinstance(at_once, RecordSummary):
        return at_once
    raise KafkaError(at_once)


def verdict(check: Callable[[], RecordSummary]) -> RecordSummary | ErrorCode:
    try:
        return check()
    except KafkaError as error:
        return error.code


def in_small_steps(data: bytes) -> RecordSummary:
    header = read_header(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_validation, "_FEW_HEADERS", 1)
        patch.setattr(record_validation, "walk", lambda data, at, left: walk(data, at, left, 3))
        try:
            records = finish(records_in_steps(data, header, 1 << 24))
        except CorruptRecord as error:
            raise KafkaError(ErrorCode.unknown_server_error) from error
        return finish(record_validation.check_rest(records, header.record_count, None))


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]:
    """Series of records of one shape, with timestamp deltas of one, two or more bytes."""
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        key = draw(st.none() | st.binary(max_size=3) | st.just(b"k" * 80))
        size = draw(st.sampled_from([0, 1, 60, 63, 64, 65, 130, 9000]))
        value = None if draw(st.booleans()) and draw(st.booleans()) else b"v" * size
        headers = draw(st.just([]) | HEADERS)
        step = draw(st.sampled_from([0, 0, 1, -1, 40, 9000, -9000, 3_000_000]))
        start = draw(st.sampled_from([0, 50, 63, 8000, -64, 2_000_000_000, -(1 << 40)]))
        rows += [(key, value, start + step * n, headers) for n in range(draw(st.sampled_from([1, 2, 17, 40, 100])))]
    return rows


@settings(max_examples=examples(40), deadline=None)
@given(runs(), st.sampled_from(list(CODES)))
def test_the_check_finds_the_same_as_a_reader(rows: list[tuple[object, ...]], codec: str) -> None:
    records = [one(key, value, delta, n, headers) for n, (key, value, delta, headers) in enumerate(rows)]
    data = batch_of(records, codec)
    header = read_header(data)
    read = list(batch_rows(data, 0, header))
    deltas = [row.timestamp - header.base_timestamp for row in read]
    assert len(read) == len(rows)
    assert checked(data) == (min(deltas), max(deltas), any(row.key is None for row in read))


@settings(max_examples=examples(50), deadline=None)
@given(runs(), st.randoms(use_true_random=False), st.data())
def test_records_that_no_reader_can_read_are_refused(
    rows: list[tuple[object, ...]], chance: random.Random, data: st.DataObject
) -> None:
    """Damage at any position. As in Kafka, offset deltas and header texts are not checked."""
    records = [one(key, value, delta, n, headers) for n, (key, value, delta, headers) in enumerate(rows)]
    damaged = bytearray(batch_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[chance.randrange(HEADER_BYTES, len(damaged))] = chance.choice(
            [0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)]
        )
    whole = bytes(damaged)
    try:
        read = list(batch_rows(whole, 0, read_header(whole)))
    except CorruptRecord as error:
        if "offset delta" in str(error) or "UTF-8" in str(error):
            return
        with pytest.raises(KafkaError) as refused:
            checked(whole)
        assert refused.value.code in (ErrorCode.invalid_record, ErrorCode.unknown_server_error)
    else:
        deltas = [row.timestamp - read_header(whole).base_timestamp for row in read]
        assert checked(whole) == (min(deltas), max(deltas), any(row.key is None for row in read))


@pytest.mark.parametrize("codec", CODES)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_more_or_fewer_records_than_the_header_says_are_refused(codec: str, count: int) -> None:
    records = [one(b"k", b"value", 0, n, []) for n in range(count)]
    assert checked(batch_of(records, codec)) == (0, 0, False)
    for record_count in (count - 1, count + 1):
        with pytest.raises(KafkaError) as refused:
            checked(batch_of(records, codec, record_count))
        assert refused.value.code is ErrorCode.invalid_record
    with pytest.raises(KafkaError):
        checked(batch_of([*records, b"\0\0"], codec, count))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_that_cannot_be_unpacked_is_refused(codec: str) -> None:
    data = bytearray(batch_of([one(b"k", b"value" * 30, 0, n, []) for n in range(9)], codec))
    data[HEADER_BYTES + 4 : HEADER_BYTES + 20] = b"\xa5" * 16
    with pytest.raises(KafkaError) as refused:
        checked(bytes(data))
    assert refused.value.code is ErrorCode.unknown_server_error
