"""Record batches to Arrow columns: one test for each rule. No sockets."""

from __future__ import annotations

import json
import os
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from support.logs import set_base_offset

from odradek.batches.aborted_transactions import AbortedTransaction, rolled_back
from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.columns.arrow_rows import PlainRecordSet
from odradek.batches.encode import encode_batch
from odradek.batches.header import BASE_TIME_OFFSET
from odradek.batches.kernels import compile_lock
from odradek.batches.row_sets import RowBatch, RowSet, TimeOutOfRange
from odradek.cli.records.record_lines import JSON_COLUMNS, json_lines
from odradek.client.consumer.records import Polled
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.ids import TopicPartition


@dataclass(frozen=True)
class Item:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = 1_700_000_000_123
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(*values: bytes | None, base_offset: int = 0, **options: object) -> bytes:
    items = [Item(b"k", value) for value in values]
    return encode_batch(items, now_ms=1, base_offset=base_offset, **options)


def offsets(data: bytes, **options: object) -> list[int]:
    found = RecordSet(data).record_batches("t", 0, columns=("offset",), **options)
    return [offset for one in found for offset in one.column("offset").to_pylist()]


def test_columns_are_those_of_sparks_kafka_source() -> None:
    (found,) = RecordSet(batch(b"v", None)).record_batches("flights", 2)
    assert found.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    first, second = found.to_pylist()
    assert (first["topic"], first["partition"], first["offset"], first["value"]) == ("flights", 2, 0, b"v")
    assert first["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert second["value"] is None


def test_only_the_requested_columns_are_decoded() -> None:
    (found,) = RecordSet(batch(b"a", b"b")).record_batches("t", 0, columns=("offset", "value"))
    assert found.schema.names == ["offset", "value"]
    assert found.column("value").to_pylist() == [b"a", b"b"]


def test_the_error_names_the_unknown_column() -> None:
    with pytest.raises(ValueError, match="unknown column 'Key': one of key, value"):
        list(RecordSet(batch(b"a")).record_batches("t", 0, columns=("Key",)))


def test_headers_are_null_for_records_without_headers() -> None:
    items = [Item(b"k", b"v"), Item(b"k", b"v", headers=(("a", b"1"), ("a", None), ("", b"")))]
    (found,) = RecordSet(encode_batch(items, now_ms=1)).record_batches("t", 0, columns=COLUMNS)
    assert found.column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
    ]


@pytest.mark.claim(5, part=True)
@pytest.mark.behaviour(51, part=True)
def test_a_fetch_within_a_batch_starts_at_its_offset() -> None:
    data = batch(*[b"v"] * 10, base_offset=0)
    assert offsets(data, start=5) == [5, 6, 7, 8, 9]
    assert offsets(data, start=5, end=7) == [5, 6]


def test_batches_outside_the_range_are_not_checked() -> None:
    wrong = bytearray(batch(b"x", base_offset=1))
    wrong[-2] ^= 0xFF  # damages the value
    data = batch(b"a", base_offset=0) + bytes(wrong) + batch(b"b", base_offset=2)
    assert offsets(data, end=1) == [0]
    with pytest.raises(CorruptRecord, match="batch at offset 1: its CRC"):
        offsets(data)
    assert offsets(data, check_crcs=False) == [0, 1, 2]


def test_log_append_time_is_the_time_of_every_record() -> None:
    data = bytearray(batch(b"a", b"b"))
    set_base_offset(data, 0, 0, 0, 1_600_000_000_000)
    (found,) = RecordSet(bytes(data)).record_batches("t", 0)
    assert found.column("timestampType").to_pylist() == [1, 1]
    assert found.column("timestamp").cast("int64").to_pylist() == [1_600_000_000_000_000] * 2


LONGEST_MS = (1 << 63) // 1000


