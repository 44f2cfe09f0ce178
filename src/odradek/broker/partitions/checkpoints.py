"""The checkpoints of a data directory with an offset for each log: recovery points, log starts, high watermarks.

The checkpoint of recovery points has the synced end of the metadata log, too. So it is a second witness: an older copy
of the metadata log together with its mark ends before this offset (``broker/metadata_log/check``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from threading import Lock

from odradek.broker.metadata_log.check import METADATA_PARTITION
from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.log import Log
from odradek.storage.recovery.evidence import Witnesses

_log = logging.getLogger("odradek.broker")

Offsets = Mapping[TopicPartition, int]


class OffsetCheckpoints:
    """The three files: ``points``, ``starts`` and ``high_watermarks`` are their present contents.

    ``high_watermarks``: as a clean stop, or the upkeep of a broker of a cluster, has noted them. ``watermarks``: those
    of a clean stop alone. They are witnesses, because each log was synced up to there.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.points: Offsets = {}
        self.starts: Offsets = {}
        self.high_watermarks: Offsets = {}
        self.watermarks: Offsets = {}
        self._writing_points = Lock()
        self._path = path
        self._files = files

    def read(self, *, clean: bool) -> None:
        """Reads the files. A damaged file is replaced by an empty one, with a warning. A missing one gets a warning."""
        self.points = self._read(checkpoints.RECOVERY_POINT, is_due=clean)
        self.starts = self._read(checkpoints.LOG_START, is_due=clean)
        self.high_watermarks = self._read(checkpoints.HIGH_WATERMARK, is_due=clean)
        self.watermarks = self.high_watermarks if clean else {}

    def _read(self, file: str, *, is_due: bool) -> Offsets:
        """``is_due``: the last stop has written the file."""
        path = self._path / file
        try:
            is_there = self._files.exists(path)
            if (is_due and not is_there) or (is_there and not self._files.size(path)):
                _log.warning("%s is %s: the start continues without it", path, "empty" if is_there else "missing")
            return checkpoints.read_offsets(path, self._files)
        except (StorageError, OSError) as error:
            _log.warning("recovery continues without a checkpoint: %s", error)
        self._try(lambda: checkpoints.write_offsets(path, {}, self._files))
        return {}

    def witnesses(self, name: TopicPartition, *, clean: bool, is_guarded: bool) -> Witnesses:
        """Returns what the files know about a log."""
        points, starts, watermarks = self.points, self.starts, self.watermarks
        return Witnesses(clean, points.get(name, 0), starts.get(name), watermarks.get(name), is_guarded)

    def remove(self, names: Set[TopicPartition]) -> None:
        """Removes logs from the files. Raises OSError.

        The files identify logs only by name, so an entry of a deleted log would apply to the next log of this name.
        """
        if names & self.points.keys():
            self.write_points(_without(self.points, names))
        if names & self.starts.keys():
            self.write_starts(_without(self.starts, names))
        if names & self.high_watermarks.keys():
            self.write_high_watermarks(_without(self.high_watermarks, names))

    def keep_known(self, topics: Set[str]) -> None:
        """Removes the logs of other topics."""
        known = topics | {METADATA_PARTITION.topic}
        names = self.points.keys() | self.starts.keys() | self.high_watermarks.keys()
        self.try_remove({name for name in names if name.topic not in known})

    def try_remove(self, names: Set[TopicPartition]) -> None:
        """Removes logs like ``remove``, and logs a failure: the creation of a log of this name tries again."""
        self._try(lambda: self.remove(names))

    def write_points(self, points: Offsets) -> None:
        """Writes the recovery points if they have changed. Raises OSError."""
        with self._writing_points:
            self._write_points(points)

    def _write_points(self, points: Offsets) -> None:
        if points != self.points:
            checkpoints.write_offsets(self._path / checkpoints.RECOVERY_POINT, points, self._files)
            self.points = points

    def lower_points(self, points: Offsets) -> None:
        """Lowers some recovery points to these offsets, unless they are lower. A thread may call it. Raises OSError."""
        with self._writing_points:
            lower = {name: offset for name, offset in points.items() if self.points.get(name, 0) > offset}
            self._write_points({**self.points, **lower})

    def write_starts(self, starts: Offsets) -> None:
        """Writes the log starts if they have changed. Raises OSError."""
        if starts != self.starts:
            checkpoints.write_offsets(self._path / checkpoints.LOG_START, starts, self._files)
            self.starts = starts

    def write_high_watermarks(self, high_watermarks: Offsets) -> None:
        """Writes the high watermarks if they have changed, without a sync: an older file, or none, is no fault, because
        a high watermark rises again. Raises OSError."""
        if high_watermarks != self.high_watermarks:
            path = self._path / checkpoints.HIGH_WATERMARK
            checkpoints.write_offsets(path, high_watermarks, self._files, sync=False)
            self.high_watermarks = high_watermarks

    def write_last(
        self,
        closed: Mapping[TopicPartition, Log],
        watermarks: Offsets,
        points: Offsets,
        offline: Iterable[TopicPartition],
    ) -> None:
        """Writes all files at a stop. ``points``: the recovery points of all logs that are not closed. Raises OSError.

        The log starts and high watermarks of ``offline`` partitions stay as they are.
        """
        offline = set(offline)
        watermarks = {name: self.high_watermarks[name] for name in offline & self.high_watermarks.keys()} | {
            **watermarks
        }
        starts = {name: self.starts[name] for name in offline if name in self.starts}
        starts |= starts_of(closed.items())
        points = {**points, **{name: log.recovery_point for name, log in closed.items()}}
        checkpoints.write_offsets(self._path / checkpoints.RECOVERY_POINT, points, self._files)
        checkpoints.write_offsets(self._path / checkpoints.LOG_START, starts, self._files)
        checkpoints.write_offsets(self._path / checkpoints.HIGH_WATERMARK, watermarks, self._files)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            _log.error("the checkpoints of %s could not be written: %s", self._path, error)


def starts_of(logs: Iterable[tuple[TopicPartition, Log]]) -> dict[TopicPartition, int]:
    """Returns the log start offsets that are above the base offset of the first segment."""
    return {
        name: log.log_start_offset
        for name, log in logs
        if log.segments and log.log_start_offset > log.segments[0].base_offset
    }


def _without(offsets: Offsets, names: Set[TopicPartition]) -> Offsets:
    return {name: offset for name, offset in offsets.items() if name not in names}
