"""A store of incidents with a file of its own."""

from __future__ import annotations

from pathlib import Path

from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.incidents.store import IncidentStore


class OwnedIncidentStore(IncidentStore):
    def __init__(self, directory: Path) -> None:
        self.file = MonitorDatabase(directory)
        super().__init__(self.file)

    def close(self) -> None:
        self.file.close()
