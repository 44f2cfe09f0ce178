"""The cleaner's engine in pure Python for small logs, in small steps inside the broker.

``cleaning/columns`` does the same for large logs and writes the same bytes. In both, ``survey``, ``map`` and ``filter``
are generators that yield the number of processed bytes, so that the caller can pause them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress
from odradek.batches.header import HEADER_BYTES, LOG_APPEND_TIME, MIN_RECORD_BYTES, BatchHeader, Buffer, scan
from odradek.core.errors import CorruptRecord
from odradek.core.varints import OverlongVarint, read_varint, varint
from odradek.storage.cleaning.rules import CleaningRules, Transactions, check_crc, emptied, rewritten
from odradek.storage.segments.segment import LOG_SUFFIX, AppendedBatch, Segment

_RECORDS_PER_STEP = 100
_LONG_MASK = (1 << 63) - 1
NO_RECORD_TIME = -1
"""The lower bound of a batch's largest timestamp."""


class SegmentSurvey(NamedTuple):
    """The contents of a segment by its batch headers."""

    records: int
    """The number of records in the batches that end in the dirty section."""
    packed_bytes: int
    """The size of the largest compressed batch; always 0 from ``ColumnEngine``."""
    special: list[tuple[int, BatchHeader]]
    """Position and header of transactional and control batches."""


class MappedPart(NamedTuple):
    """The mapped part of a portion: ``size`` bytes, up to ``last_offset`` (-1: no batch of the dirty section)."""

    size: int
    last_offset: int
    is_full: bool


class FilteredPart(NamedTuple):
    """The remaining batches of a portion's first ``size`` bytes."""

    size: int
    data: bytes
    batches: list[AppendedBatch]
    records_read: int
    records_kept: int


class RecordSpan(NamedTuple):
    """The positions of a record's parts in decompressed records.

    The record's length is in [``start``, ``body``), its timestamp delta in [``time_at``, ``time_end``).
    """

    start: int
    body: int
    time_at: int
    time_end: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


class RowEngine:
    """An engine with keys in a dictionary. It works on one record at a time."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._max_keys = 0

    def reserve(self, keys: int, max_keys: int) -> None:
        """Empties the map and makes room for about ``keys`` keys, at most ``max_keys``."""
        self._newest = {}
        self._max_keys = max_keys

    @property
    def keys(self) -> int:
        return len(self._newest)

    def survey(self, segment: Segment, first_dirty_offset: int) -> Generator[int, None, SegmentSurvey]:
        """Reads the headers of a segment. Raises CorruptRecord, OSError."""
        records = packed = end = 0
        special = []
        for number, (position, header) in enumerate(segment.batches_from(0)):
            end = position + header.size_in_bytes
            if header.last_offset >= first_dirty_offset:
                records += header.record_count
            if header.compression:
                packed = max(packed, header.size_in_bytes)
            if header.is_transactional or header.is_control:
                special.append((position, header))
            if number % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
                yield 0
        if end != segment.size:
            raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} ends inside a batch")
        yield end
        return SegmentSurvey(records, packed, special)

    def map(
        self, portion: bytes, transactions: Transactions, first_dirty_offset: int
    ) -> Generator[int, None, MappedPart]:
        """Stores the newest offset of each key from ``first_dirty_offset`` on. Raises CorruptRecord."""
        size, last_offset = 0, -1
        newest, max_keys = self._newest, self._max_keys
        for pos, header in scan(portion):
            if header.is_control:
                transactions.on_control(portion, pos, header)
            elif not transactions.on_data(header) and header.last_offset >= first_dirty_offset:
                check_crc(portion, pos, header)
                for number, record in enumerate(records_of(decompress_records(portion, pos, header), header)):
                    offset = header.base_offset + record.offset_delta
                    if record.key is not None and offset >= first_dirty_offset:
                        if len(newest) >= max_keys:
                            return MappedPart(size, last_offset, True)
                        newest[record.key] = offset
                    if number % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
                        yield 0
            size += header.size_in_bytes
            if header.last_offset >= first_dirty_offset:
                last_offset = header.last_offset
            yield header.size_in_bytes
        return MappedPart(size, last_offset, False)

    def filter(self, portion: bytes, rules: CleaningRules, mapped_offset: int) -> Generator[int, None, FilteredPart]:
        """Returns the remaining batches. Raises CorruptRecord.

        All records after ``mapped_offset`` remain, except in batches that ``rules.action`` discards.
        """
        size = read = kept = 0
        parts: list[bytes] = []
        appended: list[AppendedBatch] = []
        for pos, header in scan(portion):
            stays = yield from self._batch(portion, pos, header, rules, mapped_offset)
            read += header.record_count
            if stays is not None:
                data, count, max_timestamp = stays
                kept += count
                parts.append(data)
                appended.append(AppendedBatch(header.base_offset, header.last_offset, max_timestamp, len(data)))
            size += header.size_in_bytes
            yield header.size_in_bytes
        return FilteredPart(size, b"".join(parts), appended, read, kept)

    def _batch(
        self, portion: bytes, pos: int, header: BatchHeader, rules: CleaningRules, mapped_offset: int
    ) -> Generator[int, None, tuple[bytes, int, int] | None]:
        """Returns the batch's new bytes, number of records and largest timestamp; None if the batch is removed."""
        action = rules.action(portion, pos, header)
        data: bytes = b""
        kept: list[RecordSpan] = []
        tombstones = False
        if not action.discards:
            data = decompress_records(portion, pos, header)
            for number, record in enumerate(records_of(data, header)):
                if header.is_control or self._stays(record, header, rules, mapped_offset):
                    kept.append(record)
                    tombstones = tombstones or record.is_tombstone
                if number % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
                    yield 0
        if not kept:
            return (emptied(header), 0, header.max_timestamp) if action.keeps_empty else None
        starts_horizon = (tombstones or action.starts_horizon) and not header.has_delete_horizon
        if len(kept) == header.record_count and not starts_horizon:
            return portion[pos : pos + header.size_in_bytes], len(kept), header.max_timestamp
        check_crc(portion, pos, header)
        return (yield from self._rewrite(data, header, kept, rules.horizon_ms if starts_horizon else None))

    def _stays(self, record: RecordSpan, header: BatchHeader, rules: CleaningRules, mapped_offset: int) -> bool:
        offset = header.base_offset + record.offset_delta
        if offset > mapped_offset:
            return True
        if record.key is None or offset < self._newest.get(record.key, -1):
            return False
        return not record.is_tombstone or not rules.is_past_horizon(header)

    @staticmethod
    def _rewrite(
        data: bytes, header: BatchHeader, kept: list[RecordSpan], horizon_ms: int | None
    ) -> Generator[int, None, tuple[bytes, int, int]]:
        append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
        first = _long(header.base_timestamp + kept[0].timestamp_delta) if append_time is None else append_time
        known = header.base_timestamp if header.has_delete_horizon else first
        base = known if horizon_ms is None else horizon_ms
        newest = NO_RECORD_TIME if append_time is None else append_time
        parts: list[bytes] = []
        for number, record in enumerate(kept, 1):
            if number % _RECORDS_PER_STEP == 0:
                yield 0
            timestamp = _long(header.base_timestamp + record.timestamp_delta) if append_time is None else append_time
            newest = max(newest, timestamp)
            timestamp_delta = _long(timestamp - base)
            if timestamp_delta == record.timestamp_delta:
                parts.append(data[record.start : record.end])
                continue
            delta = varint(timestamp_delta)
            length = record.end - record.body - (record.time_end - record.time_at) + len(delta)
            parts += (varint(length), data[record.body : record.time_at], delta, data[record.time_end : record.end])
        batch = rewritten(
            header,
            b"".join(parts),
            count=len(kept),
            base_timestamp=base,
            max_timestamp=newest,
            has_horizon=horizon_ms is not None or header.has_delete_horizon,
        )
        return batch, len(kept), newest


