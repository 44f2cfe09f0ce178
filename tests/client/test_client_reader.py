"""Reading of partitions by offset, with a running broker."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, eventually
from support.publish import publish as publish_values

from odradek import Consumer
from odradek.batches.columns import COLUMNS
from odradek.client import Admin, NewTopic, PartitionReader, TopicPartition, loop, read_range, topic_requests
from odradek.client.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopic
from odradek.client.reader import shared_cluster
from odradek.core.ids import OFFSETS_TOPIC

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def offsets(batches: Iterator[Any]) -> list[int]:
    return [offset for one in batches for offset in one.column("offset").to_pylist()]


@pytest.mark.claim(5)
def test_a_fetch_gets_the_records_from_its_offset_on(admin: Admin, filled: str) -> None:
    reader = PartitionReader(admin.config, TopicPartition(filled, 0), columns=COLUMNS)
    fetched = reader.fetch(5)
    (batch,) = fetched.record_batches
    rows = batch.to_pylist()
    assert [row["offset"] for row in rows] == [5, 6, 7, 8, 9]
    assert rows[0]["key"] == b"5"
    assert rows[0]["value"] == b"0:5"
    assert rows[0]["headers"] == [{"key": "n", "value": b"5"}]
    assert rows[0]["timestamp"].timestamp() == pytest.approx(1_700_000_000.005)
    assert (rows[0]["topic"], rows[0]["partition"], rows[0]["timestampType"]) == (filled, 0, 0)
    assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset) == (10, 10, 0)


@pytest.mark.claim(95, part="a")
def test_each_fetch_has_its_own_offset_and_limits(admin: Admin, publish: Any, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    publish(topic, {0: 300}, **{"batch.num.messages": 10})
    reader = PartitionReader(admin.config, TopicPartition(topic, 0), columns=("offset",))
    small = offsets(iter(reader.fetch(100, max_bytes=700).record_batches))
    large = offsets(iter(reader.fetch(100).record_batches))
    assert small[0] == large[0] == 100
    assert len(small) < 60
    assert large == list(range(100, 300))
    assert reader.fetch(300, max_wait_ms=10).record_batches == ()


@pytest.mark.claim(95, part="b")
def test_reading_without_a_group_commits_nothing(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    running = own_broker()
    with Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        publish_values(running.bootstrap, topic, ["v"] * 10)
        assert offsets(read_range(admin.config, (topic, 0), 0, 10)) == list(range(10))
        with Consumer(running.bootstrap, auto_offset_reset="earliest") as one:
            one.assign([TopicPartition(topic, 0)])
            assert eventually(lambda: one.poll(0.5), within_s=30).num_rows == 10
        assert OFFSETS_TOPIC not in admin.topics(), "no commit has created the offsets topic"


@pytest.mark.claim(6, 58, 97)
def test_records_are_read_repeatedly_and_in_part(admin: Admin, filled: str) -> None:
    reader = PartitionReader(admin.config, TopicPartition(filled, 1))
    assert [offsets(iter(reader.fetch(7).record_batches)) for _ in range(3)] == [[7, 8, 9]] * 3
    assert offsets(reader.read(8, 10)) == [8, 9]
    assert offsets(reader.read(6, 8)) == [6, 7]  # lower offsets than before
    values = [value for one in reader.read(0, 10) for value in one.column("value").to_pylist()]
    assert values == [f"1:{number}".encode() for number in range(10)]


@pytest.mark.claim(10, part=True)
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read(admin: Admin, publish: Any, topic: str, codec: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 2_000}, **{"compression.type": codec})
    read = list(read_range(admin.config, (topic, 0), 13, 1_987, max_partition_fetch_bytes=20_000))
    assert offsets(iter(read)) == list(range(13, 1_987))
    assert [v for one in read for v in one.column("value").to_pylist()] == [b"0:%d" % n for n in range(13, 1_987)]


def test_a_long_range_takes_many_fetches(admin: Admin, publish: Any, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 20_000}, **{"batch.num.messages": 500})
    read = list(read_range(admin.config, (topic, 0), 0, 20_000, columns=("offset",), max_partition_fetch_bytes=50_000))
    assert len(read) > 5
    assert offsets(iter(read)) == list(range(20_000))


def test_rows_equal_columns(admin: Admin, filled: str) -> None:
    reader = PartitionReader(admin.config, TopicPartition(filled, 0))
    (batch,) = reader.read(2, 9)
    rows = list(reader.read_rows(2, 9))
    assert [row.offset for row in rows] == batch.column("offset").to_pylist()
    assert [row.value for row in rows] == batch.column("value").to_pylist()
    assert (rows[0].timestamp, rows[0].headers) == (1_700_000_000_002, (("n", b"2"),))


def test_invalid_arguments_are_refused_without_a_request() -> None:
    with pytest.raises(ValueError, match="unknown column 'Offset': one of key, value"):
        read_range("127.0.0.1:1", ("t", 0), 0, 1, columns=("Offset",))
    with pytest.raises(ValueError, match="isolation level 'dirty'"):
        read_range("127.0.0.1:1", ("t", 0), 0, 1, isolation_level="dirty")


def test_empty_ranges_send_no_request() -> None:
    assert list(read_range("127.0.0.1:1", ("t", 0), 5, 5)) == []
    assert list(read_range("127.0.0.1:1", ("t", 0), 5, 4)) == []


def test_out_of_range_errors_have_the_start_and_end_of_the_log(admin: Admin, filled: str) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        list(read_range(admin.config, (filled, 0), 11, 12))
    error = caught.value
    assert (error.partition, error.offset) == (TopicPartition(filled, 0), 11)
    assert (error.log_start_offset, error.log_end_offset) == (0, 10)


def test_a_read_waits_for_an_end_offset_beyond_the_log_and_names_it(admin: Admin, filled: str) -> None:
    with pytest.raises(RequestTimedOut, match=r"offset 11 did not appear within 900 ms; the readable log ends at 10"):
        list(read_range(admin.config, (filled, 0), 8, 12, default_api_timeout_ms=900))


def test_the_cleanup_policy_of_a_topic_is_looked_up(admin: Admin, filled: str, topic: str) -> None:
    admin.create_topics([NewTopic(f"{topic}-c", 1, 1, {"cleanup.policy": "compact"})])
    cluster = shared_cluster(admin.config)
    found = [
        loop.run(topic_requests.is_compacted(cluster, name, cluster.deadline())) for name in (filled, f"{topic}-c")
    ]
    assert found == [False, True]


def test_an_unknown_topic_or_partition_is_an_error(admin: Admin, filled: str) -> None:
    with pytest.raises(UnknownTopic, match="unknown topic nosuch"):
        list(read_range(admin.config, ("nosuch", 0), 0, 1))
    with pytest.raises(UnknownTopic, match=f"topic {filled} has no partition 5"):
        list(read_range(admin.config, (filled, 5), 0, 1))


def test_a_topic_that_is_deleted_during_a_read_is_an_error(admin: Admin, publish: Any, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 3_000}, **{"batch.num.messages": 50})
    batches = read_range(admin.config, (topic, 0), 0, 3_000, max_partition_fetch_bytes=1_000)
    next(batches)
    admin.delete_topics([topic])
    with pytest.raises(UnknownTopic, match=f"unknown topic {topic}"):
        list(batches)


def read_in_child(reader: PartitionReader, answers: Any) -> None:
    answers.put((os.getpid(), offsets(reader.read(0, 10))))


def test_a_forked_worker_reads_on_its_own_connections(admin: Admin, filled: str) -> None:
    """As with PySpark's workers, the parent process reads and forks. Then the child reads, and the parent again."""
    reader = PartitionReader(admin.config, TopicPartition(filled, 0))
    assert offsets(reader.read(0, 10)) == list(range(10))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(reader, answers))
    child.start()
    pid, read = answers.get()
    child.join(20)
    assert child.exitcode == 0
    assert pid != os.getpid()
    assert read == list(range(10))
    assert offsets(reader.read(0, 10)) == list(range(10))


