"""An open table of a pipeline: its location, its checkpoint, its writer and its run."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.core.errors import StorageError
from odradek.core.ids import NO_TAILS, TopicPartition
from odradek.pipelines.checkpoint import (
    RESTORE,
    PlannedBatch,
    check_readable,
    commits_without_offsets,
    newest_done,
    newest_number,
    plan_of,
    planned_batch,
    query_id,
    remove_sums_without_files,
    remove_unfinished_plan,
)
from odradek.pipelines.commit.notes import BATCHES, STATE
from odradek.pipelines.commit.partition_starts import check_starts
from odradek.pipelines.commit.state import (
    ANY_REPLAY,
    REMEDY,
    REPLAY,
    Added,
    BatchPlan,
    QueryState,
    TableRefused,
    TableState,
    held_batch,
    unfinished,
)
from odradek.pipelines.decoders.decoder import Decoder, decoder_for
from odradek.pipelines.files.batch_rows import RangeRows, SparkRows, check_decoder
from odradek.pipelines.files.file_names import OURS
from odradek.pipelines.files.partition_values import usable_frame
from odradek.pipelines.files.staging import DAY_S, has_other_attempts, tagged_jobs
from odradek.pipelines.files.table_folders import folder_of
from odradek.pipelines.files.table_rows import Marks, Spans
from odradek.pipelines.files.task_reports import TaskReport
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.filesystems.local_errors import local_error
from odradek.pipelines.filesystems.location import LocalLocation, Location, remove_unfinished
from odradek.pipelines.formats.checkpoint_mark import (
    CHECKPOINT,
    bind,
    check_checkpoint,
    check_new,
    check_own_checkpoint,
    mark,
)
from odradek.pipelines.formats.table_description import begin_table, check_not_foreign, check_table, has_runs
from odradek.pipelines.formats.target import Target
from odradek.pipelines.group_commit import UNFINISHED, CommitState, GroupStart, drop_overruled_plan, group_start
from odradek.pipelines.queries import check_spark_sees
from odradek.pipelines.sources import Source
from odradek.pipelines.tables.group import OVERTAKEN, TableGroup
from odradek.pipelines.tables.group_fence import FenceLost, GroupFence
from odradek.pipelines.tables.runs import RUNS, Run
from odradek.pipelines.tables.source_logs import SourceLogs
from odradek.pipelines.tables.table_columns import TableColumns
from odradek.pipelines.values.arguments import wrong
from odradek.pipelines.values.dead_letters import letter_options
from odradek.pipelines.values.reader import ERROR
from odradek.pipelines.values.record_values import KEEP_BAD, RECORD_COLUMNS, BadRecords
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.source_offset import Offsets
from odradek.spark.options import ReadOptions
from odradek.text.printable import printable
from odradek.text.table_paths import is_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from odradek.client.config import ClientConfig

log = logging.getLogger("odradek.pipelines")
_BYTES = "_odradek_bytes"


class Table:
    """An open table: its location, its checkpoint and its writer. Only one run at a time can open it.

    ``begin`` writes the table's own description (``formats/table_description``), unless the table already has one.
    """

    def __init__(self, target: Target, spark: SparkSession | None) -> None:
        self.target = target
        self._source: Source | None = None
        self._start: GroupStart | None = None
        self._is_unpublished = False
        self._decoder: Decoder | None = None
        self._columns: StructType | None = None
        self.location = location_of(target.output, spark)
        if target.checkpoint is not None:
            check_new(location_of(target.checkpoint, spark), self.location)
        self.location.make()
        check_not_foreign(self.location, target.layout())  # before anything is written to this location
        self._locked = contextlib.ExitStack()
        with contextlib.ExitStack() as locked:
            state = self.location.child(STATE)
            opened = target.format.opener(target, self.location)
            if not target.single_driver:
                target.format.check_exclusive(state, target.storage_options)
            run = self._run = Run(state.child(RUNS))
            run.begin()  # before ``_lock``: the error of ``begin`` names the other run
            locked.callback(run.end)
            locked.enter_context(_lock(self.location, run.description))
            self.checkpoint: Location = state.child(CHECKPOINT)
            if target.checkpoint is not None:
                self.checkpoint = location_of(target.checkpoint, spark)
            self._writer = opened(run.id)
            locked.callback(self._writer.close)
            self._logs = SourceLogs(self._writer)
            self._columns_of_table = TableColumns(target, self.location, self._writer)
            self._id = check_table(self.location, target.layout(), self._has_records)
            self._was_begun = self._id is not None
            self._writer.prepare(run.dead, run.take_number, run.gone)
            run.forget_dead()
            if run.gone:
                for folder in (state, state.child(RUNS), state.child(BATCHES)):
                    remove_unfinished(folder, DAY_S)
            self._locked = locked.pop_all()

    def _has_records(self) -> bool:
        return self._writer.has_records()

    @property
    def _has_batches(self) -> bool | None:
        return self._writer.has_batches(is_begun=self._was_begun, has_runs=lambda: has_runs(self.location))

    def check_columns(self) -> None:
        """Raises ConfigError if the rows have other columns than the table, as far as that is known without Spark;
        StorageError. ``begin`` looks again."""
        self._columns_of_table.check()

    def check_checkpoint(self) -> None:
        """Raises ConfigError if the checkpoint belongs to another table, and TableRefused if the checkpoint and the
        table do not agree on the newest micro-batch."""
        check_checkpoint(self.checkpoint, self.location, self._id, has_batches=self._has_batches)
        # In this order, and before the table: another run may go on meanwhile.
        done = newest_done(self.checkpoint)
        newest = newest_number(self.checkpoint)
        if lacks := commits_without_offsets(self.checkpoint, done, newest):
            raise TableRefused(f"{lacks}. {REMEDY}")
        check_readable(self.checkpoint, done, newest)
        if newest is None:
            return
        is_done = done == newest
        self._is_unpublished = False
        plan = self.plan(planned_batch(self.checkpoint, newest), newest)
        try:
            state = self._writer.state(plan)
            held = held_batch(state, plan, self.location.uri)
            if held is None and is_done:
                raise unfinished(plan, self.location.uri, state.restored)
            self._is_unpublished = held is None
        except TableRefused:
            self.check_notes()  # no adoption helps a table whose notes are older than its files
            raise

    def follow_reset(self, source: Source) -> None:
        """Lets the query follow a reset of the group that has come after a micro-batch was planned which the table does
        not have. ``check_checkpoint`` must have run before. Raises StorageError."""
        if self._is_unpublished:
            drop_overruled_plan(source, self.checkpoint)

    def plan(self, planned: PlannedBatch, batch_id: int) -> BatchPlan:
        """Returns a planned micro-batch for the commit to the table. Raises StorageError."""
        plan = plan_of(self.checkpoint, planned, query_id(self.checkpoint), batch_id)
        start = self._start
        if start is None or self._source is None:
            return plan
        if plan.first.keys() - set(start.partitions):  # partitions that have come since the run has looked
            start = self._start = group_start(self._source, self.location.uri, planned.begin.offsets)
        ours = {tp: at for tp, at in start.ours.items() if tp in plan.first}
        return replace(plan, ours=ours, at_end=[tp for tp in start.at_end if tp in plan.first])

    def begin(self, records: DataFrame, isolation: str) -> None:
        """Makes the last checks before rows are written. Then writes the table's description, if it has none.
        ``isolation``: the level with which the run reads. Raises ConfigError, StorageError.
        """
        frame = self.frame(records)
        self._columns_of_table.begin(frame.schema, lambda values: values.table(records).schema)
        self._writer.check(frame)
        if self.target.writer == "workers":
            zone = records.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
            self._decoder, self._columns = decoder_for(self.target.values, zone), frame.schema
            check_decoder(self._decoder, self._columns)
            self._writer.begin(self._decoder.schema)
            folder_of(self.location)
        self._id = begin_table(self.location, self.target.layout(), self._has_records, isolation=isolation)

    def bind(self) -> None:
        """Marks the checkpoint as that of this table. ``begin`` must have run before. Raises ConfigError."""
        assert self._id is not None
        bind(self.checkpoint, self.location, self._id, has_batches=self._has_batches)
        remove_unfinished_plan(self.checkpoint)
        remove_sums_without_files(self.checkpoint)

    def group(self, options: ReadOptions) -> TableGroup:
        """Returns the group of a run with these options of the source."""
        return TableGroup(options, self._writer, self.location.uri, self.fenced_commits(options.client))

    def fenced_commits(self, client: ClientConfig) -> GroupFence | None:
        """Returns the fenced commits of this run; None if its commits are not fenced."""
        return GroupFence(client, self._table_id) if self.target.fence_commits else None

    def _table_id(self) -> str:
        assert self._id is not None  # ``begin`` has run
        return self._id

    def start_of_query(self, source: Source, lookups: Lookups | None = None) -> GroupStart | None:
        """Returns where the query begins; None if it has begun. Logs a warning if another table has the same group.
        ``lookups``: those of the source, if there are some. Raises TableRefused if the table lacks records before the
        offset at which the run would read a partition."""
        done, newest = newest_done(self.checkpoint), newest_number(self.checkpoint)
        known: Offsets = {}
        begun = None
        if newest is not None:
            planned = planned_batch(self.checkpoint, newest)
            known = (planned.end if done == newest else planned.begin).offsets
            begun = planned.end.origins if newest == 0 and done is None else None
        self._source = source
        start = self._start = group_start(source, self.location.uri, known, planned=begun, lookups=lookups)
        ours = {tp: at for tp, at in start.ours.items() if tp in start.partitions}
        if ours or start.at_end:
            check_starts(self.notes(start.partitions), ours, start.at_end, self.location.uri)
        if newest is not None:
            return None
        if start.outputs:
            log.warning(
                "group %s is also the group of the table %s: this table begins at its offsets, and the pipelines of "
                "both tables overwrite each other's commits. Give each table a group of its own",
                source.group,
                ", ".join(start.outputs),
            )
        return start

    def guard(self, commit: Callable[[], CommitState], lookups: Lookups | None) -> CommitState:
        """Calls the commit of the offsets of the checkpoint's newest micro-batch, if no newer run has published.
        Otherwise returns the state that says so. ``lookups`` send the commit; None: there is nothing to commit.
        ``check_checkpoint`` must have run before. Raises the errors of the commit."""
        number = newest_number(self.checkpoint)
        if number is None:
            raise StorageError(
                f"{self.checkpoint.uri}/offsets has no micro-batch any more: it was removed while a run used it. "
                f"{RESTORE}"
            )
        plan = self.plan(planned_batch(self.checkpoint, number), number)
        state = OVERTAKEN

        fenced = None if lookups is None else self.fenced_commits(lookups.options.client)
        if lookups is not None and fenced is not None:
            lookups.commit_with = fenced.commit

        def fence() -> bool:
            if fenced is not None:
                fenced.fence()
            return fenced is not None

        def commit_ours(batch: QueryState) -> bool:
            nonlocal state
            try:
                state = commit() if plan.is_in(batch) else OVERTAKEN
            except FenceLost:
                return False
            return True

        try:
            self._writer.commit_group(plan, commit_ours, fence)
        finally:
            if fenced is not None:
                fenced.close()
        return state

    def final_state(self, group: TableGroup) -> CommitState:
        """Returns the state of the group at the end of a run; first commits what is not committed yet."""
        if group.state is None and (done := newest_done(self.checkpoint)) is not None:
            planned = planned_batch(self.checkpoint, done)
            group.commit(planned, self.plan(planned, done))
        group.retry(at_once=True)
        return group.state or CommitState(False, UNFINISHED, "The next run commits it")

    @property
    def lost_files(self) -> frozenset[str]:
        """The files of the newest micro-batch that are neither in the table nor beside it."""
        return self._writer.lost

    @property
    def lost_offsets(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """The start and the end of the newest micro-batch in each partition, if files of it are lost."""
        return self._writer.lost_offsets

    def check_own_checkpoint(self) -> None:
        """Raises ConfigError if there is a folder in the place of the checkpoint that is not the table's checkpoint."""
        check_own_checkpoint(self.checkpoint, self.location, self._id)

    def check_notes(self) -> None:
        """Raises TableRefused if the table has files that its notes do not know. Raises StorageError."""
        for query in (*self._writer.state().queries, ""):
            self._writer.check_notes(query)

    def notes(self, partitions: Iterable[TopicPartition]) -> TableState:
        """Returns the table's notes, with the offsets of its newest query in these partitions."""
        return self._writer.state(BatchPlan("", 0, "", "", offsets=dict.fromkeys(partitions, 0)))

    def row_ends(self) -> dict[TopicPartition, int]:
        """Returns the offset after the last row of each partition that has rows which no replay has added. Reads the
        table. Raises StorageError."""
        return self._writer.row_ends()

    def foreign_row_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offsets after the last rows in files of other writers, which may have rewritten any rows. Reads
        the table. Raises StorageError."""
        return self._writer.row_ends(partitions, OURS)

    def has_replays(self) -> bool:
        """Returns whether replays have added rows."""
        plan = BatchPlan(ANY_REPLAY, 0, "", "")
        return any(query.startswith(REPLAY) for query in self._writer.state(plan).queries)

    def adopt(self, plan: BatchPlan, seen: QueryState | None) -> None:
        """Notes these offsets as the table's, and ends all earlier runs and queries. ``seen``: the newest query of the
        notes from which the plan was made. Raises TableRefused, RunFenced, StorageError."""
        self._writer.adopt(plan, seen)

    def bind_anew(self) -> None:
        """Marks a new checkpoint as that of this table."""
        assert self._id is not None
        mark(self.checkpoint, self._id)

    def frame(self, records: DataFrame) -> DataFrame:
        """Returns the records with the table's columns. Raises ConfigError."""
        columns = self.target.folder_columns
        if not columns:
            return self.target.values.table(records)
        frame = self.target.values.table(records, bytes_as=_BYTES)
        known = [name for name in frame.columns if name != _BYTES]
        missing = [name for name in columns if name not in known]
        if missing:
            raise wrong("partition_by", f" {missing[0]}: the table's columns are {', '.join(known)}")
        return usable_frame(frame, columns, _BYTES)

    def add(self, batch: DataFrame, plan: BatchPlan, reading: tuple[ReadOptions, PlannedBatch] | None = None) -> Added:
        """Adds a micro-batch to the table; Spark writes its records. ``reading``: with which options, and what, if the
        logs have to be those that the table has read. Raises ConfigError, StorageError, BadRecords, FilesNotSeen,
        DataLoss.
        """
        frame = self.frame(batch)
        checks = None
        if reading is not None:
            checks = self._logs.before(*reading, plan)
            checks.by_driver()
        if self.target.files_per_batch is not None:
            frame = frame.coalesce(self.target.files_per_batch)
        check = _refuse_bad if self.target.on_bad == "fail" else None
        rows = SparkRows(frame, check, dict if checks is None else checks.found_by_driver)
        with self._note_other_attempts(batch.sparkSession):
            added = self._writer.add(rows, plan)
        self._logs.after(rows.tails)
        return added

    def add_ranges(
        self,
        spark: SparkSession,
        options: ReadOptions,
        planned: PlannedBatch,
        plan: BatchPlan,
        on_reports: Callable[[Sequence[TaskReport]], None] = lambda reports: None,
    ) -> Added:
        """Adds a micro-batch to the table; Spark's workers read its ranges and write the rows. ``on_reports`` is called
        with the reports of the tasks. Raises the errors of ``add``, and RangesNotRead.
        """
        assert self._decoder is not None
        assert self._columns is not None
        checks = None if plan.is_replay else self._logs.before(options, planned, plan)
        letters = self.target.letters_to
        rows = RangeRows(
            spark,
            options,
            self._decoder,
            self._columns,
            planned.ranges,
            planned.ids,
            planned.epochs,
            task_bytes=self.target.task_bytes,
            most=self.target.files_per_batch,
            fail_on_bad=self.target.on_bad == "fail",
            on_reports=on_reports,
            known=NO_TAILS if checks is None else checks.known,
            confirm=(lambda partitions: None) if checks is None else checks.confirm,
            letters=None if letters is None else letter_options(options.client, letters),
        )
        with self._note_other_attempts(spark):
            added = self._writer.add(rows, plan)
        if checks is not None:
            self._logs.after(rows.tails)
        return added

    @contextlib.contextmanager
    def _note_other_attempts(self, spark: SparkSession) -> Iterator[None]:
        """Marks this run if a task may still write after the run, so that later runs look for the run's leftover files.

        Such a task belongs to a failed micro-batch, or is another attempt of a task that succeeded.
        """
        had_leftovers, self._run.may_have_leftovers = self._run.may_have_leftovers, True
        with tagged_jobs(spark) as tag:
            yield
            self._run.may_have_leftovers = had_leftovers or has_other_attempts(spark, tag)

    def find_added(self, plan: BatchPlan) -> Added | None:
        """Returns the counts of a replay; None if the table does not have it."""
        held = held_batch(self._writer.state(plan), plan, self.location.uri)
        return None if held is None else held.added

    def find_replayed(self, plan: BatchPlan) -> tuple[QueryState | None, QueryState | None]:
        """Returns the state of a replay, and that of all replays together, in the partitions of ``plan``; None if there
        is none."""
        state = self._writer.state(plan)
        return state.of(plan.query), state.queries.get(ANY_REPLAY)

    def marks(self, spans: Spans, files_of: re.Pattern[str]) -> Marks:
        """Returns the marks of the rows in these ranges, in files with these names. Raises the errors of reading."""
        return self._writer.marks(spans, files_of)

    def close(self) -> None:
        self._locked.close()


