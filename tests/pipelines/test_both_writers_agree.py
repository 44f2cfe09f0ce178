"""Both writers, Spark's workers and Spark itself, write equal tables, and a table may be continued with either
writer."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from ingest_runs import checkpoint_end, committed, delta, duckdb_count, ends, expected, parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, publish
from support.spark_cluster import standalone
from writer_shapes import shape

from odradek.client.admin import Admin
from odradek.pipelines import ingest, replay
from odradek.pipelines.options import WRITERS

# The empty key is left out: Spark's writer puts the empty key and null into one folder, creates its file there twice,
# and fails.
KEYS: list[bytes | None] = [None, b"a", b"a/b %41:\xc3\xbc", b"x=1", b"\x01\x7f", b" ", b"null"]


def random_record(chance: random.Random) -> dict[str, Any]:
    """A record with a random value (bytes, JSON or a tombstone), key, headers and timestamp."""
    number = chance.choice([0, 1, -1, 2**31, 2**63 - 1, -(2**63), chance.getrandbits(40)])
    text = chance.choice(["", "x", "ü€😀", "\\u0000", 'quo\\"te', "a" * chance.randrange(200)])
    value = chance.choice(
        [
            None,
            b"",
            chance.randbytes(chance.randrange(60)),
            b'{"id":%d,"name":"%s"}' % (number, text.encode()),
            b'{"name":null,"id":1,"more":[1,2]}',
            b'{"id":"no number"}',
            b'{"id":1}{"id":2}',
            b"[1]",
            b" {} ",
        ]
    )
    headers = chance.choice([None, [], [("h", b"1")], [("h", None), ("h", b""), ("ü", b"\xff")]])
    time_ms = chance.choice([0, 1, 999, 1_700_000_000_123, chance.randrange(1_700_000_000_000)])
    return {"value": value, "key": chance.choice(KEYS), "headers": headers, "timestamp": time_ms}


def send_random(bootstrap: str, topic: str, count: int, seed: int) -> None:
    chance = random.Random(seed)
    send(bootstrap, topic, (random_record(chance) for _ in range(count)))


def send(bootstrap: str, topic: str, records: Iterable[dict[str, Any]]) -> None:
    """Sends the records to three partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    failed: list[str] = []

    def delivered(error: object, message: object) -> None:
        failed.extend([str(error)] if error is not None else [])

    for number, record in enumerate(records):
        producer.produce(topic, partition=number % 3, on_delivery=delivered, **record)
        if number % 500 == 0:
            producer.poll(0)
    assert (producer.flush(60), failed[:1]) == (0, [])


def folders(output: Path) -> set[str]:
    found = {str(path.parent.relative_to(output)) for path in output.glob("**/*.parquet")}
    return {name for name in found if "_odradek" not in name}


