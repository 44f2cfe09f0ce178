"""The choice of logs for cleaning and the job of one cleaning, by Kafka's rules. The functions change no log.

The dirty section starts at the end of the last cleaning. It ends before the first of these segments: the active one,
the one with the last stable offset, and the first one with a record younger than ``min.compaction.lag.ms``. A log is
due if more than ``min.cleanable.dirty.ratio`` of its cleanable bytes are dirty. It is also due if the first batch of a
dirty segment is older than ``max.compaction.lag.ms``. Of several due logs, the broker first cleans the one with the
highest dirty ratio.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from odradek.storage.cleaning.rules import ProducerStateEntry
from odradek.storage.log import Log
from odradek.storage.segments.salvage import MAX_RELATIVE_OFFSET
from odradek.storage.segments.segment import Segment

MAP_ENTRY_BYTES = 24


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The clean and dirty bytes of a log. Whole segments count, so a partly clean segment counts twice, as in Kafka.

    ``is_overdue``: the first batch of a dirty segment is older than ``max.compaction.lag.ms``.
    ``reset``: the reason why the end of the last cleaning is no longer valid; "" if it is valid, or if retention
    has raised the log start offset above it.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    reset: str = ""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return (self.is_overdue and self.dirty_bytes > 0) or self.ratio > min_ratio


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment of the log: [``base_offset``, ``end_offset``) in ``size`` bytes."""

    base_offset: int
    end_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a cleaning. It is sent to another process as JSON.

    ``sources`` are the segments that may be cleaned. ``rest`` are the later segments: the markers of transactions that
    begin in ``sources`` are there. Times in ms.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    rest: tuple[SourceSegment, ...]
    first_dirty_offset: int
    end_offset: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    producers: tuple[ProducerStateEntry, ...]
    max_keys: int
    bytes_per_second: float

    @property
    def size(self) -> int:
        """The bytes of all sources."""
        return sum(source.size for source in self.sources)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> Job:
        fields = json.loads(text)
        for name in ("sources", "rest"):
            fields[name] = tuple(SourceSegment(**source) for source in fields[name])
        fields["producers"] = tuple(ProducerStateEntry(*producer) for producer in fields["producers"])
        return cls(**fields)


def max_keys(dedupe_buffer_bytes: int, load_factor: float) -> int:
    """Returns the number of keys that fit into an offset map of ``log.cleaner.dedupe.buffer.size``."""
    return int(min(dedupe_buffer_bytes, 0x7FFFFFFF) // MAP_ENTRY_BYTES * load_factor)


def measure(log: Log, now_ms: int) -> LogToClean:
    """Returns the clean and dirty bytes of a log. Raises OSError, CorruptRecord if a segment cannot be read."""
    config = log.config
    first, reset = _first_dirty(log)
    active = log.active
    closed = [(segment, end) for segment, end in _with_ends(log) if segment is not active]
    dirty = [(segment, end) for segment, end in closed if end > first]
    limit = min(log.last_stable_offset, active.base_offset)
    if config.min_compaction_lag_ms > 0:
        latest = now_ms - config.min_compaction_lag_ms
        limit = min([limit, *(segment.base_offset for segment, _ in dirty if segment.age_timestamp > latest)])
    limit = max(first, limit)
    cleanable_end = next((segment.base_offset for segment, end in closed if end > limit), active.base_offset)
    times = [segment.first_timestamp for segment, _ in dirty]
    oldest = min((time for time in times if time > 0), default=None)
    return LogToClean(
        first,
        cleanable_end,
        sum(segment.size for segment, _ in closed if segment.base_offset < first),
        sum(segment.size for segment, _ in dirty if segment.base_offset < cleanable_end),
        oldest is not None and oldest < now_ms - config.max_compaction_lag_ms,
        reset,
    )


def _with_ends(log: Log) -> Iterator[tuple[Segment, int]]:
    """Yields each segment with its end: the base offset of the next one, or the log end offset."""
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]]
    return zip(segments, [*ends, log.log_end_offset], strict=True)


def _first_dirty(log: Log) -> tuple[int, str]:
    start = log.log_start_offset
    known = log.removals.cleaned_offset
    if known is None:
        return start, ""
    if known < start:
        # This is normal if retention deletes the start of the log.
        reason = "" if log.config.deletes_old else f"the log starts at {start}, after the last cleaned offset {known}"
        return start, reason
    if known > log.log_end_offset:
        return start, f"the log ends at {log.log_end_offset}, before the last cleaned offset {known}"
    return known, ""


def job_of(log: Log, dirt: LogToClean, now_ms: int, *, max_keys: int, bytes_per_second: float) -> Job:
    """Returns the job of a cleaning of the log."""
    config = log.config
    sources = [
        SourceSegment(s.base_offset, end, s.size, s.offset_index.size, s.time_index.size) for s, end in _with_ends(log)
    ]
    producers = tuple(
        ProducerStateEntry(state.producer_id, state.epoch, state.batches[-1].last_offset if state.batches else -1)
        for state in log.producers
    )
    return Job(
        directory=str(log.path),
        sources=tuple(source for source in sources if source.base_offset < dirt.end_offset),
        rest=tuple(source for source in sources if source.base_offset >= dirt.end_offset),
        first_dirty_offset=dirt.first_dirty_offset,
        end_offset=dirt.end_offset,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        now_ms=now_ms,
        producers=producers,
        max_keys=max_keys,
        bytes_per_second=bytes_per_second,
    )


def group_sources(sources: Iterable[SourceSegment], job: Job) -> list[list[SourceSegment]]:
    """Groups neighbours that fit into one segment by bytes, by the sizes of both indexes and by relative offsets."""
    groups: list[list[SourceSegment]] = []
    for source in sources:
        if groups and _fits(groups[-1], source, job):
            groups[-1].append(source)
        else:
            groups.append([source])
    return groups


def _fits(group: Sequence[SourceSegment], source: SourceSegment, job: Job) -> bool:
    joined = [*group, source]
    return (
        sum(one.size for one in joined) <= job.segment_bytes
        and sum(one.index_bytes for one in joined) <= job.segment_index_bytes
        and sum(one.time_index_bytes for one in joined) <= job.segment_index_bytes
        and (not source.size or source.end_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET)
    )
