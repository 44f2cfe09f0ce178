"""``format("odradek")``: Kafka topics as DataFrames, batch and streaming, with consumer-group offsets.

Three kinds of processes take part:
* The planner, which Spark starts once per query, looks up offsets, plans each micro-batch (``plan.py``) and commits
  finished ones. Because it starts with every query, this module and ``lookups.py`` import only what planning needs;
  producers, codecs and decoders are imported where they are used.
* Workers run tasks; a task reads one piece or several.
* The driver commits a finished micro-batch if no next micro-batch is requested at once (``micro_batch_commits.py``).
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.core.errors import ConfigError
from odradek.core.ids import NO_EPOCH, OffsetAndMetadata, TopicPartition
from odradek.spark import compatibility, pushdown
from odradek.spark.compatibility import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from odradek.spark.lag import latest_to_json
from odradek.spark.offsets import data_loss, offset_ranges, plan
from odradek.spark.offsets.group_look import GroupLook, group_look
from odradek.spark.offsets.initial_offsets import without_start
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import LogRange, Piece, Range
from odradek.spark.offsets.plan import BatchLimits, Commits, GroupOffsets, TopicStates
from odradek.spark.offsets.reset_offsets import usable_resets
from odradek.spark.offsets.source_offset import INITIAL, Offsets, SourceOffset, TopicIds
from odradek.spark.options import OnGroupReset, Position, ReadOptions, Start, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from odradek.spark.writes.sink import OdradekStreamWriter, OdradekWriter
    from odradek.spark.writes.write_options import WriteOptions

_FIELDS = {
    field.name: field
    for field in (
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    )
}


def source_schema(columns: Sequence[str]) -> StructType:
    """Returns the schema of rows with these columns. With all columns it is that of Spark's built-in Kafka source."""
    return StructType([_FIELDS[name] for name in columns])


class OdradekDataSource(DataSource):  # type: ignore[misc]
    """The data source class that Spark loads. ``options`` are checked at ``load()``."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "odradek"

    def schema(self) -> StructType:
        # Spark does not say here whether a batch query or a stream is read. ``reader`` and ``streamReader`` check the
        # rest.
        return source_schema(parse_options(self.options, streaming=None).columns)

    def reader(self, schema: StructType) -> OdradekReader:
        options = parse_options(self.options, streaming=False)
        if options.push_filters:
            compatibility.require("option pushFilters", compatibility.FILTERS)
        _check_schema(schema, options)
        return OdradekReader(options)

    def streamReader(self, schema: StructType) -> OdradekStreamReader:
        options = parse_options(self.options, streaming=True)
        compatibility.check_stream(options)
        _check_schema(schema, options)
        return OdradekStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> OdradekWriter:
        if overwrite:
            raise ConfigError("save mode overwrite is not possible: a topic can only be appended to. Use mode append")
        from odradek.spark.writes.sink import OdradekWriter

        return OdradekWriter(self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> OdradekStreamWriter:
        compatibility.require("writing a stream", compatibility.STREAM_WRITES)
        from odradek.spark.writes.sink import OdradekStreamWriter

        # Output mode complete sets overwrite; the micro-batches are appended anyway, as in Spark's own sink.
        return OdradekStreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        from odradek.spark.writes.write_options import check_columns, parse_write_options

        options = parse_write_options(self.options)
        check_columns({column.name: column.dataType.simpleString() for column in schema}, options)
        return options


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    wanted = source_schema(options.columns)
    if schema != wanted:
        raise ConfigError(
            f"the schema of this source is fixed ({wanted.simpleString()}); leave out .schema(…), "
            "and set includeHeaders=true to have headers, or name the columns with the option columns"
        )


@dataclass
class KafkaRanges(InputPartition):  # type: ignore[misc]
    """One task: pieces that are read one after another. Only small pieces share a task."""

    pieces: tuple[Piece, ...]


def _tasks(
    wanted: Sequence[Range], lookups: Lookups, planned: TopicIds, epochs: Mapping[TopicPartition, int]
) -> list[InputPartition]:
    """Makes tasks from ranges.

    ``planned``: the topic ids when the ranges were planned, which may be some time ago. ``epochs``: the epochs of the
    leaders whose logs reached the ends of the ranges at that time.
    """
    options = lookups.options
    ids = {**lookups.topic_ids({item.partition.topic for item in wanted}), **planned}
    if options.min_partitions is None and options.max_records_per_partition is None:
        groups = offset_ranges.gather(wanted)
    else:
        groups = [
            [piece] for piece in offset_ranges.split(wanted, options.min_partitions, options.max_records_per_partition)
        ]

    def piece(item: Range) -> Piece:
        return Piece(*item, ids[item.partition.topic], epochs.get(item.partition, NO_EPOCH))

    return [KafkaRanges(tuple(map(piece, group))) for group in groups]


def _read(options: ReadOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Reads a task. Runs in a worker. Spark calls it with an empty partition if a batch read has no task."""
    if isinstance(task, KafkaRanges):
        from odradek.spark.piece_reader import read_piece

        for piece in task.pieces:
            yield from read_piece(options, piece)


