"""The log of a Parquet table, where lists are late: they may lack entries, and show some that were created again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.logs import FileLog
from odradek.pipelines.commit.machine import drive
from odradek.pipelines.commit.state import RunTag, TableState

KEPT = 3


class Entries:
    """The files of a log. ``lists``: the next lists; then each list is complete."""

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.lists: list[list[int]] = []
        self.is_marked = False

    def perform(self, operation: Any) -> Any:
        match operation:
            case op.ListEntries():
                return self.lists.pop(0) if self.lists else sorted(self.held)
            case op.ReadEntry(number):
                return self.held.get(number)
            case op.CreateEntry(number, text):
                self.held.setdefault(number, text)
            case op.DeleteEntry(number):
                self.held.pop(number, None)
            case op.MarkForgotten():
                self.is_marked = True
            case op.IsMarked():
                return self.is_marked
            case op.ReadEarlier():
                return TableState()
        return None

    def log(self) -> FileLog:
        return FileLog("t", lambda change: {}, KEPT)

    def newest(self, log: FileLog, *, is_sure: bool = False) -> Any:
        return drive(log.newest(None, is_sure=is_sure), self.perform)

    def append(self, log: FileLog, run: int, times: int = 1) -> None:
        for _ in range(times):
            change = op.TableChange(RunTag(run, f"{run:08x}"))
            drive(log.forget(drive(log.append(self.newest(log), change), self.perform)), self.perform)

    def append_after_pause(self, log: FileLog, others: Callable[[], None]) -> None:
        """A run is paused before its create while others append, and is killed after it."""
        steps = log.append(self.newest(log), op.TableChange(RunTag(1, f"{1:08x}")))
        created = next(steps)
        assert isinstance(created, op.CreateEntry)
        others()
        self.perform(created)


def test_entries_are_forgotten_without_gaps_if_a_list_lacks_an_old_one() -> None:
    """Otherwise a run that was paused at the old entry would take it for the newest, and create the next one again."""
    entries = Entries()
    first, paused, second = entries.log(), entries.log(), entries.log()
    entries.append(first, 1)
    assert entries.newest(paused).number == 1
    entries.append(first, 1, times=3 - 1)
    entries.lists = [[2, 3]]
    entries.append(second, 2, times=2)
    assert sorted(entries.held) == [3, 4, 5]
    assert entries.newest(paused, is_sure=True).number == 5


def test_an_entry_that_was_forgotten_and_created_again_is_not_the_newest_one() -> None:
    """A run was paused before its create, and killed behind it. The list shows its entry, and none that is newer."""
    entries = Entries()
    paused, reader, log = entries.log(), entries.log(), entries.log()
    entries.append(paused, 1)
    assert entries.newest(reader).number == 1
    entries.append_after_pause(paused, lambda: entries.append(log, 2, times=5))
    assert sorted(entries.held) == [2, 4, 5, 6]
    entries.lists = [[2]]
    assert entries.newest(entries.log()).number == 6
    assert entries.newest(reader).number == 6, "nor for a run that was paused, too, at the entry before"


@pytest.mark.parametrize("shown", [[], [1]])
def test_a_first_entry_that_was_created_again_is_not_the_newest_one(shown: list[int]) -> None:
    entries = Entries()
    paused, reader, log = entries.log(), entries.log(), entries.log()
    assert entries.newest(reader).number == 0
    entries.append_after_pause(paused, lambda: entries.append(log, 2, times=5))
    assert sorted(entries.held) == [1, 3, 4, 5]
    entries.lists = [shown]
    assert entries.newest(entries.log()).number == 5
    assert entries.newest(reader).number == 5
