"""Search for records of one batch by a condition, in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from mmap import mmap
from typing import NamedTuple

from odradek.batches.compression import DEFAULT_MAX_BYTES
from odradek.batches.header import LOG_APPEND_TIME, MIN_RECORD_BYTES, BatchHeader, Buffer
from odradek.batches.record_validation import (
    STEP_RECORDS,
    RecordSummary,
    decode_deltas,
    end_step,
    records_in_steps,
    walk,
)
from odradek.batches.steps import BatchSteps
from odradek.core.errors import CorruptRecord
from odradek.core.varints import OverlongVarint, read_uvarint

_FIRST_RECORDS = 16
"""The number of records that the first step checks one by one. It is small, because the first match is often near the
start."""


class RecordMatch(NamedTuple):
    """A record of a batch. ``number`` is its index in the batch, from 0. ``timestamp`` is in milliseconds."""

    number: int
    offset: int
    timestamp: int
    is_keyless: bool


class Condition(NamedTuple):
    """The condition of a search. ``of_one`` returns whether one record matches. ``of_some`` returns whether any of
    several records can match.

    ``of_some`` gets a summary of these records. Its times are the stored timestamp deltas, also under LogAppendTime.
    """

    of_one: Callable[[RecordMatch], bool]
    of_some: Callable[[RecordSummary], bool]


def search(
    data: Buffer, header: BatchHeader, condition: Condition, *, most: int = 1, max_bytes: int = DEFAULT_MAX_BYTES
) -> BatchSteps[list[RecordMatch]]:
    """Returns the first records of one batch that meet a condition. Stops after ``most`` of them.

    ``data`` has only this batch. Raises CorruptRecord.
    """
    records = yield from records_in_steps(data, header, max_bytes)
    at, left, singly = 0, header.record_count, _FIRST_RECORDS
    if left * MIN_RECORD_BYTES > records.size:
        raise CorruptRecord(
            f"the batch at offset {header.base_offset} has {left} records, which cannot fit into {records.size} bytes"
        )
    matches: list[RecordMatch] = []
    try:
        while left:
            start, before = at, left
            at, left, deltas, keyless = yield from end_step(records, walk(records.data, at, left, singly))
            singly = min(4 * singly, STEP_RECORDS)
            if at > records.size:
                raise IndexError(at)
            times = decode_deltas(deltas)
            if condition.of_some(RecordSummary(min(times), max(times), keyless)):
                numbers = range(header.record_count - before, header.record_count - left)
                for one in _records(records.data, start, numbers, header):
                    if condition.of_one(one):
                        matches.append(one)
                        if len(matches) == most:
                            return matches
                    if one.number % STEP_RECORDS == STEP_RECORDS - 1:
                        yield None
            yield None
    except IndexError as error:
        raise CorruptRecord(f"the records of the batch at offset {header.base_offset} are cut off") from error
    except OverlongVarint as error:
        raise CorruptRecord(f"the batch at offset {header.base_offset} has a malformed record: {error}") from error
    if at != records.size:
        raise CorruptRecord(
            f"the batch at offset {header.base_offset} has {records.size - at} bytes after its last record"
        )
    return matches


def _records(data: bytes | mmap, at: int, numbers: range, header: BatchHeader) -> Iterator[RecordMatch]:
    """Yields the records ``numbers``, the first one at byte ``at``. The caller has checked their lengths."""
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    for number in numbers:
        size, at = read_uvarint(data, at)
        following = at + (size >> 1)
        delta, at = read_uvarint(data, at + 1, 10)
        timestamp = header.base_timestamp + ((delta >> 1) ^ -(delta & 1)) if append_time is None else append_time
        delta, at = read_uvarint(data, at)
        if delta & 1:
            raise CorruptRecord(f"a record has the negative offset delta {-(delta + 1 >> 1)}")
        yield RecordMatch(number, header.base_offset + (delta >> 1), timestamp, read_uvarint(data, at)[0] == 1)
        at = following


def at_or_after(timestamp: int, offset: int, header: BatchHeader) -> Condition:
    """Returns the condition for records at or after an offset with at least this timestamp (ms)."""
    sets_time, delta = header.timestamp_type == LOG_APPEND_TIME, timestamp - header.base_timestamp
    return Condition(
        lambda one: one.timestamp >= timestamp and one.offset >= offset,
        lambda some: sets_time or some.greatest_delta >= delta,
    )
