"""Leftover files in a Delta table's folder: our failed or killed attempts wrote them, and the log never had them.

A file's name has its micro-batch and its run. The leftovers of runs that can publish no more are removed while the
folder ``_odradek/runs`` has the record of a run that has ended or died. A user may have removed the record. So once a
day, all files with such names that are older than a day are compared with the log. Runs of earlier versions have no
number in the names of their files. Their leftovers are removed when the run is surely dead, or a day old.

A file is kept if the newest version or any existing commit of the log has it. Delta removes the oldest commits of a log
after some time. So a file is also kept if a removed commit may have had it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from odradek.pipelines.commit.notes import STATE
from odradek.pipelines.commit.state import RunTag
from odradek.pipelines.delta.commit_history import actions_at, info_of
from odradek.pipelines.delta.state import TEXT
from odradek.pipelines.files.file_names import BatchFiles, batch_in, last_part, newest_batch, prefix_of
from odradek.pipelines.files.staging import DAY_S
from odradek.pipelines.filesystems.location import FileStatus, Location
from odradek.text.table_paths import DELTA_LOG

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

_SWEPT = "swept"
# The largest assumed difference between the clocks of writers and committers.
_SKEW_S = 300.0


class DeltaLeftovers:
    """The search for leftovers. ``log`` returns the table's log, or None if the table has no log. The methods raise
    the errors of ``log``, and OSError."""

    def __init__(self, table: Location, log: Callable[[], Log | None]) -> None:
        self._table = table
        self._log = log

    def newest_batch(self) -> int | None:
        """Returns the highest number of a query's micro-batch in the names of files; None if there is none."""
        return newest_batch(file.name for file in self._table.data_files())

    def has_any_of(self, can_publish: Callable[[RunTag], bool], dead: Collection[str], log: Log) -> bool:
        """Returns whether there are files of runs that can still publish, or of the ``dead`` runs of earlier versions,
        which the newest version of the log does not have."""
        ids, held = {run[:8] for run in dead}, {last_part(uri) for uri in log.file_uris()}
        for file in self._table.data_files():
            batch = _batch(file.name)
            if batch is not None and last_part(file.name) not in held:
                run = batch.tag
                if batch.run in ids if run is None else can_publish(run):
                    return True
        return False

    def remove_ended(self, can_publish: Callable[[RunTag], bool], dead: Collection[str]) -> None:
        """Removes files of runs that can publish no more, and of the ``dead`` runs of earlier versions, if the log
        never had them."""
        ids = {run[:8] for run in dead}
        self.remove(file for file in self._table.data_files() if _is_over(file.name, can_publish, ids))

    def remove_old(self, can_publish: Callable[[RunTag], bool]) -> None:
        """Removes the files with our names that are older than a day and that the log never had, except those of runs
        that can still publish. At most once a day."""
        state, now = self._table.child(STATE), time.time()
        if now - _seconds(state.read_text(_SWEPT)) < DAY_S:
            return
        files = [file for file in self._table.data_files() if _batch(file.name)]
        if not files:  # the table may not be begun yet
            return
        self.remove(
            file for file in files if 0 < file.written_s < now - DAY_S and _is_over(file.name, can_publish, None)
        )
        state.write_text(_SWEPT, f"{now:.0f}\n")

    def remove(self, files: Iterable[FileStatus]) -> None:
        """Removes the files that the log never had."""
        found = {file: batch for file in files if (batch := _batch(file.name))}
        if not found:
            return
        log = self._log()
        if log is None:  # it may be lost, and then the files of earlier versions are the table
            found = {file: batch for file, batch in found.items() if batch.tag is not None}
        else:
            current = {last_part(uri) for uri in log.file_uris()}
            found = {file: batch for file, batch in found.items() if last_part(file.name) not in current}
        if not found:
            return
        commits = _Commits(self._table, [] if log is None else log.history(), set(found.values()))
        is_whole = log is None or len(commits.history) > log.version()
        for file, batch in found.items():
            if commits.may_have(file, batch, is_whole=is_whole):
                continue
            self._table.delete(file.name)


class _Commits:
    """The commits in the log that concern some micro-batches."""

    def __init__(self, table: Location, history: Sequence[dict[str, Any]], batches: Collection[BatchFiles]) -> None:
        self.history = history
        self._kept: set[str] = set()
        self._unknown: set[BatchFiles] = set()
        self._oldest_s = min((commit.get("timestamp", 0) / 1000 for commit in history), default=0.0)
        log = table.child(DELTA_LOG)
        for commit in history:
            words = str(commit.get(TEXT, "")).split()
            if len(words) < 5 or (batch := BatchFiles(prefix_of(int(words[0]), words[1]), words[4])) not in batches:
                continue
            files = _files_added_by(actions_at(log, commit["version"]), commit[TEXT])
            if files is None:
                self._unknown.add(batch)
            else:
                self._kept |= files

    def may_have(self, file: FileStatus, batch: BatchFiles, *, is_whole: bool) -> bool:
        """Returns whether a commit has or may have this file, or a removed commit may have had it.

        A commit may have the file if it is of the same micro-batch and run and the commit's JSON file is missing.
        A removed commit may have had the file only if commits were removed (not ``is_whole``) and if the file is older
        than all existing commits, with a tolerance of ``_SKEW_S``.
        """
        if last_part(file.name) in self._kept or batch in self._unknown:
            return True
        return not is_whole and file.written_s < self._oldest_s + _SKEW_S


def _files_added_by(actions: list[dict[str, Any]] | None, batch_text: str) -> set[str] | None:
    """Returns the file names in a commit, without folders. Returns None if the commit's file is missing or is another
    commit's. The version in deltalake's history can be wrong: it counts only commits with a ``commitInfo`` action."""
    if actions is None or info_of(actions).get(TEXT) != batch_text:
        return None
    return {last_part(action["add"]["path"]) for action in actions if "add" in action}


def _batch(name: str) -> BatchFiles | None:
    found = batch_in(name)
    return found if found is not None and found.run else None


def _is_over(name: str, can_publish: Callable[[RunTag], bool], dead: Collection[str] | None) -> bool:
    """Returns whether a file has our name and is of a run that can publish no more. ``dead``: the ids of the dead runs
    of earlier versions; None: all of them."""
    batch = _batch(name)
    if batch is None:
        return False
    run = batch.tag
    return (dead is None or batch.run in dead) if run is None else not can_publish(run)


def _seconds(text: str | None) -> float:
    """Returns seconds since 1970; 0 if there is no number."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
