"""A producer's batch before the append: its bounds, then checks and changes by the topic's settings."""

from __future__ import annotations

from functools import partial
from mmap import mmap

from odradek.batches.compression import CODES, NONE, compress, decompress_in_steps, decompress_small
from odradek.batches.encode import recompress, repacked, with_max_timestamp
from odradek.batches.header import (
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    Buffer,
    validate,
)
from odradek.batches.record_validation import RecordSummary, begin_check
from odradek.batches.search import Condition, RecordMatch, search
from odradek.batches.steps import BatchSteps, Call, begin
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.config import LogConfig

Batches = list[tuple[int, BatchHeader]]
Ready = tuple[Buffer, Batches]
"""The bytes to append, with the position and header of each batch."""

_SMALL_BYTES = 16 << 10
"""The largest batch that the broker compresses without a thread, in bytes."""
_SMALLEST = 14
"""The smallest length in the head of a batch: that of the oldest format."""
_MAGIC = bytes((MAGIC,))


def single_batch(data: bytes) -> bytes:
    """Returns the single batch in a partition's data. Trailing bytes that form no batch are dropped, as in Kafka.

    Raises KafkaError, with a message where Kafka has one: INVALID_RECORD for no batch, an incomplete batch, two batches
    or an old format; CORRUPT_MESSAGE for data that cannot be a batch.
    """
    usual = data[LENGTH_OFFSET : MAGIC_OFFSET + 1]
    if usual[-1:] == _MAGIC and LOG_OVERHEAD + int.from_bytes(usual[:4], "big") == len(data) > LOG_OVERHEAD + _SMALLEST:
        return data
    end = _batch_end(data, 0)
    if not end or data[MAGIC_OFFSET] != MAGIC:
        raise KafkaError(ErrorCode.invalid_record)
    if end == len(data):
        return data
    if _batch_end(data, end):
        raise KafkaError(ErrorCode.invalid_record)
    return data[:end]


def _batch_end(data: bytes, start: int) -> int:
    """Returns the end position of the batch at ``start``, or 0 if it is incomplete. Raises KafkaError."""
    left = len(data) - start
    if left < LOG_OVERHEAD:
        return 0
    length = int.from_bytes(data[start + LENGTH_OFFSET : start + LOG_OVERHEAD], "big", signed=True)
    if length < _SMALLEST:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"Record size {length} is less than the minimum record overhead ({_SMALLEST})",
        )
    if left <= MAGIC_OFFSET:
        return 0
    magic = data[start + MAGIC_OFFSET]
    if magic > MAGIC:
        raise KafkaError(ErrorCode.corrupt_message, f"Invalid magic found in record: {magic}")
    return start + LOG_OVERHEAD + length if left >= LOG_OVERHEAD + length else 0


def check_client_batch(data: Buffer, batches: Batches, config: LogConfig, now_ms: int) -> Ready | BatchSteps[Ready]:
    """Checks the single batch in ``data``. Corrects its largest timestamp, and changes its codec to the topic's if
    the topic has one.

    If this takes longer than a step, it returns steps. Raises KafkaError.
    """
    _, header = batches[0]
    if config.is_log_append_time and header.timestamp_type:
        raise KafkaError(ErrorCode.invalid_timestamp, "a producer must not set the timestamp type LogAppendTime")
    check = begin_check(data, header)
    if not isinstance(check, RecordSummary):
        return _check_in_steps(data, batches, check, config, now_ms)
    if _fits(header, check, config, now_ms):
        return data, batches
    return begin(_adapt(data, batches, check, config, now_ms))


def _check_in_steps(
    data: Buffer, batches: Batches, check: BatchSteps[RecordSummary], config: LogConfig, now_ms: int
) -> BatchSteps[Ready]:
    summary = yield from check
    if _fits(batches[0][1], summary, config, now_ms):
        return data, batches
    return (yield from _adapt(data, batches, summary, config, now_ms))


def _fits(header: BatchHeader, summary: RecordSummary, config: LogConfig, now_ms: int) -> bool:
    """Returns whether the log can store the batch without changes or further checks."""
    if summary.has_keyless and config.is_compacted:
        return False
    if not config.is_log_append_time and (
        header.base_timestamp + summary.greatest_delta != header.max_timestamp
        or _breaks_time_bounds(header, summary, config, now_ms)
    ):
        return False
    return config.compression_type == "producer" or _codec(config) == header.compression


