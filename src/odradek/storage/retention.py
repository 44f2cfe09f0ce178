"""Which of a log's oldest segments are due for removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from odradek.storage.config import LogConfig
from odradek.storage.segment import Segment


class RetainedLog(Protocol):
    config: LogConfig
    log_start_offset: int

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes of all segments."""

    @property
    def segments(self) -> Sequence[Segment]: ...


class Rule(NamedTuple):
    """``is_due(segment, the offset behind it)``. ``keeps_active``: it says nothing about the active segment."""

    is_due: Callable[[Segment, int], bool]
    keeps_active: bool = False


def rules(log: RetainedLog, now_ms: int) -> Iterator[Rule]:
    """Below the log start, too much (retention.bytes), too old (retention.ms). Each is made for what is left then."""
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
    """How many segments, from the oldest on, are due; none that has records above the high watermark."""
    segments = log.segments
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        end = log.log_end_offset if is_active else segments[number + 1].base_offset
        if is_active and (rule.keeps_active or not segment.size):
            return number
        if log.high_watermark < end or not rule.is_due(segment, end):
            return number
    return len(segments)
