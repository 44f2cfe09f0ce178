"""Logs for the tests of storage: batches to append, a log with short parameters, and the records that a consumer
gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.encode import encode_batch
from odradek.batches.header import head_with_offset, read_header
from odradek.batches.rows import Row, iter_records
from odradek.batches.steps import finish
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.appends import AppendInfo
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log
from odradek.storage.segments.aborted_index import collect_aborted
from odradek.storage.segments.segment import FoundOffset

T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def batch(count: int = 1, first: int = 0, *, at_ms: int = T0, size: int = 10, **options: object) -> bytes:
    records = [SimpleRecord(b"k%d" % n, b"v" * size, at_ms + n - first) for n in range(first, first + count)]
    return encode_batch(records, now_ms=at_ms, **options)


def sequenced(first: int, count: int = 5, producer_id: int = 7, epoch: int = 0, **options: object) -> bytes:
    return batch(count, first, producer_id=producer_id, producer_epoch=epoch, base_sequence=first, **options)


def described(log: Log) -> list[tuple[int, ...]]:
    """The states of the producers as in Kafka's DescribeProducers, by producer id."""
    return sorted(
        (
            one.producer_id,
            one.epoch,
            one.last_sequence,
            one.last_timestamp,
            one.coordinator_epoch,
            one.transaction_start,
        )
        for one in log.producers
    )


def find_timestamp(log: Log, timestamp: int, *, max_offset: int | None = None) -> FoundOffset | None:
    """Finds the first record with at least that timestamp (ms) below ``max_offset``, at once."""
    found = finish(log.search_timestamp(timestamp))
    limit = log.log_end_offset if max_offset is None else max_offset
    return None if found is None or found.offset >= limit else found


def open_log(path: Path, *, clean: bool = False, now_ms: int = T0, **options: object) -> Log:
    files = options.pop("files", None) or OsFiles()
    recovery_point = options.pop("recovery_point", 0)
    start = options.pop("log_start_offset", None)
    return Log.open(
        path,
        LogConfig(**options),
        now_ms,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=start,
        files=files,
    )


def put(log: Log, data: bytes, now_ms: int = T0, leader_epoch: int = 0) -> AppendInfo:
    return log.append(data, now_ms=now_ms, leader_epoch=leader_epoch)


def rows_from(log: Log, offset: int, max_bytes: int = 1 << 20) -> list[Row]:
    """All records from ``offset`` on, as a consumer gets them."""
    rows: list[Row] = []
    while offset < log.high_watermark:
        fetched = [row for row in iter_records(log.read(offset, max_bytes).bytes()) if row.offset >= offset]
        assert fetched, f"nothing at {offset}"
        rows += fetched
        offset = fetched[-1].offset + 1
    return rows


def code_of(call: object, *args: object, **options: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*args, **options)
    return caught.value.code


def set_base_offset(
    buffer: bytearray, pos: int, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
) -> None:
    """Sets base offset, leader epoch and timestamp type in the batch at ``pos``, as ``head_with_offset`` does."""
    head = head_with_offset(
        buffer,
        pos,
        read_header(buffer, pos),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        log_append_time_ms=log_append_time_ms,
    )
    buffer[pos : pos + len(head)] = head


def aborted_in(log: Log, start: int, end: int) -> Sequence[AbortedTransaction]:
    """Returns the aborted transactions with records in [``start``, ``end``), from all segments."""
    segments = log.segment_list
    return collect_aborted(segments.all[segments.number_at(start) :], start, end) if segments.has_aborted else ()
