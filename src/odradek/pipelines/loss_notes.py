"""Losses that a run goes on after (``failOnDataLoss=false``). The planner and the tasks note them in a file, and the
driver shows them: what those processes log ends up in Spark's log, which the user of a command does not see.

On a cluster, workers of other machines do not have the file. Then the reports of the tasks have the lost ranges.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

from odradek.core.counts import are, span
from odradek.spark.offsets.data_loss import GOES_ON
from odradek.spark.offsets.loss_file import OPTION, losses_in
from odradek.spark.offsets.offset_ranges import Range

log = logging.getLogger("odradek.pipelines")


class LossNotes:
    """The file, and the losses that were logged."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="odradek-losses-", ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "losses"
        self._path.touch()
        self._logged: set[str] = set()

    @property
    def options(self) -> dict[str, str]:
        """The options of the source with which the planner and the tasks note their losses."""
        return {OPTION: str(self._path)}

    def show(self, ranges: Iterable[Range] = ()) -> None:
        """Logs the losses that are new. ``ranges``: those that tasks report."""
        fresh = [one for one in losses_in(self._path) if one not in self._logged]
        for one in fresh:
            self._show(one)
        for lost in ranges:
            if not any(one.startswith(f"{lost.partition}: ") for one in fresh):
                self._show(f"{lost.partition}: {span(lost.start, lost.end)} {are(lost.start, lost.end)} lost")

    def _show(self, one: str) -> None:
        if one not in self._logged:
            self._logged.add(one)
            log.warning(GOES_ON, one)

    def close(self) -> None:
        """Logs the last losses, and removes the file."""
        self.show()
        self._folder.cleanup()
