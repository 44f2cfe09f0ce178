"""Our clients beside others on the same broker: reading into Arrow, writing from Arrow, the latency of one record.

``python -m bench.clients`` measures on odradek's broker and then on Apache Kafka. It fills topics on the broker. Then
the clients read or write one after another, each in its own process, in reverse order in every second round.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import overview, report
from bench.apache import Unavailable, class_path, java
from bench.pages import CLIENTS, option_help
from bench.sides import Apache, Odradek, Side, start
from bench.workload import confluent_producer, create_topic, flush

PARTITIONS = 4
SMALL = 100
CODECS = ("none", "lz4", "zstd")
_TOUCHED_BYTES = 1 << 30
"""The bytes of memory that are written before each measured client: more than any client needs for its records."""
JAVA, DISCARDED = "Java ConsumerPerformance", "odradek, discarded"


# --- reading ----------------------------------------------------------------------------------------------------


def _batches(polled: Mapping[Any, list[Any]]) -> list[Any]:
    return [batch for batches in polled.values() for batch in batches]


def _rows(batches: list[Any]) -> int:
    return sum(batch.num_rows for batch in batches)


def _polls(bootstrap: str, topic: str, rows: int) -> Iterator[list[Any]]:
    """The RecordBatches of each ``Consumer.poll``, until all rows are read."""
    from odradek import Consumer, TopicPartition

    seen = 0
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=500_000) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
        while seen < rows:
            polled = consumer.poll(10)
            if not polled:
                raise TimeoutError(f"{seen} of {rows} rows were read")
            batches = _batches(polled)
            seen += _rows(batches)
            yield batches


def read_odradek(bootstrap: str, topic: str, rows: int) -> int:
    """Reads RecordBatches and keeps all of them, as one table."""
    import pyarrow as pa

    kept: list[Any] = []
    for batches in _polls(bootstrap, topic, rows):
        kept += batches
    return int(pa.Table.from_batches(kept).num_rows)


def count_odradek(bootstrap: str, topic: str, rows: int) -> int:
    """Reads RecordBatches, counts their rows and bytes and discards them, as ConsumerPerformance does with records."""
    seen = size = 0
    for batches in _polls(bootstrap, topic, rows):
        seen += _rows(batches)
        size += sum(batch.nbytes for batch in batches)
    if size < SMALL * seen:
        raise RuntimeError(f"{size} bytes in {seen} rows")
    return seen


def read_odradek_aio(bootstrap: str, topic: str, rows: int) -> int:
    import asyncio

    import pyarrow as pa

    from odradek import TopicPartition
    from odradek.aio import Consumer

    async def read() -> int:
        kept: list[Any] = []
        seen = 0
        async with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=500_000
        ) as consumer:
            await consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
            while seen < rows:
                polled = await consumer.poll(10)
                if not polled:
                    raise TimeoutError(f"{seen} of {rows} rows were read")
                batches = _batches(polled)
                kept += batches
                seen += _rows(batches)
        return int(pa.Table.from_batches(kept).num_rows)

    return asyncio.run(read())


def _table(columns: list[list[Any]]) -> int:
    import pyarrow as pa

    names = ("key", "value", "topic", "partition", "offset", "timestamp")
    kinds = (pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return int(pa.table(dict(zip(names, arrays, strict=True))).num_rows)


def read_confluent(bootstrap: str, topic: str, rows: int) -> int:
    """Calls ``consume`` for 10,000 messages at a time, and makes the columns with list comprehensions."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "queued.min.messages": 500_000})
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    columns: list[list[Any]] = [[] for _ in range(6)]
    while len(columns[0]) < rows:
        messages = consumer.consume(10_000, timeout=10)
        if not messages:
            raise TimeoutError(f"{len(columns[0])} of {rows} rows were read")
        columns[0] += [message.key() for message in messages]
        columns[1] += [message.value() for message in messages]
        columns[2] += [message.topic() for message in messages]
        columns[3] += [message.partition() for message in messages]
        columns[4] += [message.offset() for message in messages]
        columns[5] += [message.timestamp()[1] for message in messages]
    consumer.close()
    return _table(columns)


