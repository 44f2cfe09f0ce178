"""One cleaning of one log, as in Kafka's Log Cleaner.

1. Survey: batch headers give the number of dirty records, which limits the number of keys. Headers and markers give the
   aborted transactions. If a transaction has no marker in the segments to clean, the survey continues in the segments
   after them.
2. Map: the offset map gets the newest offset of every key in the dirty section, until it is full.
3. Copy: every segment from the log's start to the end of the mapped section is rewritten by the rules of
   ``cleaning/rules``. Neighbours become one segment while they fit into ``segment.bytes`` and the index size.

Source segments are closed and are only read. New files have the suffix ``.cleaned`` until ``log_removals`` renames
them. ``clean`` is a generator, and its caller controls its speed. The broker runs it on its event loop for
small logs, in steps of one millisecond. For other logs it starts ``python -m odradek.storage.cleaning.cleaner``, a
process with the lowest priority that ends after the cleaning. This process uses numba if it is installed.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from odradek.batches.compression import decompress_small
from odradek.batches.control import read_control
from odradek.batches.header import HEADER_BYTES, Buffer, read_header
from odradek.core.errors import CorruptRecord, KafkaError, OdradekError, StorageError
from odradek.storage.cleaning.jobs import Job, SourceSegment, group_sources
from odradek.storage.cleaning.rows import FilteredPart, MappedPart, RowEngine, SegmentSurvey
from odradek.storage.cleaning.rules import (
    AbortedSearch,
    AbortedTransactionSpan,
    CleaningRules,
    Transactions,
)
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.recovery.recovery import CLEANED_SUFFIX
from odradek.storage.segments.aborted_index import decode_entries
from odradek.storage.segments.segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, Segment, file_name

_SMALL_RECORDS = 150_000
"""The largest number of records in a log that the broker cleans without a process."""
_SMALL_READ_BYTES = 64 << 10
_LARGE_READ_BYTES = 1 << 20
_MAPPED = 8
"""A portion of a mapped file, which needs no memory, is so many times larger."""
_ROWS = 600_000
"""The most records that the process cleans without numba, whose import takes longer than so many rows."""
_ROWS_PER_BATCH = 5
"""A batch takes as long as this number of records."""
_ESTIMATED_BATCHES = 1_000


class MapFull(StorageError):
    """The keys of the first dirty batch do not fit into the offset map, so the cleaning cannot proceed."""


class TooLargeForSteps(OdradekError):
    """The log has too many records, or too large compressed batches, for the caller's steps. Nothing was written."""


class CleaningStopped(OdradekError):
    """The broker has ended or has stopped the cleaning."""


class Engine(Protocol):
    """The interface of both engines; see ``RowEngine``."""

    @property
    def keys(self) -> int: ...
    def survey(self, segment: Segment, first_dirty_offset: int) -> Generator[int, None, SegmentSurvey]: ...
    def reserve(self, keys: int, max_keys: int) -> None: ...
    def map(
        self, portion: Buffer, transactions: Transactions, first_dirty_offset: int
    ) -> Generator[int, None, MappedPart]: ...
    def sort_offsets(self, first_dirty_offset: int) -> None: ...
    def filter(
        self, portion: Buffer, rules: CleaningRules, mapped_offset: int
    ) -> Generator[int, None, FilteredPart]: ...


@dataclass(slots=True)
class Counts:
    """The bytes of files and the numbers of records that a cleaning has read and kept so far."""

    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """The result of a cleaning. ``end_offset`` is the start of the next dirty section."""

    end_offset: int
    counts: Counts