@pytest.mark.parametrize("kind", [RecordSet, PlainRecordSet])
@pytest.mark.parametrize("ms", [LONGEST_MS + 1, -LONGEST_MS - 1, 1_790_000_000_000_000_000, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_no_column_holds_stays_exact(kind: Any, ms: int) -> None:
    """Before, 1.79e18 was read as 9223372036854774."""
    longest = LONGEST_MS if ms > 0 else -LONGEST_MS
    data = encode_batch([Item(b"a", None, longest), Item(b"b", None, ms), Item(b"c", None, 7)], now_ms=1)
    first, rare, last = kind(data).record_batches("t", 3)
    assert not [one for one in (first, last) if isinstance(one, RowBatch)]
    assert first.column("timestamp").cast("int64").to_pylist() == [longest * 1000]
    assert [(row.offset, row.timestamp, row.key) for row in rare.rows] == [(1, ms, b"b")]
    assert last.column("key").to_pylist() == [b"c"]
    polled = Polled()
    polled[TopicPartition("t", 3)] = list(kind(data).record_batches("t", 3))
    assert [record.timestamp_ms for record in polled.records()] == [longest, ms, 7]
    with pytest.raises(TimeOutOfRange, match=f"^t-3 offset 1: a column of times does not hold the timestamp {ms} ms: "):
        polled.table()
    lines = b"".join(json_lines(one) for one in kind(data).record_batches("t", 3, columns=JSON_COLUMNS)).splitlines()
    assert [json.loads(line)["timestamp"] for line in lines[:2]] == [longest, ms]
    (whole,) = kind(data).record_batches("t", 3, columns=("key", "value"))
    assert whole.num_rows == 3
    batches = kind(data).record_batches("t", 3)
    assert [batches.is_over, next(batches) is None, batches.is_over] == [False] * 3


def test_the_sum_of_times_wraps_around_as_in_java() -> None:
    data = bytearray(encode_batch([Item(b"a", None, 1), Item(b"b", None, 3)], now_ms=1))
    struct.pack_into(">q", data, BASE_TIME_OFFSET, (1 << 63) - 1)
    for kind in (RecordSet, PlainRecordSet, RowSet):
        found = kind(bytes(data)).record_batches("t", 3, check_crcs=False)
        assert [row.timestamp for one in found for row in one.rows] == [(1 << 63) - 1, 1 - (1 << 63)]


def test_control_batches_are_skipped() -> None:
    data = batch(b"a", base_offset=0) + batch(b"c", base_offset=1, control=True) + batch(b"b", base_offset=2)
    assert offsets(data) == [0, 2]
    only_control = RecordSet(batch(b"c", base_offset=7, control=True))
    assert list(only_control.record_batches("t", 0)) == []
    assert only_control.next_offset == 8


@pytest.mark.behaviour(54, part="a")
def test_aborted_transactions_are_left_out() -> None:
    data = b"".join(
        [
            batch(b"p1", b"p1", base_offset=0, producer_id=1, transactional=True),
            batch(b"p2", base_offset=2, producer_id=2, transactional=True),
            batch(b"plain", base_offset=3),
            batch(b"abort 1", base_offset=4, producer_id=1, transactional=True, control=True),
            batch(b"p1 again", base_offset=5, producer_id=1, transactional=True),
            batch(b"commit 1", base_offset=6, producer_id=1, transactional=True, control=True),
            batch(b"abort 2", base_offset=7, producer_id=2, transactional=True, control=True),
        ]
    )
    aborted = [AbortedTransaction(2, 2), AbortedTransaction(1, 0)]
    assert offsets(data) == [0, 1, 2, 3, 5]
    assert offsets(data, aborted=aborted) == [3, 5]


def test_the_rest_of_a_transaction_aborted_before_the_fetch_is_left_out() -> None:
    marks = [(9, 0x10, 1), (10, 0x30, 1), (11, 0x10, 1)]
    assert rolled_back(marks, [AbortedTransaction(1, 3)]) == [True, False, False]


def test_the_error_names_an_old_message_format() -> None:
    old = bytearray(batch(b"a"))
    old[16] = 1
    with pytest.raises(KafkaError, match="a batch has message format v1") as caught:
        RecordSet(bytes(old))
    assert caught.value.code is ErrorCode.unsupported_for_message_format


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, -1), (8, 48), (23, -1), (57, -1), (57, 1 << 30), (0, -1)],
    ids=["negative length", "length below a header", "last offset delta", "count", "absurd count", "base offset"],
)
def test_impossible_batch_headers_are_corrupt_records(at: int, value: int) -> None:
    data = bytearray(batch(b"a", b"b"))
    struct.pack_into(">q" if at == 0 else ">i", data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    with pytest.raises(CorruptRecord):
        offsets(bytes(data))


def test_a_batch_of_unknown_codec_is_a_corrupt_record() -> None:
    data = bytearray(batch(b"a"))
    data[22] = 5
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    with pytest.raises(CorruptRecord, match="unknown compression 5"):
        offsets(bytes(data))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_much_data_becomes_several_record_batches(codec: str) -> None:
    """An Arrow binary column holds up to 2 GiB: unpacked data is split into several RecordBatches long before that."""
    data = b"".join(batch(b"v" * 1000, base_offset=n, compression=codec) for n in range(10))
    data += batch(b"v", base_offset=10)
    found = list(RecordSet(data, batch_bytes=2_500).record_batches("t", 0))
    assert len(found) > 3
    assert [offset for one in found for offset in one.column("offset").to_pylist()] == list(range(11))
    assert max(one.column("value").nbytes for one in found) < 4_000


def test_empty_data_and_an_incomplete_batch_have_no_records() -> None:
    assert RecordSet(b"").next_offset == -1
    cut_off = RecordSet(batch(b"a")[:-1])
    assert (len(cut_off.spans().begins), cut_off.next_offset, list(cut_off.record_batches("t", 0))) == (0, -1, [])


def test_the_callers_buffer_stays_writable_and_unchanged() -> None:
    data = bytearray(batch(b"a"))
    before = bytes(data)
    assert offsets(data) == [0]
    data[0] = 1
    assert bytes(data)[1:] == before[1:]


def test_a_private_cache_is_refused_if_others_could_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code is loaded from the cache, so its directory must belong to this user and be writable for no other
    user."""
    monkeypatch.setattr(compile_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    path = compile_lock.private_directory()
    assert path is not None
    assert os.stat(path).st_mode & 0o777 == 0o700
    os.chmod(path, 0o777)
    assert compile_lock.private_directory() is None
    os.rmdir(path)
    os.symlink(tmp_path, path)
    assert compile_lock.private_directory() is None


@pytest.mark.parametrize("count", [1, 30, 3_000])
def test_only_the_records_are_sent(count: int) -> None:
    """Columns reuse memory without clearing it. Only the rows may be sent, not the earlier contents of the memory."""
    some = batch(*(b"v%d" % number for number in range(count)))
    part = {"start": count - 1} if count > 30 else {}

    def sent() -> tuple[bytes, bytes, int]:
        (one,) = RecordSet(some).record_batches("t", 0, columns=COLUMNS, **part)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, one.schema) as writer:
            writer.write_batch(one)
        return stream.getvalue().to_pybytes(), pickle.dumps(one), one.get_total_buffer_size()

    first = sent()
    for _ in range(20):
        list(RecordSet(batch(*(b"secret" * 5 for _ in range(count)))).record_batches("other", 0, columns=COLUMNS))
        again = sent()
        assert again[0] == first[0]
        assert b"secret" not in again[1]
        assert again[2] == first[2]
