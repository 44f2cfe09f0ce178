"""Incidents and webhooks in a simulated world: see sim_incidents for the invariants. 20 seeds always, 5,000 in the long
suite; each planted bug is found within 200 seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

from sim_incidents import IncidentScenario

from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.incidents import observer
from odradek.monitor.incidents.announcements import IncidentEvent, event_of
from odradek.monitor.incidents.incident import LASTING, EventMark, IncidentBook
from odradek.monitor.incidents.observer import IncidentObserver
from odradek.monitor.incidents.sender import HookSender
from odradek.monitor.incidents.store import IncidentStore, _incident

pytestmark = pytest.mark.usefixtures("quiet")


def simulate(seed: int, directory: Path) -> IncidentScenario:
    directory.mkdir()
    scenario = IncidentScenario(seed, directory)
    try:
        scenario.run()
    finally:
        scenario.store.kill()
    return scenario


def test_incidents_are_neither_lost_nor_doubled_in_20_seeds(tmp_path: Path) -> None:
    done = [simulate(seed, tmp_path / str(seed)) for seed in range(20)]
    assert sum(one.kills for one in done) > 10
    assert sum(len(one.received) for one in done) > 500


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 5_000, 166))
def test_many_seeds(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 166):
        simulate(seed, tmp_path / str(seed))


# --- planted bugs -----------------------------------------------------------------------------------------------------


def _accepted_first(self: Any, view: Any) -> None:
    changed = self.book.changes(view)
    marks = self.book.new_marks(view, changed)
    announcements = self._announcements(view, changed)
    self.book.accept(changed, marks)
    self._note_announced(view.now_ms, announcements, changed)
    try:
        self._store.record(view.now_ms, changed, marks, announcements)
        self.trouble = ""
    except StoreFailed as error:
        self.trouble = str(error)


def _ended_first(self: Any, delivery: Any) -> None:
    self._store.end_delivery(delivery.number)
    self._post(self.hook, self._message_of(delivery), 0)


def _closed_always(rule: Any, incident: Any, before: Any, now_ms: int) -> Any:
    if incident.closed_ms is not None:
        return IncidentEvent.CLOSED
    return event_of(rule, incident, before, now_ms)


def _once(rule: Any, incident: Any, before: Any, now_ms: int) -> Any:
    """An incident whose severity rises is not announced to those who want only the grave ones."""
    return event_of(rule, incident, before, now_ms) if before or incident.opened_ms == incident.changed_ms else None


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a view that is not sure closes": lambda patch: patch.setattr(
        IncidentBook, "_has_ended", lambda self, one, condition, view: one.kind in LASTING and condition is None
    ),
    "marks are not stored": lambda patch: patch.setattr(IncidentBook, "new_marks", lambda *given: {}),
    "the book changes before the store": lambda patch: patch.setattr(IncidentObserver, "record", _accepted_first),
    "each start is the first": lambda patch: patch.setattr(IncidentStore, "is_new", True),
    "open incidents are not read": lambda patch: patch.setattr(IncidentStore, "open_incidents", lambda self: []),
    "announcements are not read": lambda patch: patch.setattr(IncidentStore, "announced", lambda self: {}),
    "a delivery ends before its attempt": lambda patch: patch.setattr(HookSender, "_attempt", _ended_first),
    "what was never announced ends": lambda patch: patch.setattr(observer, "event_of", _closed_always),
    "a rise is not announced": lambda patch: patch.setattr(observer, "event_of", _once),
    "time alone tells events apart": lambda patch: patch.setattr(
        EventMark, "is_after", lambda self, other: self.time_ms > other.time_ms
    ),
    "the newest delivery comes first": lambda patch: patch.setattr(
        IncidentStore, "next_delivery", _newest_first(IncidentStore.next_delivery)
    ),
}


def _newest_first(real: Any) -> Any:
    def found(self: Any, hook: str) -> Any:
        numbers = self._database.rows("SELECT max(number) FROM delivery WHERE hook = ?", (hook,))
        oldest = real(self, hook)
        if oldest is None or numbers[0][0] == oldest.number:
            return oldest
        row = self._database.rows("SELECT event, incident FROM delivery WHERE number = ?", (numbers[0][0],))[0]
        return oldest._replace(
            number=numbers[0][0], event=IncidentEvent(row[0]), incident=_incident(json.loads(row[1]))
        )

    return found


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in range(200):
        try:
            simulate(seed, tmp_path / str(seed))
        except AssertionError:
            return
    raise RuntimeError(f"no seed finds: {bug}")
