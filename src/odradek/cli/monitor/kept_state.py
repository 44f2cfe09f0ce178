"""What ``odradek monitor --data DIR`` keeps: the history, incidents, and the changes that it has made."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from odradek.cli.monitor.incidents import open_incidents
from odradek.cli.pipeline.history import span_ms
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.cli.monitor.options import MonitorLine
    from odradek.client.config import ClientConfig
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.disk.database import MonitorDatabase
    from odradek.monitor.disk.upkeep import KeptHistory
    from odradek.monitor.incidents.service import Incidents
    from odradek.monitor.incidents.webhook_file import Webhooks
    from odradek.monitor.offsets_reader import OffsetsTopicReader

_KEEP, _KEEP_BYTES = "30d", "1g"
_LEAST_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class KeptState:
    """All are None without --data."""

    incidents: Incidents | None = None
    changes: Changes | None = None
    history: KeptHistory | None = None

    def follow(self, reader: OffsetsTopicReader) -> None:
        """Begins to record what the reader's polls show."""
        if self.incidents is not None:
            reader.on_poll = self.incidents.on_poll
            self.incidents.start()
        if self.history is not None:
            reader.recorder = self.history.recorder
            self.history.start()


def open_kept(
    line: MonitorLine, config: ClientConfig, webhooks: Webhooks, allowed: tuple[str, ...], opened: ExitStack
) -> KeptState:
    """Opens the directory of --data; ``opened`` closes it. Raises CommandError."""
    database = _database(line)
    if database is None:
        if line.keep is not None:
            raise CommandError("--keep needs --data DIR: without it the monitor keeps neither history nor incidents")
        if line.keep_bytes is not None:
            raise CommandError("--keep-bytes needs --data DIR: without it the monitor keeps no history")
        return KeptState()
    opened.callback(database.close)
    keep_ms = span_ms("--keep", line.keep or _KEEP)
    incidents = open_incidents(line, database, webhooks, keep_ms)
    opened.callback(incidents.close)
    changes = _changes(database, config, allowed)
    history = _history(line, database, keep_ms)
    opened.callback(history.close)
    return KeptState(incidents, changes, history)


def _database(line: MonitorLine) -> MonitorDatabase | None:
    if line.data is None:
        return None
    from odradek.monitor.disk.database import MonitorDatabase, StoreUnusable

    try:
        return MonitorDatabase(line.data)
    except StoreUnusable as error:
        raise CommandError(f"--data {error}") from None


def _changes(database: MonitorDatabase, config: ClientConfig, allowed: tuple[str, ...]) -> Changes:
    from odradek.client.admin import Admin
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.disk.database import StoreFailed

    own = replace(config, client_id="odradek-monitor")
    try:
        return Changes(database, lambda: Admin(own), allowed)
    except StoreFailed as error:
        raise CommandError(f"--data {error}") from None


def _history(line: MonitorLine, database: MonitorDatabase, keep_ms: int) -> KeptHistory:
    from odradek.text.units import size_bytes

    keep_bytes = size_bytes(line.keep_bytes or _KEEP_BYTES)
    if keep_bytes is None or keep_bytes < _LEAST_BYTES:
        raise CommandError(f"--keep-bytes {line.keep_bytes!r}: expected a size of at least 10m, such as 500m or 20g")
    from odradek.monitor.disk.upkeep import KeptHistory

    try:
        return KeptHistory(database.directory, keep_ms, keep_bytes, lambda: time.time_ns() // 1_000_000)
    except OSError as error:
        raise CommandError(f"--data {error.filename}: {error.strerror}") from None
