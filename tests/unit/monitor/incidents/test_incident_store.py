"""The file of incidents: another process, another version, damage, a full disk, and what is forgotten."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from support.owned_stores import OwnedIncidentStore

from odradek.monitor.disk.database import StoreFailed, StoreUnusable
from odradek.monitor.incidents.announcements import Announced, IncidentEvent
from odradek.monitor.incidents.incident import EventMark, Incident, Severity
from odradek.monitor.incidents.store import Announcement

OPEN = Incident("1" * 32, "status", "g\n'\"🙂", Severity.WARN, "text", 2, 10, 20, None, EventMark(3, 4))


def test_what_is_recorded_is_there_after_a_restart(tmp_path: Path) -> None:
    store = OwnedIncidentStore(tmp_path / "new" / "folder")
    assert store.is_new
    other = replace(OPEN, id="2" * 32, kind="rewind")
    store.record(30, [OPEN, other], {other.subject: other.mark}, [Announcement("a", IncidentEvent.OPENED, OPEN)])
    store.record(40, [replace(other, closed_ms=40)], {}, [Announcement("a", IncidentEvent.REPEATED, OPEN)])
    store.close()
    store = OwnedIncidentStore(tmp_path / "new" / "folder")
    assert (store.is_new, store.open_incidents(), store.marks()) == (False, [OPEN], {other.subject: EventMark(3, 4)})
    assert store.closed_incidents(10) == [replace(other, closed_ms=40)]
    assert store.announced() == {(OPEN.id, "a"): Announced(2, 40)}
    first = store.next_delivery("a")
    assert first is not None
    assert (first.event, first.incident, first.attempts) == (IncidentEvent.OPENED, OPEN, 0)
    store.postpone(first.number, 99, "away")
    again = store.next_delivery("a")
    assert again is not None
    assert (again.number, again.due_ms, again.attempts) == (first.number, 99, 1)
    store.end_delivery(first.number)
    second = store.next_delivery("a")
    assert second is not None
    assert second.event is IncidentEvent.REPEATED
    assert store.drop_deliveries_of_others(["b"]) == 1
    assert store.pending() == {}
    store.close()


def test_a_subject_has_one_open_incident(tmp_path: Path) -> None:
    store = OwnedIncidentStore(tmp_path)
    store.record(1, [OPEN], {}, [])
    with pytest.raises(StoreFailed, match="UNIQUE"):
        store.record(2, [replace(OPEN, id="2" * 32)], {("rewind", "g"): EventMark(1, 1)}, [])
    assert (store.open_incidents(), store.marks()) == ([OPEN], {}), "all or nothing"
    store.record(3, [replace(OPEN, closed_ms=3), replace(OPEN, id="2" * 32)], {}, [])
    assert [one.id for one in store.open_incidents()] == ["2" * 32]
    store.close()


def test_a_second_monitor_is_refused(tmp_path: Path) -> None:
    store = OwnedIncidentStore(tmp_path)
    with pytest.raises(StoreUnusable, match="in use by another odradek monitor"):
        OwnedIncidentStore(tmp_path)
    store.close()
    OwnedIncidentStore(tmp_path).close()


def test_a_file_of_another_kind_or_version(tmp_path: Path) -> None:
    path = tmp_path / "monitor.sqlite"
    path.write_bytes(b"no database at all, but long enough to have a header" * 100)
    with pytest.raises(StoreUnusable, match="move it away to begin another one"):
        OwnedIncidentStore(tmp_path)
    path.unlink()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(StoreUnusable, match="is of a newer odradek"):
        OwnedIncidentStore(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreUnusable, match="file is a file, or in one: give a folder"):
        OwnedIncidentStore(blocked)


def test_a_full_disk_stores_nothing_and_later_everything(tmp_path: Path) -> None:
    store = OwnedIncidentStore(tmp_path)
    store.record(1, [OPEN], {}, [])
    (pages,) = store.file._db.execute("PRAGMA page_count").fetchone()
    store.file._db.execute(f"PRAGMA max_page_count = {pages}")
    many = [replace(OPEN, id=f"{number:032x}", group=f"g{number}", text="x" * 400) for number in range(200)]
    with pytest.raises(StoreFailed, match="full"):
        store.record(2, many, {}, [])
    assert store.open_incidents() == [OPEN]
    store.file._db.execute("PRAGMA max_page_count = 100000")
    store.record(3, many, {}, [])
    assert len(store.open_incidents()) == 201
    store.close()


def test_closed_incidents_are_forgotten_when_they_are_announced(tmp_path: Path) -> None:
    store = OwnedIncidentStore(tmp_path)
    closed = replace(OPEN, closed_ms=100)
    store.record(100, [closed], {}, [Announcement("a", IncidentEvent.CLOSED, closed)])
    store.forget_closed(before_ms=500)
    assert store.incident(OPEN.id) == closed, "its end is still to be announced"
    delivery = store.next_delivery("a")
    assert delivery is not None
    store.end_delivery(delivery.number)
    store.forget_closed(before_ms=100)
    assert store.incident(OPEN.id) == closed
    store.forget_closed(before_ms=101)
    assert store.incident(OPEN.id) is None
    store.close()
