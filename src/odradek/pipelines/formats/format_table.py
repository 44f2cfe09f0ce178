"""A table of any format, as a run of a pipeline uses it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.driver import CommitDriver, next_number
from odradek.pipelines.commit.state import Added, BatchPlan
from odradek.pipelines.files.row_ends import REPLAYS
from odradek.pipelines.files.table_rows import Marks, Spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from odradek.pipelines.files.batch_rows import BatchRows


class FormatTable(CommitDriver):
    """A table for one run, from ``prepare`` to ``close``."""

    # Subclasses use _add and _rows.

    lost: frozenset[str] = frozenset()
    """The files of the newest micro-batch that are nowhere, if the run allows that."""
    lost_offsets: Mapping[TopicPartition, tuple[int, int]] = {}
    """The start and the end of that micro-batch in each partition, as far as the notes have them."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: BatchRows | None = None

    @abstractmethod
    def prepare(
        self,
        dead: Collection[str] | None = None,
        take_number: Callable[[int], int] = next_number,
        gone: Collection[str] = (),
    ) -> None:
        """Begins the run: finishes what a killed run has published, and removes files of earlier runs.

        ``take_number``: returns the run's number, which is higher than the given one. ``dead``: runs of earlier
        versions that are dead; None: all. ``gone``: the runs that may have left files. Raises StorageError, RunFenced.
        """

    @abstractmethod
    def close(self) -> None:
        """Removes the files of this run, and of runs that can publish no more, that are in no entry of the log."""

    def has_batches(self, *, is_begun: bool = True, has_runs: Callable[[], bool] = lambda: False) -> bool | None:
        """Returns whether a query has added a micro-batch; None if it may have. ``is_begun``: whether the table was
        begun as ours when this run opened it. ``has_runs``: returns whether all micro-batches of the table have noted
        their runs. Raises StorageError."""
        return self.state().newest_query is not None

    @abstractmethod
    def has_records(self) -> bool:
        """Returns whether a query or a replay has added anything. True if that is unknown. Raises StorageError."""

    def check(self, frame: DataFrame) -> None:
        """Raises ConfigError if an existing table cannot have the columns of these rows, StorageError."""

    @abstractmethod
    def begin(self, columns: pa.Schema) -> None:
        """Accepts the columns of the rows that workers write. Raises ConfigError, StorageError."""

    @abstractmethod
    def add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        """Adds a micro-batch, unless the table already has it; returns its counts.

        Raises TableRefused, RunFenced, ConfigError, StorageError, and the errors of ``BatchRows.write``.
        """

    def _add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        """Lets the state machine add a micro-batch of these rows."""
        self._rows = rows
        try:
            added: Added = self._drive(self._machine.add(plan)).added
        finally:
            self._rows = None
        return added

    @abstractmethod
    def row_ends(
        self, partitions: Collection[TopicPartition] | None = None, left_out: re.Pattern[str] = REPLAYS
    ) -> dict[TopicPartition, int]:
        """Returns the offset after the last row of each of these partitions that has rows; None: of all partitions.
        Files with the names ``left_out`` do not count. Reads the table. Raises ConfigError if it lacks the columns for
        that, StorageError."""

    @abstractmethod
    def marks(self, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
        """Returns the times and keys of the rows in these ranges (``files_of``: as for ``table_rows.marks_in``). Reads
        the table. Raises ConfigError, StorageError."""