class CleanedSegment(Segment):
    """A new segment of a cleaning. ``replaces`` has the base offsets of the segments that it replaces."""

    replaces: Sequence[int] = ()

    def path(self, suffix: str) -> Path:
        return super().path(suffix + CLEANED_SUFFIX)

    def finish(self) -> None:
        """Syncs and closes the files, and gives the log file the modification time of the last replaced segment."""
        self.sync()
        self.file.close()
        self.forget()
        self.files.set_modified_ms(self.path(LOG_SUFFIX), self.source_modified_ms)

    @property
    def source_modified_ms(self) -> int:
        """The modification time of the last replaced segment."""
        name = file_name(self.replaces[-1], LOG_SUFFIX)
        return self.files.modified_ms(self.directory / name)


CleaningSteps = Generator[int | CleanedSegment, None, CleaningResult]


def clean(
    job: Job, engine: Engine, files: Files, *, read_bytes: int = _SMALL_READ_BYTES, max_packed: int = 0
) -> CleaningSteps:
    """Cleans a log. Yields the number of processed bytes, and each new segment after its write and before its sync.

    ``max_packed``: the largest allowed compressed batch in bytes (0: no limit). With a limit it raises TooLargeForSteps
    for a larger batch, for a batch with more than ``compression.SMALL_BYTES`` of decompressed records, and for too many
    records. Raises CorruptRecord, MapFull, OSError.
    """
    return _Cleaning(job, engine, files, read_bytes, max_packed).run()


