"""The incidents of a monitor on disk, with the announcements that are still to be delivered: one SQLite file.

A view's incidents and announcements are written in one transaction, and are on the disk when ``record`` returns. So a
monitor that is killed neither forgets an incident nor opens it under a second id, and what was not delivered is
delivered after the next start.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from odradek.core.errors import OdradekError
from odradek.monitor.incidents.announcements import Announced, IncidentEvent
from odradek.monitor.incidents.incident import EventMark, Incident, Severity, Subject

DATABASE, DATABASE_LOCK = "monitor.sqlite", "lock"
VERSION = 1
_SCHEMA = """
CREATE TABLE incident (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, grp TEXT NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL,
  count INTEGER NOT NULL, opened_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL, closed_ms INTEGER,
  mark_offset INTEGER NOT NULL, mark_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX open_incident ON incident (kind, grp) WHERE closed_ms IS NULL;
CREATE INDEX closed_incident ON incident (closed_ms) WHERE closed_ms IS NOT NULL;
CREATE TABLE mark (
  kind TEXT NOT NULL, grp TEXT NOT NULL, mark_offset INTEGER NOT NULL, mark_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, grp)
) WITHOUT ROWID;
CREATE TABLE announced (
  incident TEXT NOT NULL, hook TEXT NOT NULL, count INTEGER NOT NULL, last_ms INTEGER NOT NULL,
  PRIMARY KEY (incident, hook)
) WITHOUT ROWID;
CREATE TABLE delivery (
  number INTEGER PRIMARY KEY AUTOINCREMENT, hook TEXT NOT NULL, event TEXT NOT NULL, incident TEXT NOT NULL,
  made_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, error TEXT NOT NULL
);
CREATE INDEX delivery_of_hook ON delivery (hook, number);
CREATE TABLE view (known_since_ms INTEGER NOT NULL);
"""
_COLUMNS = "id, kind, grp, severity, text, count, opened_ms, changed_ms, closed_ms, mark_offset, mark_ms"


class StoreUnusable(OdradekError):
    """The directory or the file cannot be used; the text names it and the remedy."""


class StoreFailed(OdradekError):
    """A read or write has failed, such as on a full disk. Nothing of the transaction is stored."""


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
    """Opens ``monitor.sqlite`` in a directory, which is created if it is missing. One process can hold it.

    Threads may share it. Raises StoreUnusable."""

    def __init__(self, directory: Path) -> None:
        self._access = threading.Lock()
        self.path = directory / DATABASE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / DATABASE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError):
            raise StoreUnusable(f"{directory} is a file, or in one: give a folder") from None
        except OSError as error:
            raise StoreUnusable(f"{error.filename or directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreUnusable(
                f"{directory} is in use by another odradek monitor: give it another directory"
            ) from None
        try:
            self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self.path}: {error}") from None
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StoreUnusable(
                    f"{self.path} is of a newer odradek: install that version, or give another directory"
                )
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.Error as error:
            db.close()
            raise StoreUnusable(
                f"{self.path} cannot be read as a file of the monitor: {error}: move it away to begin another one"
            ) from None
        except StoreUnusable:
            db.close()
            raise
        return db

    def close(self) -> None:
        with self._access:
            self._db.close()
            os.close(self._lock)

    # --- the book -----------------------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether no view was recorded yet."""
        return not self._rows("SELECT 1 FROM view LIMIT 1")

    def open_incidents(self) -> list[Incident]:
        """Returns the open incidents, the oldest first."""
        return [
            _incident(row)
            for row in self._rows(f"SELECT {_COLUMNS} FROM incident WHERE closed_ms IS NULL ORDER BY opened_ms, id")
        ]

    def closed_incidents(self, limit: int) -> list[Incident]:
        """Returns the newest closed incidents, the newest first."""
        text = f"SELECT {_COLUMNS} FROM incident WHERE closed_ms IS NOT NULL ORDER BY closed_ms DESC, id LIMIT ?"
        return [_incident(row) for row in self._rows(text, (limit,))]

    def incident(self, incident_id: str) -> Incident | None:
        rows = self._rows(f"SELECT {_COLUMNS} FROM incident WHERE id = ?", (incident_id,))
        return _incident(rows[0]) if rows else None

    def marks(self) -> dict[Subject, EventMark]:
        rows = self._rows("SELECT kind, grp, mark_offset, mark_ms FROM mark")
        return {(kind, group): EventMark(offset, time_ms) for kind, group, offset, time_ms in rows}

    def announced(self) -> dict[tuple[str, str], Announced]:
        """Returns what was announced of the open incidents, by the incident's id and the webhook's name."""
        text = (
            "SELECT incident, hook, announced.count, last_ms FROM announced JOIN incident ON incident.id = incident "
            "WHERE closed_ms IS NULL"
        )
        return {(incident, hook): Announced(count, last) for incident, hook, count, last in self._rows(text)}

    def record(
        self,
        now_ms: int,
        incidents: Iterable[Incident],
        marks: Mapping[Subject, EventMark],
        announcements: Sequence[Announcement] = (),
    ) -> None:
        """Stores the changes of a view and what it announces, all or nothing. Raises StoreFailed."""
        with self._access, _Transaction(self._db, str(self.path)) as db:
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
        with self._access, _Transaction(self._db, str(self.path)) as db:
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
        with self._access, _Transaction(self._db, str(self.path)) as db:
            return db.execute(f"DELETE FROM delivery WHERE hook NOT IN ({marks})", tuple(hooks)).rowcount

    def next_delivery(self, hook: str) -> PendingDelivery | None:
        """Returns the oldest announcement that a webhook has to deliver, due or not."""
        text = (
            "SELECT number, hook, event, incident, made_ms, due_ms, attempts FROM delivery WHERE hook = ? "
            "ORDER BY number LIMIT 1"
        )
        for number, name, event, row, made_ms, due_ms, attempts in self._rows(text, (hook,)):
            return PendingDelivery(
                number, name, IncidentEvent(event), _incident(json.loads(row)), made_ms, due_ms, attempts
            )
        return None

    def pending(self) -> dict[str, int]:
        """Returns the number of announcements to deliver, by webhook."""
        return dict(self._rows("SELECT hook, count(*) FROM delivery GROUP BY hook"))

    def postpone(self, number: int, due_ms: int, error: str) -> None:
        """An attempt has failed. The next one is at ``due_ms``."""
        with self._access, _Transaction(self._db, str(self.path)) as db:
            db.execute(
                "UPDATE delivery SET attempts = attempts + 1, due_ms = ?, error = ? WHERE number = ?",
                (due_ms, error, number),
            )

    def end_delivery(self, number: int) -> None:
        """An announcement is delivered, or given up."""
        with self._access, _Transaction(self._db, str(self.path)) as db:
            db.execute("DELETE FROM delivery WHERE number = ?", (number,))

    def _rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._access:
            try:
                return self._db.execute(text, values).fetchall()
            except sqlite3.Error as error:
                raise StoreFailed(f"{self.path}: {error}") from error


class _Transaction:
    """All of a block's statements or none. Raises StoreFailed."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name = db, name

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StoreFailed(f"{self._name}: {error}") from error
        return self._db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
                return
        except sqlite3.Error as failure:
            error = failure
        with suppress(sqlite3.Error):  # SQLite has rolled back itself, such as on a full disk
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise StoreFailed(f"{self._name}: {error}") from error


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
