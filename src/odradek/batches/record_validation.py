"""Validation of a producer's records before the append, so that the log has no unreadable record.

The checks are those of Kafka's broker: the lengths and the total size of the records. The result says which timestamps
the records have, and whether one has no key; the caller checks both. The bytes of keys, values and headers are skipped,
so the check takes a third of the time of a decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from mmap import mmap
from typing import NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES, Plain, decompress_in_steps, decompress_small
from odradek.batches.header import COMPRESSION_MASK, HEADER_BYTES, LOG_OVERHEAD, BatchHeader, Buffer
from odradek.batches.steps import BatchSteps
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.varints import OverlongVarint, read_uvarint

STEP_RECORDS = 1000
"""The number of records that are checked one by one in a step."""
_FIRST_RECORDS = 2 * STEP_RECORDS
"""The number of records that the first step checks one by one. It is larger, so that a usual batch needs only one
step."""
_RUN = 16
"""The smallest run of records of one shape that is faster to check together. To check this number of records in a run
takes as long as to check one record by itself."""
_REACH, _MOST_ALIKE = 1 << 10, 1 << 14
"""The number of records that are checked together at first, and the largest number."""
_FEW_HEADERS = 500
"""The headers of a record with more headers are checked in separate steps."""


class RecordSummary(NamedTuple):
    """A summary of records. Timestamp deltas in ms are from the batch's base timestamp."""

    least_delta: int
    greatest_delta: int
    has_keyless: bool


Walked = tuple[int, int, set[int], bool, int, int]
"""The result of a step over records: its end position, the number of remaining records, the timestamp deltas in their
encoded form, and whether a record has no key. The last two numbers are 0, unless the step ended before the headers of a
record with many headers: then they are the number of headers and the end of the record."""


