"""The group of a query that writes a table: its offsets are committed after the table has a micro-batch.

The source reads the group's offsets, to follow resets, and commits none (``COMMITTED_BY_TABLE``). So one module
commits, with the number of the run in hand: ``commit/machine`` allows a commit only while the newest entry of the
table's log is not of a newer run.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.core.errors import OdradekError
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.group_commit import COMMITTED, CommitState, commit_end, refused_state
from odradek.pipelines.tables.group_fence import FenceLost, GroupFence
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.options import ReadOptions

if TYPE_CHECKING:
    from odradek.pipelines.commit.state import BatchPlan, QueryState
    from odradek.pipelines.formats.table_sink import TableSink

NOT_COMMITTED = CommitState(False, "commitOffsets is false")
OVERTAKEN = CommitState(
    False, "a newer run has published to the table", "Run only one pipeline for a table; the newer run commits"
)
_RETRY_S = 10.0


class TableGroup:
    """The group of one run. ``options``: the user's options of the source. ``output``: the table's name."""

    def __init__(self, options: ReadOptions, table: TableSink, output: str, fenced: GroupFence | None = None) -> None:
        self._output = output
        self._fenced = fenced
        self._lookups = Lookups(options) if options.commit_offsets and options.group_id is not None else None
        if self._lookups is not None and fenced is not None:
            self._lookups.commit_with = fenced.commit
        self._table = table
        self._folder = tempfile.TemporaryDirectory(prefix="odradek-group-", ignore_cleanup_errors=True)
        self.look = str(Path(self._folder.name) / "look")
        """The file with what the last commit has seen (``spark.group_look``)."""
        self._lock = threading.Lock()
        self._last: tuple[PlannedBatch, BatchPlan] | None = None
        self._tried_s = 0.0
        self.state: CommitState | None = None
        """The state of the group after the last commit; None before the first."""

    @property
    def lookups(self) -> Lookups | None:
        """The lookups of the group before its first commit; None if the run commits nothing."""
        return self._lookups

    def commit(self, planned: PlannedBatch, plan: BatchPlan) -> None:
        """Commits the end of a micro-batch that is in the table. Raises StorageError if the table cannot be read."""
        with self._lock:
            self._last = planned, plan
            self._commit(planned, plan)

    def knows(self, outputs: Iterable[str]) -> None:
        """Notes other tables that a warning of the run has named."""
        if self._lookups is not None:
            self._lookups.other_outputs.update(outputs)

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
        is_refused = False

        def fence() -> bool:
            nonlocal is_refused
            refused = self._fence(lookups)
            is_refused = refused is not None
            self.state = refused or OVERTAKEN
            return self._fenced is not None

        def commit(batch: QueryState) -> bool:
            if is_refused:
                return True
            end = planned.end
            if not plan.is_in(batch):  # another run has published meanwhile
                held = batch.offsets or self._table.offsets(plan)
                end = dataclasses.replace(end, positions={tp: held[tp] for tp in end.positions if tp in held})
            try:
                self.state = commit_end(lookups, end, self._output, self.look)
            except FenceLost:
                return False
            return True

        self._table.commit_group(plan, commit, fence)

    def _fence(self, lookups: Lookups) -> CommitState | None:
        """Fences other runs' commits, if they are to be fenced. Returns the state if the cluster refuses that."""
        try:
            if self._fenced is not None:
                self._fenced.fence()
        except (OdradekError, OSError) as error:
            lookups.note_refusal(error)
            return refused_state(lookups)
        return None

    def close(self) -> None:
        if self._fenced is not None:
            self._fenced.close()
        if self._lookups is not None:
            self._lookups.close()
        self._folder.cleanup()
