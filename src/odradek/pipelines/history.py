"""Offset history on Spark: what ``__consumer_offsets`` of any Kafka holds, as typed DataFrames.

    commits = offset_history(spark, "127.0.0.1:9092", "commits")
    commits.groupBy("group", "topic").agg(F.max("committed_offset")).show()

Decoding happens in the workers, in Arrow; a group's records are all in one partition of the offsets topic, hence in
one task and in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.reader import PartitionReader
from odradek.core.ids import TopicPartition
from odradek.history.analysis import POINTS, Analysis
from odradek.history.findings import KINDS, Rules
from odradek.history.findings import SCHEMA as FINDINGS
from odradek.history.journal import COLUMNS, GROUP_KINDS, Journal, busy_ranks, even_moments
from odradek.history.logs import Logs, look_up
from odradek.history.memberships import EXPIRY_SCHEMA as EXPIRY
from odradek.history.read import history_ranges
from odradek.history.series import SCHEMA as LAG
from odradek.history.views import SCHEMAS, check_table
from odradek.pipelines.ranked import at_ranks
from odradek.spark import register
from odradek.spark.options import client_config
from odradek.spark.progress import told

FORMAT = "odradek-offsets"


def offset_history(
    spark: SparkSession,
    bootstrap_servers: str,
    table: str = "records",
    *,
    group: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The offsets topic as it is now, as a DataFrame.

    ``table`` is commits, generations, members, assignments, tombstones, unknown, others, or records: all of them with
    all columns. With ``group`` only its records, and only its partition is read. ``options`` are those of
    ``format("odradek")``: ``endingOffsets``, ``minPartitions``, ``kafka.*`` settings. Raises ConfigError.
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
    """As ``offset_history``, as a stream: from the topic's beginning (``startingOffsets``) on and on."""
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
class HistoryFrames:
    """What ``odradek.history.analysis`` finds, as DataFrames; and the records it was found in.

    All are kept by Spark, since they are gone through several times: ``release()`` when done.
    """

    records: DataFrame
    findings: DataFrame
    lag: DataFrame
    expiry: DataFrame
    logs: Logs
    incomplete_below: Mapping[int, int]
    partitions: frozenset[TopicPartition]
    analysed: DataFrame

    def release(self) -> None:
        self.analysed.unpersist()
        self.records.unpersist()

    def collected(self) -> Analysis:
        """As ``analyse_offset_history`` returns it. The records stay where they are."""
        commits = f"count_if({_IS_COMMIT} and not is_tombstone) commits"
        counted = self.records.selectExpr("count(*) records", commits).first()
        kinds = ", ".join(f"'{kind}'" for kind in GROUP_KINDS)
        groups = self.records.where(f"{_IS_COMMIT} or kind in ({kinds})").select("group").distinct().collect()
        findings = self.findings.toArrow().cast(FINDINGS)
        gravity = pc.index_in(findings["kind"], pa.array(KINDS))
        # Sorting keeps the order of a group's own rows.
        by_kind = findings.append_column("gravity", gravity).sort_by([("gravity", "ascending"), ("group", "ascending")])
        soonest = [(name, "ascending") for name in ("expires_at", "group", "topic")]
        logs = self.logs
        topics, there = {tp.topic for tp in self.partitions}, {tp.topic for tp in logs.by_partition}
        return Analysis(
            by_kind.drop_columns("gravity"),
            self.lag.toArrow().cast(LAG).sort_by("group"),
            self.expiry.toArrow().cast(EXPIRY).sort_by(soonest),
            tuple(sorted(row.group for row in groups)),
            counted.records,
            counted.commits,
            int(logs.moments[0]) if len(logs.moments) else logs.now_us,
            logs.now_us,
            logs.retention_ms,
            logs.retention_is_known,
            dict(self.incomplete_below),
            tuple(sorted(topics - there)),
        )


