"""The upkeep of a history on disk: old files are joined and thinned, and the oldest ones are removed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from odradek.history.kept.age_levels import LEVELS, thin_ends, thin_records
from odradek.history.kept.history_files import ENDS, RECORDS, FileNotes, HistoryFile, HistoryFolder, raise_bounds
from odradek.monitor.disk.recorder import HistoryRecorder

logger = logging.getLogger("odradek.monitor")

_EVERY_S = 30.0
_MOST_FILES, _MOST_ROWS = 64, 1_000_000
"""The most files, and the most rows, that are joined at a time: a join needs memory for its rows."""
_LEAST_FILES = 8
"""Fewer files wait for more: each poll of the folder opens all files, so that there must not be many small ones."""


class HistoryUpkeep:
    """``keep_ms``, ``keep_bytes``: how old and how large the history may become."""

    def __init__(self, folder: HistoryFolder, keep_ms: int, keep_bytes: int, now_ms: Callable[[], int]) -> None:
        self._folder, self._keep_ms, self._keep_bytes, self._now_ms = folder, keep_ms, keep_bytes, now_ms

    def run(self, stop: threading.Event) -> None:
        """Works until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            try:
                while self.step() and not stop.is_set():
                    pass
            except (OSError, pa.ArrowException) as error:
                logger.warning("the history is not thinned: %s", error)

    def step(self) -> bool:
        """Removes what is too old or too much, and joins or thins one run of files. Returns whether there may be more.

        Raises OSError, pa.ArrowException."""
        return any(self._join(kind, files) for kind, files in self.remove_oldest().items())

    def remove_oldest(self) -> dict[str, list[HistoryFile]]:
        """Removes the oldest files beyond ``keep_ms`` and ``keep_bytes``. The newest file of a kind stays: it says how
        far the history reaches. Returns the files of each kind that stay. Raises OSError."""
        now_ms = self._now_ms()
        of_kinds = {kind: self._folder.files(kind) for kind in (RECORDS, ENDS)}
        oldest = sorted((one for files in of_kinds.values() for one in files[:-1]), key=lambda one: one.notes.last_ms)
        size = sum(one.size for files in of_kinds.values() for one in files)
        for one in oldest:
            if size <= self._keep_bytes and one.notes.last_ms >= now_ms - self._keep_ms:
                continue
            self._folder.remove([one.path.name])
            size -= one.size
            of_kinds[one.kind].remove(one)
        return of_kinds

    def _join(self, kind: str, files: Sequence[HistoryFile]) -> bool:
        now_ms = self._now_ms()
        for level in range(len(LEVELS) - 1, 0, -1):
            run = _run_of(files[:-1], level, now_ms - LEVELS[level].after_ms)
            if run:
                self._replace(kind, run, level)
                return True
        return False

    def _replace(self, kind: str, run: Sequence[HistoryFile], level: int) -> None:
        table, bucket_ms = pa.concat_tables([one.read() for one in run]), LEVELS[level].bucket_ms
        last = run[-1].notes
        below: dict[int, int] = {}
        for one in run:
            raise_bounds(below, one.notes.incomplete_below)
        if kind == RECORDS:
            table, more = thin_records(
                table.sort_by([("record_partition", "ascending"), ("record_offset", "ascending")]), bucket_ms
            )
            raise_bounds(below, more)
        else:
            table = thin_ends(table.sort_by("time"), bucket_ms)
        names = tuple(one.path.name for one in run)
        notes = FileNotes(
            min(one.notes.first_ms for one in run), max(one.notes.last_ms for one in run), last.positions, below,
            last.retention_ms, last.retention_is_known, names,
        )  # fmt: skip
        self._folder.write(kind, run[0].number, level, table, notes)
        self._folder.remove(names)


def _run_of(files: Sequence[HistoryFile], level: int, before_ms: int) -> list[HistoryFile]:
    """Returns the first files next to one another that have to come to a level: ``_LEAST_FILES`` or more, or as many as
    are joined at a time."""
    run: list[HistoryFile] = []
    rows = 0
    for one in files:
        is_due = one.level < level and one.notes.last_ms < before_ms
        is_full = len(run) == _MOST_FILES or (bool(run) and rows + one.rows > _MOST_ROWS)
        if is_due and is_full and (len(run) > 1 or LEVELS[level].bucket_ms):
            return run
        if not is_due or is_full:
            if len(run) >= _LEAST_FILES:
                return run
            run, rows = [], 0
        if is_due:
            run.append(one)
            rows += one.rows
    return run if len(run) >= _LEAST_FILES else []


class KeptHistory:
    """The history of a running monitor: what writes it, and the thread that thins it. Raises OSError."""

    def __init__(self, directory: Path, keep_ms: int, keep_bytes: int, now_ms: Callable[[], int]) -> None:
        self.recorder = HistoryRecorder(directory, now_ms)
        self._upkeep = HistoryUpkeep(self.recorder.folder, keep_ms, keep_bytes, now_ms)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._upkeep.run, args=(self._stop,), name="odradek-history", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what waits."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self.recorder.flush()
