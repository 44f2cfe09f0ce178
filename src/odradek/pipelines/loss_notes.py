"""Losses that a run goes on after (``failOnDataLoss=false``). The planner and the tasks note them in a file, and the
driver tells them: what those processes log ends up in Spark's log, which the user of a command does not see.

On a cluster, workers of other machines do not have the file. Then the reports of the tasks have the lost ranges.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

from odradek.spark.data_loss import GOES_ON, OPTION
from odradek.spark.offset_ranges import Range

log = logging.getLogger("odradek.pipelines")


class LossNotes:
    """The file, and what of it was told."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="odradek-losses-", ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "losses"
        self._path.touch()
        self._told: set[str] = set()

    @property
    def options(self) -> dict[str, str]:
        """The options of the source with which the planner and the tasks note their losses."""
        return {OPTION: str(self._path)}

    def tell(self, ranges: Iterable[Range] = ()) -> None:
        """Logs the losses that are new. ``ranges``: those that tasks report."""
        with self._path.open(encoding="utf-8") as notes:
            noted = [str(json.loads(line)) for line in notes if line.endswith("\n")]
        for one in noted:
            self._tell(one)
        for lost in ranges:
            if not any(one.startswith(f"{lost.partition}: ") for one in self._told):
                self._tell(f"{lost.partition}: offsets {lost.start} to {lost.end - 1} are lost")

    def _tell(self, one: str) -> None:
        if one not in self._told:
            self._told.add(one)
            log.warning(GOES_ON, one)

    def close(self) -> None:
        """Tells the last losses, and removes the file."""
        self.tell()
        self._folder.cleanup()
