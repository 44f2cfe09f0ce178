"""Load and recovery of a log's directory.

1. An interrupted deletion or compaction is finished or undone.
2. Segments are opened in order. After an unclean shutdown, segments that end after the recovery point are read, and
   each batch is checked. The log ends before the first bad batch; everything after it is removed. Missing or invalid
   indexes are rebuilt.
3. Leader epochs and producer states are truncated to the log and completed from its batches. The same pass over the
   batches writes the indexes of aborted transactions of the segments that step 2 has read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from odradek.batches.control import ABORT, COMMIT, read_control
from odradek.batches.header import TRANSACTIONAL_BIT, BatchHeader, Buffer
from odradek.core.errors import CorruptRecord, StorageError
from odradek.storage.aborted_index import AbortedEntry
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
class LoadedLog:
    """The parts of a loaded log: at least one segment, of which the last one is active."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: Producers
    log_start_offset: int
    recovery_point: int
    was_cut: bool
    """Whether the recovery removed bytes or segments at the log's end."""
    began_epoch: bool
    """Whether the current leader epoch is new for the log."""

    @staticmethod
    def rebuild_producers(
        producers: Producers,
        segments: list[Segment],
        config: LogConfig,
        now_ms: int,
        *,
        unindexed: Collection[Segment] = (),
    ) -> None:
        """Loads the newest snapshot up to the log's end and applies the later batches.

        ``unindexed`` are recovered segments, in order, whose index of aborted transactions is not written yet. Then an
        older snapshot is loaded, because the index needs the producer states at the start of the first such segment.
        """
        end_offset = segments[-1].next_offset
        expiration_ms = config.producer_id_expiration_ms
        newest = next((segment.base_offset for segment in unindexed), None)
        producers.load(segments[0].base_offset, end_offset, now_ms, expiration_ms, newest=newest)
        start = producers.end_offset
        for segment in segments:
            if segment.next_offset <= start:
                continue
            is_unindexed = segment in unindexed
            for position, header in segment.batches_from(segment.offset_index.lookup(start).position):
                if header.last_offset < start or header.producer_id < 0:
                    continue
                data: Buffer = segment.read_batch(position, header) if header.is_control else b""
                ended = note_batch(
                    producers, header, data, 0, base_offset=header.base_offset, max_timestamp=header.max_timestamp
                )
                if is_unindexed and ended is not None and ended.is_aborted:
                    segment.add_aborted(ended.entry)
        producers.end_offset = end_offset
        for _ in producers.expire(now_ms, expiration_ms):
            pass


class EndedTransaction(NamedTuple):
    """A transaction that a marker of the log has ended."""

    is_aborted: bool
    entry: AbortedEntry
    """The transaction's entry in the index of aborted transactions, if it is aborted."""


def note_batch(
    producers: Producers, header: BatchHeader, data: Buffer, pos: int, *, base_offset: int, max_timestamp: int
) -> EndedTransaction | None:
    """Applies an idempotent, transactional or control batch of the log to the producer states.

    Returns the transaction that the batch ends; None if it ends none.
    """
    if not header.is_control:
        producers.apply(header, base_offset, max_timestamp)
        return None
    control = read_control(data, pos, header)
    if control is None or control.kind not in {ABORT, COMMIT}:
        return None
    first_offset = producers.apply_marker(header, control.coordinator_epoch)
    if first_offset is None:
        return None
    unstable = producers.first_open_offset
    stable = base_offset + 1 if unstable is None else unstable
    entry = AbortedEntry(header.producer_id, first_offset, base_offset, stable)
    return EndedTransaction(control.kind == ABORT, entry)


def begin(path: Path, config: LogConfig, now_ms: int, *, leader_epoch: int, files: Files) -> LoadedLog:
    """Returns a log without files: its directory is new or has never had a record."""
    epochs = LeaderEpochs(path, files, new=True)
    epochs.assign(leader_epoch, 0)
    segment = Segment(path, 0, config, files, now_ms)
    return LoadedLog([segment], epochs, Producers(path, files), 0, 0, was_cut=False, began_epoch=True)


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
) -> LoadedLog:
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
            segments, unindexed, was_cut = _load_segments(
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
        LoadedLog.rebuild_producers(producers, segments, config, now_ms, unindexed=unindexed)
        for segment in segments:
            segment.close_file()
    except CorruptRecord as error:
        raise StorageError(f"{path}: {error.message}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error}") from error
    point = end_offset if clean else min(recovery_point, end_offset)
    return LoadedLog(segments, epochs, producers, start, point, was_cut, began_epoch)


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
    """Removes the segments that a compacted segment replaces: their base offsets are in its range of offsets."""
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
) -> tuple[list[Segment], list[Segment], bool]:
    """Returns the segments, the recovered segments with transactions, and whether bytes were removed.

    ``recovery_point=None``: batches are checked only in segments without valid indexes.
    """
    bases = _base_offsets(names, LOG_SUFFIX)
    indexed = set(_base_offsets(names, TXN_INDEX_SUFFIX))

    def note(header: BatchHeader, _buffer: Buffer, _pos: int) -> None:
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)
        if header.attributes & TRANSACTIONAL_BIT and (not unindexed or unindexed[-1] is not segment):
            unindexed.append(segment)

    segments: list[Segment] = []
    unindexed: list[Segment] = []
    was_cut = False
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        unchecked = recovery_point is not None and (following is None or following > recovery_point)
        lost = 0
        try:
            if unchecked:
                raise IndexCorrupt("past the recovery point")
            segment = Segment.load(path, base, config, files, now_ms, has_aborted=base in indexed)
        except IndexCorrupt as reason:
            if not unchecked:
                _log.warning("%s: its indexes are rebuilt: %s", path / file_name(base, LOG_SUFFIX), reason)
            segment = Segment(path, base, config, files, now_ms)
            segment.has_aborted = base in indexed
            lost = segment.recover(note)
        segments.append(segment)
        if lost:
            was_cut = True
            _log.warning("%s: %d invalid bytes from offset %d on were removed", path, lost, segment.next_offset)
        if lost and following is not None:
            for later in bases[number + 1 :]:
                Segment(path, later, config, files, now_ms).remove()
            break
    return segments, unindexed, was_cut


def _base_offsets(names: Iterable[str], suffix: str) -> list[int]:
    """Returns the base offsets in the names of files with this suffix, in order."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdigit())
