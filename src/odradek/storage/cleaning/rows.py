"""The cleaner's engine in pure Python, for small logs in small steps inside the broker, and without numba for all logs.

``cleaning/columns`` does the same for logs of many records and writes the same bytes. In both, ``survey``, ``map`` and
``filter`` are generators that yield the number of processed bytes, so that the caller can pause them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from typing import NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress
from odradek.batches.header import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, Buffer, scan
from odradek.core.errors import CorruptRecord
from odradek.core.varints import varint
from odradek.storage.cleaning.record_keys import RecordKeys, record_at
from odradek.storage.cleaning.rules import CleaningRules, Transactions, check_crc, emptied, rewritten
from odradek.storage.segments.segment import LOG_SUFFIX, AppendedBatch, Segment

_RECORDS_PER_STEP = 200
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


class KeptBatch(NamedTuple):
    """A batch that remains, with the number of its records and its largest timestamp."""

    data: Buffer
    records: int
    max_timestamp: int


class RowEngine:
    """An engine with keys in a dictionary. It works on one record at a time."""

    def __init__(self) -> None:
        self._newest: dict[bytes | None, int] = {}
        """The newest record of each key, as ``RecordKeys.marks``."""
        self._max_keys = 0
        self._sorted: list[int] | None = None
        self._first_dirty_offset = 0

    def reserve(self, keys: int, max_keys: int) -> None:
        """Empties the map and makes room for about ``keys`` keys, at most ``max_keys``."""
        self._newest = {}
        self._max_keys = max_keys
        self._sorted = None

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
        self, portion: Buffer, transactions: Transactions, first_dirty_offset: int
    ) -> Generator[int, None, MappedPart]:
        """Stores the newest offset of each key from ``first_dirty_offset`` on. Raises CorruptRecord."""
        size, last_offset = 0, -1
        for pos, header in scan(portion):
            if header.is_control:
                transactions.on_control(portion, pos, header)
            elif not transactions.on_data(header) and header.last_offset >= first_dirty_offset:
                check_crc(portion, pos, header)
                records = yield from _keys_of(decompress_records(portion, pos, header), header)
                if not self._add(records, first_dirty_offset):
                    return MappedPart(size, last_offset, True)
            size += header.size_in_bytes
            if header.last_offset >= first_dirty_offset:
                last_offset = header.last_offset
            yield header.size_in_bytes
        return MappedPart(size, last_offset, False)

    def _add(self, records: RecordKeys, first_dirty_offset: int) -> bool:
        """Adds the keys of a batch to the map. Returns False if the map is full before the last one."""
        newest, max_keys = self._newest, self._max_keys
        is_dirty = records.header.base_offset >= first_dirty_offset
        if is_dirty and len(newest) + len(records.keys) <= max_keys:
            newest.update(zip(records.keys, records.marks, strict=True))
            newest.pop(None, None)
            return True
        for key, mark in zip(records.keys, records.marks, strict=True):
            if key is not None and mark >= 2 * first_dirty_offset:
                if len(newest) >= max_keys:
                    return False
                newest[key] = mark
        return True

    def sort_offsets(self, first_dirty_offset: int) -> None:
        """Sorts the offsets of the map, after its last key and before ``filter``.

        Then ``filter`` knows the number of remaining records of a dirty batch, and reads the batch only if it loses
        some records and keeps others. The sort of many keys takes long, so it is not for the broker's event loop.
        """
        self._sorted = sorted(self._newest.values())
        self._first_dirty_offset = first_dirty_offset

    def filter(self, portion: Buffer, rules: CleaningRules, mapped_offset: int) -> Generator[int, None, FilteredPart]:
        """Returns the remaining batches. Raises CorruptRecord.

        All records after ``mapped_offset`` remain, except in batches that ``rules.action`` discards.
        """
        size = read = kept = 0
        parts: list[Buffer] = []
        appended: list[AppendedBatch] = []
        for pos, header in scan(portion):
            batch = yield from self._batch(portion, pos, header, rules, mapped_offset)
            read += header.record_count
            if batch is not None:
                kept += batch.records
                parts.append(batch.data)
                last = header.last_offset
                appended.append(AppendedBatch(header.base_offset, last, batch.max_timestamp, len(batch.data)))
            size += header.size_in_bytes
            yield header.size_in_bytes
        return FilteredPart(size, b"".join(parts), appended, read, kept)

    def _batch(
        self, portion: Buffer, pos: int, header: BatchHeader, rules: CleaningRules, mapped_offset: int
    ) -> Generator[int, None, KeptBatch | None]:
        """Returns the batch as it remains; None if it is removed."""
        action = rules.action(portion, pos, header)
        count = 0 if action.discards else self._known_count(header, mapped_offset)
        if count == header.record_count and count and not action.starts_horizon:
            return _unchanged(portion, pos, header)
        kept: Sequence[int] = ()
        has_tombstones = False
        if count != 0:
            records = yield from _keys_of(decompress_records(portion, pos, header), header)
            kept = range(len(records.keys)) if header.is_control else self._remaining(records, rules, mapped_offset)
            has_tombstones = any(records.marks[number] & 1 for number in kept)
        if not kept:
            return KeptBatch(emptied(header), 0, header.max_timestamp) if action.keeps_empty else None
        starts_horizon = (has_tombstones or action.starts_horizon) and not header.has_delete_horizon
        if len(kept) == header.record_count and not starts_horizon:
            return _unchanged(portion, pos, header)
        check_crc(portion, pos, header)
        return (yield from _rewrite(records, kept, rules.horizon_ms if starts_horizon else None))

    def _known_count(self, header: BatchHeader, mapped_offset: int) -> int:
        """Returns the number of remaining records by the sorted offsets. -1: only the records show it.

        Several records may have one offset in a log of another program; then the number of keys is smaller than that
        of the records, and they are read.
        """
        offsets = self._sorted
        is_mapped = self._first_dirty_offset <= header.base_offset and header.last_offset <= mapped_offset
        if offsets is None or header.is_control or header.is_transactional or not is_mapped:
            return -1
        first = bisect_left(offsets, 2 * header.base_offset)
        last = bisect_left(offsets, 2 * (header.last_offset + 1), first)
        if first == last:
            return 0
        is_whole = last - first == header.record_count and not any(mark & 1 for mark in offsets[first:last])
        return header.record_count if is_whole else -1

    def _remaining(self, records: RecordKeys, rules: CleaningRules, mapped_offset: int) -> Sequence[int]:
        """Returns the numbers of the remaining records."""
        newest = self._newest.get
        first_unmapped = 2 * (mapped_offset + 1)
        # A record that is not newer than the newest one of its key is that one, even if one of both is a tombstone.
        kept = [
            number
            for number, (key, mark) in enumerate(zip(records.keys, records.marks, strict=True))
            if mark >= first_unmapped or (key is not None and newest(key, -1) <= mark | 1)
        ]
        if not rules.is_past_horizon(records.header):
            return kept
        marks = records.marks
        return [number for number in kept if marks[number] >= first_unmapped or not marks[number] & 1]


def _keys_of(data: bytes, header: BatchHeader) -> Generator[int, None, RecordKeys]:
    records = RecordKeys(data, header)
    records.read(_RECORDS_PER_STEP)
    while len(records.keys) < header.record_count:
        yield 0
        records.read(_RECORDS_PER_STEP)
    return records


def _unchanged(portion: Buffer, pos: int, header: BatchHeader) -> KeptBatch:
    return KeptBatch(portion[pos : pos + header.size_in_bytes], header.record_count, header.max_timestamp)


def _rewrite(records: RecordKeys, kept: Sequence[int], horizon_ms: int | None) -> Generator[int, None, KeptBatch]:
    header, data = records.header, records.data
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    base = NO_RECORD_TIME
    newest = NO_RECORD_TIME if append_time is None else append_time
    parts: list[bytes] = []
    for number, place in enumerate(kept):
        if number % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
            yield 0
        record = record_at(data, records.starts[place], header)
        timestamp = _long(header.base_timestamp + record.timestamp_delta) if append_time is None else append_time
        newest = max(newest, timestamp)
        if number == 0:
            known = header.base_timestamp if header.has_delete_horizon else timestamp
            base = known if horizon_ms is None else horizon_ms
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
    return KeptBatch(batch, len(kept), newest)


def decompress_records(portion: Buffer, pos: int, header: BatchHeader) -> bytes:
    """Returns the bytes of the batch's records, decompressed. Raises CorruptRecord."""
    payload = memoryview(portion)[pos + HEADER_BYTES : pos + header.size_in_bytes]
    return bytes(decompress(header.compression, payload, DEFAULT_MAX_BYTES))


def _long(value: int) -> int:
    """Returns the value as a signed 64-bit number. Extreme timestamps overflow, as in all readers."""
    return value if -_LONG_MASK <= value <= _LONG_MASK else (value + _LONG_MASK + 1 & (1 << 64) - 1) - _LONG_MASK - 1