class _FilterPushdown:
    """The value of ``OdradekReader.pushFilters``.

    It takes no filters unless the option ``pushFilters`` is set. The reason: Spark stores the tasks of a filtered scan
    with the loaded DataFrame. Spark reads these tasks again in the next query over the DataFrame, even if that query
    has other filters (PySpark 4.1 to 4.3).

    While ``spark.sql.python.filterPushdown.enabled`` is off, its default, PySpark refuses every read of a reader that
    overrides ``pushFilters``, with an error that names the setting. It detects the override by ``__func__``. So without
    the option, ``__func__`` is that of the base class. If pushdown is on, PySpark calls this object in any case.
    """

    def __init__(self, reader: OdradekReader) -> None:
        self._reader = reader
        base = getattr(DataSourceReader, "pushFilters", None)  # PySpark 4.0 has no such method and calls none
        self.__func__ = type(self).__call__ if reader.options.push_filters else base

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._reader.options.push_filters:
            return filters
        self._reader.pushed, left = pushdown.push(filters)
        return left


class OdradekReader(DataSourceReader):  # type: ignore[misc]
    """A batch read: its offsets are looked up once, when Spark plans it."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.pushed = pushdown.PushedFilters()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.options,)  # workers only need the options

    @property
    def pushFilters(self) -> _FilterPushdown:
        return _FilterPushdown(self)

    def partitions(self) -> Sequence[InputPartition]:
        lookups = Lookups(self.options)
        try:
            wanted = narrow_by_filters(lookups, batch_ranges(lookups), self.pushed)
            epochs = {one.partition: lookups.leader_epoch(one.partition) for one in wanted}
            return _tasks(wanted, lookups, self.options.topic_ids, epochs)
        finally:
            lookups.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


def batch_ranges(lookups: Lookups) -> list[Range]:
    """Returns the ranges of a batch read."""
    partitions = lookups.partitions(strict=True)
    log = lookups.log(lookups.ends(partitions))
    begin = _starting_offsets(lookups, log, _commits(lookups, log))
    end = planned_ends(lookups, log, begin)
    whole = [Range(tp, max(begin[tp], log[tp].start), end[tp]) for tp in partitions]
    return [item for item in whole if item.size > 0]


def planned_ends(
    lookups: Lookups, log: Mapping[TopicPartition, LogRange], begin: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Returns the end offsets of a batch read, exclusive: those of the options, limited to the log end offsets.

    ``begin``: its start offsets (None: the log start offsets). Raises DataLoss.
    """
    options = lookups.options
    found = lookups.at_times(plan.wanted_times(options.ending, log))
    end = plan.ending_offsets(options.ending, log, found=found)
    begin = {tp: bounds.start for tp, bounds in log.items()} if begin is None else begin
    lost = plan.losses_of_named(begin, end, log, lookups)
    data_loss.fail_or_warn(lost, fail=options.fail_on_data_loss, file=options.losses_to)
    return {tp: min(end[tp], bounds.end) for tp, bounds in log.items()}


def narrow_by_filters(lookups: Lookups, whole: list[Range], pushed: pushdown.PushedFilters) -> list[Range]:
    """Returns the ranges without the offsets that the pushed filters exclude. Looks up the offsets of times."""
    wanted = [item.partition for item in whole if pushed.takes(item.partition)]
    since: dict[TopicPartition, int] = {}
    before: dict[TopicPartition, int] = {}
    if pushed.since_ms is not None and pushed.since_ms > 0:
        since = lookups.at_times(dict.fromkeys(wanted, pushed.since_ms))
    if pushed.before_ms is not None:
        disorder = lookups.disorder_ms({tp.topic for tp in wanted})
        too_young = {tp: max(0, pushed.before_ms + late) for tp in wanted if (late := disorder[tp.topic]) is not None}
        before = lookups.at_times(too_young)
    return pushdown.narrow(whole, pushed, since, before)


