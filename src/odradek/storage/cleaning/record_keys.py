"""The keys of a batch's records for the row engine of the cleaner. Values and headers are not read.

``read_keys`` reads the usual records, whose parts are smaller than 8 KiB, inline: a call for each part would take most
of the time. ``record_at`` reads all others, and explains what is wrong with a malformed one.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.batches.header import MIN_RECORD_BYTES, BatchHeader
from odradek.core.errors import CorruptRecord
from odradek.core.varints import OverlongVarint, read_varint

_TWO_BYTES = (1 << 14) - 1
"""The largest number in a varint of two bytes."""
_NULL = 1
"""The varint of the size of a null key or value."""


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


class RecordKeys:
    """The keys of a batch's records, in their order. ``read`` adds the next ones."""

    __slots__ = ("at", "data", "header", "keys", "marks", "starts")

    def __init__(self, data: bytes, header: BatchHeader) -> None:
        if header.record_count * MIN_RECORD_BYTES > len(data):
            raise CorruptRecord(
                f"{header.record_count} records cannot fit into the batch at offset {header.base_offset}"
            )
        self.data = data
        self.header = header
        self.at = 0
        self.keys: list[bytes | None] = []
        self.marks: list[int] = []
        """Twice the offset of each record, and 1 more for a tombstone."""
        self.starts: list[int] = []

    def read(self, count: int) -> None:
        """Reads the next ``count`` records, at most those that are left. Raises CorruptRecord."""
        keys, number = self.keys, self.header.record_count
        wanted = min(len(keys) + count, number)
        while len(keys) < wanted:
            self._read_usual(wanted - len(keys))
            if len(keys) < wanted:
                self._read_any()
        if wanted == number and self.at != len(self.data):
            raise CorruptRecord(
                f"{len(self.data) - self.at} bytes after the last record: batch at offset {self.header.base_offset}"
            )

    def _read_any(self) -> None:
        record = record_at(self.data, self.at, self.header)
        self.keys.append(record.key)
        self.marks.append((self.header.base_offset + record.offset_delta) * 2 + record.is_tombstone)
        self.starts.append(record.start)
        self.at = record.end

    def _read_usual(self, count: int) -> None:
        """Reads ``count`` records, or up to an unusual one.

        Sizes and the offset delta are zigzag varints of one or two bytes: twice the number, and odd if it is negative.
        """
        data, at = self.data, self.at
        end_of_data = len(data)
        base, last_delta = self.header.base_offset * 2, self.header.last_offset_delta * 2
        add_key, add_mark, add_start = self.keys.append, self.marks.append, self.starts.append
        try:
            for _ in range(count):
                size, body = data[at], at + 1
                if size > 127:
                    size, body = size & 127 | data[body] << 7, at + 2
                end = body + (size >> 1)
                place = body + 2
                if data[body + 1] > 127:
                    place = place + 1 if data[place] < 128 else read_varint(data, body + 1, end, 10)[1]
                delta = data[place]
                place += 1
                if delta > 127:
                    delta = delta & 127 | data[place] << 7
                    place += 1
                key_size = data[place]
                place += 1
                if key_size > 127:
                    key_size = key_size & 127 | data[place] << 7
                    place += 1
                key_end = place + (key_size >> 1)
                value_size, value = data[key_end], key_end + 1
                if value_size > 127:
                    value_size, value = value_size & 127 | data[value] << 7, key_end + 2
                is_tombstone = value_size == _NULL
                parts = size | delta | key_size | (value_size - is_tombstone)
                if parts & 1 or parts > _TWO_BYTES or delta > last_delta or end > end_of_data:
                    break
                if value + (value_size >> 1) >= end:  # no room for the number of headers
                    break
                add_key(data[place:key_end])
                add_mark(base + delta + is_tombstone)
                add_start(at)
                at = end
        except (IndexError, OverlongVarint):  # ``record_at`` says what is wrong
            pass
        self.at = at


def record_at(data: bytes, start: int, header: BatchHeader) -> RecordSpan:
    """Returns the record at ``start``. Raises CorruptRecord."""
    where = f"batch at offset {header.base_offset}"
    try:
        size, body = read_varint(data, start, len(data))
        end = body + size
        if size < MIN_RECORD_BYTES - 1 or end > len(data):
            raise CorruptRecord(f"a record of {size} bytes does not fit into the {where}")
        time_at = body + 1
        timestamp_delta, time_end = read_varint(data, time_at, end, 10)
        offset_delta, at = read_varint(data, time_end, end)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise CorruptRecord(f"offset delta {offset_delta} is outside of the {where}")
        key_size, at = read_varint(data, at, end)
        if not -1 <= key_size <= end - at:
            raise CorruptRecord(f"a key of {key_size} bytes does not fit: {where}")
        key = None if key_size < 0 else data[at : at + key_size]
        at += max(key_size, 0)
        value_size, at = read_varint(data, at, end)
        if not -1 <= value_size <= end - at:
            raise CorruptRecord(f"a value of {value_size} bytes does not fit: {where}")
    except (IndexError, OverlongVarint) as error:
        raise CorruptRecord(f"a record of the {where} is malformed: {error}") from error
    return RecordSpan(start, body, time_at, time_end, end, timestamp_delta, offset_delta, key, value_size < 0)
