"""The syncs of one log: what is on the disk for sure, and when the rest is written there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from odradek.storage.disk.checkpoints import sync_new_partition
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.disk.files import Files
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.segments.segment_list import SegmentList

_POINTS = Lock()
"""Guards the recovery points of all logs: threads sync closed segments, while the event loop may cut a log."""


class LogSync:
    """Syncs the files of one log.

    ``recovery_point``: all records below it are synced. ``unflushed_records``: the number of appended records since the
    last ``flush``. ``was_written``: the log has bytes that a close has to sync.

    ``defer`` gets the sync of a closed segment and may run it later, in a thread. Without it, it is synced at once.
    """

    __slots__ = (
        "_cuts", "_disk", "_epochs", "_files", "_flushed_ms", "_segments", "_synced_base", "defer", "path",
        "recovery_point", "unflushed_records", "was_written",
    )  # fmt: skip

    def __init__(
        self,
        path: Path,
        files: Files,
        *,
        segments: SegmentList,
        epochs: LeaderEpochs,
        disk: DiskState,
        recovery_point: int,
        now_ms: int,
    ) -> None:
        self.path = path
        self.recovery_point = recovery_point
        self.unflushed_records = max(segments.active.next_offset - recovery_point, 0)
        self.was_written = False
        self.defer: Callable[[Callable[[], None]], None] | None = None
        self._files = files
        self._segments = segments
        self._epochs = epochs
        self._disk = disk
        self._flushed_ms = now_ms
        self._synced_base = -1
        self._cuts = 0

    def flush(self, end_offset: int) -> None:
        """Syncs all files up to the log's end, except the active segment's indexes. Raises KafkaError."""
        self._disk.check_online()
        self.flush_closed(end_offset)
        self.unflushed_records = 0

    def flush_if_due(self, end_offset: int, now_ms: int, flush_ms: int) -> bool:
        """Syncs unsynced records at most once in ``flush_ms``. Returns whether it has synced."""
        if not self.unflushed_records or now_ms - self._flushed_ms < flush_ms:
            return False
        self.flush(end_offset)
        self._flushed_ms = now_ms
        return True

    def flush_closed(self, end_offset: int) -> None:
        """Syncs what is below ``end_offset``. A thread may call it for closed segments. Raises KafkaError."""
        self._flush(end_offset, self._cuts)

    def flush_later(self, end_offset: int) -> None:
        """Syncs the closed segments below ``end_offset``, or lets ``defer`` do it. Raises KafkaError."""
        cuts = self._cuts
        if self.defer is None:
            self._flush(end_offset, cuts)
        else:
            self.defer(lambda: self._flush(end_offset, cuts))

    def _flush(self, end_offset: int, cuts: int) -> None:
        try:
            self._flush_to(end_offset, cuts)
        except OSError as error:
            raise self._disk.fail("flush", error) from error

    def close(self, end_offset: int) -> None:
        """Syncs all files, also the active segment's indexes. Raises OSError."""
        self._flush_to(end_offset, self._cuts, closing=True)

    def cut(self, end_offset: int) -> None:
        """Notes that a truncation has removed the records from ``end_offset`` on. A sync that is under way, or
        deferred, says nothing about records that get their offsets later."""
        with _POINTS:
            self._cuts += 1
            self.recovery_point = min(self.recovery_point, end_offset)

    def restart(self, offset: int) -> None:
        """Notes that the log begins again at ``offset``. Its new file may have the name of a former, synced one."""
        self.cut(offset)
        self._synced_base = -1

    def _flush_to(self, end_offset: int, cuts: int, *, closing: bool = False) -> None:
        """``cuts``: the number of truncations when ``end_offset`` was known."""
        if self.recovery_point >= end_offset and not (closing and self.was_written):
            return
        *closed, active = self._segments
        for segment in closed:
            if segment.base_offset < end_offset and segment.next_offset > self.recovery_point:
                segment.sync()
        if closing or active.base_offset < end_offset:
            active.sync(indexes=closing)
        self._epochs.sync()
        if closing or self._synced_base != active.base_offset:
            if self._synced_base < 0:  # at a stop, the owner syncs its directory after it has closed all logs
                sync_new_partition(self.path, self._files, with_parent=not closing)
            named = active.base_offset if active.size else 0  # the first record makes the file, maybe during the sync
            self._files.sync_dir(self.path)
            self._synced_base = named
        with _POINTS:
            if cuts == self._cuts:
                self.recovery_point = max(self.recovery_point, end_offset)
