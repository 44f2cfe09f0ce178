"""Search for a record by its timestamp in the segments of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from odradek.batches.steps import BatchSteps
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.segments.segment import FoundOffset, Segment

_STEP_SEGMENTS = 500
LastFound = tuple[tuple[int | None, int, int], FoundOffset | None]
"""The previous search of a log and its result, because a search can read millions of records and is often repeated.

The first element has the timestamp (None: the largest), the log start offset (in a search for the largest timestamp:
the log end offset), and ``changes_of_segments``. A search with equal values has the same result."""
NOTHING_FOUND: LastFound = (None, -1, -1), None


class SearchedLog(Protocol):
    """A log whose segments can be removed or replaced between two steps of a search."""

    last_found: LastFound
    disk: DiskState

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def segments(self) -> Sequence[Segment]: ...

    def changes_of_segments(self) -> int:
        """Returns a number that rises if segments are removed, replaced or truncated. Raises KafkaError if offline."""


def first_at_least(log: SearchedLog, timestamp: int) -> BatchSteps[FoundOffset | None]:
    """Finds the first record with at least that timestamp (ms). Raises KafkaError if the log is or goes offline."""
    while True:
        start_offset, changes = log.log_start_offset, log.changes_of_segments()
        if log.last_found[0] == (timestamp, start_offset, changes):
            return log.last_found[1]
        for number, segment in enumerate(log.segments, 1):
            if segment.max_timestamp >= timestamp and segment.next_offset > start_offset:
                log.changes_of_segments()  # raises if the log is offline
                record = yield from _search(log, segment, timestamp, start_offset)
                if record is not None and record.offset >= log.log_start_offset:
                    log.last_found = (timestamp, start_offset, changes), record
                    return record
            if number % _STEP_SEGMENTS == 0:
                yield None
            if log.changes_of_segments() != changes:
                break
        else:
            return None


def greatest(log: SearchedLog) -> BatchSteps[FoundOffset | None]:
    """Finds the first record with the largest timestamp; the first of all if no record has one. Raises KafkaError."""
    while True:
        changes = log.changes_of_segments()
        asked = None, log.log_end_offset, changes
        if log.last_found[0] == asked:
            return log.last_found[1]
        newest = max(log.segments, key=lambda segment: segment.max_timestamp)
        record = yield from _search(log, newest, newest.max_timestamp, newest.base_offset)
        if record is not None or log.changes_of_segments() == changes:
            log.last_found = asked, record
            return record


def _search(log: SearchedLog, segment: Segment, timestamp: int, start_offset: int) -> BatchSteps[FoundOffset | None]:
    try:
        return (yield from segment.search_timestamp(timestamp, start_offset))
    except OSError as error:
        raise log.disk.fail_read("find timestamp", error) from error