def _breaks_time_bounds(header: BatchHeader, summary: RecordSummary, config: LogConfig, now_ms: int) -> bool:
    """Returns whether a timestamp of the batch is outside of the topic's bounds."""
    return (
        header.base_timestamp + summary.greatest_delta > now_ms + config.message_timestamp_after_max_ms
        or header.base_timestamp + summary.least_delta < now_ms - config.message_timestamp_before_max_ms
    )


def _codec(config: LogConfig) -> int:
    return CODES["none" if config.compression_type == "uncompressed" else config.compression_type]


def _adapt(data: Buffer, batches: Batches, summary: RecordSummary, config: LogConfig, now_ms: int) -> BatchSteps[Ready]:
    """Changes the batch for the topic. Raises KafkaError if the topic's settings refuse it."""
    _, header = batches[0]
    if config.is_compacted and summary.has_keyless:
        raise KafkaError(ErrorCode.invalid_record, "a record of a compacted topic must have a key")
    if not config.is_log_append_time:
        if _breaks_time_bounds(header, summary, config, now_ms):
            yield from _check_timestamps(data, header, config, now_ms)
        newest = header.base_timestamp + summary.greatest_delta
        if newest != header.max_timestamp:
            data = with_max_timestamp(data, header, newest)
            batches = validate(data, max_message_bytes=config.max_message_bytes)
            _, header = batches[0]
    if config.compression_type != "producer" and _codec(config) != header.compression:
        data = yield from _recompress(data, header, config)
        batches = validate(data, max_message_bytes=config.max_message_bytes)
    return data, batches


def _check_timestamps(data: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> BatchSteps[None]:
    """Raises KafkaError (INVALID_TIMESTAMP) for a timestamp outside of the topic's bounds; -1 is always valid."""
    for record in (yield from refused_records(data, header, config, now_ms, most=1)):
        earliest, latest = time_bounds(config, now_ms)
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {record.timestamp} of record {record.offset} is outside of [{earliest}, {latest}]",
        )


def time_bounds(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """Returns the earliest and the latest valid timestamp of a record of the topic."""
    return now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms


def refused_records(
    data: Buffer, header: BatchHeader, config: LogConfig, now_ms: int, *, most: int
) -> BatchSteps[list[RecordMatch]]:
    """Finds the first records, at most ``most``, that a topic with these settings refuses. Raises CorruptRecord."""
    earliest, latest = time_bounds(config, now_ms)
    base = header.base_timestamp
    needs_key, sets_time = config.is_compacted, config.is_log_append_time

    def is_refused(record: RecordMatch) -> bool:
        if needs_key and record.is_keyless:
            return True
        return not (sets_time or record.timestamp == -1 or earliest <= record.timestamp <= latest)

    def may_be_refused(some: RecordSummary) -> bool:
        if needs_key and some.has_keyless:
            return True
        return not sets_time and (base + some.least_delta < earliest or base + some.greatest_delta > latest)

    return search(data, header, Condition(is_refused, may_be_refused), most=most)


def _recompress(data: Buffer, header: BatchHeader, config: LogConfig) -> BatchSteps[bytes]:
    """Returns the batch with its records compressed by the topic's codec."""
    payload = memoryview(data)[HEADER_BYTES : header.size_in_bytes]
    codec, level = _codec(config), config.compression_level
    plain: Buffer | mmap
    if not header.compression:
        if len(payload) <= _SMALL_BYTES:
            return recompress(data, header, codec, level)
        plain, size = payload, len(payload)
    else:
        small = decompress_small(header.compression, payload) if len(payload) <= _SMALL_BYTES else None
        if small is not None and len(small) <= _SMALL_BYTES:
            return repacked(header, codec, compress(codec, small, level))
        plain, size = yield from decompress_in_steps(header.compression, payload)
    if codec == NONE and HEADER_BYTES + size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the uncompressed batch has {HEADER_BYTES + size} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    return repacked(header, codec, (yield Call(partial(_compress, codec, plain, size, level))))


def _compress(codec: int, plain: Buffer | mmap, size: int, level: int | None) -> bytes:
    with memoryview(plain)[:size] as view:
        return compress(codec, view, level)
