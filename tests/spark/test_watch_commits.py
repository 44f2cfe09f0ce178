"""``watch(commit=…)``: the progress of queries on Spark's own Kafka source, in groups that every tool reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_runs import StreamingRun
from support.brokers import eventually, unique
from support.publish import committed, create_topic, numbers, publish
from support.spark_connector import with_connector

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.spark import watch
from odradek.spark.driver.lag_metrics import LagWatch


@pytest.fixture
def connector(spark: Any) -> Any:
    """A session with Spark's own Kafka source."""
    return with_connector(spark)


def read(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    chosen = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"} | options
    return spark.readStream.format("kafka").options(**chosen).load()


def begin(frame: Any, name: str, checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def test_queries_on_sparks_own_source_get_groups(
    connector: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """A query that ends at once, one that runs while records arrive, and one without a group."""
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(30))
    publish(bootstrap, topic, numbers(10), partition=1)
    once, running, other = (unique(name).replace("-", "_") for name in ("once", "running", "other"))
    with watch(connector, commit={once: group, running: f"{group}-running"}):
        for name in (once, other):
            query = begin(read(connector, bootstrap, topic, maxOffsetsPerTrigger="16"), name, tmp_path / name)
            assert query.awaitTermination(120)
        query = begin(
            read(connector, bootstrap, topic), running, tmp_path / running, processingTime="1 second"
        )  # fmt: skip
        try:
            first = {(topic, 0): 30, (topic, 1): 10}
            eventually(lambda: committed(bootstrap, f"{group}-running") == first, within_s=60, what="the first commit")
            publish(bootstrap, topic, numbers(5), partition=1)
            second = {(topic, 0): 30, (topic, 1): 15}
            eventually(lambda: committed(bootstrap, f"{group}-running") == second, within_s=60, what="the second")
        finally:
            query.stop()
    assert committed(bootstrap, group) == first, "the end of the watch waits for the last report"
    with Admin(bootstrap) as admin:
        described = admin.describe_groups([group])[group]
    assert (described.state, described.members) == ("Empty", ())


def test_a_query_that_runs_already_and_our_source_without_commits(
    stream: StreamingRun, group: str, tmp_path: Path
) -> None:
    create_topic(stream.bootstrap, stream.topic)
    publish(stream.bootstrap, stream.topic, numbers(30))
    query = begin(stream.frame(commitOffsets="false"), "quiet", tmp_path / "c", processingTime="1 second")
    own = begin(stream.frame(), "own", tmp_path / "own", processingTime="1 second")
    try:
        with watch(stream.spark, commit=f"{group}-watched"):
            publish(stream.bootstrap, stream.topic, numbers(10))
            reached = {(stream.topic, 0): 40}
            eventually(lambda: committed(stream.bootstrap, f"{group}-watched") == reached, within_s=60)
            eventually(lambda: committed(stream.bootstrap, group) == reached, within_s=60, what="the own commits")
    finally:
        query.stop()
        own.stop()


def test_wrong_arguments_are_refused_before_anything_is_watched(spark: SparkSession) -> None:
    class Remote:
        """A session of Spark Connect."""

    for session, arguments, said in (
        (spark, {"commit": ""}, "commit='': expected the name of a group"),
        (spark, {"commit": ["lake"]}, "expected the name of a group, or a group for each query"),
        (spark, {"options": {"kafka.bootstrap.servers": "h:1"}}, "options= has no effect without commit="),
        (
            spark,
            {"commit": "g", "options": {"bootstrap.servers": "h:1"}},
            "expected options of the client",
        ),
        (spark, {"commit": "g", "options": {"kafka.client.id": "x"}}, "kafka.bootstrap.servers is required"),
        (spark, {"commit": "g", "options": {"kafka.bootstrap.servers": "h:1", "kafka.nosuch": "1"}}, "kafka.nosuch"),
        (Remote(), {"commit": "g"}, "commit= with Spark Connect needs the cluster"),
    ):
        with pytest.raises(ConfigError, match=said):
            LagWatch(session, **arguments)
