"""A separate process for tests that kill it: starts Spark, works, and prints its progress, one line each.

``probe JAVA``: runs a query, a Python data source and foreachBatch, then waits until it is killed. ``kill JAVA
BOOTSTRAP TOPIC GROUP CHECKPOINT``: reads a topic as a stream, and kills itself with signal 9 when the second
micro-batch is processed but Spark has not marked it as complete. ``once JAVA BOOTSTRAP TOPIC GROUP CHECKPOINT``: reads
a topic with trigger once, and ends with the query.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from odradek.spark.registration import register
from odradek.spark.session import session


class Seven(DataSource):
    """Yields 0 to 6."""

    @classmethod
    def name(cls) -> str:
        return "seven"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: Any) -> DataSourceReader:
        return SevenReader()


class SevenReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((n,) for n in range(7))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def start(java: str) -> Any:
    sys.executable = os.environ.get("SPARK_FORKS", sys.executable)  # the program of Spark's Python processes
    spark = session("odradek child", java=java)
    jvm = spark._jvm
    assert jvm is not None
    say(
        java=jvm.java.lang.System.getProperty("java.version"),
        home=jvm.java.lang.System.getProperty("java.home"),
        jvm=int(jvm.java.lang.ProcessHandle.current().pid()),
    )
    return spark


def probe(java: str) -> None:
    spark = start(java)
    say(query=spark.range(100).selectExpr("sum(id)").first()[0])
    spark.dataSource.register(Seven)
    say(source=sorted(row.n for row in spark.read.format("seven").load().collect()))
    seen: list[int] = []
    frame = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    query = frame.writeStream.foreachBatch(lambda batch, number: seen.append(number)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    say(batches=seen)
    sys.stdin.read()


def kill(java: str, bootstrap: str, topic: str, group: str, checkpoint: str) -> None:
    spark = start(java)
    register(spark)

    def work(frame: Any, batch: int) -> None:
        rows = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
        say(batch=batch, rows=rows)
        if batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "kafka.group.id": group,
        "startingOffsets": "committed",
        "maxOffsetsPerTrigger": "10",
    }
    writer = spark.readStream.format("odradek").options(**options).load().writeStream.foreachBatch(work)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def once(java: str, bootstrap: str, topic: str, group: str, checkpoint: str) -> None:
    spark = start(java)
    register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": group}
    frame = spark.readStream.format("odradek").options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    say(ended=writer.trigger(once=True).start().awaitTermination(240))


if __name__ == "__main__":
    {"probe": probe, "kill": kill, "once": once}[sys.argv[1]](*sys.argv[2:])