def analyse_on_spark(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    group: str | None = None,
    since_us: int | None = None,
    now_us: int | None = None,
    rules: Rules | None = None,
    points: int = POINTS,
    options: Mapping[str, str] | None = None,
    advance: Callable[[int], None] = lambda offsets: None,
) -> HistoryFrames:
    """The analysis on a cluster: groups are spread over its workers, each looked at by itself.

    ``since_us`` and ``now_us`` are as for ``analyse_offset_history`` (microseconds since 1970); ``advance`` is told how
    many more offsets are read, from another thread. Raises ConfigError, BrokerUnreachable.
    """
    kafka = {name.removeprefix("kafka."): value for name, value in (options or {}).items() if name.startswith("kafka.")}
    config = client_config(kafka | {"bootstrap.servers": bootstrap_servers})
    with contextlib.ExitStack() as kept:  # when a step fails, nobody has anything to release
        with told(spark, advance) as telling:
            given = {**(options or {}), **telling}
            records = offset_history(spark, bootstrap_servers, group=group, options=given).persist()
            kept.callback(records.unpersist)
            keys = records.where(_IS_COMMIT).select("topic", "partition").distinct().collect()
        partitions = frozenset(TopicPartition(row.topic, row.partition) for row in keys)
        logs = _logs(records, config, partitions, since_us=since_us, now_us=now_us, points=points)
        missing = _missing_below(records, config, group)
        analyser = _analyser(logs, config, rules or Rules(), missing, since_us)
        by_group = records.where("group is not null").select(*COLUMNS).groupBy("group")
        analysed = by_group.applyInArrow(analyser, from_arrow_schema(_ANALYSED)).persist()
        kept.callback(analysed.unpersist)
        findings, lag, expiry = (analysed.selectExpr(f"inline({name})") for name in _ANALYSED.names)
        frames = HistoryFrames(records, findings, lag, expiry, logs, missing, partitions, analysed)
        kept.pop_all()
        return frames


def table_of(records: DataFrame, table: str) -> DataFrame:
    """A table (``offset_history``) out of records that are there already."""

    def views(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from odradek.history.views import view

        return (view(batch, table) for batch in batches)

    return records.mapInArrow(views, from_arrow_schema(SCHEMAS[check_table(table)]))


_IS_COMMIT = "partition is not null"
_ANALYSED = pa.schema(
    [(name, pa.list_(pa.struct(list(of)))) for name, of in (("findings", FINDINGS), ("lag", LAG), ("expiry", EXPIRY))]
)
"""What there is to say of one group: one row, for it is worked out once."""


def _analyser(
    logs: Logs, config: ClientConfig, rules: Rules, missing: Mapping[int, int], since_us: int | None
) -> Callable[[pa.Table], pa.Table]:
    """What a worker does with one group's records."""

    def analyse_group(records: pa.Table) -> pa.Table:
        from odradek.history.analysis import analyse_table
        from odradek.history.logs import record_times

        found = analyse_table(records, logs, partial(record_times, config), rules, missing, since_us=since_us)
        columns = [_one_list(getattr(found, name)) for name in _ANALYSED.names]
        return pa.Table.from_arrays(columns, schema=_ANALYSED)

    return analyse_group


def _one_list(table: pa.Table) -> pa.ListArray:
    """All rows of a table as one value."""
    rows = pa.StructArray.from_arrays([column.combine_chunks() for column in table.columns], fields=list(table.schema))
    return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)


def _logs(
    records: DataFrame,
    config: ClientConfig,
    partitions: frozenset[TopicPartition],
    *,
    since_us: int | None,
    now_us: int | None,
    points: int,
) -> Logs:
    """Asked once, by the driver: of whichever partitions were committed, at the moments that ``Journal`` takes."""
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


def _missing_below(records: DataFrame, config: ClientConfig, group: str | None) -> dict[int, int]:
    """``Journal.incomplete_below``; of one group's partition by its records' offsets, which are read again."""
    if group is not None:
        journal = Journal()
        for tp, (start, end) in history_ranges_of(config, group).items():
            for batch in PartitionReader(config, tp, ("offset",), "read_committed").read(start, end):
                journal.note_offsets(tp.partition, batch.column("offset"))
        return journal.incomplete_below
    before = "coalesce(lag(record_offset) over (partition by record_partition order by record_offset), -1)"
    holes = records.selectExpr("record_partition", "record_offset", f"{before} before").where(
        "record_offset <> before + 1"
    )
    rows = holes.groupBy("record_partition").agg({"record_offset": "max"}).collect()
    return {row[0]: row[1] for row in rows}


def history_ranges_of(config: ClientConfig, group: str) -> dict[TopicPartition, tuple[int, int]]:
    """From where to where the partition of the offsets topic can be read that keeps ``group``."""
    with Admin(config) as admin:
        return history_ranges(admin, group)