def begin_check(
    data: Buffer, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> RecordSummary | BatchSteps[RecordSummary]:
    """Checks the records of the single batch in ``data``. If the check takes longer than a step, it returns steps.

    Raises KafkaError: INVALID_RECORD for malformed records and for a wrong number of records; UNKNOWN_SERVER_ERROR,
    like Kafka, for records that cannot be decompressed or decompress to more than ``max_bytes``, and for a record
    length of more than 5 bytes.
    """
    count, size = header.record_count, header.length + LOG_OVERHEAD
    codec = header.attributes & COMPRESSION_MASK
    start = 0
    if codec:
        try:
            unpacked = decompress_small(codec, memoryview(data)[HEADER_BYTES:size])
        except CorruptRecord as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        if unpacked is None:
            return _check_unpacked(data, header, max_bytes)
        records, end = unpacked, len(unpacked)
    elif type(data) is bytes:
        records, start, end = data, HEADER_BYTES, size
    else:
        records, end = bytes(memoryview(data)[HEADER_BYTES:size]), size - HEADER_BYTES
    try:
        walked = walk(records, start, count, _FIRST_RECORDS)
        at, left, deltas, keyless, headers, _ = walked
        if left or headers:
            if codec:
                return _check_unpacked(data, header, max_bytes)
            return check_rest(Plain(records, end), count, walked)
        if at != end:
            raise _left_over(at, end)
    except (CorruptRecord, OverlongVarint, IndexError) as error:
        raise _broken(count, error) from None
    values = [(delta >> 1) ^ -(delta & 1) for delta in deltas]
    return RecordSummary(min(values), max(values), keyless)


def _check_unpacked(data: Buffer, header: BatchHeader, max_bytes: int) -> BatchSteps[RecordSummary]:
    """Decompresses and checks the batch in steps, with a reservation of memory.

    ``begin_check`` may have decompressed the batch before, without a reservation. Those bytes are not used.
    """
    try:
        records = yield from records_in_steps(data, header, max_bytes)
    except CorruptRecord as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
    return (yield from check_rest(records, header.record_count, None))


def check_rest(records: Plain, count: int, walked: Walked | None) -> BatchSteps[RecordSummary]:
    extremes: list[int] = []
    has_keyless = False
    try:
        at, left = 0, count
        while left:
            at, left, deltas, keyless = yield from end_step(records, walked or walk(records.data, at, left))
            walked = None
            extremes += decode_deltas(deltas)
            extremes = [min(extremes), max(extremes)]
            has_keyless |= keyless
            yield None
        if at != records.size:
            raise _left_over(at, records.size)
    except (CorruptRecord, OverlongVarint, IndexError) as error:
        raise _broken(count, error) from None
    least, greatest = extremes
    return RecordSummary(least, greatest, has_keyless)


def _broken(count: int, error: Exception) -> KafkaError:
    if isinstance(error, CorruptRecord):
        reason = error.message
    else:
        reason = "its last record is cut off" if isinstance(error, IndexError) else str(error)
    return KafkaError(ErrorCode.invalid_record, f"the batch of {count} records is malformed: {reason}")


def _left_over(at: int, end: int) -> CorruptRecord:
    return CorruptRecord(f"{end - at} bytes follow the last record" if at < end else "its last record is cut off")


def records_in_steps(data: Buffer, header: BatchHeader, max_bytes: int) -> BatchSteps[Plain]:
    """Returns the bytes of the records of the single batch in ``data``. Raises CorruptRecord."""
    payload = memoryview(data)[HEADER_BYTES : header.size_in_bytes]
    if not header.compression:
        plain = bytes(payload)
        return Plain(plain, len(plain))
    return (yield from decompress_in_steps(header.compression, payload, max_bytes))


def end_step(records: Plain, walked: Walked) -> BatchSteps[tuple[int, int, set[int], bool]]:
    """Checks the headers before which ``walk`` has stopped, if any.

    Returns the first four values of ``walked``, with the position after these headers. Raises CorruptRecord,
    OverlongVarint, IndexError.
    """
    at, left, deltas, keyless, headers, end = walked
    while headers:
        some = min(headers, _FEW_HEADERS)
        at = _fields_end(records.data, at, some)
        headers -= some
        if not headers and at != end:
            raise CorruptRecord(f"the record that ends at byte {end} does not have its declared length")
        yield None
    return at, left, deltas, keyless


def decode_deltas(deltas: Iterable[int]) -> list[int]:
    return [(delta >> 1) ^ -(delta & 1) for delta in deltas]


def walk(data: bytes | mmap, at: int, left: int, singly: int = STEP_RECORDS) -> Walked:
    """Checks at most ``left`` records from ``at`` on in one step, at most ``singly`` of them one by one.

    Raises CorruptRecord, OverlongVarint, KafkaError (for a record length of more than 5 bytes), and IndexError at the
    end of the bytes.
    """
    deltas: set[int] = set()
    size = alone = headers = end = 0
    reach, keyless = _REACH, False
    count = min(left, singly)
    left -= count
    while count:
        at, count, size, is_keyless, headers, end = _one_by_one(data, at, (count, size, alone), deltas)
        keyless |= is_keyless
        if not size:
            break
        alone = count + left
        if alone < _RUN:
            continue
        alike, seen = _run(data, at - size, size, min(alone + 1, reach))
        alone = 0 if alike >= _RUN else 4 * _RUN
        reach = min(4 * reach, _MOST_ALIKE) if alike == reach else _REACH
        if alike:
            deltas |= seen
            left += count - (alike - 1)
            count = min(max(count - alike // _RUN, 0), left)
            left -= count
            at += (alike - 1) * size
    return at, count + left, deltas, keyless, headers, end


def _one_by_one(
    data: bytes | mmap, at: int, counts: tuple[int, int, int], deltas: set[int]
) -> tuple[int, int, int, bool, int, int]:
    """Checks records until two neighbours have the same size, or until enough headers were checked for one step.

    ``counts``: the number of records, the size of the previous record, and how often neighbours of the same size do not
    end the check. Returns the position, the number of remaining records, the common size (0 if the check has ended for
    another reason), and whether a record has no key. If it has stopped before many headers, the last two values are the
    number of these headers and the end of their record; otherwise both are 0.
    """
    # Nearly all numbers have one or two bytes. They are read inline, because a call would take most of the time.
    count, size, alone = counts
    keyless, seen = False, 0
    while count:
        start = at
        length = data[at]
        if length < 0x80:
            at += 1
        elif data[at + 1] < 0x80:
            length = length & 0x7F | data[at + 1] << 7
            at += 2
        else:
            length, at = _record_length(data, at)
        end = at + (length >> 1) if not length & 1 else 0
        at += 1  # attributes, which are unused
        delta = data[at]
        if delta < 0x80:
            at += 1
        elif data[at + 1] < 0x80:
            delta = delta & 0x7F | data[at + 1] << 7
            at += 2
        else:
            delta, at = read_uvarint(data, at, 10)
        deltas.add(delta)
        if data[at] < 0x80:  # the offset delta, whose value is not checked, as in Kafka
            at += 1
        else:
            at = at + 2 if data[at + 1] < 0x80 else _number_end(data, at)
        length = data[at]
        if length < 0x80 and not length & 1:
            at += 1 + (length >> 1)
        elif length == 1:
            keyless = True
            at += 1
        else:
            at = _field_end(data, at)
            keyless = keyless or length & 1 == 1  # -1 in a longer encoding
        length = data[at]
        if length < 0x80 and not length & 1:
            at += 1 + (length >> 1)
        elif length > 0x7F and not length & 1 and data[at + 1] < 0x80:
            at += 2 + ((length & 0x7F | data[at + 1] << 7) >> 1)
        else:
            at = _field_end(data, at)
        count -= 1
        if data[at]:
            headers, at = _header_count(data, at)
            if headers > _FEW_HEADERS:
                return at, count, 0, keyless, headers, end
            at, seen = _fields_end(data, at, headers), seen + headers
        else:
            at += 1
        if at != end:
            raise CorruptRecord(f"the record at byte {start} does not have its declared length")
        if seen > STEP_RECORDS:
            break
        if at - start != size:
            size = at - start
        elif alone:
            alone -= 1
        else:
            return at, count, size, keyless, 0, 0
    return at, count, 0, keyless, 0, 0


_LAST, _NOT_LAST = bytes(range(0x80)), bytes(range(0x80, 0x100))
"""The values of a varint's last byte, and of its other bytes."""


def _run(data: bytes | mmap, start: int, size: int, count: int) -> tuple[int, set[int]]:
    """Returns how many records from ``start`` on have the shape of the first one, and their encoded timestamp deltas.

    The first one is valid. At most ``count`` records of ``size`` bytes are compared. 0 means an unsupported shape. The
    shape is the lengths of all fields and the numbers of bytes of the deltas. A byte at the same place in each record
    is a column: every ``size``-th byte. The columns of lengths and deltas are compared as a whole.
    """
    length_end = _number_end(data, start)
    time_end = _number_end(data, length_end + 1)
    offset_end = _number_end(data, time_end)
    key_end = _number_end(data, offset_end)
    value = _field_end(data, offset_end)
    value_end = _number_end(data, value)
    headers = _field_end(data, value)
    if data[headers] or time_end - length_end > 3:
        return 0, set()
    for at in (*range(start, length_end), *range(offset_end, key_end), *range(value, value_end), headers):
        column = data[at : start + count * size : size]
        count = len(column) - len(column.lstrip(data[at : at + 1]))
    for first, end in ((length_end + 1, time_end), (time_end, offset_end)):
        for at in range(first, end):
            column = data[at : start + count * size : size]
            count = len(column) - len(column.lstrip(_LAST if at == end - 1 else _NOT_LAST))
    stop = start + count * size
    low, high = data[length_end + 1 : stop : size], data[time_end - 1 : stop : size]
    if time_end - length_end == 2:
        return count, set(low)
    return count, {first & 0x7F | second << 7 for first, second in zip(low, high, strict=True)}


def _number_end(data: bytes | mmap, at: int) -> int:
    return at + 1 if data[at] < 0x80 else read_uvarint(data, at, 10)[1]


def _record_length(data: bytes | mmap, at: int) -> tuple[int, int]:
    """Reads a long record length. A malformed one is UNKNOWN_SERVER_ERROR, as in Kafka."""
    try:
        return read_uvarint(data, at)
    except OverlongVarint as error:
        raise KafkaError(ErrorCode.unknown_server_error, f"the length of the record at byte {at}: {error}") from None


def _field_end(data: bytes | mmap, at: int, *, nullable: bool = True) -> int:
    size = data[at]
    if size < 0x80 and not size & 1:
        return at + 1 + (size >> 1)
    size, at = read_uvarint(data, at)
    if size & 1:
        if size != 1 or not nullable:
            raise CorruptRecord("the length of a field is negative")
        return at
    return at + (size >> 1)


def _header_count(data: bytes | mmap, at: int) -> tuple[int, int]:
    count, at = read_uvarint(data, at)
    if count & 1:
        raise CorruptRecord("the number of headers is negative")
    return count >> 1, at


def _fields_end(data: bytes | mmap, at: int, headers: int) -> int:
    """Returns the position after this number of headers."""
    for _ in range(headers):
        at = _field_end(data, _field_end(data, at, nullable=False))
    return at