@contextlib.contextmanager
def open_table(
    target: Target, get_spark: Callable[[], SparkSession]
) -> Iterator[tuple[Table, Callable[[], SparkSession]]]:
    """Yields the table and a function that returns a Spark session which sees the table; closes the table at the end.
    Starts Spark only when that function is called, or at once if the table or the checkpoint has a URI.
    """
    far = is_uri(target.output) or (target.checkpoint is not None and is_uri(target.checkpoint))
    spark = get_spark() if far else None
    table = Table(target, spark)

    def seeing() -> SparkSession:
        running = spark or get_spark()
        if isinstance(table.location, LocalLocation):
            check_spark_sees(running, table.location.path)
        return running

    try:
        yield table, seeing
    finally:
        table.close()


def _refuse_bad(staged: DataFrame) -> None:
    """Raises BadRecords with the first value that could not be read."""
    if ERROR not in staged.columns:
        return
    bad = staged.where(staged[ERROR].isNotNull()).select(*RECORD_COLUMNS[:3], ERROR)
    first = bad.orderBy(*RECORD_COLUMNS[:3]).first()
    if first is not None:
        raise BadRecords(
            f"{first.topic}-{first.partition}, offset {first.offset}: its value cannot be read: {first.error}{KEEP_BAD}"
        )


def _lock(location: Location, name: str) -> contextlib.AbstractContextManager[object]:
    """Locks a local table for one writer on this machine, until the end of the context or of the process. ``name``: of
    this run, for the lock's file. Raises StorageError with the name of the run that the lock's file has.

    There is no lock for a table with a URI, and none on Windows.
    """
    if not isinstance(location, LocalLocation) or sys.platform == "win32":
        return contextlib.ExitStack()
    import fcntl

    path = location.path / STATE / "lock"
    try:
        path.parent.mkdir(exist_ok=True)
        held = path.open("a+")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.truncate(0)
        held.write(name)
        held.flush()
    except BlockingIOError as error:
        held.seek(0)
        other = printable(held.readline().strip()) or "a process that has not noted its name"
        held.close()
        raise StorageError(
            f"another pipeline is writing to {location.uri}: {other}. Run the command again when it has ended"
        ) from error
    except OSError as error:
        raise local_error(path, "used", error) from error
    return held
