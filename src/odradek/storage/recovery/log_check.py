"""The check of a log's directory without changes, and the acceptance of a loss, for ``odradek log``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time_ns

from odradek.core.counts import span
from odradek.core.errors import StorageError
from odradek.core.ids import INTERNAL_TOPICS, NO_EPOCH, TopicPartition
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.log import Log
from odradek.storage.producers.states import snapshot_offsets
from odradek.storage.recovery.evidence import (
    LostRange,
    Report,
    Witnesses,
    check_end,
    check_gaps,
    check_start,
    expected_end,
    mends,
    orphaned_indexes,
)
from odradek.storage.recovery.recovery import INDEX_SUFFIXES
from odradek.storage.segments.salvage import BadBytes, Surroundings, known_gaps
from odradek.storage.segments.segment import LOG_SUFFIX, Segment, base_offsets, file_name


class Findings(Report):
    """Collects what contradicts, instead of logging it."""

    def __init__(self, directory: Path, known: Witnesses) -> None:
        super().__init__(directory, known)
        self.lines: list[str] = []

    def lose(self, what: str, lost: LostRange, *, is_proven: bool, kept: str = "") -> None:
        """Adds lost offsets."""
        first, following, is_open = lost
        is_one = following == first + 1 and not is_open
        text = f"records from offset {first} on" if following is None else span(first, following)
        text += " and any after" if is_open else ""
        verb = "may be" if not is_proven else "is" if is_one else "are"
        self.lines.append(f"{self.directory.name}: {what}: {text} {verb} lost")

    def contradict(self, what: str) -> None:
        """Adds a wrong file."""
        self.lines.append(f"{self.directory.name}: {what}")


class DataDirectory:
    """A data directory whose broker is stopped. ``close`` releases its lock."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Locks the directory. Raises StorageError if a broker uses it, or if there is none."""
        self.path = path
        self.files = files or OsFiles()
        if not self.files.exists(path):
            raise StorageError(f"{path} does not exist")
        try:
            self._lock = self.files.lock(path / checkpoints.LOCK)
        except BlockingIOError:
            raise StorageError(f"{path} is held by a broker: stop it first") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be used: {error.strerror or error}") from error
        self._clean = checkpoints.read_clean_shutdown(path, self.files)
        self._points = self._read(checkpoints.RECOVERY_POINT)
        self._starts = self._read(checkpoints.LOG_START)
        self._watermarks = self._read(checkpoints.HIGH_WATERMARK) if self._clean else {}

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self.path / name, self.files)
        except StorageError:
            return {}  # a start does the same, with a warning

    def close(self) -> None:
        """Releases the lock."""
        self._lock.release()

    def partitions(self) -> Iterator[str]:
        """Yields the names of the directories of partitions."""
        for name in self.files.list(self.path):
            is_log = self.files.exists(self.path / name / checkpoints.PARTITION_METADATA)
            if is_log and name.rpartition("-")[2].isdigit():
                yield name

    def _known(self, partition: str) -> Witnesses:
        topic, _, index = partition.rpartition("-")
        if not topic or not index.isdigit() or not self.files.exists(self.path / partition):
            raise StorageError(f"{self.path} has no partition {partition}; a partition's name is TOPIC-NUMBER")
        name = TopicPartition(topic, int(index))
        return Witnesses(
            self._clean, self._points.get(name, 0), self._starts.get(name), self._watermarks.get(name), False
        )

    def check(self, partition: str) -> list[str]:
        """Reads all batches of a partition and returns a line for each contradiction. Raises StorageError."""
        known = self._known(partition)
        try:
            return _inspect(self.path / partition, known, _settings(partition), self.files)
        except OSError as error:
            raise StorageError(f"{self.path / partition} cannot be read: {error}") from error

    def accept(self, partition: str) -> int:
        """Repairs a partition without its lost records, so that the broker opens it again. Returns its end offset.

        The next start of the broker begins a new leader epoch. Raises StorageError, KafkaError.
        """
        known = self._known(partition)
        log = Log.reopen(
            self.path / partition,
            _settings(partition),
            time_ns() // 1_000_000,
            known._replace(clean=False, recovery_point=0),
            leader_epoch=NO_EPOCH,
            files=self.files,
        )
        end = log.log_end_offset
        checkpoints.remove_clean_shutdown(self.path, self.files)
        log.flush()
        log.close()
        topic, _, index = partition.rpartition("-")
        self._points[TopicPartition(topic, int(index))] = end
        checkpoints.write_offsets(self.path / checkpoints.RECOVERY_POINT, self._points, self.files)
        return end


def _settings(partition: str) -> LogConfig:
    """Returns settings for a partition. A user's topic may be compacted, so its gaps are no contradiction here."""
    topic = partition.rpartition("-")[0]
    policy = {"compact"} if topic in INTERNAL_TOPICS else {"compact", "delete"}
    return LogConfig(cleanup_policy=frozenset(policy))


def _inspect(path: Path, known: Witnesses, config: LogConfig, files: Files) -> list[str]:
    report = Findings(path, known)
    names = set(files.list(path))
    bases = base_offsets(names, LOG_SUFFIX)
    snapshots = snapshot_offsets(names)
    orphans = orphaned_indexes(names, INDEX_SUFFIXES)
    gaps = known_gaps(names)
    segments, claims = [], {}
    for number, base in enumerate(bases):
        segment = Segment(path, base, config, files, 0)
        segment.size = files.size(segment.path(LOG_SUFFIX))
        following = bases[number + 1] if number + 1 < len(bases) else None
        _inspect_segment(segment, Surroundings(following, expected_end(known, snapshots)), report)
        claims[base] = segment.claimed_end()
        segments.append(segment)
    end = segments[-1].next_offset if segments else 0
    if segments:
        epochs = LeaderEpochs(path, files).entries
        start = epochs[0].start_offset if epochs else None
        check_start(report, bases[0], known.log_start_offset or 0, start, orphans)
        check_gaps(report, segments, claims, orphans, is_compacted=config.is_compacted, known_gaps=gaps)
    check_end(report, end, snapshots, orphans)
    return report.lines


def _inspect_segment(segment: Segment, around: Surroundings, report: Findings) -> None:
    name = file_name(segment.base_offset, LOG_SUFFIX)
    mended = []
    for part in segment.check_bytes(around) if segment.size else ():
        if isinstance(part, BadBytes):
            what = f"{name} has {part.end - part.start} bytes at position {part.start} that are no valid batch"
            report.lose(what, LostRange(part.first_offset, None), is_proven=report.known.clean)
            continue
        segment.next_offset = part.header.last_offset + 1
        if part.is_mended:
            mended.append(part)
    if mended:
        report.contradict(f"{name}: {mends(mended)}")
