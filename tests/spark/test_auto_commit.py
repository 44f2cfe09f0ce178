"""Spark disables auto commit: its own source and ours refuse the setting, and ours commits after each micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import commit, committed, create_topic, numbers, publish
from support.spark_connector import with_connector

SETTING = {"kafka.enable.auto.commit": "true"}


@pytest.mark.slow
@pytest.mark.claim(101, part="a", by="by clients")
def test_sparks_own_source_refuses_auto_commit_and_commits_nothing(
    spark: Any, bootstrap: str, topic: str, group: str
) -> None:
    with_connector(spark)
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    commit(bootstrap, group, {(topic, 0): 3})
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": group}

    def read(**more: str) -> int:
        return int(spark.read.format("kafka").options(**options | more).load().count())

    with pytest.raises(Exception, match=r"enable\.auto\.commit' is not supported"):
        read(**SETTING)
    assert read() == 10
    assert committed(bootstrap, group) == {(topic, 0): 3}


@pytest.mark.slow
@pytest.mark.claim(101, part="b")
def test_our_source_refuses_auto_commit_and_commits_after_each_micro_batch(
    spark: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """While a micro-batch is processed, only the records of earlier micro-batches are committed."""
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": group,
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5",
    }  # fmt: skip

    def load(**more: str) -> Any:
        return spark.readStream.format("odradek").options(**options | more).load()

    with pytest.raises(Exception, match=r"enable\.auto\.commit is not supported"):
        load(**SETTING)
    batches: list[tuple[int, int]] = []

    def process(frame: Any, batch: int) -> None:
        batches.append((frame.count(), committed(bootstrap, group).get((topic, 0), 0)))

    stream = load().writeStream.foreachBatch(process)
    stream = stream.queryName(unique("q").replace("-", "_")).option("checkpointLocation", str(tmp_path))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert batches == [(5, 0), (5, 5)]
    assert committed(bootstrap, group) == {(topic, 0): 10}