def _commits(
    lookups: Lookups, partitions: Collection[TopicPartition], committed: Commits | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets that the read starts from: the group's commits, or those in ZooKeeper.

    Returns an empty mapping for another kind of ``startingOffsets``. ``committed``: the group's commits, if known.
    """
    if lookups.options.starting.kind is Start.ZOOKEEPER:
        return lookups.in_zookeeper(partitions)
    if lookups.options.starting.kind is not Start.COMMITTED:
        return {}
    known = lookups.committed(partitions) if committed is None else committed
    return {tp: commit for tp, commit in known.items() if tp in partitions}


def _starting_offsets(
    lookups: Lookups, log: dict[TopicPartition, LogRange], committed: Commits
) -> dict[TopicPartition, int]:
    options = lookups.options
    epoch_ends: Offsets = {}
    if options.starting.kind in (Start.COMMITTED, Start.ZOOKEEPER):
        epoch_ends = _epoch_ends_of(lookups, committed)
        log = lookups.held_log(log, {tp: one.offset for tp, one in committed.items()})
        _check_committed(lookups, committed, log, epoch_ends)
    return plan.starting_offsets(
        options.starting,
        log,
        committed=committed,
        epoch_ends=epoch_ends,
        found=lookups.at_times(plan.wanted_times(options.starting, log)),
        auto_offset_reset=options.auto_offset_reset,
        latest_if_none=options.latest_without_record,
    )


def _epoch_ends_of(lookups: Lookups, committed: Commits) -> Offsets:
    return lookups.epoch_ends(_epochs_of(committed))


def _epochs_of(committed: Commits) -> dict[TopicPartition, int]:
    return {tp: commit.leader_epoch for tp, commit in committed.items()}


def _check_committed(
    lookups: Lookups, committed: Commits, log: Mapping[TopicPartition, LogRange], epoch_ends: Offsets
) -> None:
    lost = plan.losses_of_committed(committed, log, lookups, epoch_ends, lookups.options.group_id or "")
    data_loss.fail_or_warn(lost, fail=lookups.options.fail_on_data_loss, file=lookups.options.losses_to)


class OdradekStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming read. One instance plans while the query runs; copies of it read in the workers."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._lookups = Lookups(options)
        self._upto: dict[TopicPartition, int] | None = None  # the end offsets of an AvailableNow run
        self._settled: dict[str, object] | None = None  # the source offset that was committed last
        self._planned: dict[str, object] | None = None  # the end of the micro-batch that was planned last
        self._reached: dict[str, object] = {}  # the end of the micro-batch that Spark has asked for last
        self._ends: dict[TopicPartition, int] = {}
        # Other clients' commits from which partitions started. They are not acknowledged yet, and they are no resets.
        self._unacknowledged: dict[TopicPartition, OffsetAndMetadata] = {}
        self._last_batch_s: float | None = None
        self._waited: set[TopicPartition] = set()
        self._new_query = uuid.uuid4().hex[:12]  # the query id for a checkpoint without one

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.options,)  # connections are not pickled

    # --- Spark's calls for planning

    def initialOffset(self) -> dict[str, object]:
        # The plan of the first micro-batch decides and records its start. This method must not decide: Spark calls it
        # again after a restart, when "latest" or the group's offsets may have changed.
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._upto = self._lookups.ends(self._lookups.partitions())

    def latestOffset(self, start: dict[str, object] | None = None, limit: ReadLimit | None = None) -> dict[str, object]:
        """Plans the micro-batch after ``start``. With ``commitOffsets=true``, it first commits the finished ``start``.

        Returns the end of this micro-batch, or ``start`` if there is none. PySpark before 4.2 passes no ``start`` and
        no ``limit``. Then ``start`` is the last ``end`` that Spark has passed to ``partitions``; after a restart, that
        is the checkpoint's last offset.
        """
        start = self._reached if start is None else start
        limit = ReadAllAvailable() if limit is None else limit
        if self.options.commit_offsets and not start and self._settled is None:
            self._lookups.warn_of_members()  # warns before the first micro-batch, too
        done = SourceOffset.from_json(start)
        look = group_look(self.options.group_look, start)
        if look is None:
            ends = self._lookups.ends(self._lookups.partitions(strict=done.is_initial))
        else:
            ends = self._lookups.seen(look)
        done = done.with_present(ends if self._upto is None else ends.keys() & self._upto.keys())
        self._ends, follow = ends, True
        while True:
            committed, resets = self._settle(start, done, ends, look)
            look = None  # the next look is our own
            if not follow:
                resets = {}
            batch = self._plan(done, ends, limit, committed, resets)
            if batch is None:
                return start
            if self._was_reset_since(committed, batch.acknowledge):
                continue
            # The reset is acknowledged before Spark writes the micro-batch to the checkpoint. If Spark never writes it,
            # the acknowledging commit still shows that this reset has to be followed.
            if self._lookups.acknowledge(batch.acknowledge):
                break
            if not resets:
                self._unacknowledged |= {
                    tp: (committed or {})[tp] for tp in batch.acknowledge if tp in (committed or {})
                }
                break
            follow = False  # without an acknowledgement the query would follow the reset twice, so the reset waits
        data_loss.warn(batch.lost, self.options.losses_to)
        self._last_batch_s = time.monotonic()
        self._planned = batch.end.to_json()
        return self._planned

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Returns the log end offsets of the last plan, for the query's progress.

        Spark calls this method at every trigger, so it sends no request.
        """
        return latest_to_json(self._ends) if self._ends else None

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        begin, stop = SourceOffset.from_json(start), SourceOffset.from_json(end)
        self._reached = end
        if added := without_start(begin, stop):
            stop = dataclasses.replace(stop, origins={**stop.origins, **self._starts_of_added(added, stop)})
        return _tasks(plan.ranges(begin, stop), self._lookups, stop.ids, stop.epochs)

    def commit(self, end: dict[str, object]) -> None:
        # Spark calls this only after it has planned the micro-batch after `end`. So latestOffset(end) has committed
        # `end`.
        # For the last micro-batch of an AvailableNow run Spark does not call this.
        if end != self._settled:
            self._settle(end, SourceOffset.from_json(end), self._lookups.ends(self._lookups.partitions()))

    def stop(self) -> None:
        self._lookups.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)

    # --- planning

    def _starts_of_added(self, added: Collection[TopicPartition], stop: SourceOffset) -> dict[TopicPartition, int]:
        """Returns the start offsets of partitions that are new in a micro-batch of Spark's own source: the beginning.

        Raises DataLoss.
        """
        log = self._lookups.log({tp: stop.positions[tp] for tp in added})
        lost = [
            data_loss.removed_message(tp, 0, bounds.start, self._lookups)
            for tp, bounds in sorted(log.items())
            if bounds.start > 0
        ]
        data_loss.fail_or_warn(lost, fail=self.options.fail_on_data_loss, file=self.options.losses_to)
        return {tp: bounds.start for tp, bounds in log.items()}

    def _was_reset_since(self, committed: Commits | None, acknowledge: Commits) -> bool:
        """Returns whether, since ``committed``, another client has committed for a partition of ``acknowledge``."""
        if not acknowledge or committed is None:
            return False
        before = {tp: commit for tp, commit in committed.items() if tp in acknowledge}
        return self._lookups.committed(acknowledge) != before

    def _settle(
        self, start: dict[str, object], done: SourceOffset, ends: Offsets, look: GroupLook | None = None
    ) -> tuple[Commits | None, dict[TopicPartition, tuple[int, str]]]:
        """Commits the finished micro-batch, unless a transaction does. Returns the group's commits, and resets.

        The resets are those to follow. If the query ignores resets or does not commit, the commits are None.
        """
        options = self.options
        if not (options.commit_offsets or options.offsets_in_transaction or options.offsets_by_table):
            return None, {}
        existing = self._lookups.existing_ends(done, ends)
        committed = self._lookups.committed(ends) if look is None else look.committed
        seen = {tp: commit for tp, commit in committed.items() if commit != self._unacknowledged.get(tp)}
        decision = self._lookups.commit_decision(done, seen)
        if options.offsets_in_transaction:
            if start == self._planned and (behind := plan.uncommitted(decision, committed, existing)):
                self._lookups.warn_of_no_transaction(behind)
            self._settled = start
        elif options.offsets_by_table:
            self._settled = start
        elif self._lookups.commit_existing(decision, existing, done.query):
            self._settled = start
            self._unacknowledged = {
                tp: commit for tp, commit in self._unacknowledged.items() if tp not in decision.commits
            }
        return (None if options.on_group_reset is OnGroupReset.IGNORE else committed), dict(decision.resets)

    def _plan(
        self,
        done: SourceOffset,
        ends: Offsets,
        limit: ReadLimit,
        committed: Commits | None,
        resets: dict[TopicPartition, tuple[int, str]],
    ) -> plan.MicroBatch | None:
        options = self.options
        if not resets and self._lookups.has_nothing_new(done, ends):
            return None
        ids = self._lookups.topic_ids({tp.topic for tp in ends})
        log = self._lookups.log(ends, done.positions)
        waiting = self._waiting_partitions(done, log, ids)
        resets = {tp: reset for tp, reset in resets.items() if tp not in waiting}
        begin, commits = self._start_offsets_of_new(done, log, committed)
        found = {tp: commit for tp, commit in (committed or {}).items() if tp in resets}
        usable = usable_resets(self._lookups, resets, log, _epoch_ends_of(self._lookups, found), done.positions)
        group = GroupOffsets(
            begin, committed or {}, usable, _epochs_of({**commits, **found}), uuid.uuid4().hex[:12], self._new_query
        )
        topics = TopicStates(ids, self._lookups.epoch_ends(done.epochs_of(ends)), self._lookups)
        limits = BatchLimits(self._upto, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        fails = options.fail_on_data_loss
        batch = plan.plan_batch(done, log, group, topics, limits, fail_on_data_loss=fails)
        # Spark passes back the one limit of getDefaultReadLimit, or ReadAllAvailable for triggers without a limit. The
        # other limits apply too, except with ReadAllAvailable.
        most = None if isinstance(limit, ReadAllAvailable) else options.max_bytes_per_trigger
        if batch is not None and most is not None:
            wanted = plan.ranges(done, batch.end)
            fitting = offset_ranges.share_bytes(wanted, self._lookups.bytes_per_offset(wanted, most), most)
            limits = dataclasses.replace(limits, max_per_partition=fitting)
            batch = plan.plan_batch(done, log, group, topics, limits, fail_on_data_loss=fails)
        if batch is not None and self._should_wait(done, batch, log, limit):
            return None
        return batch

    def _waiting_partitions(
        self, done: SourceOffset, log: Mapping[TopicPartition, LogRange], ids: TopicIds
    ) -> set[TopicPartition]:
        """Returns partitions that wait for the current leader. Logs a warning when their wait begins."""
        waiting = plan.with_former_leader(done, log, ids)
        for tp in sorted(waiting - self._waited):
            data_loss.note(data_loss.former_leader_message(tp, log[tp], done.epochs[tp]))
        self._waited = waiting
        return waiting

    def _start_offsets_of_new(
        self, done: SourceOffset, log: dict[TopicPartition, LogRange], committed: Commits | None
    ) -> tuple[dict[TopicPartition, int], Commits]:
        """Returns the start offsets of partitions without a position, and the commits that decide them.

        Partitions that are added while the query runs start at the group's commits if the query has
        startingOffsets=committed. Otherwise they start at their log start offset, so that no record is missed.
        """
        if done.is_initial:
            commits = _commits(self._lookups, log, committed)
            return self._in_the_log(_starting_offsets(self._lookups, log, commits), log), commits
        wanted = log.keys() if self._upto is None else self._upto.keys()
        fresh = {tp: bounds for tp, bounds in log.items() if tp not in done.positions and tp in wanted}
        if not fresh:
            return {}, {}
        if self.options.starting.kind is not Start.COMMITTED:
            return plan.starting_offsets(Position(Start.EARLIEST), fresh), {}
        commits = _commits(self._lookups, fresh, committed)
        fresh = self._lookups.held_log(fresh, {tp: one.offset for tp, one in commits.items()})
        epoch_ends = _epoch_ends_of(self._lookups, commits)
        _check_committed(self._lookups, commits, fresh, epoch_ends)
        return plan.starting_offsets(self.options.starting, fresh, committed=commits, epoch_ends=epoch_ends), commits

    def _in_the_log(self, begin: Offsets, log: Mapping[TopicPartition, LogRange]) -> dict[TopicPartition, int]:
        """Returns the start offsets. Of offsets in ``startingOffsets`` that a log does not have yet, its end."""
        beyond: list[str] = []
        if self.options.starting.kind is Start.OFFSETS:
            beyond = [
                f"{tp}: startingOffsets begins at {begin[tp]}, but its log ends at {bounds.end} (-1 begins at its end)"
                for tp, bounds in sorted(log.items())
                if begin[tp] > bounds.end
            ]
        data_loss.fail_or_warn(beyond, fail=self.options.fail_on_data_loss)
        return {tp: min(offset, log[tp].end) for tp, offset in begin.items()} if beyond else dict(begin)

    def _should_wait(
        self, done: SourceOffset, batch: plan.MicroBatch, log: dict[TopicPartition, LogRange], limit: ReadLimit
    ) -> bool:
        """Returns whether the micro-batch has to wait for ``minOffsetsPerTrigger``. The wait ends after
        ``maxTriggerDelay``."""
        least = self.options.min_offsets_per_trigger
        if least is None or isinstance(limit, ReadAllAvailable) or self._upto is not None or self._last_batch_s is None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        return waited_ms < self.options.max_trigger_delay_ms and not plan.has_enough(done, batch, log, least)
