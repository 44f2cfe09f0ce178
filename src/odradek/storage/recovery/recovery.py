"""Load and recovery of a log's directory.

1. An interrupted deletion or compaction is finished or undone.
2. Segments are opened in order. After an unclean shutdown, segments that end after the recovery point are read, and
   each batch is checked. A torn batch at the end is removed. A bad batch before the end is removed too, and its bytes
   are kept (``storage/segments/salvage``); the batches after it stay. Missing or invalid indexes are rebuilt.
   What contradicts the other files is reported (``storage/recovery/evidence``).
3. Leader epochs and producer states are truncated to the log and completed from its batches. After an unclean shutdown,
   a snapshot above the start of the segment with the recovery point is removed. The same pass over the
   batches writes the indexes of aborted transactions of the segments that step 2 has read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

from odradek.batches.header import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, Buffer, read_header
from odradek.batches.steps import finish
from odradek.core.errors import CorruptRecord, StorageError
from odradek.storage.config import LogConfig
from odradek.storage.disk.checkpoints import LOG_START, PARTITION_METADATA
from odradek.storage.disk.files import Files
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.rebuild import EndedTransaction, rebuild
from odradek.storage.producers.states import SUFFIX as SNAPSHOT_SUFFIX
from odradek.storage.producers.states import snapshot_offsets, snapshot_path
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
from odradek.storage.segments.aborted_index import AbortedEntry, AbortedIndex
from odradek.storage.segments.index import IndexCorrupt
from odradek.storage.segments.index_digests import SegmentDigest, decode_digests
from odradek.storage.segments.salvage import BadBytes, GoodBatch, Surroundings, keep_lost, known_gaps, lost_path
from odradek.storage.segments.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    base_offsets,
    file_name,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

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


def begin(path: Path, config: LogConfig, now_ms: int, *, leader_epoch: int, files: Files) -> LoadedLog:
    """Returns a log without files: its directory is new or has never had a record."""
    epochs = LeaderEpochs(path, files, new=True)
    epochs.assign(leader_epoch, 0)
    segment = Segment(path, 0, config, files, now_ms)
    return LoadedLog([segment], epochs, Producers(path, files), 0, 0, was_cut=False, began_epoch=True)


def load(path: Path, config: LogConfig, now_ms: int, known: Witnesses, *, leader_epoch: int, files: Files) -> LoadedLog:
    """Loads a log; see ``Log.reopen``. Raises StorageError."""
    try:
        files.make_dirs(path)
        names = _sweep(path, files)
        report = Report(path, known)
        if not known.log_start_offset and names <= {PARTITION_METADATA}:
            check_end(report, 0, (), {})
            loaded = begin(path, config, now_ms, leader_epoch=leader_epoch, files=files)
            loaded.was_cut = report.has_lost
            return loaded
        return LoadOfLog(path, config, report, names, now_ms=now_ms, files=files).run(leader_epoch)
    except CorruptRecord as error:
        raise StorageError(f"{path}: {error.message}") from error
    except OSError as error:
        raise StorageError(f"{path}: {error}") from error


class LoadOfLog:
    """One load of a log that has files."""

    def __init__(
        self,
        path: Path,
        config: LogConfig,
        report: Report,
        names: set[str],
        *,
        now_ms: int,
        files: Files,
        noted: Sequence[SegmentDigest] = (),
    ) -> None:
        """``noted``: the segments at the last clean stop, if the files are not the same."""
        self.noted = {one.base_offset: one for one in noted}
        self.path = path
        self.config = config
        self.now_ms = now_ms
        self.report = report
        self.known = report.known
        self.names = names
        self.files = files
        self.segments: list[Segment] = []
        self.unindexed: list[Segment] = []
        self.lossy_from: int | None = None
        """After an unclean shutdown, the base offset of the first segment that may have lost records."""
        self.was_cut = False
        self.is_end_reported = False
        self.claims: dict[int, int] = {}
        self.old_aborted: list[AbortedEntry] = []
        """The entries of indexes that are rebuilt or removed."""
        self.epochs = LeaderEpochs(path, files)
        self.snapshots = snapshot_offsets(names)
        self.gaps = known_gaps(names)
        # Checkpoints cannot replace a damaged file of the epochs, so all batches are read.
        self.checked_from = 0 if self.epochs.is_damaged else None if self.known.clean else self.known.recovery_point

    def run(self, leader_epoch: int) -> LoadedLog:
        path, files, known, epochs = self.path, self.files, self.known, self.epochs
        orphans = orphaned_indexes(self.names, INDEX_SUFFIXES)
        orphans |= self._missing_segments()
        epoch_start = epochs.entries[0].start_offset if epochs.entries else None
        with epochs.written_once():
            self._load_segments()
            segments = self.segments
            noted = known.log_start_offset or 0
            start = self._start(noted, epoch_start)
            if not segments:
                segments.append(Segment(path, start, self.config, files, self.now_ms))
            end_offset = segments[-1].next_offset
            self._check(end_offset, noted, epoch_start, orphans)
            if not base_offsets(self.names, LOG_SUFFIX):
                segments[0] = Segment.create(path, start, self.config, files, self.now_ms)
            if epochs.entries and start < epochs.entries[0].start_offset:
                self._add_earlier_epochs(epochs.entries[0].start_offset)
            epochs.truncate_from_end(end_offset)
            epochs.truncate_from_start(start)
            began_epoch = epochs.latest < leader_epoch
            if began_epoch:
                epochs.assign(leader_epoch, end_offset)
        stray = {name for name in self.names if name.endswith(INDEX_SUFFIXES) and int(name.split(".")[0]) in orphans}
        for name in sorted(stray):
            if name.endswith(TXN_INDEX_SUFFIX):
                self._note_aborted(AbortedIndex(path / name, int(name.split(".")[0]), files))
            files.remove(path / name)
        producers = Producers(path, files)
        producers.remove_stray_snapshots({segment.base_offset for segment in segments}, self.names)
        if self.lossy_from is not None:  # like Kafka: the disk may have a later snapshot without its records
            producers.remove_snapshots_from(self.lossy_from + 1)
        ended: list[EndedTransaction] = []
        steps = rebuild(producers, segments, self.config, self.now_ms, unindexed=self.unindexed, on_end=ended.append)
        finish(steps)
        if known.clean and not self.noted and self._has_other_sizes(producers.digests.segments):
            names, sizes = set(files.list(path)), producers.digests.segments
            again = LoadOfLog(path, self.config, self.report, names, now_ms=self.now_ms, files=files, noted=sizes)
            again.old_aborted = self.old_aborted
            return again.run(leader_epoch)
        self._check_aborted(producers, [one.entry for one in ended if one.is_aborted])
        self._keep_aborted()
        for segment in segments:
            segment.close_file()
        is_whole = known.clean and not epochs.is_damaged
        point = end_offset if is_whole else min(self.checked_from or known.recovery_point, end_offset)
        was_cut = self.was_cut or self.report.has_lost
        if was_cut or not known.clean:
            producers.save_again()  # the recovery may have changed segments
        return LoadedLog(segments, epochs, producers, start, point, was_cut, began_epoch)

    def _has_other_sizes(self, noted: Sequence[SegmentDigest]) -> bool:
        """Returns whether segments are not as at the last clean stop. The log may begin later since then."""
        sizes = {segment.base_offset: segment.size for segment in self.segments}
        first = self.segments[0].base_offset
        return any(one.base_offset >= first and sizes.get(one.base_offset) != one.size for one in noted)

    def _missing_segments(self) -> dict[int, str]:
        """Returns a snapshot that names it for each missing segment of the last clean stop, by its base offset."""
        bases = base_offsets(self.names, LOG_SUFFIX)
        missing = (base for base, one in self.noted.items() if bases and base > bases[0] and one.size)
        return {base: f"{self.snapshots[-1]:020d}{SNAPSHOT_SUFFIX}" for base in missing if base not in bases}

    def _load_segments(self) -> None:
        """Opens the segments, and recovers those that have no valid indexes or are not synced."""
        bases = base_offsets(self.names, LOG_SUFFIX)
        indexed = set(base_offsets(self.names, TXN_INDEX_SUFFIX))
        expected = expected_end(self.known, self.snapshots)
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            if self.lossy_from is None and not self.known.clean:
                self.lossy_from = base if following is None or following > self.known.recovery_point else None
            is_unchecked = self.checked_from is not None and (following is None or following > self.checked_from)
            try:
                if is_unchecked:
                    raise IndexCorrupt("past the recovery point")
                segment = Segment.load(
                    self.path, base, self.config, self.files, self.now_ms, has_aborted=base in indexed
                )
                noted = self.noted.get(base)
                if noted is not None and noted.size != segment.size:
                    raise IndexCorrupt(f"the segment has {segment.size} bytes, but it had {noted.size}")
                if following is None and expected is not None and segment.next_offset > expected:
                    raise IndexCorrupt(f"the log ends at {segment.next_offset}, after {expected}")
                if following is not None and segment.next_offset > following:
                    raise IndexCorrupt(f"the segment ends at {segment.next_offset}, after the next one begins")
            except IndexCorrupt as reason:
                if not is_unchecked:
                    name = file_name(base, LOG_SUFFIX)
                    _log.warning("%s: its indexes are rebuilt: %s", self.path / name, reason)
                segment = Segment(self.path, base, self.config, self.files, self.now_ms)
                segment.has_aborted = base in indexed
                self._recover(segment, Surroundings(following, expected, not (self.config.is_compacted or self.gaps)))
            self.segments.append(segment)

    def _recover(self, segment: Segment, around: Surroundings) -> None:
        epochs, unindexed = self.epochs, self.unindexed

        def note(header: BatchHeader, _buffer: Buffer, _pos: int) -> None:
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
            if header.attributes & TRANSACTIONAL_BIT and (not unindexed or unindexed[-1] is not segment):
                unindexed.append(segment)

        claimed = segment.claimed_end()
        noted = self.noted.get(segment.base_offset)
        self.claims[segment.base_offset] = max(claimed, noted.end_offset) if noted is not None else claimed
        if self.known.is_guarded:
            self._examine(segment, around)
        if segment.has_aborted:
            self._note_aborted(segment.aborted_index)
        lost = segment.recover(note, around, lambda bad, mended: self._on_damage(segment, around, bad, mended))
        if lost:
            self.was_cut = True

    def _examine(self, segment: Segment, around: Surroundings) -> None:
        """Raises LostRecords if a guarded log has lost records, before the recovery changes the indexes."""
        bad, end = [], segment.base_offset
        for part in segment.check_bytes(around):
            if isinstance(part, BadBytes):
                bad.append(part)
            else:
                end = part.header.last_offset + 1
        for one in bad:
            if self._is_proven(one.first_offset):
                self._lose_bytes(segment, one, around, end)
        if around.following is not None and end < self.claims[segment.base_offset] <= around.following:
            self.segments.append(segment)
            segment.next_offset = end
            what = f"{file_name(segment.base_offset, LOG_SUFFIX)} ends at offset {end}, but its indexes go on"
            self.report.lose(what, LostRange(end, around.following), is_proven=True)

    def _is_proven(self, first_offset: int) -> bool:
        """Returns whether bad bytes are damage for sure, and not the end of a log after a crash."""
        return self.known.clean or first_offset < self.known.recovery_point

    def _on_damage(
        self, segment: Segment, around: Surroundings, bad: Sequence[BadBytes], mended: Sequence[GoodBatch]
    ) -> None:
        if mended:
            self.report.contradict(f"{file_name(segment.base_offset, LOG_SUFFIX)}: {mends(mended)}")
        size = self.files.size(segment.path(LOG_SUFFIX))
        for one in bad:
            if one.end < size or around.following is not None or self._is_proven(one.first_offset):
                self._lose_bytes(segment, one, around, segment.next_offset)
            else:
                _log.warning(
                    "%s: %d invalid bytes from offset %d on were removed",
                    self.path, one.end - one.start, one.first_offset,
                )  # fmt: skip

    def _lose_bytes(self, segment: Segment, bad: BadBytes, around: Surroundings, end: int) -> None:
        """Reports bad bytes, and keeps them if the log goes on without them."""
        following, is_open = around.following, False
        if bad.first_offset < end:
            following = self._offset_after(segment, bad)
        elif following is None:
            point = self.known.recovery_point
            following = around.expected_end or (point if point > bad.first_offset else None)
            self.is_end_reported, is_open = True, not self.known.clean
        name = file_name(segment.base_offset, LOG_SUFFIX)
        what = f"{name} has {bad.end - bad.start} bytes at position {bad.start} that are no valid batch"
        is_proven = self._is_proven(bad.first_offset)
        kept = lost_path(self.path, bad.first_offset, following or bad.first_offset).name
        lost = LostRange(bad.first_offset, following, is_open)
        self.report.lose(what, lost, is_proven=is_proven, kept=kept)
        offsets = bad.first_offset, following or bad.first_offset
        keep_lost(self.files, segment.path(LOG_SUFFIX), bad.start, bad.end, offsets)
        if following is not None:
            self.gaps.append(offsets)

    def _offset_after(self, segment: Segment, bad: BadBytes) -> int:
        header = read_header(self.files.open(segment.path(LOG_SUFFIX)).pread(bad.end, HEADER_BYTES))
        return header.base_offset

    def _check(self, end_offset: int, noted: int, epoch_start: int | None, orphans: dict[int, str]) -> None:
        """Reports what contradicts. Raises LostRecords before anything else is changed."""
        report, segments = self.report, self.segments
        check_start(report, segments[0].base_offset, noted, epoch_start, orphans)
        gaps = check_gaps(
            report,
            segments,
            self.claims,
            orphans,
            is_compacted=self.config.is_compacted,
            known_gaps=self.gaps,
        )
        self.gaps += gaps
        for first, following in gaps:
            self.files.write(lost_path(self.path, first, following), b"", sync=False)
        if not self.is_end_reported:
            check_end(report, end_offset, self.snapshots, orphans, tail=self._tail(end_offset))

    def _check_aborted(self, producers: Producers, aborted: list[AbortedEntry]) -> None:
        """Rebuilds the indexes of aborted transactions that do not agree with the snapshot of the producers, or that
        do not have ``aborted``: the aborted transactions whose markers are after the snapshot.

        A cleaning replaces indexes, so after a crash a right index may disagree. Only an index that hides less than the
        markers in the log say is reported.
        """
        noted = {digest.base_offset: digest for digest in producers.digests.indexes}
        suspects = []
        for segment in self.segments:
            if segment in self.unindexed:
                continue
            ended = [one for one in aborted if segment.base_offset <= one.last_offset < segment.next_offset]
            disagrees = bool(noted) and noted.get(segment.base_offset) != segment.digest()
            if disagrees or (ended and _missed(_entries(segment), ended)):
                suspects.append(segment)
        if not suspects:
            return
        old = [segment.drop_aborted() for segment in suspects]
        self.old_aborted += chain.from_iterable(old)
        finish(rebuild(producers, self.segments, self.config, self.now_ms, unindexed=suspects))
        for segment, entries in zip(suspects, old, strict=True):
            missed = _missed(entries, _entries(segment))
            if missed:
                first = min(entry.first_offset for entry in missed)
                name = file_name(segment.base_offset, TXN_INDEX_SUFFIX)
                self.report.contradict(
                    f"{name} did not have {len(missed)} aborted transactions of the log, the first at offset {first}; "
                    "it was rebuilt from the log"
                )

    def _start(self, noted: int, epoch_start: int | None) -> int:
        """Returns the log start offset. The checkpoint (``noted``) is wrong if it is above the start of the first
        leader epoch, which a deletion of records raises first."""
        start = _start(self.path, self.segments, noted)
        if self.segments and epoch_start is not None and self.segments[0].base_offset <= epoch_start < start:
            self.report.contradict(
                f"{LOG_START} has {noted}, but the first leader epoch starts at {epoch_start}. The records from there "
                "on are kept, and some of them may have been deleted"
            )
            return epoch_start
        return start

    def _add_earlier_epochs(self, end: int) -> None:
        """Adds the epochs of records that were deleted and are there again, below the first known epoch at ``end``.

        Without them a follower that has other records there would not see that its log diverges.
        """
        segments = takewhile(lambda segment: segment.base_offset < end, self.segments)
        headers = (header for segment in segments for _, header in segment.batches_from(0))
        first: dict[int, int] = {}
        for header in takewhile(lambda one: one.base_offset < end, headers):
            first.setdefault(header.leader_epoch, header.base_offset)
        for epoch, offset in reversed(first.items()):
            self.epochs.add_earlier(epoch, offset)

    def _note_aborted(self, index: AbortedIndex) -> None:
        with suppress(OSError, ValueError, struct.error):  # a damaged index says nothing
            self.old_aborted += index.all_entries()

    def _keep_aborted(self) -> None:
        """Keeps the entries of aborted transactions whose markers are in lost bytes: the records before them remain."""
        kept: dict[int, list[AbortedEntry]] = {}
        for entry in self.old_aborted:
            if any(first <= entry.last_offset < following for first, following in self.gaps):
                at = max(n for n, one in enumerate(self.segments) if not n or one.base_offset <= entry.last_offset)
                kept.setdefault(at, []).append(entry)
        for at, entries in kept.items():
            segment = self.segments[at]
            for entry in sorted({*segment.drop_aborted(), *entries}, key=lambda one: one.last_offset):
                segment.add_aborted(entry)

    def _tail(self, end_offset: int) -> str:
        """Returns what is wrong with the last segment after a crash: it may have had records.

        Its file has no bytes, although the log does not start there, or it is missing: the snapshot of its start is
        written after its file. The snapshot of a clean stop has the sizes of the segments.
        """
        last, name = self.segments[-1], file_name(end_offset, LOG_SUFFIX)
        if name not in self.names:
            is_start = end_offset in self.snapshots and self.known.recovery_point < end_offset
            is_start = is_start and not decode_digests(self.files.read(snapshot_path(self.path, end_offset))).segments
            return "is missing" if is_start else ""
        is_empty = not last.size and (len(self.segments) > 1 or not last.base_offset)
        return "is empty" if is_empty and end_offset not in (self.known.recovery_point, *self.snapshots[-1:]) else ""


def _entries(segment: Segment) -> list[AbortedEntry]:
    return segment.aborted_index.all_entries() if segment.has_aborted else []


def _missed(known: Sequence[AbortedEntry], wanted: Sequence[AbortedEntry]) -> list[AbortedEntry]:
    """Returns the entries of ``wanted`` whose records ``known`` does not hide completely."""
    starts = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in known}
    return [
        entry
        for entry in wanted
        if starts.get((entry.producer_id, entry.last_offset), entry.first_offset + 1) > entry.first_offset
    ]


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
    return set(names)


def _finish_swap(path: Path, base_offset: int, files: Files) -> None:
    """Removes the segments that a compacted segment replaces: their base offsets are in its range of offsets."""
    swap = path / (file_name(base_offset, LOG_SUFFIX) + SWAP_SUFFIX)
    segment = Segment(path, base_offset, LogConfig(), files, 0)
    segment.read_from(files.lazy(swap), files.size(swap))
    end = base_offset
    for _, header in segment.batches_from(0):
        end = header.last_offset + 1
    for name in files.list(path):
        stem = name.split(".")[0]
        if not name.endswith(SWAP_SUFFIX) and stem.isdigit() and base_offset <= int(stem) < end:
            files.remove(path / name)
