"""The header of a record batch (format v2, 61 bytes): read, check, offset assignment.

Layout, big-endian: base offset (8), length of the rest (4), leader epoch (4), magic (1), CRC32C (4), attributes (2),
last offset delta (4), base timestamp (8), max timestamp (8), producer id (8), producer epoch (2), base sequence (4),
record count (4). The CRC covers the bytes from the attributes on, so a broker can set base offset and leader epoch
without a new CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from odradek.core.crc import crc32c
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

# Other modules, numba kernels included, take all sizes and positions from here.
HEADER_BYTES = 61
LENGTH_OFFSET = 8
EPOCH_OFFSET = 12
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
LAST_DELTA_OFFSET = 23
BASE_TIME_OFFSET = 27
MAX_TIME_OFFSET = 35
PRODUCER_OFFSET = 43
COUNT_OFFSET = 57
LOG_OVERHEAD = 12
"""The number of bytes that ``length`` does not count: base offset and length."""
MIN_RECORD_BYTES = 7
MAGIC = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED = struct.Struct(">qiibI")
CHECKED = struct.Struct(">hiqqqhii")
"""The fields that the CRC covers: those from the attributes on."""
EXTENT = struct.Struct(">qi11xi")
"""The fields base offset, length and last offset delta."""
_LENGTH = struct.Struct(">i")
_PREFIX = struct.Struct(">qii")
_MAX_INT = 0x7FFFFFFF


class BatchHeader(NamedTuple):
    """The header's fields in their binary order. ``length`` counts the bytes after itself."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        """The codec's number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """The type of the timestamps: 0 CreateTime, 1 LogAppendTime."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 0 follows 2^31-1. -1 for a producer that is not idempotent."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _MAX_INT

    @property
    def size_in_bytes(self) -> int:
        return self.length + LOG_OVERHEAD


def read_header(buffer: Buffer, pos: int = 0) -> BatchHeader:
    """Returns the header at ``pos`` without checks. The caller ensures that 61 bytes exist."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, pos))


def size_of_batch(buffer: Buffer, pos: int = 0) -> int:
    """Returns the size of the batch at ``pos`` by its length field, without checks."""
    length: int = _LENGTH.unpack_from(buffer, pos + LENGTH_OFFSET)[0]
    return length + LOG_OVERHEAD


def check_header(header: BatchHeader) -> None:
    """Raises CorruptRecord for values that are invalid in format v2."""
    if header.length < HEADER_BYTES - LOG_OVERHEAD:
        raise CorruptRecord(f"batch length {header.length} at offset {header.base_offset} is smaller than a header")
    if header.magic != MAGIC:
        raise CorruptRecord(f"magic {header.magic} at offset {header.base_offset}; only format v2 is supported")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptRecord(
            f"negative count at offset {header.base_offset}: last offset delta {header.last_offset_delta}, "
            f"{header.record_count} records"
        )