class _Cleaning:
    def __init__(self, job: Job, engine: Engine, files: Files, read_bytes: int, max_packed: int) -> None:
        self.job = job
        self.engine = engine
        self.files = files
        self.read_bytes = read_bytes
        self.max_packed = max_packed
        self.directory = Path(job.directory)
        self.config = LogConfig(
            segment_bytes=job.segment_bytes,
            segment_index_bytes=job.segment_index_bytes,
            index_interval_bytes=job.index_interval_bytes,
        )
        self.counts = Counts()
        self.dirty_records = 0
        self.records = 0
        self.txn_entries: dict[int, bytes] = {}

    def run(self) -> CleaningSteps:
        job = self.job
        aborted = yield from self._survey()
        self.engine.reserve(min(self.dirty_records, job.max_keys), job.max_keys)
        end_offset = yield from self._map(aborted)
        if end_offset <= job.first_dirty_offset:
            raise MapFull(
                f"the offset map has room for {job.max_keys} keys, too few for the first batch at or after offset"
                f" {job.first_dirty_offset}"
            )
        self.counts.keys = self.engine.keys
        if not self.max_packed:
            self.engine.sort_offsets(job.first_dirty_offset)
        rules = CleaningRules(
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            end_offset=job.end_offset,
            producers=job.producers,
            aborted=aborted,
        )
        mapped = [source for source in job.sources if source.base_offset < end_offset]
        for group in group_sources(mapped, job):
            yield from self._copy(group, rules, end_offset - 1)
        return CleaningResult(end_offset, self.counts)

    def _open(self, source: SourceSegment) -> Segment:
        return _open(self.directory, source, self.config, self.files)

    def _survey(self) -> Generator[int, None, list[AbortedTransactionSpan]]:
        search = AbortedSearch()
        for source in self.job.sources:
            yield from self._survey_segment(source, search)
        # A transaction can end after the cleaned section, even after the last stable offset, because a later
        # transaction may still be open. Without its marker its records would count as committed.
        for source in self.job.rest:
            if not search.is_open:
                break
            yield from self._survey_segment(source, search, is_rest=True)
        return search.spans

    def _survey_segment(
        self, source: SourceSegment, search: AbortedSearch, *, is_rest: bool = False
    ) -> Generator[int, None, None]:
        segment = self._open(source)
        survey = yield from self.engine.survey(segment, self.job.first_dirty_offset)
        for position, header in survey.special:
            if is_rest and not header.is_control:
                continue  # a transaction that begins here has no record in the cleaned section
            control = read_control(segment.read_batch(position, header), 0, header) if header.is_control else None
            search.on_batch(header, control)
        if not is_rest:
            self.dirty_records += survey.records
            if self.max_packed:
                if survey.packed_bytes > self.max_packed:
                    raise TooLargeForSteps(f"a compressed batch of {survey.packed_bytes} bytes")
                yield from self._check_size(segment)
        segment.forget()

    def _check_size(self, segment: Segment) -> Generator[int, None, None]:
        """Raises TooLargeForSteps for too many records, and for a batch that takes longer than a step to decompress."""
        for position, header in segment.batches_from(0):
            self.records += header.record_count
            if self.records > _SMALL_RECORDS:
                raise TooLargeForSteps(f"more than {_SMALL_RECORDS} records")
            if header.compression:
                packed = memoryview(segment.read_batch(position, header))[HEADER_BYTES:]
                if decompress_small(header.compression, packed) is None:
                    raise TooLargeForSteps(f"a compressed batch of {header.record_count} records")
                yield 0

    def _map(self, aborted: list[AbortedTransactionSpan]) -> Generator[int, None, int]:
        """Fills the map and returns the offset below which all keys are in it."""
        job = self.job
        # The marker of a transaction that has ended before is not read: the producer's next one would count as aborted.
        transactions = Transactions(span for span in aborted if span.last_offset >= job.first_dirty_offset)
        end_offset = 0
        for source in job.sources:
            if source.end_offset <= job.first_dirty_offset:
                continue
            segment = self._open(source)
            position = segment.offset_index.lookup(job.first_dirty_offset).position
            while position < source.size:
                portion = self._read(segment, position)
                done = yield from self.engine.map(portion, transactions, job.first_dirty_offset)
                end_offset = max(end_offset, done.last_offset + 1)
                if done.is_full:
                    return end_offset
                position += done.size
                yield len(portion)
            segment.forget()
            end_offset = max(end_offset, source.end_offset)
        return end_offset

    def _read(self, segment: Segment, position: int, data: memoryview | None = None) -> Buffer:
        """Returns whole batches from ``position`` on, at least one, perhaps with a part of the next one.

        ``data``: the mapped file. Then only the pages are read that the caller uses.
        """
        left = segment.size - position

        def read(size: int) -> Buffer:
            return segment.file.pread(position, size) if data is None else data[position : position + size]

        portion = read(min(self.read_bytes if data is None else _MAPPED * self.read_bytes, left))
        if len(portion) >= HEADER_BYTES:
            size = read_header(portion).size_in_bytes
            if size > len(portion) and size <= left:
                portion = read(size)
            if HEADER_BYTES <= size <= len(portion):
                return portion
        raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} has no whole batch at position {position}")

    def _copy(
        self, group: Sequence[SourceSegment], rules: CleaningRules, mapped_offset: int
    ) -> Generator[int | CleanedSegment, None, None]:
        cleaned = CleanedSegment.create(self.directory, group[0].base_offset, self.config, self.files, self.job.now_ms)
        assert isinstance(cleaned, CleanedSegment)
        cleaned.replaces = [source.base_offset for source in group]
        for source in group:
            self._note_txn_index(source)
            segment = self._open(source)
            data = None if self.max_packed else memoryview(self.files.view(segment.path(LOG_SUFFIX)))
            position = 0
            while position < source.size:
                portion = self._read(segment, position, data)
                done = yield from self.engine.filter(portion, rules, mapped_offset)
                if done.data:
                    cleaned.append([done.data], done.batches)
                position += done.size
                self._count(done)
                yield done.size + len(done.data)
            segment.forget()
        cleaned.seal()
        self._write_txn_index(cleaned, rules)
        yield cleaned

    def _count(self, done: FilteredPart) -> None:
        counts = self.counts
        counts.bytes_written += len(done.data)
        counts.records_read += done.records_read
        counts.records_kept += done.records_kept

    def _note_txn_index(self, source: SourceSegment) -> None:
        path = self.directory / file_name(source.base_offset, TXN_INDEX_SUFFIX)
        if self.files.exists(path):
            self.txn_entries.update(decode_entries(self.files.read(path)))

    def _write_txn_index(self, cleaned: CleanedSegment, rules: CleaningRules) -> None:
        """Writes the entries of the aborted transactions in ``rules.transactions.kept``."""
        kept = [
            self.txn_entries[txn.last_offset] for txn in rules.transactions.kept if txn.last_offset in self.txn_entries
        ]
        rules.transactions.kept.clear()
        if kept:
            self.files.write(cleaned.path(TXN_INDEX_SUFFIX), b"".join(kept))


