"""Offset history on Spark: ``__consumer_offsets`` of a Kafka cluster as typed DataFrames.

    commits = offset_history(spark, "127.0.0.1:9092", "commits")
    commits.groupBy("group", "topic").agg(F.max("committed_offset")).show()

The workers decode the records in Arrow. All records of a group are in one partition of the offsets topic. So one task
reads them in order, unless ``minPartitions`` or ``maxRecordsPerPartition`` divide the partition.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__, "spark"):
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.streaming.readwriter import DataStreamReader

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import UnknownTopic
from odradek.client.reader import PartitionReader
from odradek.core.errors import ConfigError
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition, partition_for_group
from odradek.core.keyword_options import with_keywords
from odradek.history.analysis import POINTS, Analysis
from odradek.history.coverage import SCHEMA as COVERAGE
from odradek.history.coverage import Coverage, CoverageRow
from odradek.history.findings import KINDS, FindingRules
from odradek.history.findings import SCHEMA as FINDINGS
from odradek.history.group_findings import EXPIRY_SCHEMA as EXPIRY
from odradek.history.log_ends import Logs, look_up
from odradek.history.records.columns import UNKNOWN
from odradek.history.records.group_events import GROUP_KINDS
from odradek.history.records.journal import COLUMNS, busy_ranks, even_moments
from odradek.history.records.unreadable import MOST_KEPT, UnreadableRecord, UnreadableRecords
from odradek.history.series import SCHEMA as LAG
from odradek.history.verdict_rules import VerdictRules
from odradek.history.verdicts import SCHEMA as VERDICTS
from odradek.history.views import SCHEMAS, check_table
from odradek.pipelines.history.options import HistoryOptions
from odradek.pipelines.history.quantiles import at_ranks
from odradek.spark import register
from odradek.spark.arrow_map import apply_in_arrow, map_in_arrow
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets_source import parse_history_options
from odradek.spark.options import Start, client_config
from odradek.spark.progress import progress_options
from odradek.spark.source import planned_ends

FORMAT = "odradek-offsets"


def offset_history(
    spark: SparkSession,
    bootstrap_servers: str,
    table: str = "records",
    *,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns the present content of the offsets topic as a DataFrame.

    ``table`` is commits, generations, members, assignments, tombstones, unknown, others, or records; records has all
    rows with all columns. With ``group``, only that group's records are returned, and only its partition is read.
    ``options`` are options of ``format("odradek")``: ``endingOffsets``, ``minPartitions``, ``kafka.*`` settings.
    Raises ConfigError.
    """
    register(spark)
    return _load(spark.read, bootstrap_servers, table, group, options)