def scan(buffer: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of each whole batch in ``buffer``.

    It ends before a last batch that is cut off, because fetch replies can have one. Raises CorruptRecord for bytes
    that are not a batch of format v2. CRCs are not checked.
    """
    end = len(buffer)
    unpack = _HEADER.unpack_from
    while pos + HEADER_BYTES <= end:
        header = BatchHeader._make(unpack(buffer, pos))
        check_header(header)
        following = pos + header.length + LOG_OVERHEAD
        if following > end:
            return
        yield pos, header
        pos = following


def crc_is_valid(buffer: Buffer, pos: int, header: BatchHeader) -> bool:
    view = memoryview(buffer)
    return crc32c(view[pos + ATTRIBUTES_OFFSET : pos + header.size_in_bytes]) == header.crc


def validate(
    buffer: Buffer,
    *,
    max_message_bytes: int | None = None,
    client: bool = True,
) -> list[tuple[int, BatchHeader]]:
    """Checks all of ``buffer`` like Kafka's check of a produce request. Returns position and header of each batch.

    ``client=True`` adds the rules for clients: one batch, base offset 0, at least one record, a record count that
    matches the offsets, no control batches, a sequence in each idempotent batch. ``max_message_bytes`` limits each
    batch including its header.

    Raises KafkaError: MESSAGE_TOO_LARGE, INVALID_RECORD, UNSUPPORTED_FOR_MESSAGE_FORMAT (formats v0 and v1);
    CorruptRecord for a wrong CRC, length or magic, and without ``client`` for a negative count.
    """
    end = len(buffer)
    if not end:
        raise KafkaError(ErrorCode.invalid_record, "the request has no record batch for this partition")
    view = memoryview(buffer)
    pos = 0
    batches: list[tuple[int, BatchHeader]] = []
    while pos < end:
        left = end - pos
        if left <= MAGIC_OFFSET:
            raise CorruptRecord(f"{left} bytes at position {pos} are too few for a record batch")
        magic = buffer[pos + MAGIC_OFFSET]
        if magic in {0, 1}:
            raise KafkaError(ErrorCode.unsupported_for_message_format, f"message format v{magic} is not supported")
        if left < HEADER_BYTES:
            raise CorruptRecord(f"{left} bytes at position {pos} are too few for a record batch")
        header = read_header(buffer, pos)
        if magic != MAGIC:
            raise CorruptRecord(f"unknown magic {magic} at position {pos}")
        size = header.length + LOG_OVERHEAD
        if not HEADER_BYTES <= size <= left:
            raise CorruptRecord(f"batch length {header.length} does not fit into {left} bytes at position {pos}")
        if client and batches:
            raise KafkaError(ErrorCode.invalid_record, "more than one record batch for a partition")
        if client and header.base_offset != 0:
            raise KafkaError(ErrorCode.invalid_record, f"base offset is {header.base_offset}, not 0")
        if max_message_bytes is not None and size > max_message_bytes:
            raise KafkaError(
                ErrorCode.message_too_large, f"batch of {size} bytes; max.message.bytes is {max_message_bytes}"
            )
        if crc32c(view[pos + ATTRIBUTES_OFFSET : pos + size]) != header.crc:
            raise CorruptRecord(f"the CRC of the batch at position {pos} does not match its bytes")
        _check_counts(header, size - HEADER_BYTES, client)
        batches.append((pos, header))
        pos += size
    return batches


def _check_counts(header: BatchHeader, payload: int, client: bool) -> None:
    attributes, count = header.attributes, header.record_count
    codec = attributes & COMPRESSION_MASK
    if codec > 4:
        raise KafkaError(ErrorCode.invalid_record, f"unknown compression {codec}")
    if codec == 0 and count * MIN_RECORD_BYTES > payload:
        raise KafkaError(ErrorCode.invalid_record, f"{count} records cannot fit into {payload} bytes")
    if not client:
        check_header(header)
        return
    if count <= 0:
        raise KafkaError(ErrorCode.invalid_record, f"record count is {count}")
    if header.last_offset_delta + 1 != count:
        raise KafkaError(
            ErrorCode.invalid_record, f"{count} records, but the last offset delta is {header.last_offset_delta}"
        )
    if attributes & CONTROL_BIT:
        raise KafkaError(ErrorCode.invalid_record, "clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.invalid_record, f"sequence {header.base_sequence} in a batch of producer {header.producer_id}"
        )


def seal(checked: bytes, payload: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Returns a batch with the packed fields ``checked`` (``CHECKED``) and the records ``payload``."""
    crc = crc32c(payload, crc32c(checked))
    length = HEADER_BYTES - LOG_OVERHEAD + len(payload)
    return _UNCHECKED.pack(base_offset, length, leader_epoch, MAGIC, crc) + checked + payload


def head_with_offset(
    buffer: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Returns the batch's first 16 bytes with new base offset and leader epoch, or all 61 bytes if the CRC changes.

    ``log_append_time_ms`` sets LogAppendTime with this time. ``None`` means CreateTime: a LogAppendTime bit of the
    producer is cleared, as in Kafka. The caller writes the rest of the batch without changes after the result.
    """
    if log_append_time_ms is None and not header.attributes & TIMESTAMP_TYPE_BIT:
        return _PREFIX.pack(base_offset, header.length, leader_epoch)
    if log_append_time_ms is None:
        attributes, max_timestamp = header.attributes & ~TIMESTAMP_TYPE_BIT, header.max_timestamp
    else:
        attributes, max_timestamp = header.attributes | TIMESTAMP_TYPE_BIT, log_append_time_ms
    checked = CHECKED.pack(attributes, header.last_offset_delta, header.base_timestamp, max_timestamp, *header[9:])
    rest = memoryview(buffer)[pos + HEADER_BYTES : pos + header.size_in_bytes]
    crc = crc32c(rest, crc32c(checked))
    return _PREFIX.pack(base_offset, header.length, leader_epoch) + struct.pack(">bI", MAGIC, crc) + checked
