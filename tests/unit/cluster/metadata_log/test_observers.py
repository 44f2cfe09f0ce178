"""What an observer of the metadata log is answer, and how far the leader takes it to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import pytest

from odradek.cluster.metadata_log.observers import (
    OBSERVER_SESSION_MS,
    LogPlace,
    ObserverKey,
    Observers,
    PlaceKind,
    place_of,
)
from odradek.core.ids import NO_NODE

VALID, DIVERGING, SNAPSHOT = PlaceKind.VALID, PlaceKind.DIVERGING, PlaceKind.SNAPSHOT
KEY = ObserverKey(7, UUID(int=1))


@dataclass
class _Log:
    """A log with the epochs 2 (up to 10), 4 (up to 25) and 5."""

    start_offset: int = 0
    end_offset: int = 40
    epoch: int = 5
    snapshots: Sequence[LogPlace] = ()

    def epoch_end(self, epoch: int) -> LogPlace | None:
        if epoch > 5:
            return None
        starts = {2: 0, 4: 10, 5: 25}
        known = {one: max(start, self.start_offset) for one, start in starts.items()}
        known = {one: start for one, start in known.items() if start < self.end_offset}
        if self.start_offset >= 25:
            known = {5: self.start_offset}
        later = [start for one, start in known.items() if one > epoch]
        earlier = [one for one in known if one <= epoch]
        return LogPlace(min(later, default=self.end_offset), max(earlier, default=epoch))


@pytest.mark.parametrize(
    ("offset", "epoch", "answer"),
    [
        (0, 0, (VALID, LogPlace(0, 0))),
        (0, 5, (VALID, LogPlace(0, 0))),
        (5, 2, (VALID, LogPlace(5, 2))),
        (10, 2, (VALID, LogPlace(10, 2))),
        (11, 2, (DIVERGING, LogPlace(10, 2))),
        (30, 2, (DIVERGING, LogPlace(10, 2))),
        (12, 3, (DIVERGING, LogPlace(10, 2))),
        (12, 4, (VALID, LogPlace(12, 4))),
        (26, 4, (DIVERGING, LogPlace(25, 4))),
        (40, 5, (VALID, LogPlace(40, 5))),
        (41, 5, (DIVERGING, LogPlace(40, 5))),
        (30, 6, (DIVERGING, LogPlace(40, 5))),
        (3, 1, (DIVERGING, LogPlace(0, 1))),
    ],
)
def test_a_observer_of_a_whole_log(offset: int, epoch: int, answer: tuple[PlaceKind, LogPlace]) -> None:
    assert place_of(_Log(), offset, epoch) == answer


SNAPSHOTS = (LogPlace(12, 4), LogPlace(30, 5))


@pytest.mark.parametrize(
    ("offset", "epoch", "answer"),
    [
        (0, 0, (SNAPSHOT, SNAPSHOTS[1])),
        (0, 5, (SNAPSHOT, SNAPSHOTS[1])),
        (5, 2, (SNAPSHOT, SNAPSHOTS[1])),
        (11, 4, (SNAPSHOT, SNAPSHOTS[1])),
        (12, 2, (SNAPSHOT, SNAPSHOTS[1])),
        (12, 4, (VALID, LogPlace(12, 4))),
        (13, 4, (VALID, LogPlace(13, 4))),
        (30, 3, (SNAPSHOT, SNAPSHOTS[1])),
        (26, 4, (DIVERGING, LogPlace(25, 4))),
        (41, 5, (DIVERGING, LogPlace(40, 5))),
    ],
)
def test_a_observer_of_a_log_that_begins_with_a_snapshot(
    offset: int, epoch: int, answer: tuple[PlaceKind, LogPlace]
) -> None:
    assert place_of(_Log(start_offset=12, snapshots=SNAPSHOTS), offset, epoch) == answer


def test_a_observer_at_the_start_of_a_whole_log_beside_a_snapshot_needs_it_not() -> None:
    log = _Log(snapshots=(LogPlace(30, 5),))
    assert place_of(log, 30, 5) == (VALID, LogPlace(30, 5))
    assert place_of(log, 26, 4) == (SNAPSHOT, LogPlace(30, 5)), "its epoch is older than that of the snapshot"


def test_a_observer_is_caught_up_when_it_has_what_was_there_at_its_fetch_before() -> None:
    observers = Observers()
    observers.note_fetch(KEY, 0, 10, 1000, 0)
    assert observers.present(0)[KEY].caught_up_ms == -1
    observers.note_fetch(KEY, 10, 20, 2000, 0)  # the leader has more by now
    assert observers.present(0)[KEY].caught_up_ms == 1000
    observers.note_fetch(KEY, 15, 30, 3000, 0)
    assert observers.present(0)[KEY].caught_up_ms == 1000
    observers.note_fetch(KEY, 30, 30, 4000, 0)
    state = observers.present(0)[KEY]
    assert (state.caught_up_ms, state.fetched_ms, state.end_offset) == (4000, 4000, 30)
    observers.note_fetch(KEY, 30, 31, 3500, 0)  # the clock went back
    state = observers.present(0)[KEY]
    assert (state.caught_up_ms, state.fetched_ms) == (4000, 4000)


def test_a_silent_observer_is_forgotten_and_a_reader_is_none() -> None:
    observers = Observers()
    observers.note_fetch(KEY, 0, 10, 1, 100)
    observers.note_fetch(ObserverKey(NO_NODE, UUID(int=0)), 0, 10, 1, 100)
    other = ObserverKey(8, UUID(int=1))
    observers.note_fetch(other, 0, 10, 1, 100 + OBSERVER_SESSION_MS - 1)
    assert observers.present(100 + OBSERVER_SESSION_MS - 1).keys() == {KEY, other}
    assert observers.present(100 + OBSERVER_SESSION_MS).keys() == {other}