def use_in_child(admin: Admin, answers: Any) -> None:
    try:
        admin.topics()
    except ValueError as error:
        answers.put(str(error))
    admin.close()


def test_an_admin_refuses_calls_in_a_forked_process(admin: Admin) -> None:
    admin.topics()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=use_in_child, args=(admin, answers))
    child.start()
    assert "belongs to its parent process" in answers.get()
    child.join(20)
    assert child.exitcode == 0
    assert admin.topics()


def test_pickled_readers_share_connections(admin: Admin, filled: str) -> None:
    reader = PartitionReader(admin.config, TopicPartition(filled, 0))
    copy = pickle.loads(pickle.dumps(reader))
    assert copy == reader
    assert shared_cluster(copy.config) is shared_cluster(reader.config)


def test_an_abandoned_read_leaves_the_connection_usable(admin: Admin, filled: str) -> None:
    for _ in range(20):
        next(read_range(admin.config, (filled, 0), 0, 10, max_partition_fetch_bytes=100))
    assert offsets(read_range(admin.config, (filled, 0), 0, 10)) == list(range(10))


@pytest.mark.claim(98, part=True)
def test_a_transaction_of_the_user_s_database_gives_exactly_once(
    admin: Admin, publish: Any, topic: str, tmp_path: Path
) -> None:
    """One transaction of the user's database stores the results and the offset. Each run starts at this offset."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 400}, **{"batch.num.messages": 20})
    database = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    database.execute("CREATE TABLE result (record INTEGER)")
    database.execute("CREATE TABLE progress (next INTEGER)")
    database.execute("INSERT INTO progress VALUES (0)")
    crashes = 0
    while True:
        (start,) = database.execute("SELECT next FROM progress").fetchone()
        if start == 400:
            break
        for batch in read_range(admin.config, (topic, 0), start, 400, max_partition_fetch_bytes=1_000):
            database.execute("BEGIN")
            numbers = batch.column("offset").to_pylist()
            database.executemany("INSERT INTO result VALUES (?)", [(number,) for number in numbers])
            database.execute("UPDATE progress SET next = ?", (numbers[-1] + 1,))
            if crashes < 5 and numbers[-1] > 60 * (crashes + 1):
                crashes += 1  # a crash within the transaction: the database keeps neither results nor offset
                database.execute("ROLLBACK")
                break
            database.execute("COMMIT")
    assert crashes == 5
    found = [number for (number,) in database.execute("SELECT record FROM result ORDER BY record")]
    assert found == list(range(400))
    database.close()
