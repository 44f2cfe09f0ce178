"""The SQLite file in a monitor's directory: its lock, its tables, and transactions that are on the disk at their end.

``SCHEMAS`` has the steps of the file's format. A file of an earlier version gets the steps that it lacks.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from odradek.core.errors import OdradekError

DATABASE, DATABASE_LOCK = "monitor.sqlite", "lock"
_INCIDENTS = """
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
_CHANGES = """
CREATE TABLE change (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, grp TEXT NOT NULL,
  who TEXT NOT NULL, target TEXT NOT NULL, restores TEXT, begun_ms INTEGER NOT NULL, ended_ms INTEGER,
  outcome TEXT NOT NULL, text TEXT NOT NULL, topic_ids TEXT NOT NULL, rows TEXT NOT NULL
);
CREATE INDEX change_of_group ON change (grp, number);
CREATE TABLE change_plan (id TEXT PRIMARY KEY, made_ms INTEGER NOT NULL, content TEXT NOT NULL) WITHOUT ROWID;
"""
_BULK_CHANGES = """
ALTER TABLE change ADD COLUMN bulk TEXT;
CREATE INDEX change_of_bulk ON change (bulk, number) WHERE bulk IS NOT NULL;
"""
SCHEMAS = (_INCIDENTS, _CHANGES, _BULK_CHANGES)


class StoreUnusable(OdradekError):
    """The directory or the file cannot be used; the text names it and the remedy."""


class StoreFailed(OdradekError):
    """A read or write has failed, such as on a full disk. Nothing of the transaction is stored."""


class MonitorDatabase:
    """Opens ``monitor.sqlite`` in a directory, which is created if it is missing. One process can hold it.

    Threads may share it. Raises StoreUnusable."""

    def __init__(self, directory: Path) -> None:
        self._access = threading.Lock()
        self.directory, self.path = directory, directory / DATABASE
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
            if version > len(SCHEMAS):
                raise StoreUnusable(
                    f"{self.path} is of a newer odradek: install that version, or give another directory"
                )
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            for number in range(version, len(SCHEMAS)):
                db.executescript(f"BEGIN; {SCHEMAS[number]} PRAGMA user_version = {number + 1}; COMMIT;")
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

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Returns the rows of a query. Raises StoreFailed."""
        with self._access:
            try:
                return self._db.execute(text, values).fetchall()
            except sqlite3.Error as error:
                raise StoreFailed(f"{self.path}: {error}") from error

    def transaction(self) -> StoreTransaction:
        """All statements of the block are on the disk at its end, or none. Raises StoreFailed."""
        return StoreTransaction(self._db, self._access, str(self.path))


class StoreTransaction:
    """The block of ``MonitorDatabase.transaction``. No other thread uses the file meanwhile."""

    def __init__(self, db: sqlite3.Connection, access: threading.Lock, name: str) -> None:
        self._db, self._access, self._name = db, access, name

    def __enter__(self) -> sqlite3.Connection:
        self._access.acquire()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._access.release()
            if isinstance(error, sqlite3.Error):
                raise StoreFailed(f"{self._name}: {error}") from error
            raise
        return self._db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        finally:
            self._access.release()

    def _end(self, error: BaseException | None) -> None:
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
