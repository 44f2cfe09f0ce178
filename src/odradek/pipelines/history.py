"""Offset history on Spark: what ``__consumer_offsets`` of any Kafka holds, as typed DataFrames.

    commits = offset_history(spark, "127.0.0.1:9092", "commits")
    commits.groupBy("group", "topic").agg(F.max("committed_offset")).show()

Decoding happens in the workers, in Arrow; a group's records are all in one partition of the offsets topic, hence in
one task and in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