def _add(columns: list[list[Any]], records: list[Any]) -> None:
    columns[0] += [record.key for record in records]
    columns[1] += [record.value for record in records]
    columns[2] += [record.topic for record in records]
    columns[3] += [record.partition for record in records]
    columns[4] += [record.offset for record in records]
    columns[5] += [record.timestamp for record in records]


def read_kafka_python(bootstrap: str, topic: str, rows: int) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
    columns: list[list[Any]] = [[] for _ in range(6)]
    while len(columns[0]) < rows:
        polled = consumer.poll(10_000, max_records=50_000)
        if not polled:
            raise TimeoutError(f"{len(columns[0])} of {rows} rows were read")
        for records in polled.values():
            _add(columns, records)
    consumer.close()
    return _table(columns)


def read_aiokafka(bootstrap: str, topic: str, rows: int) -> int:
    import asyncio

    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[list[Any]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
        columns: list[list[Any]] = [[] for _ in range(6)]
        while len(columns[0]) < rows:
            polled = await consumer.getmany(timeout_ms=10_000, max_records=50_000)
            if not polled:
                raise TimeoutError(f"{len(columns[0])} of {rows} rows were read")
            for records in polled.values():
                _add(columns, records)
        await consumer.stop()
        return columns

    return _table(asyncio.run(read()))


READERS: dict[str, Callable[[str, str, int], int]] = {
    "odradek": read_odradek,
    "odradek aio": read_odradek_aio,
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
    DISCARDED: count_odradek,
}


def can_read(client: str, codec: str) -> bool:
    """Whether the client can read the codec: kafka-python needs another package for lz4, and one for zstd."""
    if client != "kafka-python" or codec == "none":
        return True
    import kafka.codec

    return bool({"lz4": kafka.codec.has_lz4, "zstd": kafka.codec.has_zstd}[codec]())


# --- writing ----------------------------------------------------------------------------------------------------


def write_odradek(bootstrap: str, topic: str, rows: int) -> int:
    """Sends RecordBatches of 100,000 rows."""
    import pyarrow as pa

    from odradek import Producer

    many = 100_000
    batch = pa.record_batch({"value": pa.array([b"x" * SMALL] * many, pa.binary())})
    with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        for begin in range(0, rows, many):
            producer.send_batch(topic, batch.slice(0, min(many, rows - begin)))
        producer.flush(120)
    return rows


def write_confluent(bootstrap: str, topic: str, rows: int) -> int:
    producer, errors = confluent_producer(bootstrap)
    record = b"x" * SMALL
    for _ in range(rows):
        while True:
            try:
                producer.produce(topic, record)
                break
            except BufferError:
                producer.poll(0.01)
    flush(producer, errors)
    return rows


WRITERS: dict[str, Callable[[str, str, int], int]] = {"odradek": write_odradek, "confluent-kafka": write_confluent}


# --- one record -------------------------------------------------------------------------------------------------


def _feed(bootstrap: str, topic: str) -> Callable[[], None]:
    """Returns a function that stores one record and waits until it is stored."""
    from bench import raw
    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    request = raw.produce_request(
        topic, 0, encode_batch([SimpleRecord(b"", b"x" * SMALL)], now_ms=int(time.time() * 1000))
    )
    connection = raw.Connection(bootstrap)
    return lambda: raw.check_produced(topic, connection.call(request))


def wait_odradek(bootstrap: str, topic: str, count: int) -> list[float]:
    """For each of ``count`` records, the seconds from its write until ``poll`` returns it."""
    from odradek import Consumer, TopicPartition

    store = _feed(bootstrap, topic)
    took = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.position(TopicPartition(topic, 0))
        consumer.poll(0.2)
        for _ in range(count):
            began = time.perf_counter()
            store()
            polled = consumer.poll(5)
            took.append(time.perf_counter() - began)
            if sum(batch.num_rows for batches in polled.values() for batch in batches) != 1:
                raise RuntimeError(f"expected one record, got {polled}")
    return took


def wait_confluent(bootstrap: str, topic: str, count: int) -> list[float]:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    store = _feed(bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(1)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        store()
        message = consumer.poll(5)
        took.append(time.perf_counter() - began)
        if message is None or message.error() is not None:
            raise RuntimeError(f"expected one record, got {message and message.error()}")
    consumer.close()
    return took


WAITERS: dict[str, Callable[[str, str, int], list[float]]] = {
    "odradek": wait_odradek,
    "confluent-kafka": wait_confluent,
}


# --- the rounds -------------------------------------------------------------------------------------------------


def _child(kind: str, client: str, *arguments: Any) -> float:
    """Runs one client in its own process. Returns rows per second; for ``wait``, the median seconds of a record."""
    command = [sys.executable, "-m", "bench.clients", "--child", json.dumps([kind, client, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"{kind} with {client} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def _touch_memory() -> None:
    """Writes and frees memory, so that the operating system has free pages for the client.

    Some virtual machines return freed pages to their host. To get these pages back can take longer than the read.
    """
    import numpy as np

    np.ones(_TOUCHED_BYTES, np.uint8)


def _run_child(job: str) -> None:
    kind, client, bootstrap, topic, count = json.loads(job)
    if kind == "read":
        READERS[client](bootstrap, "warm-up", 1000)  # imports, and compiled code from its cache
    elif kind == "write":
        WRITERS[client](bootstrap, "warm-up-write", 1000)
    _touch_memory()
    if kind == "wait":
        took = sorted(WAITERS[client](bootstrap, topic, count))
        print(took[len(took) // 2])
        return
    began = time.perf_counter()
    rows = (READERS if kind == "read" else WRITERS)[client](bootstrap, topic, count)
    seconds = time.perf_counter() - began
    if rows < count:
        raise RuntimeError(f"{rows} rows where {count} were expected")
    print(rows / seconds)


def _java_rate(bootstrap: str, topic: str, rows: int) -> float:
    """Rows per second of Apache Kafka's ConsumerPerformance, without its wait for the group."""
    _touch_memory()
    command = [java(), "-Xmx512m", "-cp", class_path(), "org.apache.kafka.tools.ConsumerPerformance"]
    command += ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(rows), "--timeout", "20000"]
    done = subprocess.run([*command, "--hide-header"], capture_output=True, text=True, check=True, timeout=600)
    row = done.stdout.strip().splitlines()[-1].split(", ")
    if int(row[4]) < rows:
        raise RuntimeError(f"ConsumerPerformance printed: {row}")
    return float(row[9])


def _fill(bootstrap: str, topic: str, rows: int, codec: str) -> None:
    """Fills a topic with records of 100 bytes, in batches of 500. A codec compresses them to half."""
    import random

    from bench import raw
    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    create_topic(bootstrap, topic, PARTITIONS)
    chance = random.Random(7)
    now_ms = int(time.time() * 1000)
    made = []
    for number in range(16):
        records = [SimpleRecord(b"%015d" % (number * 500 + n), chance.randbytes(42) + b"v" * 43) for n in range(500)]
        made.append(encode_batch(records, now_ms=now_ms, compression=codec))
    connection = raw.Connection(bootstrap)
    for number in range(rows // 500):
        request = raw.produce_request(topic, number % PARTITIONS, made[number % len(made)])
        raw.check_produced(topic, connection.call(request))


@dataclass(frozen=True)
class Row:
    """One measurement of the report. ``values``: by client, the figure of each round.

    ``aims``: by other client, how many times better ours should be.
    """

    title: str
    unit: str
    higher_is_better: bool
    values: dict[str, list[float]]
    aims: dict[str, float]


def measure(side: Side, rows: int, waits: int, rounds: int, *, with_java: bool) -> list[Row]:
    """Measures all rounds on one broker: ``rows`` records per topic, ``waits`` single records."""
    bootstrap = side.bootstrap
    _fill(bootstrap, "warm-up", 4000, "none")
    create_topic(bootstrap, "warm-up-write", PARTITIONS)
    create_topic(bootstrap, "one", 1)
    found = []
    for codec in CODECS:
        _fill(bootstrap, f"read-{codec}", rows, codec)
        values: dict[str, list[float]] = {}
        names = [*(name for name in READERS if can_read(name, codec)), *([JAVA] if with_java else [])]
        for number in range(rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                if name in READERS:
                    count = rows if name.startswith("odradek") else rows // 4
                    rate = _child("read", name, bootstrap, f"read-{codec}", count)
                else:
                    rate = _java_rate(bootstrap, f"read-{codec}", rows)
                values.setdefault(name, []).append(rate)
        # Java's tool keeps no records, so the fair comparison is with our reads that keep none. The second row also
        # compares it with our reads that keep all records.
        discarded = {"odradek": values.pop(DISCARDED)} | ({JAVA: values[JAVA]} if with_java else {})
        for title, rates in ((f"read into Arrow, 100 B, {codec}", discarded), (f"… all records kept, {codec}", values)):
            found.append(Row(title, "rows/s", True, rates, {JAVA: 5, "confluent-kafka": 20}))
            print(_line(found[-1]), flush=True)
    write = Row("write, 100 B, acks=all", "rows/s", True, {}, {"confluent-kafka": 3})
    wait = Row("one record, from write to poll, p50", "ms", False, {}, {"confluent-kafka": 1})
    for number in range(rounds):
        order = list(WRITERS) if number % 2 == 0 else list(WRITERS)[::-1]
        for name in order:
            topic = f"write-{name}-{number}"
            create_topic(bootstrap, topic, PARTITIONS)
            write.values.setdefault(name, []).append(_child("write", name, bootstrap, topic, rows))
            wait.values.setdefault(name, []).append(_child("wait", name, bootstrap, "one", waits) * 1e3)
    for row in (write, wait):
        print(_line(row), flush=True)
    return [*found, write, wait]


def _line(row: Row) -> str:
    return f"{row.title}: " + ", ".join(f"{name} {report.spread(values)}" for name, values in row.values.items())


def table(side: str, rows: list[Row]) -> str:
    """A Markdown table: the figures of each client, and how many times better ours are, as spreads of the rounds."""
    lines = [f"| on {side} | client | figure | odradek is | aim |", "|---|---|---|---|---|"]
    for row in rows:
        ours = row.values["odradek"]
        for name, values in row.values.items():
            times = report.ratios(ours, values, higher_is_better=row.higher_is_better) if name != "odradek" else []
            wanted = row.aims.get(name)
            aim = "" if wanted is None else f"≥ {wanted:g} × ({'met' if median(times) >= wanted else 'missed'})"
            title = f"{row.title}, {row.unit}" if name == "odradek" else ""
            better = report.spread(times) + " ×" if times else ""
            lines.append(f"| {title} | {name} | {report.spread(values)} | {better} | {aim} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4_000_000, help="records per topic (default 4,000,000)")
    parser.add_argument("--waits", type=int, default=2000, help="single records for the latency (default 2,000)")
    parser.add_argument("--no-kafka", action="store_true", help="measure on odradek's broker only")
    parser.add_argument("--out", type=Path, default=CLIENTS, help=option_help(CLIENTS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _run_child(args.child)
        return 0
    rows = max(4000, args.rows // 2000 * 2000)
    try:
        cp: str | None = class_path()
    except Unavailable as error:
        cp = None
        print(f"Java's figures and Apache Kafka are left out: {error}", flush=True)
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    sides: list[tuple[str, Callable[[Path], Side]]] = [("odradek's broker", Odradek)]
    if cp is not None and not args.no_kafka:
        sides.append((Apache.name, lambda directory: Apache(directory, cp)))
    tables = []
    try:
        for name, build in sides:
            side = build(work / re.sub(r"\W", "-", name))
            side.install()
            try:
                start(side)
                measured = measure(side, rows, args.waits, args.rounds, with_java=cp is not None)
                tables.append(table(name, measured))
            finally:
                side.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    command = " ".join(["python -m bench.clients", *sys.argv[1:]])
    text = "\n\n".join([report.head(args.rounds, command), *tables])
    overview.publish(args.out, text, "clients")
    print(f"\n{text}\n\nwritten to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
