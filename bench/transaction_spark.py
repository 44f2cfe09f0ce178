"""The Spark part of ``bench.transactions``: a streaming query that copies a topic, by the sink and by transactions.

The sink ``format("odradek")`` writes each row at least once. ``transactional_writer`` writes each micro-batch in one
transaction. Both queries read the same topic of odradek's broker, in one session (``local[2]``).
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.measures import Values
from bench.sides import Odradek, start
from bench.topics import PARTITIONS, event_values, filled, held
from bench.workload import create_topic
from odradek.client.admin import Admin
from odradek.spark import register, transactional_writer
from odradek.spark.session import session

ROWS = 500_000
BATCHES = 5
AIM = 0.6
SINK, TRANSACTIONS = "sink", "transactions"
WAYS = (SINK, TRANSACTIONS)
_ALIVE_S = 300


def run(directory: Path, scale: float, rounds: int) -> list[Values]:
    """Returns the rows per second of both ways, round by round. Round 0 is a warm-up and is not in the result."""
    rows = max(5000, int(ROWS * scale))
    side = Odradek(directory / "broker")
    start(side)
    spark = session("bench-transactions", config={"spark.driver.memory": "2g"})
    try:
        register(spark)
        found: list[Values] = []
        with Admin(side.bootstrap) as admin:
            topic = filled(side.bootstrap, admin, "copied", rows, event_values(100), "none")
            for number in range(rounds + 1):
                values: Values = {}
                for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                    values[way] = rows / _copy(spark, side.bootstrap, admin, topic, rows, way, directory)
                print(f"round {number} spark: {values}", flush=True)
                if number:
                    found.append(values)
        return found
    finally:
        spark.stop()
        side.stop()


def _copy(spark: Any, bootstrap: str, admin: Admin, topic: str, rows: int, way: str, directory: Path) -> float:
    """Copies the topic in ``BATCHES`` micro-batches. Returns the seconds from ``load`` to the end of the query."""
    name = f"copies-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, PARTITIONS)
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest",
        "kafka.group.id": name, "maxOffsetsPerTrigger": str(-(-rows // BATCHES)),
    }  # fmt: skip
    began = time.perf_counter()
    frame = spark.readStream.format("odradek").options(**options).load().select("key", "value")
    if way == SINK:
        writer = frame.writeStream.format("odradek").option("kafka.bootstrap.servers", bootstrap).option("topic", name)
    else:
        writer = frame.writeStream.foreachBatch(transactional_writer(bootstrap, name))
    writer = writer.option("checkpointLocation", str(directory / name))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(_ALIVE_S):
        raise TimeoutError(f"the query with {way} did not end")
    took = time.perf_counter() - began
    if (stored := held(admin, name)) < rows:
        raise RuntimeError(f"{way} wrote {stored} records of {rows}")
    admin.delete_topics([name])
    return took


def table(rounds: list[Values]) -> str:
    sink, transactions = ([values[way] for values in rounds] for way in WAYS)
    shares = [mine / other for mine, other in zip(transactions, sink, strict=True)]
    met = "met" if median(shares) >= AIM else "missed"
    return "\n".join(
        (
            "| figure | transactional_writer | sink, at least once | share | aim |",
            "|---|---|---|---|---|",
            f"| a topic copied by a query in {BATCHES} micro-batches, 100 B, rows/s | {report.spread(transactions)} | "
            f"{report.spread(sink)} | {report.spread(shares)} × | ≥ {AIM} × ({met}) |",
        )
    )
