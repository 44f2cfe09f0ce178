"""The group of a query that writes a table: its offsets are committed after the table has a micro-batch.

The source reads the group's offsets, to follow resets, and commits none (``COMMITTED_BY_TABLE``). So one module
commits, with the number of the run in hand: ``commit/machine`` allows a commit only while the newest entry of the
table's log is not of a newer run.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

from odradek.pipelines.checkpoint import COMMITTED, CommitState, PlannedBatch, commit_end
from odradek.spark.lookups import Lookups
from odradek.spark.options import ReadOptions

if TYPE_CHECKING:
    from odradek.pipelines.commit.state import BatchPlan, QueryState
    from odradek.pipelines.delta import DeltaTable
    from odradek.pipelines.lake import ParquetTable

NOT_COMMITTED = CommitState(False, "commitOffsets is false")
OVERTAKEN = CommitState(
    False, "a newer run has published to the table", "Run only one pipeline for a table; the newer run commits"
)
_RETRY_S = 10.0


class TableGroup:
    """The group of one run. ``options``: the user's options of the source. ``output``: the table's name."""

    def __init__(self, options: ReadOptions, table: ParquetTable | DeltaTable, output: str) -> None:
        self._output = output
        self._lookups = Lookups(options) if options.commit_offsets and options.group_id is not None else None
        self._table = table
        self._lock = threading.Lock()
        self._last: tuple[PlannedBatch, BatchPlan] | None = None
        self._tried_s = 0.0
        self.state: CommitState | None = None
        """The state of the group after the last commit; None before the first."""

    def commit(self, planned: PlannedBatch, plan: BatchPlan) -> None:
        """Commits the end of a micro-batch that is in the table. Raises StorageError if the table cannot be read."""
        with self._lock:
            self._last = planned, plan
            self._commit(planned, plan)

    def retry(self, *, at_once: bool = False) -> None:
        """Commits the last micro-batch again if its commit has failed, at most every ten seconds."""
        with self._lock:
            is_due = at_once or time.monotonic() - self._tried_s > _RETRY_S
            if self._last is not None and is_due and self.state not in (COMMITTED, OVERTAKEN, NOT_COMMITTED):
                self._commit(*self._last)

    def _commit(self, planned: PlannedBatch, plan: BatchPlan) -> None:
        lookups, self._tried_s = self._lookups, time.monotonic()
        if lookups is None:
            self.state = NOT_COMMITTED
            return
        self.state = OVERTAKEN

        def commit(batch: QueryState) -> None:
            end = planned.end
            if not plan.is_in(batch):  # another run has published meanwhile
                offsets = batch.offsets or self._table.offsets(plan.query, plan.offsets)
                end = dataclasses.replace(end, positions=offsets)
            self.state = commit_end(lookups, end, self._output)

        self._table.commit_group(plan, commit)

    def close(self) -> None:
        if self._lookups is not None:
            self._lookups.close()