def stream_offset_history(
    spark: SparkSession,
    bootstrap_servers: str,
    table: str = "records",
    *,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns what ``offset_history`` returns, as an endless stream.

    Without ``startingOffsets``, the stream starts at the beginning of the topic.
    """
    register(spark)
    return _load(spark.readStream, bootstrap_servers, table, group, options)


def _load(
    reader: DataFrameReader | DataStreamReader,
    bootstrap_servers: str,
    table: str,
    group: str | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    chosen = {"kafka.bootstrap.servers": bootstrap_servers, "table": table, **(options or {})}
    if group is not None:
        chosen["group"] = group
    return reader.format(FORMAT).options(**chosen).load()


@dataclass(frozen=True)
class AnalysisOptions(HistoryOptions):
    """``now_us``: the end of the analysis, in microseconds since 1970; None means now. ``points``: the number of
    moments for which the analysis looks up the ends of the logs. ``advance`` is called from another thread with the
    number of offsets read since its last call.
    """

    spark: SparkSession
    bootstrap_servers: str
    _: KW_ONLY
    now_us: int | None = None
    points: int = POINTS
    advance: Callable[[int], None] = lambda offsets: None


@dataclass(frozen=True)
class HistoryFrames:
    """The results of ``odradek.history.analysis`` as DataFrames, and the records from which they are computed.

    Spark persists ``records`` and ``analysed``, because they are read several times. Call ``release()`` at the end.
    """

    records: DataFrame
    findings: DataFrame
    lag: DataFrame
    expiry: DataFrame
    verdicts: DataFrame
    logs: Logs
    coverage: Coverage
    partitions: frozenset[TopicPartition]
    analysed: DataFrame

    def release(self) -> None:
        self.analysed.unpersist()
        self.records.unpersist()

    def collected(self) -> Analysis:
        """Returns the results as ``analyse_offset_history`` does. The records stay in Spark."""
        commits = f"count_if({_IS_COMMIT} and not is_tombstone) commits"
        counted = self.records.selectExpr("count(*) records", commits).first()
        kinds = ", ".join(f"'{kind}'" for kind in GROUP_KINDS)
        chosen = f"{_IS_COMMIT} or kind in ({kinds}) or (kind = '{UNKNOWN}' and group is not null)"
        groups = self.records.where(chosen).select("group").distinct().collect()
        findings = self.findings.toArrow().cast(FINDINGS)
        gravity = pc.index_in(findings["kind"], pa.array(KINDS))
        # The sort is stable: the rows of a group keep their order.
        by_kind = findings.append_column("gravity", gravity).sort_by([("gravity", "ascending"), ("group", "ascending")])
        soonest = [(name, "ascending") for name in ("expires_at", "group", "topic")]
        logs = self.logs
        topics, there = {tp.topic for tp in self.partitions}, {tp.topic for tp in logs.by_partition}
        return Analysis(
            by_kind.drop_columns("gravity"),
            self.lag.toArrow().cast(LAG).sort_by("group"),
            self.expiry.toArrow().cast(EXPIRY).sort_by(soonest),
            self.coverage.table(),
            self.verdicts.toArrow().cast(VERDICTS).sort_by([(name, "ascending") for name in _BY_PARTITION]),
            tuple(sorted(row.group for row in groups)),
            counted.records,
            counted.commits,
            int(logs.moments[0]) if len(logs.moments) else logs.now_us,
            logs.now_us,
            logs.retention_ms,
            logs.retention_is_known,
            self.coverage.incomplete_below,
            tuple(sorted(topics - there)),
            self._unreadable(),
        )

    def _unreadable(self) -> UnreadableRecords:
        rows = self.records.where(f"kind = '{UNKNOWN}'")
        first = rows.orderBy("record_partition", "record_offset").limit(MOST_KEPT)
        groups = rows.where("group is not null").select("group").distinct().collect()
        return UnreadableRecords(
            rows.count(),
            [UnreadableRecord(*row) for row in first.select(*UnreadableRecord._fields).collect()],
            {row.group for row in groups},
        )


@with_keywords(AnalysisOptions)
def analyse_on_spark(options: AnalysisOptions) -> HistoryFrames:
    """Runs the analysis on a cluster: the workers share the groups and analyse each group separately.

    The options are those of ``analyse_offset_history``; ``AnalysisOptions`` describes them. Raises ConfigError,
    BrokerUnreachable.
    """
    spark, bootstrap, of_format = options.spark, options.bootstrap_servers, options.options or {}
    config = _config(bootstrap, of_format)
    with contextlib.ExitStack() as kept:  # releases the persisted frames when a step fails
        with progress_options(spark, options.advance) as task_options:
            read = _plan_read(bootstrap, options.group, of_format)
            given = {**of_format, **read.fixed, **task_options}
            records = offset_history(spark, bootstrap, group=options.group, options=given).persist()
            kept.callback(records.unpersist)
            keys = records.where(_IS_COMMIT).select("topic", "partition").distinct().collect()
        partitions = frozenset(TopicPartition(row.topic, row.partition) for row in keys)
        logs = _logs(records, config, partitions, options)
        coverage = _coverage(spark, config, read)
        analyser = _analyser(logs, config, options, coverage)
        of_groups = records.where("group is not null").select(*COLUMNS)
        analysed = apply_in_arrow(of_groups, "group", analyser, from_arrow_schema(_ANALYSED)).persist()
        kept.callback(analysed.unpersist)
        findings, lag, expiry, verdicts = (analysed.selectExpr(f"inline({name})") for name in _ANALYSED.names)
        frames = HistoryFrames(records, findings, lag, expiry, verdicts, logs, coverage, partitions, analysed)
        kept.pop_all()
        return frames


def offset_coverage(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Coverage:
    """Returns the coverage of the offsets topic, or of the partition that stores ``group``: a row for each partition.
    Workers read only the headers of the record batches and the offsets of the records. Raises ConfigError,
    BrokerUnreachable."""
    return _coverage(spark, _config(bootstrap_servers, options), _plan_read(bootstrap_servers, group, options))


def table_of(records: DataFrame, table: str) -> DataFrame:
    """Derives a table (as in ``offset_history``) from records that are already read."""

    def views(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from odradek.history.views import view

        return (view(batch, table) for batch in batches)

    return map_in_arrow(records, views, from_arrow_schema(SCHEMAS[check_table(table)]))


_BY_PARTITION = ("group", "topic", "partition")
_IS_COMMIT = "partition is not null"
_ANALYSED = pa.schema(
    [
        (name, pa.list_(pa.struct(list(of))))
        for name, of in (("findings", FINDINGS), ("lag", LAG), ("expiry", EXPIRY), ("verdicts", VERDICTS))
    ]
)
"""Each row has the findings, the lag, the expiry and the verdicts of one group, because one call computes all four."""


def _analyser(
    logs: Logs, config: ClientConfig, options: AnalysisOptions, coverage: Coverage
) -> Callable[[pa.Table], pa.Table]:
    """Returns the function with which a worker analyses the records of one group."""
    rules, since_us = options.rules or FindingRules(), options.since_us
    verdict_rules = options.verdict_rules or VerdictRules()

    def analyse_group(records: pa.Table) -> pa.Table:
        from odradek.history.analysis import analyse_table
        from odradek.history.log_ends import ends_at, record_times

        found = analyse_table(
            records, logs, partial(record_times, config), rules, coverage,
            since_us=since_us, verdict_rules=verdict_rules, ends_of=partial(ends_at, config),
        )  # fmt: skip
        columns = [_one_list(getattr(found, name)) for name in _ANALYSED.names]
        return pa.Table.from_arrays(columns, schema=_ANALYSED)

    return analyse_group


def _one_list(table: pa.Table) -> pa.ListArray:
    """Returns all rows of a table as one value."""
    rows = pa.StructArray.from_arrays([column.combine_chunks() for column in table.columns], fields=list(table.schema))
    return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)


def _logs(
    records: DataFrame, config: ClientConfig, partitions: frozenset[TopicPartition], options: AnalysisOptions
) -> Logs:
    """Looks up the logs of all partitions with commits, once, on the driver, at the moments that ``Journal`` uses."""
    now_us, since_us, points = options.now_us, options.since_us, options.points
    if now_us is None:
        latest = records.selectExpr("max(unix_micros(record_timestamp)) latest").first().latest
        now_us = max(int(time.time() * 1e6), latest or 0)
    commit = "coalesce(unix_micros(commit_timestamp), -1)"
    times = records.where(_IS_COMMIT).selectExpr(f"if(is_tombstone, unix_micros(record_timestamp), {commit}) at")
    even = even_moments(times.selectExpr("min(at) at").first().at, since_us, now_us, points)
    chosen = times.where(f"at between {even[0]} and {now_us}")
    busy = at_ranks(chosen, busy_ranks(chosen.count(), points - len(even)))
    with Admin(config) as admin:
        return look_up(admin, partitions, np.union1d(even, busy), now_us)


def _config(bootstrap_servers: str, options: Mapping[str, str] | None) -> ClientConfig:
    kafka = {name.removeprefix("kafka."): value for name, value in (options or {}).items() if name.startswith("kafka.")}
    return client_config(kafka | {"bootstrap.servers": bootstrap_servers})


class _OffsetsTopicRead(NamedTuple):
    """The ranges of the offsets topic to read, and the options that fix their end. The records and the coverage are
    read one after the other, while the topic grows, and must end at the same offsets."""

    ranges: list[Range]
    isolation_level: str
    fixed: dict[str, str]


def _plan_read(bootstrap_servers: str, group: str | None, options: Mapping[str, str] | None) -> _OffsetsTopicRead:
    given = {"kafka.bootstrap.servers": bootstrap_servers, **(options or {})}
    reading = parse_history_options(given, streaming=False).read
    if reading.starting.kind is not Start.EARLIEST:
        raise ConfigError(
            "an analysis and a coverage report read the offsets topic from its beginning: startingOffsets and similar "
            "options would make earlier records count as removed. Use since_us to set the start of the analysis"
        )
    lookups = Lookups(reading)
    fixed: dict[str, str] = {}
    try:
        partitions = lookups.partitions(strict=True)
        log = lookups.log(lookups.ends(partitions))
        ends = planned_ends(lookups, log)
    except UnknownTopic:  # no group has been used yet
        return _OffsetsTopicRead([], reading.isolation_level, {})
    finally:
        lookups.close()
    if not any(name.lower().startswith("ending") for name in given):
        fixed["endingOffsets"] = json.dumps({OFFSETS_TOPIC: {str(tp.partition): end for tp, end in ends.items()}})
    wanted = range(len(partitions)) if group is None else [partition_for_group(group, len(partitions))]
    # The end can be below the log start offset: then all offsets up to the end were removed.
    ranges = [Range(tp, log[tp].start, end) for tp, end in ends.items() if end > 0 and tp.partition in wanted]
    return _OffsetsTopicRead(ranges, reading.isolation_level, fixed)


def _coverage(spark: SparkSession, config: ClientConfig, read: _OffsetsTopicRead) -> Coverage:
    ranges, level = read.ranges, read.isolation_level

    def cover(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        covered = Coverage()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                tp, start, end = ranges[number]
                covering = covered.begin(tp.partition, start, end)
                reader = PartitionReader(config, tp, ("offset",), level)
                for found in reader.read(start, end, surveyed=covering.note_batches):
                    covering.note_records(found.column("offset"))
                covering.finish()
        yield from covered.table().to_batches()

    if not ranges:
        return Coverage()
    tasks = min(len(ranges), 2 * spark.sparkContext.defaultParallelism)
    rows = map_in_arrow(spark.range(0, len(ranges), 1, tasks), cover, from_arrow_schema(COVERAGE)).collect()
    return Coverage([CoverageRow(*row) for row in rows])
