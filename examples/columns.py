"""A topic's columns in Polars and DuckDB. No record becomes a Python object; Arrow's memory is shared, not copied.

pip install 'odradek[arrow]' polars duckdb
python examples/columns.py [HOST:PORT]
"""

from __future__ import annotations

import sys

import duckdb
import polars as pl
import pyarrow as pa

import odradek
from odradek import Admin, Consumer, Producer
from odradek.client import NewTopic

COUNT = 1_000
TOPIC = "trips"


def send(bootstrap_servers: str) -> None:
    """Sends columns: the keys are airports, the values JSON."""
    airports = ["EWR", "JFK", "LGA"]
    keys = [airports[number % 3].encode() for number in range(COUNT)]
    values = [b'{"miles": %d}' % (100 + number % 7) for number in range(COUNT)]
    with Producer(bootstrap_servers, compression_type="zstd") as producer:
        producer.send_batch(TOPIC, pa.record_batch({"key": keys, "value": values}))


def read(bootstrap_servers: str) -> pa.Table:
    """Reads the topic as one table: key, value, topic, partition, offset, timestamp, timestampType."""
    tables: list[pa.Table] = []
    with Consumer(bootstrap_servers, max_poll_records=100_000) as consumer:
        consumer.assign(consumer.partitions_for(TOPIC))
        consumer.seek_to_beginning()
        while sum(table.num_rows for table in tables) < COUNT:
            tables.append(consumer.poll(1.0).table())
    return pa.concat_tables(tables)


def main(bootstrap_servers: str) -> None:
    with Admin(bootstrap_servers) as admin:
        admin.create_topics([NewTopic(TOPIC, 3)])
    send(bootstrap_servers)
    trips = read(bootstrap_servers)

    frame = pl.from_arrow(trips)
    assert isinstance(frame, pl.DataFrame)
    miles = pl.col("value").cast(pl.String).str.json_path_match("$.miles").cast(pl.Int64)
    by_airport = frame.group_by(pl.col("key").cast(pl.String)).agg(miles.sum().alias("miles")).sort("key")
    print("polars", by_airport.rows())

    query = "SELECT decode(key) AS key, sum((decode(value)->>'miles')::BIGINT)::BIGINT FROM trips GROUP BY 1 ORDER BY 1"
    print("duckdb", duckdb.sql(query).fetchall())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with odradek.Broker() as broker:
            main(broker.bootstrap_servers)