FLAT = {"value_format": "json", "schema": "id int, name string", "flat": True, "partition_by": ["id", "timestamp"]}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"partition_by": ["partition", "key"], "headers": True}, id="raw"),
        pytest.param(
            {"value_format": "json", "schema": "id bigint, name string", "keep_raw": True, "headers": True},
            id="json",
            marks=pytest.mark.slow,
        ),
        pytest.param(FLAT, id="flat", marks=pytest.mark.slow),
        pytest.param({"value_format": "json"}, id="text", marks=pytest.mark.slow),
    ],
)
def test_random_records_of_any_kind_are_equal_for_both_writers(
    shape: dict[str, Any], spark: Any, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("writers")
    create_topic(bootstrap, topic, 3)
    send_random(bootstrap, topic, 500 if "timestamp" in shape.get("partition_by", ()) else 3_000, seed=1)
    done = {
        writer: ingest(
            bootstrap, topics=topic, group=unique("g"), output=tmp_path / writer, writer=writer, spark=spark, **shape
        )
        for writer in WRITERS
    }
    read_by_spark = [spark.read.parquet(str(tmp_path / writer)).schema for writer in WRITERS]
    assert read_by_spark[0] == read_by_spark[1]
    assert folders(tmp_path / "workers") == folders(tmp_path / "spark")
    order = [("partition", "ascending"), ("offset", "ascending")]
    ours, theirs = (parquet(tmp_path / writer).sort_by(order) for writer in WRITERS)
    assert ours.schema.equals(theirs.schema)
    assert ours.equals(theirs)
    assert len({(one.rows, one.bad) for one in done.values()}) == 1
    assert record_ids(ours) == expected(admin, topic)


@pytest.fixture
def far_zone(spark: Any) -> Iterator[str]:
    """A session with a time zone that differs by half an hour from full hours."""
    name, before = "spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set(name, "America/St_Johns")
    yield "America/St_Johns"
    spark.conf.set(name, before)


def test_folders_of_times_are_in_utc_for_any_session_time_zone(
    far_zone: str, spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """Spark itself formats and parses folder names in the time zone of the session."""
    topic = unique("zones")
    create_topic(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    times = [1_500, 1_700_000_000_123, 1_711_846_800_000]  # the last time is in the hour that this zone skips
    for number, at in enumerate(times):
        value = b'{"id":%d,"day":"2024-03-10"}' % number
        producer.produce(topic, value, partition=0, timestamp=at)
    assert producer.flush(60) == 0
    given: dict[str, Any] = {"value_format": "json", "schema": "id int, day date", "flat": True, "spark": spark}
    given |= {"topics": topic, "partition_by": ["timestamp", "day"]}
    wanted = ["1970-01-01 00%3A00%3A01.5", "2023-11-14 22%3A13%3A20.123", "2024-03-31 01%3A00%3A00"]
    for table_format, writer in (("parquet", "workers"), ("delta", "spark")):
        output = tmp_path / f"{table_format}-{writer}"
        ingest(bootstrap, group=unique("g"), output=output, writer=writer, table_format=table_format, **given)
        assert sorted(folders(output)) == [f"timestamp={at}/day=2024-03-10" for at in wanted], output.name
    found = delta(tmp_path / "delta-spark").sort_by("offset")["timestamp"].cast("timestamp[ms]").cast("int64")
    assert found.to_pylist() == times


def check_by_chance(spark: Any, bootstrap: str, place: Path, seeds: Iterable[int], count: int) -> dict[str, int]:
    """Writes a table of ``count`` records for each seed with both writers. Returns how often each kind of table
    occurred."""
    met: dict[str, int] = {}
    for seed in seeds:
        chance = random.Random(seed)
        chosen = shape(chance)
        topic, where = unique("chance"), f"seed {seed}: {chosen.form} {chosen.options}"
        create_topic(bootstrap, topic, 3, message_timestamp_after_max_ms=str(2**63 - 1))
        records = [random_record(chance) | {"value": chosen.value(chance)} for _ in range(count)]
        # the year 10000, which Python's datetime does not have
        records[0]["timestamp"] = chance.choice([0, 253_402_300_800_000])
        send(bootstrap, topic, records)
        done = {
            writer: ingest(
                bootstrap, topics=topic, group=unique("g"), output=place / str(seed) / writer, writer=writer,
                spark=spark, **chosen.options,
            )
            for writer in WRITERS
        }  # fmt: skip
        assert {(one.rows, one.bad) for one in done.values()} == {(count, done["spark"].bad)}, where
        paths = [place / str(seed) / writer for writer in WRITERS]
        assert folders(paths[0]) == folders(paths[1]), where
        is_delta = chosen.options["table_format"] == "delta"
        read = delta if is_delta and not chosen.has_folders_of_decimals else parquet
        ours, theirs = map(read, paths)
        assert ours.schema.equals(theirs.schema), where
        order = [(name, "ascending") for name in ("topic", "partition", "offset")]
        assert ours.sort_by(order).equals(theirs.sort_by(order)), where
        assert ours.num_rows == len(set(record_ids(ours))) == count, where
        if is_delta:
            assert partition_values(paths[0]) == partition_values(paths[1]), where
        for kind in (chosen.form, chosen.options["table_format"], "folders" if chosen.options["partition_by"] else ""):
            met[kind] = met.get(kind, 0) + 1
        shutil.rmtree(place / str(seed))
    return met


def partition_values(output: Path) -> set[str]:
    """The partition values in the table's log."""
    lines = [line for path in output.glob("_delta_log/*.json") for line in path.read_text().splitlines()]
    added = [action["add"] for action in map(json.loads, lines) if "add" in action]
    return {json.dumps(add["partitionValues"], sort_keys=True) for add in added}


def test_random_tables_are_equal_for_both_writers(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    """JSON and Avro, Parquet and Delta, folders by columns of any type."""
    check_by_chance(spark, bootstrap, tmp_path, [6, 7], 60)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_records_in_random_tables_are_equal(part: int, spark: Any, bootstrap: str, tmp_path: Path) -> None:
    met = check_by_chance(spark, bootstrap, tmp_path, range(100 + 10 * part, 110 + 10 * part), 100)
    print(f"part {part}: 1,000 records, tables {met}")


@pytest.mark.parametrize("table_format", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_a_table_is_continued_with_either_writer(
    table_format: str, spark: Any, admin: Admin, bootstrap: str, group: str, tmp_path: Path
) -> None:
    topic, output = unique("writers"), tmp_path / "t"
    create_topic(bootstrap, topic, 2)
    for number, writer in enumerate(["spark", "workers", "workers", "spark"]):
        publish(bootstrap, topic, [b"%d" % number] * 50, partition=number % 2)
        given: dict[str, Any] = {"topics": topic, "output": output, "table_format": table_format, "writer": writer}
        done = ingest(bootstrap, **given, group=group, partition_by=["partition"], spark=spark)
        assert (done.rows, done.batches) == (50, 1)
    found = parquet(output) if table_format == "parquet" else delta(output)
    assert record_ids(found) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic) == checkpoint_end(output / "_odradek" / "checkpoint")
    # A replay is identified by its ranges, for either writer.
    for writer, already in (("workers", False), ("spark", True)):
        again = replay(
            bootstrap, topics=topic, output=output, table_format=table_format, writer=writer,
            partition_by=["partition"], spark=spark,
        )  # fmt: skip
        assert (again.rows, again.already) == (200, already)


def test_a_hundred_small_partitions_make_one_file_and_micro_batches_are_limited(
    engine: Any, admin: Admin, bootstrap: str, group: str, tmp_path: Path
) -> None:
    small, large = unique("small"), unique("large")
    create_topic(bootstrap, small, 100)
    for partition in range(100):
        publish(bootstrap, small, [b"x"] * 10, partition=partition)
    done = ingest(bootstrap, topics=small, group=group, output=tmp_path / "small", spark=engine)
    assert (done.rows, done.batches) == (1000, 1)
    assert len(list((tmp_path / "small").glob("*.parquet"))) == 1

    create_topic(bootstrap, large, 1)
    for _ in range(8):  # 4 MB that no codec compresses
        publish(bootstrap, large, [os.urandom(1000) for _ in range(500)], partition=0)
    given: dict[str, Any] = {"topics": large, "spark": engine}
    whole = ingest(bootstrap, group=unique("g"), output=tmp_path / "whole", task_size="500k", **given)
    assert whole.batches == 1
    assert 8 <= len(list((tmp_path / "whole").glob("*.parquet"))) <= 10
    cut = ingest(bootstrap, group=unique("g"), output=tmp_path / "cut", batch_size="1m", **given)
    assert 4 <= cut.batches <= 5
    assert record_ids(parquet(tmp_path / "cut")) == record_ids(parquet(tmp_path / "whole")) == expected(admin, large)
    one = ingest(bootstrap, group=unique("g"), output=tmp_path / "one", task_size="500k", files_per_batch=1, **given)
    assert one.batches == len(list((tmp_path / "one").glob("*.parquet"))) == 1


@pytest.mark.parametrize("table_format", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_each_micro_batch_becomes_one_file_if_requested(
    table_format: str, engine: Any, admin: Admin, bootstrap: str, group: str, tmp_path: Path
) -> None:
    """--files-per-batch takes precedence over --task-size, for many partitions, too. Each folder has its own files."""
    topic = unique("few")
    create_topic(bootstrap, topic, 8)
    for partition in range(8):
        publish(bootstrap, topic, [os.urandom(1000) for _ in range(300)], partition=partition)
    given: dict[str, Any] = {"topics": topic, "task_size": "100k", "files_per_batch": 1, "table_format": table_format}
    given["options"] = {"maxOffsetsPerTrigger": "800"}
    read = parquet if table_format == "parquet" else delta
    done = ingest(bootstrap, **given, group=group, output=tmp_path / "t", spark=engine)
    assert (done.rows, done.batches, done.files) == (2400, 3, 3)
    assert record_ids(read(tmp_path / "t")) == expected(admin, topic)
    folders = ingest(
        bootstrap, **given, group=unique("g"), output=tmp_path / "p", partition_by=["partition"], spark=engine
    )
    assert (folders.rows, folders.batches, folders.files) == (2400, 3, 24)
    assert record_ids(read(tmp_path / "p")) == expected(admin, topic)


@pytest.mark.slow
def test_a_few_large_records_are_split_by_their_bytes(spark: Any, admin: Admin, bootstrap: str, tmp_path: Path) -> None:
    """A task reads about --task-size bytes, independent of the number of offsets. Small records share one task."""
    large, few, small = unique("large"), unique("few"), unique("small")
    for name, sizes in ((large, [50_000] * 400), (few, [900_000] * 12), (small, [1000] * 400)):
        create_topic(bootstrap, name, 1)
        for at in range(0, len(sizes), 10):  # record batches of ten values that no codec compresses
            publish(bootstrap, name, [os.urandom(size) for size in sizes[at : at + 10]], partition=0)
    for name, files in ((large, range(18, 25)), (few, range(9, 14)), (small, range(1, 2))):
        output = tmp_path / name
        ingest(bootstrap, topics=name, group=unique("g"), output=output, task_size="1m", spark=spark)
        assert len(list(output.glob("*.parquet"))) in files, name
        assert record_ids(parquet(output)) == expected(admin, name)


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("how", ["fails", "dies", "slow"])
def test_other_attempts_of_a_task_leave_no_files(
    how: str, table_format: str, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    """Two attempts of one task have written files. Spark repeats a task that failed after its last file. It also runs a
    slow task a second time, but only on another host."""
    topic, output = unique("attempts"), tmp_path / "lake" / "t"
    create_topic(bootstrap, topic, 4)
    for partition in range(4):
        publish(bootstrap, topic, [b"%d" % n for n in range(250)], partition=partition, key="k")
    child = Path(__file__).with_name("attempts_child.py")
    with standalone(tmp_path / "cluster", [True, True], hosts=["127.0.0.1", "127.0.0.2"]) as cluster:
        line = [sys.executable, str(child), cluster.address, bootstrap, topic, str(output), table_format, how]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["rows"], said["beside"]) == (1000, [])
    first, second = (said["written"][f"0-{attempt}"] for attempt in range(2))
    assert len(first) == len(second) == 1, said
    assert set(first).isdisjoint(said["reported"]), said
    assert set(second) < set(said["reported"]), said
    assert said["attempts"][0] == 1, said
    assert said["records"] == [""], "an attempt may still write, so later runs check for its files"
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, topic)
    assert duckdb_count(output) == 1000, "every file belongs to a version"