# --- the cleaner process --------------------------------------------------------------------------------------------


class _Throttle:
    """Limits the bytes per second, and stops when the broker closes stdin or ends."""

    def __init__(self, bytes_per_second: float, descriptor: int) -> None:
        self._rate = bytes_per_second
        self._descriptor = descriptor
        self._began = time.monotonic()
        self._bytes = 0

    def spend(self, size: int) -> None:
        """Counts ``size`` bytes and waits if they exceed the limit. Raises CleaningStopped."""
        self._bytes += size
        while True:
            ahead = self._bytes / self._rate - (time.monotonic() - self._began)
            if select.select([self._descriptor], [], [], min(max(ahead, 0.0), 60.0))[0]:
                raise CleaningStopped("the broker has stopped the cleaning")
            if ahead <= 60.0:
                return


def _open(directory: Path, source: SourceSegment, config: LogConfig, files: Files) -> Segment:
    segment = Segment(directory, source.base_offset, config, files, 0)
    segment.size = source.size
    return segment


def choose_engine(job: Job, files: Files) -> Engine:
    """Returns the engine for the process: ``ColumnEngine`` for logs of many records if numba is installed."""
    if _estimated_rows(job, files) <= _ROWS:
        return RowEngine()
    try:
        from odradek.storage.cleaning.columns import ColumnEngine
    except ImportError:
        return RowEngine()
    return ColumnEngine()


def _estimated_rows(job: Job, files: Files) -> float:
    """Estimates the work of a cleaning, in records, from the first batches. Raises CorruptRecord, OSError."""
    rows = size = 0
    directory = Path(job.directory)
    for source in job.sources:
        segment = _open(directory, source, LogConfig(), files)
        for _, header in islice(segment.batches_from(0), _ESTIMATED_BATCHES):
            rows += header.record_count + _ROWS_PER_BATCH
            size += header.size_in_bytes
        segment.forget()
        if rows:
            break
    return rows * job.size / max(size, 1)


def _report(message: dict[str, object]) -> None:
    """Writes a message to the broker. Raises CleaningStopped if the broker has ended."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
        raise CleaningStopped("the broker has ended") from error


def main() -> int:
    """Reads a job from stdin (one line of JSON) and reports each finished segment and the end on stdout.

    It stops early if the broker closes stdin or ends.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    try:
        return _serve_broker()
    except CleaningStopped:
        return 1


def _serve_broker() -> int:
    job = Job.from_json(sys.stdin.buffer.readline())
    throttle = _Throttle(job.bytes_per_second, sys.stdin.fileno())
    files = OsFiles()
    try:
        steps = clean(job, choose_engine(job, files), files, read_bytes=_LARGE_READ_BYTES)
        while True:
            step = next(steps)
            if isinstance(step, CleanedSegment):
                step.finish()
                _report({"base_offset": step.base_offset, "replaces": list(step.replaces)})
                throttle.spend(0)
            else:
                throttle.spend(step)
    except StopIteration as done:
        finished: CleaningResult = done.value
        _report({"end_offset": finished.end_offset, "counts": asdict(finished.counts)})
        return 0
    except CleaningStopped:
        raise
    except FileNotFoundError as error:
        _report({"gone": f"{error}"})
        return 1
    except (KafkaError, OdradekError, OSError) as error:
        _report({"error": f"{error}", "errno": getattr(error, "errno", None)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
