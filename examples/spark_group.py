"""A Spark query that starts at a group's offsets and follows a reset of the group by any tool. Prints the query's lag.

pip install 'odradek[spark]'
python examples/spark_group.py [HOST:PORT]
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import odradek
from odradek import Admin, OffsetAndMetadata, Producer, TopicPartition
from odradek.client import NewTopic
from odradek.spark import register, watch
from odradek.spark.session import session

TOPIC, GROUP = "flights", "flight-lake"
PARTITION = TopicPartition(TOPIC, 0)


def run(spark: Any, bootstrap_servers: str, checkpoint: str) -> list[int]:
    """Runs the query until it has read all records. Returns their offsets, and prints the lag of the query."""
    events = (
        spark.readStream.format("odradek")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("kafka.group.id", GROUP)  # committed after each micro-batch
        .option("startingOffsets", "committed")  # without a checkpoint: where the group has stopped
        .option("onGroupReset", "follow")  # with a checkpoint: a reset of the group moves the query
        .load()
    )
    read: list[int] = []
    writer = events.writeStream.foreachBatch(lambda frame, _: read.extend(row.offset for row in frame.collect()))
    with watch(spark) as watching:
        query = writer.option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        deadline = time.monotonic() + 60
        while not (reports := watching.lags()) and time.monotonic() < deadline:
            time.sleep(0.05)  # Spark reports a micro-batch shortly after its end
        print("records behind the log end:", [lag.total for one in reports for lag in one.sources.values()])
        query.stop()
        query.awaitTermination()
    return sorted(read)


def main(bootstrap_servers: str) -> None:
    spark = session("flights")
    register(spark)
    with Admin(bootstrap_servers) as admin, tempfile.TemporaryDirectory() as checkpoint:
        admin.create_topics([NewTopic(TOPIC, 1)])
        with Producer(bootstrap_servers) as producer:
            for number in range(10):
                producer.send(TOPIC, b"flight %d" % number)
        admin.alter_group_offsets(GROUP, {PARTITION: OffsetAndMetadata(4)})  # as if an earlier consumer had read four

        print("first run", run(spark, bootstrap_servers, checkpoint))
        print("committed", admin.list_group_offsets(GROUP)[PARTITION].offset)

        # The query follows a reset by any tool, for example by this command:
        # odradek groups reset --group flight-lake --topic flights --to-offset 7 --execute -b HOST:PORT
        admin.alter_group_offsets(GROUP, {PARTITION: OffsetAndMetadata(7)})
        print("after the reset", run(spark, bootstrap_servers, checkpoint))
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with odradek.Broker() as broker:
            main(broker.bootstrap_servers)