def decompress_records(portion: Buffer, pos: int, header: BatchHeader) -> bytes:
    """Returns the bytes of the batch's records, decompressed. Raises CorruptRecord."""
    payload = memoryview(portion)[pos + HEADER_BYTES : pos + header.size_in_bytes]
    return bytes(decompress(header.compression, payload, DEFAULT_MAX_BYTES))


def records_of(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yields the records in ``data`` and skips their headers. Raises CorruptRecord."""
    if header.record_count * MIN_RECORD_BYTES > len(data):
        raise CorruptRecord(f"{header.record_count} records cannot fit into the batch at offset {header.base_offset}")
    at = 0
    try:
        for _ in range(header.record_count):
            start = at
            size, body = read_varint(data, at, len(data))
            end = body + size
            if size < MIN_RECORD_BYTES - 1 or end > len(data):
                raise CorruptRecord(
                    f"a record of {size} bytes does not fit into the batch at offset {header.base_offset}"
                )
            time_at = body + 1
            timestamp_delta, time_end = read_varint(data, time_at, end, 10)
            offset_delta, at = read_varint(data, time_end, end)
            if not 0 <= offset_delta <= header.last_offset_delta:
                raise CorruptRecord(
                    f"offset delta {offset_delta} is outside of the batch at offset {header.base_offset}"
                )
            key_size, at = read_varint(data, at, end)
            if not -1 <= key_size <= end - at:
                raise CorruptRecord(f"a key of {key_size} bytes does not fit: batch at offset {header.base_offset}")
            key = None if key_size < 0 else data[at : at + key_size]
            at += max(key_size, 0)
            value_size, at = read_varint(data, at, end)
            if not -1 <= value_size <= end - at:
                raise CorruptRecord(f"a value of {value_size} bytes does not fit: batch at offset {header.base_offset}")
            at = end
            yield RecordSpan(start, body, time_at, time_end, end, timestamp_delta, offset_delta, key, value_size < 0)
    except (IndexError, OverlongVarint) as error:
        raise CorruptRecord(f"a record of the batch at offset {header.base_offset} is malformed: {error}") from error
    if at != len(data):
        raise CorruptRecord(f"{len(data) - at} bytes after the last record: batch at offset {header.base_offset}")


def _long(value: int) -> int:
    """Returns the value as a signed 64-bit number. Extreme timestamps overflow, as in all readers."""
    return value if -_LONG_MASK <= value <= _LONG_MASK else (value + _LONG_MASK + 1 & (1 << 64) - 1) - _LONG_MASK - 1
