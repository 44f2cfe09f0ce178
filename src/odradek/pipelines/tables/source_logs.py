"""The logs that a table has read: whether they still have what was read before the ranges of a micro-batch.

The evidence is the last batch of each partition (``core/ids.LogTail``), which the table notes. Where it is not known,
or cannot be compared, the rows of the table are the evidence (``log_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from odradek.core.ids import LogTail, LogTails, TopicPartition
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.commit.state import BatchPlan
from odradek.pipelines.files.table_rows import Marks, Spans
from odradek.pipelines.tables.driver_tails import DriverTails
from odradek.pipelines.tables.log_rows import LogRows
from odradek.spark.options import ReadOptions


class TableEvidence(Protocol):
    """What is asked of a table."""

    def tails(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogTail]: ...
    def offsets(self, plan: BatchPlan) -> dict[TopicPartition, int]: ...
    def marks(self, spans: Spans) -> Marks: ...


class SourceLogs:
    """The logs of the topics of one run."""

    def __init__(self, table: TableEvidence) -> None:
        self._table = table
        self._tails: dict[TopicPartition, LogTail] = {}
        self._asked: set[TopicPartition] = set()

    def before(self, options: ReadOptions, planned: PlannedBatch, plan: BatchPlan) -> LogChecks:
        """Returns the checks of a micro-batch, after a look at the partitions whose last batch is not known. Raises
        DataLoss, and the errors of lookups and of the table."""
        partitions = {piece.partition for piece in planned.ranges}
        unread = partitions - self._asked
        self._asked |= unread
        self._tails.update(self._table.tails(unread) if unread else {})
        checks = LogChecks(options, planned, self._tails, self._table.marks)
        unknown = [tp for tp, start in checks.starts.items() if tp not in self._tails or self._tails[tp].end != start]
        checks.confirm([tp for tp in unknown if tp in self._continued(planned, plan, unknown)])
        return checks

    def _continued(
        self, planned: PlannedBatch, plan: BatchPlan, partitions: Sequence[TopicPartition]
    ) -> set[TopicPartition]:
        """Returns those partitions that go on where the table ends: by the checkpoint, or after an adoption by the
        table's notes. The others begin, or were moved by a reset or a loss."""
        begun, moved = planned.begin.offsets, planned.end.origins
        found = {tp for tp in partitions if tp in begun and tp not in moved}
        if len(found) < len(partitions):
            starts, held = {piece.partition: piece.start for piece in planned.ranges}, self._table.offsets(plan)
            found |= {tp for tp in partitions if held.get(tp) == starts[tp]}
        return found

    def after(self, tails: LogTails) -> None:
        """Notes the last batches of a micro-batch that was added."""
        self._tails.update(tails)


class LogChecks:
    """The checks of one micro-batch. ``known``: the last batches that were read before it."""

    def __init__(
        self,
        options: ReadOptions,
        planned: PlannedBatch,
        known: LogTails,
        marks: Callable[[Spans], Marks],
    ) -> None:
        self.known = known
        self.starts: Mapping[TopicPartition, int] = {piece.partition: piece.start for piece in planned.ranges}
        self._rows = LogRows(options, planned.ids, marks)
        self._driver = DriverTails(options, planned.ranges, planned.ids)

    def confirm(self, partitions: Collection[TopicPartition]) -> None:
        """Compares the logs of these partitions with the rows of the table. Raises DataLoss, and the errors of lookups
        and of the table."""
        if partitions:
            self._rows.check({tp: self.starts[tp] for tp in partitions})

    def by_driver(self) -> None:
        """Makes the checks that otherwise the workers make. Raises the errors of ``confirm``."""
        self.confirm(self._driver.check(self.known))

    def found_by_driver(self) -> LogTails:
        """Returns the last batches of the micro-batch."""
        return self._driver.found()
