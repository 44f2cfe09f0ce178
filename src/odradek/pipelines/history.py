"""Offset history on Spark: what ``__consumer_offsets`` of any Kafka holds, as typed DataFrames.

    commits = offset_history(spark, "127.0.0.1:9092", "commits")
    commits.groupBy("group", "topic").agg(F.max("committed_offset")).show()

Decoding happens in the workers, in Arrow; a group's records are all in one partition of the offsets topic, hence in
one task and in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.reader import PartitionReader
from odradek.core.ids import TopicPartition
from odradek.history.analysis import POINTS
from odradek.history.findings import SCHEMA as FINDINGS
from odradek.history.findings import Rules
from odradek.history.journal import COLUMNS, Journal, moments
from odradek.history.logs import Logs, look_up
from odradek.history.memberships import EXPIRY_SCHEMA as EXPIRY
from odradek.history.read import history_ranges
from odradek.history.series import SCHEMA as LAG
from odradek.history.views import SCHEMAS, check_table
from odradek.spark import register
from odradek.spark.options import client_config

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
    return spark.read.format(FORMAT).options(**_options(bootstrap_servers, table, group, options)).load()


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
    return spark.readStream.format(FORMAT).options(**_options(bootstrap_servers, table, group, options)).load()


def _options(
    bootstrap_servers: str, table: str, group: str | None, options: Mapping[str, str] | None
) -> dict[str, str]:
    chosen = {"kafka.bootstrap.servers": bootstrap_servers, "table": table} | dict(options or {})
    return chosen if group is None else chosen | {"group": group}


class HistoryFrames(NamedTuple):
    """What ``odradek.history.analysis`` finds, as DataFrames; and the records it was found in."""

    records: DataFrame
    findings: DataFrame
    lag: DataFrame
    expiry: DataFrame
    logs: Logs
    incomplete_below: Mapping[int, int]


def analyse_on_spark(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    group: str | None = None,
    since_us: int | None = None,
    rules: Rules | None = None,
    points: int = POINTS,
    options: Mapping[str, str] | None = None,
) -> HistoryFrames:
    """The analysis on a cluster: groups are spread over its workers, each looked at by itself.

    The records are persisted, since they are gone through several times: ``frames.records.unpersist()`` when done.
    ``since_us`` (microseconds since 1970) is from when on lag is looked at. Raises ConfigError, BrokerUnreachable.
    """
    records = offset_history(spark, bootstrap_servers, group=group, options=options).persist()
    kafka = {name.removeprefix("kafka."): value for name, value in (options or {}).items() if name.startswith("kafka.")}
    config = client_config(kafka | {"bootstrap.servers": bootstrap_servers})
    logs = _logs(records, config, since_us, points)
    missing = _missing_below(records, config, group)
    chosen = records.where("group is not null").select(*COLUMNS).groupBy("group")

    def frame(table: str, schema: pa.Schema) -> DataFrame:
        analyser = _analyser(table, logs, config, rules or Rules(), missing)
        return chosen.applyInArrow(analyser, from_arrow_schema(schema))

    return HistoryFrames(
        records, frame("findings", FINDINGS), frame("lag", LAG), frame("expiry", EXPIRY), logs, missing
    )


def table_of(records: DataFrame, table: str) -> DataFrame:
    """A table (``offset_history``) out of records that are there already."""

    def views(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from odradek.history.views import view

        return (view(batch, table) for batch in batches)

    return records.mapInArrow(views, from_arrow_schema(SCHEMAS[check_table(table)]))


def _analyser(
    table: str, logs: Logs, config: ClientConfig, rules: Rules, missing: Mapping[int, int]
) -> Callable[[pa.Table], pa.Table]:
    """What a worker does with one group's records."""

    def analyse_group(records: pa.Table) -> pa.Table:
        from odradek.history.analysis import analyse_table
        from odradek.history.logs import record_times

        found: pa.Table = getattr(analyse_table(records, logs, partial(record_times, config), rules, missing), table)
        return found

    return analyse_group


def _logs(records: DataFrame, config: ClientConfig, since_us: int | None, points: int) -> Logs:
    """Asked once, by the driver: of whichever partitions were committed, at moments when commits were made."""
    shares = ", ".join(str(n / (points - 1)) for n in range(points))
    told = records.selectExpr(
        "max(unix_micros(record_timestamp)) latest",
        f"percentile_approx(unix_micros(commit_timestamp), array({shares})) moments",
    ).first()
    now_us = max(int(time.time() * 1e6), told.latest or 0)
    at = moments(np.array(told.moments or [], np.int64), since_us, now_us, points)
    keys = records.where("kind = 'offset_commit'").select("topic", "partition").distinct().collect()
    with Admin(config) as admin:
        return look_up(admin, {TopicPartition(row.topic, row.partition) for row in keys}, at, now_us)


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
