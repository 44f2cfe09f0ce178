"""The version of a Delta table's log whose state belongs to the table's rows: RESTORE takes rows back, and no notes.

``commit/restores`` has the rules. Here are the commits as Delta's log has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek.pipelines.commit.restores import HeldVersion, VersionCommit, held_version
from odradek.pipelines.delta.commit_history import actions_at, info_of
from odradek.pipelines.delta.state import RUN, TEXT
from odradek.pipelines.filesystems.location import Location
from odradek.text.table_paths import DELTA_LOG

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log


@dataclass(frozen=True)
class StateLog:
    """``log``: the version of the log with the state; None if it is unknown. ``reason``: why it is not the newest one;
    empty if it is. ``taken_back``: the numbers that the actions had at that version which later entries have changed;
    -1 for those that did not exist."""

    log: Any
    reason: str = ""
    taken_back: tuple[tuple[str, int], ...] = ()


class _PastLog:
    """An earlier version of a log. ``later``: how many later commits the log has: deltalake (1.6) has them in the
    history of each version."""

    def __init__(self, log: Log, later: int) -> None:
        self._log = log
        self._later = later

    def history(self) -> list[dict[str, object]]:
        return [commit | {"version": commit["version"] + self._later} for commit in self._log.history()[self._later :]]

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


class DeltaRestores:
    """Finds the state of a table. ``open_version`` opens the log at a version; it raises the errors of deltalake."""

    def __init__(self, table: Location, open_version: Callable[[int], Log]) -> None:
        self._commits = table.child(DELTA_LOG)
        self._open_version = open_version
        self._known: tuple[int, StateLog] | None = None

    def state_log(self, log: Log) -> StateLog:
        """Returns where the state is of the newest version. Raises the errors of deltalake, StorageError."""
        newest = log.version()
        if self._known is not None and self._known[0] == newest:
            found = self._known[1]
            return found if found.reason else StateLog(log)
        found = self._found(log)
        self._known = newest, found
        return found

    def wrote(self, version: int) -> None:
        """Notes that this run has written an entry of this version, with a state."""
        self._known = version, StateLog(None)

    def _found(self, log: Log) -> StateLog:
        if log.transaction_version(RUN) is None:  # nothing of ours, or notes of an earlier version
            return StateLog(log)
        actions: dict[int, list[dict[str, object]] | None] = {}

        def read(version: int) -> VersionCommit | None:
            if version not in actions:
                actions[version] = actions_at(self._commits, version)
            return self._commit(version, actions[version])

        held = held_version(log.version(), read)
        if held.at is None:
            return StateLog(None, _reason(held))
        if held.by is None:
            return StateLog(log)
        state = self._opened(held.at)
        later = range(held.at + 1, log.version() + 1)
        for version in later:
            read(version)
        names = _entry_actions([actions[version] for version in later])
        if state is None or names is None:
            return StateLog(None, _reason(HeldVersion(None, held.by)))
        past = _PastLog(state, sum("commitInfo" in action for version in later for action in actions[version] or ()))
        numbers = ((name, state.transaction_version(name)) for name in sorted(names))
        return StateLog(past, _reason(held), tuple((name, -1 if at is None else at) for name, at in numbers))

    def _opened(self, version: int) -> Log | None:
        """Returns the log at a version; None if the log has lost it."""
        from deltalake.exceptions import DeltaError

        try:
            return self._open_version(version)
        except DeltaError:
            return None

    def _commit(self, version: int, actions: list[dict[str, Any]] | None) -> VersionCommit | None:
        if actions is None:
            return None
        info = info_of(actions)
        if TEXT in info:
            return VersionCommit(is_entry=True)
        if str(info.get("operation", "")).upper() != "RESTORE":
            return VersionCommit(is_entry=False)
        restored = self._restored(version, info.get("operationParameters") or {})
        return None if restored is None else VersionCommit(is_entry=False, restored=restored)

    def _restored(self, version: int, given: dict[str, Any]) -> int | None:
        """Returns the version that a RESTORE has restored; None if it cannot be found. If the commit has only a time,
        it is the newest earlier version with the same files."""
        text = str(given.get("version"))
        if text.isdecimal():
            return int(text)
        after = self._opened(version)
        if after is None:
            return None
        files = sorted(after.file_uris())
        for earlier in range(version - 1, -1, -1):
            log = self._opened(earlier)
            if log is None:
                return None
            if sorted(log.file_uris()) == files:
                return earlier
        return None


def _reason(held: HeldVersion) -> str:
    if held.by is not None and held.at is not None:
        return (
            f"version {held.by[0]} of its Delta log is a RESTORE of version {held.by[1]}, which took back the rows of "
            "later micro-batches"
        )
    if held.by is not None:
        return f"version {held.by[0]} of its Delta log is a RESTORE, and its log does not say which rows it took back"
    return "commits were removed from its Delta log, so it is not known whether a RESTORE took back rows"


def _entry_actions(commits: Sequence[list[dict[str, Any]] | None]) -> set[str] | None:
    """Returns the names of the ``txn`` actions in those of these commits that have a state of ours; None if a commit is
    missing."""
    names: set[str] = set()
    for actions in commits:
        if actions is None:
            return None
        if TEXT in info_of(actions):
            names |= {str(action["txn"]["appId"]) for action in actions if "txn" in action}
    return names - {RUN}
