"""A producer's records, looked at one by one before they are stored: a record that no reader can read stays out.

What is looked at is what Kafka's broker looks at: lengths, that the records fill their batch, their timestamps, whether
each has a key. Keys, values and headers themselves are passed over, so this takes a third of the time of reading them.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress
from odradek.batches.header import HEADER_BYTES, BatchHeader, Buffer
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError


class Checked(NamedTuple):
    """What there is in a batch. Timestamps in ms; deltas are from the batch's base timestamp."""

    least_delta: int
    greatest_delta: int
    has_keyless: bool


def check_batch(data: Buffer, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Checked:
    """Looks at the records of the one batch in ``data``.

    Raises KafkaError: INVALID_RECORD for records that are broken, too many or too few; UNKNOWN_SERVER_ERROR, as Kafka,
    for what cannot be unpacked or unpacks to more than ``max_bytes``.
    """
    payload = memoryview(data)[HEADER_BYTES : header.size_in_bytes]
    try:
        plain = payload if not header.compression else decompress(header.compression, payload, max_bytes)
    except CorruptRecord as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
    records = bytes(plain)
    try:
        return _check_records(records, header.record_count)
    except (CorruptRecord, IndexError) as error:
        told = str(error) if isinstance(error, CorruptRecord) else "its last record is cut off"
        raise KafkaError(
            ErrorCode.invalid_record, f"a batch of {header.record_count} records is broken: {told}"
        ) from None


def _check_records(data: bytes, count: int) -> Checked:
    """One pass over the bytes. Raises CorruptRecord, IndexError at the end.

    Numbers of one or two bytes, which nearly all are, are read in place: a call would cost more than all the rest.
    """
    at = size = left_out = 0
    keyless = False
    deltas = set()
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
        at += 1  # attributes: none are in use
        delta = data[at]
        if delta < 0x80:
            at += 1
        elif data[at + 1] < 0x80:
            delta = delta & 0x7F | data[at + 1] << 7
            at += 2
        else:
            delta, at = uvarint(data, at, 10)
        deltas.add(delta)
        if data[at] < 0x80:  # the offset's delta: what it says is not looked at, as in Kafka
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
        length = data[at]
        if length < 0x80 and not length & 1:
            at += 1 + (length >> 1)
        elif length > 0x7F and not length & 1 and data[at + 1] < 0x80:
            at += 2 + ((length & 0x7F | data[at + 1] << 7) >> 1)
        else:
            at = _field_end(data, at)
        at = _headers_end(data, at) if data[at] else at + 1
        if at != end:
            raise CorruptRecord(f"the record at byte {start} is not as long as it says")
        count -= 1
        if at - start != size:
            size = at - start
        elif left_out:
            left_out -= 1
        elif count >= _RUN:  # two of one size: perhaps many more are alike
            alike, seen = _run(data, start, size, count + 1)
            if alike:
                deltas |= seen
                count -= alike - 1
                at = start + alike * size
            left_out = 0 if alike >= _RUN else 4 * _RUN
    if at != len(data):
        raise CorruptRecord(f"{len(data) - at} bytes behind the last")
    decoded = [(delta >> 1) ^ -(delta & 1) for delta in deltas]
    return Checked(min(decoded), max(decoded), keyless)


_RUN = 16
"""So many records of one shape have to follow each other before looking at them together is faster."""
_LAST, _NOT_LAST = bytes(range(0x80)), bytes(range(0x80, 0x100))  # bytes of a number


def _run(data: bytes, start: int, size: int, count: int) -> tuple[int, set[int]]:
    """How many of ``count`` records, each ``size`` bytes, have the shape of the good one at ``start``, and the deltas
    of their timestamps as they are written. 0 of a shape that is not looked at in this way.

    A shape is the lengths of all fields, and how many bytes the deltas take: of records of one shape, each such byte
    is a column of the bytes, every ``size``-th, and looked at as a whole.
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
    stop = start + count * size
    for at in (*range(start, length_end), *range(offset_end, key_end), *range(value, value_end), headers):
        count = min(count, _leading(data[at:stop:size], data[at : at + 1]))
    for first, end in ((length_end + 1, time_end), (time_end, offset_end)):
        for at in range(first, end):
            count = min(count, _leading(data[at:stop:size], _LAST if at == end - 1 else _NOT_LAST))
    stop = start + count * size
    low, high = data[length_end + 1 : stop : size], data[time_end - 1 : stop : size]
    if time_end - length_end == 2:
        return count, set(low)
    return count, {first & 0x7F | second << 7 for first, second in zip(low, high, strict=True)}


def _leading(column: bytes, allowed: bytes) -> int:
    """How many bytes at the column's beginning are among those allowed."""
    return len(column) - len(column.lstrip(allowed))


def _number_end(data: bytes, at: int) -> int:
    return uvarint(data, at, 10)[1]


def uvarint(data: bytes, at: int, max_length: int = 5) -> tuple[int, int]:
    """The number at ``at`` as it is written (zigzag), and the position behind it. Raises CorruptRecord, IndexError."""
    result = 0
    for shift in range(0, 7 * max_length, 7):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise CorruptRecord(f"a number is longer than {max_length} bytes")


def _record_length(data: bytes, at: int) -> tuple[int, int]:
    """A long one. Kafka reads it apart from the rest of a record, and has no code for what is no number."""
    try:
        return uvarint(data, at)
    except CorruptRecord as error:
        raise KafkaError(ErrorCode.unknown_server_error, f"the length of the record at byte {at}: {error}") from None


def _field_end(data: bytes, at: int, *, nullable: bool = True) -> int:
    size, at = uvarint(data, at)
    if size & 1:
        if size != 1 or not nullable:
            raise CorruptRecord("a field's length is negative")
        return at
    return at + (size >> 1)


def _headers_end(data: bytes, at: int) -> int:
    count, at = uvarint(data, at)
    if count & 1:
        raise CorruptRecord("a number of headers is negative")
    for _ in range(count >> 1):
        at = _field_end(data, _field_end(data, at, nullable=False))
    return at
