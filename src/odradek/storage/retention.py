"""Retention: the choice of a log's oldest segments for removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from odradek.storage.log_writer import LogWriter
from odradek.storage.segments.segment import Segment
from odradek.storage.segments.segment_list import SegmentList


class Rule(NamedTuple):
    """A rule of retention: ``is_due(segment, end offset of the segment)``. ``keeps_active``: the rule never removes the
    active segment."""

    is_due: Callable[[Segment, int], bool]
    keeps_active: bool = False


def rules(writer: LogWriter, segments: SegmentList, now_ms: int) -> Iterator[Rule]:
    """Yields the rules: below the log start, over retention.bytes, older than retention.ms.

    The caller applies each rule before it takes the next rule, because retention.bytes applies to the new size.
    """
    config = writer.config
    yield Rule(lambda _segment, end: end <= writer.log_start_offset, keeps_active=True)
    if config.deletes_old and config.retention_bytes >= 0:
        excess = segments.size - config.retention_bytes

        def is_excess(segment: Segment, _end: int) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        yield Rule(is_excess)
    if config.deletes_old and config.retention_ms >= 0:
        oldest = now_ms - config.retention_ms
        yield Rule(lambda segment, _end: segment.age_timestamp < oldest)


def count_due(writer: LogWriter, segments: SegmentList, rule: Rule) -> int:
    """Returns the number of due segments, from the oldest on. No segment that ends above the high watermark is due."""
    readable_end = writer.readable_end
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        end = writer.end_offset if is_active else segments.bases[number + 1]
        if is_active and (rule.keeps_active or not segment.size):
            return number
        if readable_end < end or not rule.is_due(segment, end):
            return number
    return len(segments)
