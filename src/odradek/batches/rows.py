"""A reader of single records in pure Python, for internal topics, tools and consumers without kernels.

Bulk reads use the Arrow kernels. This reader does not import numpy. Malformed bytes (bad varints, impossible counts or
lengths, decompression bombs) raise CorruptRecord. Numbers are checked before they determine an allocation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from mmap import mmap
from typing import Any, NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress
from odradek.batches.header import HEADER_BYTES, LOG_APPEND_TIME, MIN_RECORD_BYTES, BatchHeader, Buffer, scan
from odradek.core.errors import CorruptRecord
from odradek.core.varints import OverlongVarint, read_varint

_new_row: Any = tuple.__new__


class Row(NamedTuple):
    """A record with the fields of its batch. ``timestamp`` is in ms since 1970, -1 if the record has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    leader_epoch: int = -1
    is_transactional: bool = False
    is_control: bool = False


def iter_records(buffer: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Row]:
    """Yields all records of the whole batches in ``buffer``. A last batch that is cut off is skipped.

    ``max_bytes`` limits the decompressed size of one batch. Raises CorruptRecord.
    """
    for pos, header in scan(buffer):
        yield from batch_rows(buffer, pos, header, max_bytes=max_bytes)


def batch_rows(buffer: Buffer, pos: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Row]:
    """Yields the records of the batch at ``pos``. Invalid UTF-8 in a header's key becomes U+FFFD.

    Raises CorruptRecord.
    """
    payload = memoryview(buffer)[pos + HEADER_BYTES : pos + header.size_in_bytes]
    data = bytes(decompress(header.compression, payload, max_bytes))
    count = header.record_count
    if count * MIN_RECORD_BYTES > len(data):
        raise CorruptRecord(
            f"the batch at offset {header.base_offset} has {count} records, which cannot fit into {len(data)} bytes"
        )
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    base_offset, base_timestamp, base_sequence = header.base_offset, header.base_timestamp, header.base_sequence
    producer = (header.producer_id, header.producer_epoch)
    tail = (header.leader_epoch, header.is_transactional, header.is_control)
    at = 0
    try:
        for _ in range(count):
            at, timestamp_delta, offset_delta, key, value, headers = read_record(data, at)
            sequence = -1 if base_sequence < 0 else (base_sequence + offset_delta) & 0x7FFFFFFF
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            yield _new_row(
                Row, (base_offset + offset_delta, timestamp, key, value, headers, *producer, sequence, *tail)
            )
    except IndexError as error:
        raise CorruptRecord(f"the records of the batch at offset {base_offset} are cut off") from error
    except OverlongVarint as error:
        raise CorruptRecord(f"the batch at offset {base_offset} has a malformed record: {error}") from error
    if at != len(data):
        raise CorruptRecord(f"the batch at offset {base_offset} has {len(data) - at} bytes after its last record")


def _field(data: bytes | mmap, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at, len(data))
    if size < 0:
        if size != -1:
            raise CorruptRecord(f"a field has length {size}")
        return None, at
    if size > end - at:
        raise CorruptRecord(f"a field of {size} bytes is longer than its record")
    return data[at : at + size], at + size


# The first two or all three bytes of half of a surrogate pair.
_SURROGATE, _REPLACEMENT = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?"), "\ufffd".encode()
_NO_HEADERS: tuple[tuple[str, bytes | None], ...] = ()


def read_record(
    data: bytes | mmap, at: int
) -> tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Reads one record. Returns its end, timestamp delta, offset delta, key, value and headers.

    Most numbers have one byte; these are read without a call. Raises CorruptRecord, OverlongVarint, and IndexError at
    the end of the bytes.
    """
    byte = data[at]
    if byte < 0x80:
        size, at = byte >> 1 if not byte & 1 else -1, at + 1
    else:
        size, at = read_varint(data, at, len(data))
    end = at + size
    if size < MIN_RECORD_BYTES - 1 or end > len(data):
        raise CorruptRecord(f"a record of {size} bytes does not fit into its batch")
    at += 1  # attributes, which are unused
    byte = data[at]
    if byte < 0x80:
        timestamp_delta, at = (byte >> 1) ^ -(byte & 1), at + 1
    else:
        timestamp_delta, at = read_varint(data, at, len(data), 10)
    byte = data[at]
    if byte < 0x80 and not byte & 1:
        offset_delta, at = byte >> 1, at + 1
    else:
        offset_delta, at = read_varint(data, at, len(data))
        if offset_delta < 0:
            raise CorruptRecord(f"a record has the negative offset delta {offset_delta}")
    byte = data[at]
    if byte < 0x80 and not byte & 1:
        start = at + 1
        at = start + (byte >> 1)
        key: bytes | None = data[start:at]
    else:
        key, at = _field(data, at, end)
    byte = data[at]
    if byte < 0x80 and not byte & 1:
        start = at + 1
        at = start + (byte >> 1)
        value: bytes | None = data[start:at]
    else:
        value, at = _field(data, at, end)
    if at == end - 1 and not data[at]:
        return end, timestamp_delta, offset_delta, key, value, _NO_HEADERS
    headers, at = _headers(data, at, end)
    if at != end:
        raise CorruptRecord(f"the fields of a record of {size} bytes have {size - (end - at)} bytes")
    return end, timestamp_delta, offset_delta, key, value, headers


def _headers(data: bytes | mmap, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if at >= end:
        raise CorruptRecord("a field is longer than its record")
    count, at = read_varint(data, at, len(data))
    if count < 0 or count * 2 > end - at:
        raise CorruptRecord(f"{count} headers cannot fit into {end - at} bytes")
    pairs = []
    for _ in range(count):
        name, at = _field(data, at, end)
        if name is None:
            raise CorruptRecord("a header has no key")
        value, at = _field(data, at, end)
        pairs.append((java_text(name), value))
    return tuple(pairs), at


def java_text(data: bytes) -> str:
    """Decodes UTF-8 as Java's ``new String(bytes, UTF_8)``, with which Kafka's client reads the keys of headers.

    Invalid bytes become U+FFFD. Java has one U+FFFD for half of a surrogate pair, where Python has one for each byte.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, data).decode(errors="replace")
