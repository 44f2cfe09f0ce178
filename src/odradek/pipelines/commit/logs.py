"""The log of a table: its newest entry, and the next entry by an exclusive create. Pure.

``FileLog`` has one file for each entry, ``VersionLog`` is the log of a format with versions.
docs/notes/table-commits.md has the rules about forgotten entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from odradek.core.errors import ConfigError, OdradekError, StorageError
from odradek.pipelines.commit.file_damage import DamagedFile, fault_of
from odradek.pipelines.commit.notes import entry_name
from odradek.pipelines.commit.operations import (
    CommitVersion,
    CreateEntry,
    DeleteEntry,
    IsMarked,
    ListEntries,
    LogPosition,
    MarkForgotten,
    ReadEarlier,
    ReadEntry,
    ReadVersion,
    Steps,
    TableChange,
)
from odradek.pipelines.commit.run_errors import cut_off
from odradek.pipelines.commit.state import (
    ANOTHER_TABLE,
    BatchPlan,
    TableState,
    of_json,
    to_json,
)
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line

KEPT = 200
"""The number of newest entries that stay."""
_VERSION = 2
_LISTS = 5


class OutcomeUnknown(StorageError):
    """An entry may have been published, or may still be published by a late request."""


class CommitLog(Protocol):
    """A log of entries. ``newest``: returns the newest entry; without ``is_sure`` it may be an older one, and then
    ``append`` fails. ``append``: publishes a change as the entry after
    ``base``; returns None if another entry is there, and raises OutcomeUnknown if that cannot be found out. ``forget``:
    removes old entries."""

    def newest(self, plan: BatchPlan | None, *, is_sure: bool = False) -> Steps[LogPosition]: ...
    def append(self, base: LogPosition, change: TableChange) -> Steps[LogPosition | None]: ...
    def forget(self, newest: LogPosition) -> Steps[None]: ...


RESTORE_NOTES = f"Restore the notes that belong to the table from a copy of it, or {ANOTHER_TABLE}"
_INCOMPLETE = (
    "A run was killed while it created this newest entry, on a file system without hard links, or the file was "
    "changed. If no run writes to the table, move this file out of _odradek/batches, and run the command again: it "
    "goes on, or says which notes to restore"
)


class FileLog:
    """A log in files. ``name``: the table's name for messages. ``describe``: returns the part of an entry that says
    where the files of a change are."""

    def __init__(self, name: str, describe: Callable[[TableChange], dict[str, object]], kept: int = KEPT) -> None:
        self._name = name
        self._describe = describe
        self._kept = kept
        self._known: LogPosition | None = None
        self._appends = 0
        self._lowest = 1  # no entry below is there
        self._is_lowest_sure = False

    def newest(self, plan: BatchPlan | None, *, is_sure: bool = False) -> Steps[LogPosition]:
        """Raises StorageError if an entry cannot be read."""
        while True:
            if self._known is None:
                self._known = yield from self._found()
            known = yield from self._followed(self._known)
            # If this entry is still there, the next one was not forgotten when it was looked for.
            if known is not None and (not is_sure or (yield from self._is_base_held(known))):
                self._known = known
                return known
            self._known = None

    def _followed(self, known: LogPosition) -> Steps[LogPosition | None]:
        """Returns the newest entry that follows ``known``. Returns None if ``known`` was forgotten: then a run that was
        paused for long may have created the next one again."""
        while (text := (yield from ReadEntry(known.number + 1))) is not None:
            if not (yield from self._is_base_held(known)):
                return None
            known = self.parse(known.number + 1, text, is_newest=True)
        return known

    def _found(self) -> Steps[LogPosition]:
        """Returns an entry that belongs to the log: the newest one that a list shows, or the state before entry 1."""
        numbers: list[int] = []
        for _ in range(_LISTS):
            numbers = yield from ListEntries()
            if not numbers:
                text = yield from ReadEntry(1)
                if not (yield from IsMarked()):
                    return (
                        self.parse(1, text, is_newest=True) if text is not None else (yield from self._before_first())
                    )
                continue  # entry 1 was forgotten, so an entry 1 was created again
            found = max(numbers)
            text = yield from ReadEntry(found)
            if text is None:
                continue  # it was forgotten after the list was made
            position = self.parse(found, text, is_newest=True)
            self._lowest, self._is_lowest_sure = min(numbers), False
            if (yield from self._is_linked(position)):
                return position
        wanted = f"entry {max(numbers) - 1}" if numbers else "the newest entry"
        raise StorageError(
            f"{wanted} of the notes of {self._name} is missing, or is another one than the entry after it follows. If "
            "another run is writing, run the command again when it has ended. Otherwise restore the notes that belong "
            f"to the table, or {ANOTHER_TABLE}"
        )

    def _before_first(self) -> Steps[LogPosition]:
        """Returns the state before entry 1. In a table that no query has written, no partition was forgotten."""
        earlier = yield from ReadEarlier()
        return LogPosition(0, replace(earlier, is_whole=earlier.newest_query is None))

    def _is_linked(self, position: LogPosition) -> Steps[bool]:
        """Returns whether the entry before this one is the one that its writer has read. Otherwise, a run that was
        paused for long has created a forgotten entry again."""
        if position.number == 1:
            return not (yield from IsMarked())
        text = yield from ReadEntry(position.number - 1)
        return text is not None and self.parse(position.number - 1, text).token == position.content["previous"]

    def append(self, base: LogPosition, change: TableChange) -> Steps[LogPosition | None]:
        """Raises OutcomeUnknown, RunFenced."""
        self._appends += 1
        number, token = base.number + 1, f"{change.run.text}.{self._appends}"
        state = change.state_after(base.state)
        content = {"version": _VERSION, "token": token, "previous": base.token, "state": to_json(state)}
        text = json.dumps(content | self._describe(change)) + "\n"
        failed: Exception | None = None
        try:
            yield from CreateEntry(number, text)
        except (OdradekError, OSError) as error:
            failed = error
        # The create may have been done although it reports that the name is taken: a client repeats a lost request.
        held = yield from self._read_after(number, failed)
        if held is None and failed is None:
            raise cut_off(change.run, self._name)  # it was removed by a run that found it forgotten
        if held is None:
            raise OutcomeUnknown(
                f"{self._name} cannot be written: {failed}. It is not known whether entry {number} of its log will be "
                "there: its files stay, and the next run checks the log"
            ) from failed
        position = self.parse(number, held, is_newest=True)
        if position.token != token:
            return None
        if not (yield from self._is_base_held(base)) and not (yield from self._is_followed(position)):
            yield from DeleteEntry(number)
            raise cut_off(change.run, self._name)
        self._known = position
        return position

    def _is_followed(self, position: LogPosition) -> Steps[bool]:
        """Returns whether the next entry follows this one. Then this one was in the log before the entry before it was
        forgotten, although its writer looks for that one only now."""
        text = yield from ReadEntry(position.number + 1)
        return text is not None and self.parse(position.number + 1, text).content["previous"] == position.token

    def _read_after(self, number: int, failed: Exception | None) -> Steps[str | None]:
        try:
            return (yield from ReadEntry(number))
        except (OdradekError, OSError) as error:
            raise OutcomeUnknown(
                f"{self._name} cannot be written: {failed or error}. It is not known whether entry {number} of its log "
                "will be there (it cannot be read): its files stay, and the next run checks the log"
            ) from error

    def _is_base_held(self, base: LogPosition) -> Steps[bool]:
        """Returns whether the entry before is still there. Entries are forgotten in ascending order, so while it is
        there, the next entry was never there before."""
        if base.number == 0:
            return not (yield from IsMarked())
        text = yield from ReadEntry(base.number)
        return text is not None and self.parse(base.number, text).token == base.token

    def forget(self, newest: LogPosition) -> Steps[None]:
        """Removes the entries before the newest ones, in ascending order, without gaps."""
        if self._lowest > newest.number - self._kept:
            return
        while not self._is_lowest_sure:  # a list that is late may lack older entries
            if self._lowest > 1 and (yield from ReadEntry(self._lowest - 1)) is not None:
                self._lowest -= 1
            else:
                self._is_lowest_sure = True
        while self._lowest <= newest.number - self._kept:
            if self._lowest == 1:
                yield from MarkForgotten()
            yield from DeleteEntry(self._lowest)
            self._lowest += 1

    def parse(self, number: int, text: str, *, is_newest: bool = False) -> LogPosition:
        """Returns the entry with this number and text. ``is_newest``: no entry is known after it. Raises
        StorageError."""
        name = f"entry {number} of the log of {self._name} ({entry_name(number)})"
        try:
            content = parse_json(text)
            if content["version"] != _VERSION:
                raise StorageError(
                    f"{name} was written by another version of odradek (it has version {content['version']!r}, and not "
                    f"{_VERSION}). Use that version for this table, or {ANOTHER_TABLE}"
                )
            state: TableState = of_json(content["state"])
            return LogPosition(number, state, str(content["token"]), content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = _INCOMPLETE if is_newest and not text.endswith("\n") else RESTORE_NOTES
            raise DamagedFile(name, fault_of(text, error), remedy) from error


class VersionLog:
    """The log of a table whose format has versions: of Delta, or the snapshots of Iceberg. ``name``: the table's name
    for messages, with its format."""

    def __init__(self, name: str) -> None:
        self._name = name

    def newest(self, plan: BatchPlan | None, *, is_sure: bool = False) -> Steps[LogPosition]:
        return (yield from ReadVersion(plan))

    def append(self, base: LogPosition, change: TableChange) -> Steps[LogPosition | None]:
        """Raises OutcomeUnknown, and the ConfigError of a table that cannot be written."""
        failed: Exception | None = None
        try:
            if (yield from CommitVersion(base, change)):
                return LogPosition(base.number + 1, change.state_after(base.state))
        except ConfigError:  # the table was refused before anything was sent
            raise
        except (OdradekError, OSError) as error:
            failed = error
        try:
            after = yield from ReadVersion(change.plan)
        except (OdradekError, OSError) as error:
            raise self._unknown(change, "it cannot be read", failed or error) from error
        if after.number == base.number:
            raise self._unknown(change, "it is not there now", failed) from failed
        return after if self._is_ours(after, change, base) else None

    def _is_ours(self, after: LogPosition, change: TableChange, base: LogPosition) -> bool:
        """Returns whether the log has the change, whose reply was lost."""
        wanted = change.state_after(base.state)
        query = None if change.plan is None else change.plan.query
        return after.state.run == wanted.run and (query is None or after.state.of(query) == wanted.of(query))

    def forget(self, newest: LogPosition) -> Steps[None]:
        """Does nothing: the format forgets its old versions by its own rules."""
        yield from ()

    def _unknown(self, change: TableChange, found: str, error: Exception | None) -> OutcomeUnknown:
        why = "another commit was faster" if error is None else one_line(error)
        what = "the entry of this run" if change.plan is None else f"micro-batch {change.plan.batch}"
        return OutcomeUnknown(
            f"the {self._name} cannot be written: {why}. It is not known whether its log will have "
            f"{what} ({found}): its files stay, and the next run checks the log"
        )
