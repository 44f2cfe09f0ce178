"""Load and recovery of a log's directory.

1. An interrupted deletion or compaction is finished or undone.
2. Segments are opened in order. After an unclean shutdown, segments at or after the recovery point are read, and each
   batch is checked. The log ends before the first bad batch; everything after it is removed. Missing or invalid indexes
   are rebuilt.
3. Leader epochs and producer states are truncated to the log and completed from its batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from odradek.batches.control import read_control
from odradek.batches.header import BatchHeader, Buffer
from odradek.core.errors import CorruptRecord, StorageError
from odradek.storage.checkpoints import PARTITION_METADATA
from odradek.storage.config import LogConfig
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.files import Files
from odradek.storage.index import IndexCorrupt
from odradek.storage.producers import Producers
from odradek.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_log = logging.getLogger("odradek.storage")


@dataclass(slots=True)
class Loaded:
    """The parts of a loaded log: at least one segment, of which the last one is active."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: Producers
    log_start_offset: int
    recovery_point: int
    was_cut: bool
    """Whether the recovery removed bytes or segments at its end."""
    began_epoch: bool
    """Whether its current leader epoch is new for it."""

    @staticmethod
    def rebuild_producers(producers: Producers, segments: list[Segment], config: LogConfig, now_ms: int) -> None:
        """Loads the newest snapshot up to the log's end and applies the later batches."""
        end_offset = segments[-1].next_offset
        producers.load(segments[0].base_offset, end_offset, now_ms, config.producer_id_expiration_ms)
        start = producers.end_offset
        for segment in segments:
            if segment.next_offset <= start:
                continue
            for position, header in segment.batches_from(segment.offset_index.lookup(start).position):
                if header.last_offset < start or header.producer_id < 0:
                    continue
                data: Buffer = segment.read_batch(position, header) if header.is_control else b""
                note_batch(
                    producers, header, data, 0, base_offset=header.base_offset, max_timestamp=header.max_timestamp
                )
        producers.end_offset = end_offset
        producers.expire(now_ms, config.producer_id_expiration_ms)


def note_batch(
    producers: Producers, header: BatchHeader, data: Buffer, pos: int, *, base_offset: int, max_timestamp: int
) -> None:
    """Applies an idempotent, transactional or control batch of the log to the producer states."""
    if not header.is_control:
        producers.apply(header, base_offset, max_timestamp)
        return
    control = read_control(data, pos, header)
    if control is not None:
        producers.apply_marker(header, control.coordinator_epoch)


def begin(path: Path, config: LogConfig, now_ms: int, *, leader_epoch: int, files: Files) -> Loaded:
    """Returns a log without files: its directory is new or has never had a record."""
    epochs = LeaderEpochs(path, files, new=True)
    epochs.assign(leader_epoch, 0)
    segment = Segment(path, 0, config, files, now_ms)
    return Loaded([segment], epochs, Producers(path, files), 0, 0, was_cut=False, began_epoch=True)


def load(
    path: Path,
    config: LogConfig,
    now_ms: int,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int | None,
    leader_epoch: int,
    files: Files,
) -> Loaded:
    """Loads a log; see ``Log.open``. Raises StorageError."""
    try:
        files.make_dirs(path)
        names = _sweep(path, files)
        if not log_start_offset and names <= {PARTITION_METADATA}:
            return begin(path, config, now_ms, leader_epoch=leader_epoch, files=files)
        epochs = LeaderEpochs(path, files)
        if epochs.is_damaged:
            clean, recovery_point = False, 0
        with epochs.written_once():
            unchecked_from = None if clean else recovery_point
            segments, was_cut = _load_segments(
                path, config, now_ms, names, recovery_point=unchecked_from, epochs=epochs, files=files
            )
            start = _start(path, segments, log_start_offset or 0)
            if not segments:
                segments = [Segment.create(path, start, config, files, now_ms)]
            end_offset = segments[-1].next_offset
            epochs.truncate_from_end(end_offset)
            epochs.truncate_from_start(start)
            began_epoch = epochs.latest < leader_epoch
            if began_epoch:
                epochs.assign(leader_epoch, end_offset)
        producers = Producers(path, files)
        producers.remove_stray_snapshots({segment.base_offset for segment in segments}, names)
        Loaded.rebuild_producers(producers, segments, config, now_ms)
        for segment in segments:
            segment.rest()
    except CorruptRecord as error:
        raise StorageError(f"{path}: {error.message}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error}") from error
    point = end_offset if clean else min(recovery_point, end_offset)
    return Loaded(segments, epochs, producers, start, point, was_cut, began_epoch)


