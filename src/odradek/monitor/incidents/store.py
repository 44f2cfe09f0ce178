"""The incidents of a monitor on disk, with the announcements that are still to be delivered: tables of its SQLite file.

A view's incidents and announcements are written in one transaction, and are on the disk when ``record`` returns. So a
monitor that is killed neither forgets an incident nor opens it under a second id, and what was not delivered is
delivered after the next start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.incidents.announcements import Announced, IncidentEvent
from odradek.monitor.incidents.incident import EventMark, Incident, Severity, Subject

_COLUMNS = "id, kind, grp, severity, text, count, opened_ms, changed_ms, closed_ms, mark_offset, mark_ms"


class Announcement(NamedTuple):
    """An announcement that a view causes."""

    hook: str
    event: IncidentEvent
    incident: Incident


class PendingDelivery(NamedTuple):
    """An announcement to deliver. ``number``: larger for a later one, and never used again. Times are ms since 1970."""

    number: int
    hook: str
    event: IncidentEvent
    incident: Incident
    made_ms: int
    due_ms: int
    attempts: int


class IncidentStore:
    """The tables of incidents and deliveries in a monitor's file. Threads may share it."""

    def __init__(self, database: MonitorDatabase) -> None:
        self._database = database

    # --- the book -----------------------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether no view was recorded yet."""
        return not self._database.rows("SELECT 1 FROM view LIMIT 1")

    def open_incidents(self) -> list[Incident]:
        """Returns the open incidents, the oldest first."""
        return [
            _incident(row)
            for row in self._database.rows(
                f"SELECT {_COLUMNS} FROM incident WHERE closed_ms IS NULL ORDER BY opened_ms, id"
            )
        ]

    def closed_incidents(self, limit: int) -> list[Incident]:
        """Returns the newest closed incidents, the newest first."""
        text = f"SELECT {_COLUMNS} FROM incident WHERE closed_ms IS NOT NULL ORDER BY closed_ms DESC, id LIMIT ?"
        return [_incident(row) for row in self._database.rows(text, (limit,))]

    def incident(self, incident_id: str) -> Incident | None:
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM incident WHERE id = ?", (incident_id,))
        return _incident(rows[0]) if rows else None

    def marks(self) -> dict[Subject, EventMark]:
        rows = self._database.rows("SELECT kind, grp, mark_offset, mark_ms FROM mark")
        return {(kind, group): EventMark(offset, time_ms) for kind, group, offset, time_ms in rows}

    def announced(self) -> dict[tuple[str, str], Announced]:
        """Returns what was announced of the open incidents, by the incident's id and the webhook's name."""
        text = (
            "SELECT incident, hook, announced.count, last_ms FROM announced JOIN incident ON incident.id = incident "
            "WHERE closed_ms IS NULL"
        )
        return {(incident, hook): Announced(count, last) for incident, hook, count, last in self._database.rows(text)}

    def record(
        self,
        now_ms: int,
        incidents: Iterable[Incident],
        marks: Mapping[Subject, EventMark],
        announcements: Sequence[Announcement] = (),
    ) -> None:
        """Stores the changes of a view and what it announces, all or nothing. Raises StoreFailed."""
        with self._database.transaction() as db:
            db.execute("INSERT INTO view SELECT ? WHERE NOT EXISTS (SELECT 1 FROM view)", (now_ms,))
            db.executemany(
                f"INSERT INTO incident ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET severity = excluded.severity, text = excluded.text, "
                "count = excluded.count, changed_ms = excluded.changed_ms, closed_ms = excluded.closed_ms, "
                "mark_offset = excluded.mark_offset, mark_ms = excluded.mark_ms",
                [_row(one) for one in sorted(incidents, key=lambda one: one.closed_ms is None)],
            )
            db.executemany(
                "INSERT OR REPLACE INTO mark VALUES (?, ?, ?, ?)",
                [(*subject, *mark) for subject, mark in marks.items()],
            )
            for hook, event, incident in announcements:
                db.execute(
                    "INSERT INTO announced VALUES (?, ?, 1, ?) "
                    "ON CONFLICT (incident, hook) DO UPDATE SET count = count + 1, last_ms = excluded.last_ms",
                    (incident.id, hook, now_ms),
                )
                db.execute(
                    "INSERT INTO delivery (hook, event, incident, made_ms, due_ms, attempts, error) "
                    "VALUES (?, ?, ?, ?, ?, 0, '')",
                    (hook, event.value, json.dumps(_row(incident)), now_ms, now_ms),
                )

    def forget_closed(self, before_ms: int) -> None:
        """Removes incidents that closed before this time, unless an announcement of them is still to be delivered."""
        with self._database.transaction() as db:
            db.execute(
                "DELETE FROM incident WHERE closed_ms < ? "
                "AND id NOT IN (SELECT json_extract(incident, '$[0]') FROM delivery)",
                (before_ms,),
            )
            db.execute("DELETE FROM announced WHERE incident NOT IN (SELECT id FROM incident)")

    # --- deliveries ---------------------------------------------------------------------------------------------------

    def drop_deliveries_of_others(self, hooks: Sequence[str]) -> int:
        """Removes the announcements of webhooks that are not among these. Returns their number. Raises StoreFailed."""
        marks = ", ".join("?" * len(hooks))
        with self._database.transaction() as db:
            return db.execute(f"DELETE FROM delivery WHERE hook NOT IN ({marks})", tuple(hooks)).rowcount

    def next_delivery(self, hook: str) -> PendingDelivery | None:
        """Returns the oldest announcement that a webhook has to deliver, due or not."""
        text = (
            "SELECT number, hook, event, incident, made_ms, due_ms, attempts FROM delivery WHERE hook = ? "
            "ORDER BY number LIMIT 1"
        )
        for number, name, event, row, made_ms, due_ms, attempts in self._database.rows(text, (hook,)):
            return PendingDelivery(
                number, name, IncidentEvent(event), _incident(json.loads(row)), made_ms, due_ms, attempts
            )
        return None

    def pending(self) -> dict[str, int]:
        """Returns the number of announcements to deliver, by webhook."""
        return dict(self._database.rows("SELECT hook, count(*) FROM delivery GROUP BY hook"))

    def postpone(self, number: int, due_ms: int, error: str) -> None:
        """An attempt has failed. The next one is at ``due_ms``."""
        with self._database.transaction() as db:
            db.execute(
                "UPDATE delivery SET attempts = attempts + 1, due_ms = ?, error = ? WHERE number = ?",
                (due_ms, error, number),
            )

    def end_delivery(self, number: int) -> None:
        """An announcement is delivered, or given up."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM delivery WHERE number = ?", (number,))


def _row(one: Incident) -> tuple[object, ...]:
    return (
        one.id, one.kind, one.group, int(one.severity), one.text, one.count, one.opened_ms, one.changed_ms,
        one.closed_ms, one.mark.offset, one.mark.time_ms,
    )  # fmt: skip


def _incident(row: Sequence[Any]) -> Incident:
    *values, offset, time_ms = row
    name, kind, group, severity, text, count, opened_ms, changed_ms, closed_ms = values
    return Incident(
        name, kind, group, Severity(severity), text, count, opened_ms, changed_ms, closed_ms, EventMark(offset, time_ms)
    )
