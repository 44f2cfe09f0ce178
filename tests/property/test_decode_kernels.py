"""The numba kernels, and the plain decoders of rows and of columns, compared with the pure Python reader, for generated
and for damaged batches."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import mul
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.logs import set_base_offset

from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS, MAX_MS
from odradek.batches.columns.arrow_rows import PlainRecordBatches
from odradek.batches.encode import encode_batch
from odradek.batches.header import HEADER_BYTES, LOG_APPEND_TIME, TIMESTAMP_TYPE_BIT, read_header, scan
from odradek.batches.row_sets import RowBatch, RowSet
from odradek.batches.rows import Row, batch_rows, iter_records
from odradek.core.errors import CorruptRecord, KafkaError


class PlainRecordSet(RowSet):
    """``arrow_rows.PlainRecordSet`` in a process that never gets kernels."""

    def record_batches(self, *args: Any, **options: Any) -> Any:
        return PlainRecordBatches(super().record_batches(*args, **options))


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Item:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


content = st.none() | st.binary(max_size=40) | st.binary(min_size=150, max_size=300)
items = st.builds(
    Item,
    content,
    content,
    st.none() | st.integers(0, 1 << 41),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
)
batches = st.tuples(
    st.builds(mul, st.lists(items, min_size=1, max_size=9), st.sampled_from([1, 1, 1, 8])),
    st.sampled_from(CODECS),
    st.integers(0, 5),  # offsets missing before the batch
    st.booleans(),  # LogAppendTime
    st.booleans(),  # control
)


def build(spec: list[Any]) -> bytes:
    out = []
    offset = 0
    for records, codec, gap, append_time, control in spec:
        offset += gap
        batch = bytearray(encode_batch(records, now_ms=77, compression=codec, control=control))
        set_base_offset(batch, 0, offset, 5, 123_456_789 if append_time else None)
        out.append(bytes(batch))
        offset += len(records)
    return b"".join(out)


def as_tuples(data: bytes, kind: Any = RecordSet, **options: Any) -> list[tuple[Any, ...]]:
    """The result of the kernels, in the form of ``expected``."""
    found = []
    for batch in kind(data).record_batches("t", 3, columns=COLUMNS, **options):
        if isinstance(batch, RowBatch):  # times that no column holds
            assert not any(abs(row.timestamp) <= MAX_MS for row in batch.rows)
            found += row_tuples(batch)
            continue
        batch.validate(full=True)
        columns = {name: batch.column(name).to_pylist() for name in ("key", "value", "offset", "timestampType")}
        times = batch.column("timestamp").cast("int64").to_pylist()
        headers = [
            None if pairs is None else tuple((pair["key"], pair["value"]) for pair in pairs)
            for pairs in batch.column("headers").to_pylist()
        ]
        assert set(batch.column("topic").to_pylist()) == {"t"}
        assert set(batch.column("partition").to_pylist()) == {3}
        names = (columns["offset"], columns["key"], columns["value"], times, headers, columns["timestampType"])
        found += list(zip(*names, strict=True))
    return found


def as_plain_tuples(data: bytes, **options: Any) -> list[tuple[Any, ...]]:
    """The result of ``PlainRecordSet``, in the form of ``expected``."""
    return as_tuples(data, PlainRecordSet, **options)


def as_row_tuples(data: bytes, **options: Any) -> list[tuple[Any, ...]]:
    """The result of ``RowSet``, in the form of ``expected``."""
    found = RowSet(data).record_batches("t", 3, columns=COLUMNS, **options)
    return [one for batch in found for one in row_tuples(batch)]


def row_tuples(batch: RowBatch) -> list[tuple[Any, ...]]:
    return [
        (row.offset, row.key, row.value, row.timestamp * 1000, row.headers or None, batch.timestamp_type)
        for row in batch.rows
    ]


def expected(rows: list[Row], start: int, end: int, types: dict[int, int]) -> list[tuple[Any, ...]]:
    return [
        (row.offset, row.key, row.value, row.timestamp * 1000, row.headers or None, types[row.offset])
        for row in rows
        if start <= row.offset < end and not row.is_control
    ]


@given(st.lists(batches, min_size=1, max_size=4), st.integers(0, 40), st.integers(0, 300), st.binary(max_size=80))
@settings(max_examples=examples(30))
def test_columns_equal_rows(spec: list[Any], start: int, length: int, cut_off: bytes) -> None:
    data = build(spec)
    rows = list(iter_records(data))
    types = {}
    at = 0
    for position in range(len(spec)):
        header = read_header(data, at)
        kind = LOG_APPEND_TIME if header.attributes & TIMESTAMP_TYPE_BIT else 0
        types.update(dict.fromkeys(range(header.base_offset, header.last_offset + 1), kind))
        at += header.size_in_bytes
        assert (kind == LOG_APPEND_TIME) == spec[position][3]
    # An incomplete batch at the end of a fetch is ignored: its header claims more bytes than there are.
    tail = (data[: HEADER_BYTES - 1] + cut_off)[: HEADER_BYTES - 1]
    assert as_tuples(data + tail, start=start, end=start + length) == expected(rows, start, start + length, types)
    for read in (as_row_tuples, as_plain_tuples):
        assert read(data + tail, start=start, end=start + length) == expected(rows, start, start + length, types)
    columns = RecordSet(data)
    for plain in (RowSet(data), PlainRecordSet(data)):
        assert columns.next_offset == plain.next_offset == rows[-1].offset + 1
        assert (columns.leader_epoch, columns.is_compressed) == (plain.leader_epoch, plain.is_compressed)


@given(st.lists(batches, min_size=1, max_size=3), st.integers(0, 200))
@settings(max_examples=examples(15))
def test_data_cut_at_any_position_gives_the_complete_batches(spec: list[Any], cut: int) -> None:
    data = build(spec)
    kept = data[: max(0, len(data) - cut)]
    assert [row[0] for row in as_tuples(kept)] == [row.offset for row in iter_records(kept) if not row.is_control]


def with_valid_crcs(data: bytes) -> bytes:
    """Corrects the CRCs, so that damage after the CRC reaches the parser."""
    out = bytearray(data)
    at = 0
    while len(out) - at >= HEADER_BYTES:
        (length,) = struct.unpack_from(">i", out, at + 8)
        end = at + 12 + length
        if length < HEADER_BYTES - 12 or end > len(out):
            break
        struct.pack_into(">I", out, at + 17, crc32c(bytes(out[at + 21 : end])))
        at = end
    return bytes(out)


WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)

damage = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)


@given(st.lists(batches, min_size=1, max_size=3), damage, st.booleans())
@settings(max_examples=examples(50), phases=WITHOUT_SHRINKING)
def test_damaged_bytes_raise_corrupt_record_or_are_read(
    spec: list[Any], changes: list[tuple[int, int]], repair: bool
) -> None:
    """Malformed bytes raise CorruptRecord or are read as by the pure Python reader; there is never a crash or a read
    beyond the end."""
    data = bytearray(build(spec))
    for position, byte in changes:
        data[position % len(data)] = byte
    damaged = with_valid_crcs(bytes(data)) if repair else bytes(data)
    try:
        found = as_tuples(damaged)
    except KafkaError as error:
        for read in (as_row_tuples, as_plain_tuples):
            with pytest.raises(type(error)):
                read(damaged)
        return
    assert as_row_tuples(damaged) == as_plain_tuples(damaged) == found
    read = [row for at, head in scan(damaged) if not head.is_control for row in batch_rows(damaged, at, head)]
    assert [row[:3] for row in found] == [(row.offset, row.key, row.value) for row in read]


@given(st.binary(max_size=400))
@settings(max_examples=examples(50))
def test_random_bytes_raise_corrupt_record(noise: bytes) -> None:
    body = struct.pack(">hiqqqhii", 0, 3, 0, 0, -1, -1, -1, 4) + noise
    batch = struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body
    for read in (as_tuples, as_plain_tuples, as_row_tuples):
        with pytest.raises(CorruptRecord):
            read(batch)


def hostile_records() -> dict[str, bytes]:
    """For each error, the bytes after the header of a batch. The header says that the batch has one record."""
    largest = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1 as a zigzag varint
    good = b"\x10\x00\x00\x00\x02k\x02v\x00"
    return {
        "record longer than the batch": largest + good[1:],
        "negative record length": b"\x01" + good[1:],
        "record length cut off": b"\xff",
        "record length of six bytes": b"\xff\xff\xff\xff\xff\x01",
        "key longer than the record": b"\x10\x00\x00\x00" + largest + b"v\x00",
        "key length -2": b"\x10\x00\x00\x00\x03k\x02v\x00",
        "value longer than the record": b"\x10\x00\x00\x00\x02k" + b"\x40v\x00",
        "header count beyond the record": b"\x10\x00\x00\x00\x02k\x02v\x40",
        "negative header count": b"\x10\x00\x00\x00\x02k\x02v\x01",
        "header without a key": b"\x14\x00\x00\x00\x02k\x02v\x02\x01\x01",
        "offset beyond the batch": b"\x10\x00\x00\x02\x02k\x02v\x00",
        "negative offset": b"\x10\x00\x00\x01\x02k\x02v\x00",
        "timestamp of eleven bytes": b"\x22\x00" + b"\xff" * 10 + b"\x01\x00\x02k\x02v\x00",
        "bytes after the last record": good + b"\x00",
        "record ends early": b"\x14\x00\x00\x00\x02k\x02v\x00\x00\x00",
        "no record at all": b"",
    }


@pytest.mark.parametrize("name", hostile_records())
def test_a_malformed_record_is_a_corrupt_record(name: str) -> None:
    records = hostile_records()[name]
    body = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + records
    batch = struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body
    for read in (as_tuples, as_plain_tuples, as_row_tuples):
        with pytest.raises(CorruptRecord):
            read(batch)


def test_a_headers_name_that_is_not_utf8_is_delivered_as_kafkas_client_does() -> None:
    body = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + b"\x16\x00\x00\x00\x02k\x02v\x02\x02\xff\x01"
    batch = struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body
    assert [row.headers for row in iter_records(batch)] == [(("\ufffd", None),)]
    for kind in (RecordSet, PlainRecordSet, RowSet):
        (found,) = kind(batch).record_batches("t", 3, columns=("key", "value"))
        assert found.num_rows == 1
        (found,) = kind(batch).record_batches("t", 3, columns=("key", "headers"))
        headers = found.rows[0].headers if kind is RowSet else found.column("headers").to_pylist()[0]
        assert headers in ((("\ufffd", None),), [{"key": "\ufffd", "value": None}])


def stamped(records: list[Item], codec: str, offset: int, append_time_ms: int | None) -> bytes:
    batch = bytearray(encode_batch(records, now_ms=77, compression=codec))
    set_base_offset(batch, 0, offset, 5, append_time_ms)
    return bytes(batch)


def test_plain_columns_equal_those_of_kernels_for_any_requested_columns() -> None:
    records = [Item(b"k", None, 5), Item(None, b"v", 7, (("h", None), ("i", b"1"))), Item(b"", b"", 9)] * 700
    data = b"".join(
        stamped(records, codec, at, time_ms)
        for at, codec, time_ms in ((0, "none", None), (3_000, "zstd", 99), (9_000, "none", 99))
    )
    for columns in (COLUMNS, *((name,) for name in COLUMNS), ("headers", "timestampType", "offset")):
        tables = [
            pa.Table.from_batches(kind(data).record_batches("t", 3, columns=columns))
            for kind in (RecordSet, PlainRecordSet)
        ]
        tables[1].validate(full=True)
        assert tables[0].equals(tables[1])
        assert tables[0].schema.equals(tables[1].schema)


@pytest.mark.slow
@given(st.lists(batches, min_size=1, max_size=3), damage, st.booleans())
@settings(max_examples=3_000, phases=WITHOUT_SHRINKING)
def test_many_damaged_bytes_raise_corrupt_record_or_are_read(
    spec: list[Any], changes: list[tuple[int, int]], repair: bool
) -> None:
    test_damaged_bytes_raise_corrupt_record_or_are_read.hypothesis.inner_test(spec, changes, repair)
