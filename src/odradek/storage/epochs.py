"""The start offsets of a log's leader epochs, in the file ``leader-epoch-checkpoint``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from odradek.core.errors import StorageError
from odradek.core.ids import NO_EPOCH, NO_OFFSET
from odradek.storage.disk.checkpoints import read_lines, write_lines
from odradek.storage.disk.files import Files
from odradek.storage.disk.write_failures import is_passing

if TYPE_CHECKING:
    from _thread import LockType

FILE_NAME = "leader-epoch-checkpoint"
_log = logging.getLogger("odradek.storage")


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


_AT_ZERO = tuple(EpochStart(epoch, 0) for epoch in range(16))
_MAKING = Lock()


def _at(epoch: int, start_offset: int) -> EpochStart:
    """Returns an entry. Logs with the entry (epoch, 0), which are most logs, share one object."""
    return EpochStart(epoch, start_offset) if start_offset or epoch >= len(_AT_ZERO) else _AT_ZERO[epoch]


def _entry(path: Path, line: str) -> EpochStart:
    try:
        epoch, start = line.split()
        return _at(int(epoch), int(start))
    except ValueError as error:
        raise StorageError(f"{path}: {line!r} is not an epoch and an offset") from error


class LeaderEpochs:
    """Epochs and their start offsets, both ascending.

    A change is written to the file before the call returns; changes inside a ``written_once`` block are written at the
    block's end. The file is synced only by the log's flush, before the recovery point moves: later entries can be found
    in the batches again. The first epoch of a new log is written by the first sync.
    ``is_damaged``: the file is not readable or is empty, so the epochs must be read from all batches.
    """

    __slots__ = ("_directory", "_entries", "_held", "_in_file", "_unsynced", "_writing", "files", "is_damaged")

    def __init__(self, directory: Path, files: Files, *, new: bool = False) -> None:
        """``new``: the file does not exist."""
        self._directory = directory
        self.files = files
        self._entries: tuple[EpochStart, ...] = ()
        self._held = False
        self._in_file: list[str] | None = None
        self._writing: LockType | None = None
        self._unsynced = self.is_damaged = False
        if not new:
            self._read()

    def _read(self) -> None:
        lines: list[str] = []
        try:
            lines = read_lines(self._path, self.files)
            self._entries = tuple(_entry(self._path, line) for line in lines)
            exists = bool(lines) or self.files.exists(self._path)
            # On some file systems an unsynced file is empty after a power loss.
            self.is_damaged = exists and not lines and self.files.size(self._path) == 0
        except StorageError as error:
            _log.warning("the leader epochs are read from all batches instead: %s", error)
            exists = self.is_damaged = True
        self._in_file = lines if exists and not self.is_damaged else None
        self._unsynced = exists  # the previous run of the broker may have ended before a sync

    @property
    def _path(self) -> Path:
        return self._directory / FILE_NAME

    @contextmanager
    def written_once(self) -> Iterator[None]:
        """Writes the changes of a ``with`` block once at its end, if they differ from the file. Not thread-safe."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._save()

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return self._entries

    @property
    def latest(self) -> int:
        """The latest epoch, or -1."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Starts ``epoch`` at ``start_offset``, unless it is the latest epoch and starts there or before.

        Removes contradicting entries."""
        if epoch < 0:
            return
        if self._entries and epoch == self._entries[-1].epoch and start_offset >= self._entries[-1].start_offset:
            return
        kept = [entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self._entries = (*kept, _at(epoch, start_offset))
        self._save()

    def add_earlier(self, epoch: int, start_offset: int) -> None:
        """Adds an epoch of a record below the first epoch's start, which is of this epoch or of a later one.

        Records that were deleted are there again if the broker ended before it wrote the log's new start.
        """
        first = self._entries[0]
        if epoch < 0 or epoch > first.epoch or start_offset >= first.start_offset:
            return
        self._entries = (_at(epoch, start_offset), *self._entries[epoch == first.epoch :])
        self._save()

    def epoch_of(self, offset: int) -> int:
        """Returns the epoch of the record at ``offset``, or -1 if it is unknown."""
        epoch = NO_EPOCH
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            epoch = entry.epoch
        return epoch

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Returns the largest known epoch up to ``epoch``, and its end: the start of the next epoch.

        The latest epoch ends at the log's end. An epoch older than all known epochs ends at the first start offset.
        Returns (-1, -1) if ``epoch`` is -1 or later than all known epochs. These are the rules of Kafka's
        OffsetForLeaderEpoch.
        """
        if epoch == NO_EPOCH or not self._entries:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._entries[-1].epoch:
            return epoch, log_end_offset
        later = [entry for entry in self._entries if entry.epoch > epoch]
        if not later:
            return NO_EPOCH, NO_OFFSET
        earlier = [entry for entry in self._entries if entry.epoch <= epoch]
        return (earlier[-1].epoch if earlier else epoch), later[0].start_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Removes epochs that start at or after ``end_offset``."""
        kept = tuple(entry for entry in self._entries if entry.start_offset < end_offset)
        if len(kept) != len(self._entries):
            self._entries = kept
            self._save()

    def truncate_from_start(self, start_offset: int) -> None:
        """Removes epochs that end at or before ``start_offset``. The epoch at this offset starts there now."""
        gone = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if gone and gone[-1].start_offset < start_offset:
            rest = self._entries[len(gone) :]
            self._entries = (EpochStart(gone[-1].epoch, start_offset), *rest)
            self._save()
        elif len(gone) > 1:
            self._entries = self._entries[len(gone) - 1 :]
            self._save()

    @property
    def _can_wait_for_sync(self) -> bool:
        """Whether the file can wait for the first sync, because the log has a single epoch, which is in every batch."""
        return self._in_file is None and len(self._entries) == 1 and not self._entries[0].start_offset

    def _lock(self) -> LockType:
        """Returns the lock of the file: several threads may sync closed segments at the same time."""
        with _MAKING:
            if self._writing is None:
                self._writing = Lock()
            return self._writing

    def sync(self) -> None:
        if self._unsynced:
            self._save(sync=True)

    def _save(self, *, sync: bool = False) -> None:
        if self._held:
            return
        if not sync and self._can_wait_for_sync:
            self._unsynced = True
            return
        with self._lock():
            lines = [f"{entry.epoch} {entry.start_offset}" for entry in self._entries]
            if lines == self._in_file and not sync:
                return
            self._unsynced = True
            try:
                write_lines(self._path, lines, self.files, sync=sync)
            except OSError as error:
                if sync or not is_passing(error):
                    raise
                return  # the next sync writes the file; until then the batches have the epochs
            self._in_file = lines
            self._unsynced = not sync
