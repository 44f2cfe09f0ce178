"""What ``odradek monitor --data DIR`` keeps: incidents, and the changes that it has made."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from odradek.cli.monitor.incidents import open_incidents
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.cli.monitor.options import MonitorLine
    from odradek.client.config import ClientConfig
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.disk.database import MonitorDatabase
    from odradek.monitor.incidents.service import Incidents
    from odradek.monitor.incidents.webhook_file import Webhooks
    from odradek.monitor.offsets_reader import OffsetsTopicReader


@dataclass(frozen=True, slots=True)
class KeptState:
    """Both are None without --data."""

    incidents: Incidents | None = None
    changes: Changes | None = None

    def follow(self, reader: OffsetsTopicReader) -> None:
        """Begins to record what the reader's polls show."""
        if self.incidents is not None:
            reader.on_poll = self.incidents.on_poll
            self.incidents.start()


def open_kept(
    line: MonitorLine, config: ClientConfig, webhooks: Webhooks, allowed: tuple[str, ...], opened: ExitStack
) -> KeptState:
    """Opens the directory of --data; ``opened`` closes it. Raises CommandError."""
    database = _database(line)
    if database is not None:
        opened.callback(database.close)
    incidents = open_incidents(line, database, webhooks)
    if database is None:
        return KeptState()
    if incidents is not None:
        opened.callback(incidents.close)
    return KeptState(incidents, _changes(database, config, allowed))


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
