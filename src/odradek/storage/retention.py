"""Retention: the choice of a log's oldest segments for removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from odradek.storage.config import LogConfig
from odradek.storage.segments.segment import Segment


class RetainedLog(Protocol):
    @property
    def config(self) -> LogConfig: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def size(self) -> int:
        """The bytes of all segments."""

    @property
    def segments(self) -> Sequence[Segment]: ...


class Rule(NamedTuple):
    """A rule of retention: ``is_due(segment, end offset of the segment)``. ``keeps_active``: the rule never removes the
    active segment."""

    is_due: Callable[[Segment, int], bool]
    keeps_active: bool = False


def rules(log: RetainedLog, now_ms: int) -> Iterator[Rule]:
    """Yields the rules: below the log start, over retention.bytes, older than retention.ms.

    The caller applies each rule before it takes the next rule, because retention.bytes applies to the new size.
    """
    config = log.config
    yield Rule(lambda _segment, end: end <= log.log_start_offset, keeps_active=True)
    if config.deletes_old and config.retention_bytes >= 0:
        excess = log.size - config.retention_bytes

        def is_excess(segment: Segment, _end: int) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        yield Rule(is_excess)
    if config.deletes_old and config.retention_ms >= 0:
        oldest = now_ms - config.retention_ms
        yield Rule(lambda segment, _end: segment.age_timestamp < oldest)


def count_due(log: RetainedLog, rule: Rule) -> int:
    """Returns the number of due segments, from the oldest on. No segment that ends above the high watermark is due."""
    segments = log.segments
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        end = log.log_end_offset if is_active else segments[number + 1].base_offset
        if is_active and (rule.keeps_active or not segment.size):
            return number
        if log.high_watermark < end or not rule.is_due(segment, end):
            return number
    return len(segments)