def _start(path: Path, segments: list[Segment], noted: int) -> int:
    """Returns the log start offset, from the checkpoint (``noted``) if that is within the log.

    A checkpoint above the log's end is from another log, or a power loss removed the records. Then all records stay.
    """
    if not segments:
        return noted
    base, end = segments[0].base_offset, segments[-1].next_offset
    if end < noted:
        _log.warning("%s ends at offset %d, before its checkpointed start %d; it starts at %d", path, end, noted, base)
        return base
    return max(noted, base)


def _sweep(path: Path, files: Files) -> set[str]:
    """Removes files marked for removal, and finishes or undoes an interrupted compaction, like Kafka.

    Returns the names of the remaining files.
    """
    names = files.list(path)
    cleaned = [int(name.split(".")[0]) for name in names if name.endswith(CLEANED_SUFFIX)]
    for name in names:
        stale_swap = name.endswith(SWAP_SUFFIX) and cleaned and int(name.split(".")[0]) >= min(cleaned)
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")) or stale_swap:
            files.remove(path / name)
    if any(name.endswith(_LEFTOVER_SUFFIXES) for name in names):
        names = files.list(path)
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for name in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _finish_swap(path, int(name.split(".")[0]), files)
    for name in swaps:
        files.rename(path / name, path / name.removesuffix(SWAP_SUFFIX))
    if swaps:
        names = files.list(path)
    logs = {name.split(".")[0] for name in names if name.endswith(LOG_SUFFIX)}
    orphans = [name for name in names if name.endswith(_INDEX_SUFFIXES) and name.split(".")[0] not in logs]
    for name in orphans:
        files.remove(path / name)
    return set(names).difference(orphans)


def _finish_swap(path: Path, base_offset: int, files: Files) -> None:
    """Removes the segments that the compacted one replaces: their base offsets are in its range."""
    swap = path / (file_name(base_offset, LOG_SUFFIX) + SWAP_SUFFIX)
    segment = Segment(path, base_offset, LogConfig(), files, 0)
    segment._file = files.lazy(swap)
    segment.size = files.size(swap)
    end = base_offset
    for _, header in segment.batches_from(0):
        end = header.last_offset + 1
    for name in files.list(path):
        stem = name.split(".")[0]
        if not name.endswith(SWAP_SUFFIX) and stem.isdigit() and base_offset <= int(stem) < end:
            files.remove(path / name)


def _load_segments(
    path: Path,
    config: LogConfig,
    now_ms: int,
    names: Iterable[str],
    *,
    recovery_point: int | None,
    epochs: LeaderEpochs,
    files: Files,
) -> tuple[list[Segment], bool]:
    """Returns the segments and whether bytes were removed. ``recovery_point=None``: no batch is checked."""
    bases = sorted(
        int(stem) for name in names if name.endswith(LOG_SUFFIX) and (stem := name.removesuffix(LOG_SUFFIX)).isdigit()
    )

    def note_epoch(header: BatchHeader, _buffer: Buffer, _pos: int) -> None:
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)

    segments: list[Segment] = []
    was_cut = False
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        unchecked = recovery_point is not None and (following is None or following > recovery_point)
        lost = 0
        try:
            if unchecked:
                raise IndexCorrupt("past the recovery point")
            segment = Segment.load(path, base, config, files, now_ms)
        except IndexCorrupt as reason:
            if not unchecked:
                _log.warning("%s: its indexes are rebuilt: %s", path / file_name(base, LOG_SUFFIX), reason)
            segment = Segment(path, base, config, files, now_ms)
            lost = segment.recover(note_epoch)
        segments.append(segment)
        if lost:
            was_cut = True
            _log.warning("%s: %d invalid bytes from offset %d on were removed", path, lost, segment.next_offset)
        if lost and following is not None:
            for later in bases[number + 1 :]:
                Segment(path, later, config, files, now_ms).remove()
            break
    return segments, was_cut
