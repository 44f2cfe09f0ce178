"""Commits of ordinary clients: what a commit covers, late replies and errors, commits of idle clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as PythonTopicPartition
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import CommitFailedError, IllegalStateError, KafkaTimeoutError
from support.brokers import eventually, unique
from support.publish import commit, committed, consumer, create_topic, log_end, numbers, publish, read

import odradek
from odradek.core.ids import OFFSETS_TOPIC, partition_for_group


@pytest.fixture(scope="module")
def shared() -> Iterator[odradek.Broker]:
    with odradek.Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: odradek.Broker) -> odradek.Broker:
    shared.faults.clear()
    return shared


def commits_so_far(servers: str, group: str) -> int:
    """The log end offset of the group's partition of the offsets topic. Each commit record raises it by one."""
    return log_end(servers, OFFSETS_TOPIC, partition_for_group(group, 50))


def python_consumer(servers: str, group: str, topic: str, **settings: Any) -> KafkaConsumer:
    made = KafkaConsumer(
        bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest",
        **({"enable_auto_commit": False, "consumer_timeout_ms": 1000, "retry_backoff_ms": 50} | settings),
    )  # fmt: skip
    made.assign([PythonPartition(topic, 0)])
    return made


def take(source: KafkaConsumer, count: int) -> None:
    found = []
    eventually(lambda: found.extend(r for rows in source.poll(200).values() for r in rows) or len(found) >= count)


@pytest.mark.claim(29)
def test_one_commit_covers_all_returned_records(broker: odradek.Broker, topic: str, group: str) -> None:
    # 500 records in each of two partitions; one commit record for each partition, with the position.
    servers = broker.bootstrap_servers
    create_topic(servers, topic, 2)
    source = consumer(servers, group, auto_offset_reset="earliest")
    for partition in (0, 1):
        publish(servers, topic, numbers(500), partition=partition)
    source.subscribe([topic])
    read(source, 1000)
    before = commits_so_far(servers, group)
    source.commit(asynchronous=False)
    assert commits_so_far(servers, group) == before + 2
    both = [TopicPartition(topic, partition) for partition in (0, 1)]
    assert committed(servers, group) == {(topic, 0): 500, (topic, 1): 500}
    assert [row.offset for row in source.position(both)] == [500, 500]
    source.close()


@pytest.mark.claim(31, part="ac")
def test_a_synchronous_commit_retries_temporary_errors(broker: odradek.Broker, topic: str, group: str) -> None:
    # commit() of kafka-python is like Java's commitSync: it retries temporary errors until its timeout, and raises
    # other errors at once.
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    publish(servers, topic, numbers(10))
    source = python_consumer(servers, group, topic)
    take(source, 10)
    passing = ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"]
    for code in passing:
        broker.faults.error("OffsetCommit", code, topic=topic)
    source.commit()
    assert [(fault.kind, fault.api) for fault in broker.faults.fired][-3:] == [("error", "OffsetCommit")] * 3
    assert committed(servers, group) == {(topic, 0): 10}
    broker.faults.error("OffsetCommit", "ILLEGAL_GENERATION", topic=topic)
    with pytest.raises(CommitFailedError):
        source.commit()
    broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=None, topic=topic)
    with pytest.raises(KafkaTimeoutError):
        source.commit(timeout_ms=600)
    broker.faults.clear()
    source.close()


@pytest.mark.claim(31, part="b")
def test_an_awaited_commit_succeeds_after_a_restart(topic: str, group: str) -> None:
    # The broker is killed; one commit() that starts while it is down succeeds after the restart.
    async def commit_meanwhile(broker: odradek.Broker) -> float:
        source = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id=group, enable_auto_commit=False, retry_backoff_ms=100
        )
        await source.start()
        try:
            where = PythonTopicPartition(topic, 0)
            source.assign([where])
            await source.commit({where: 1})
            broker.kill()
            began = time.monotonic()
            back = asyncio.get_running_loop().call_later(1.0, threading.Thread(target=broker.start).start)
            await asyncio.wait_for(source.commit({where: 10}), 20)
            back.cancel()
            return time.monotonic() - began
        finally:
            await source.stop()

    with odradek.Broker() as broker:
        create_topic(broker.bootstrap_servers, topic)
        publish(broker.bootstrap_servers, topic, numbers(10))
        assert asyncio.run(commit_meanwhile(broker)) >= 1
        assert committed(broker.bootstrap_servers, group) == {(topic, 0): 10}


@pytest.mark.claim(32)
def test_an_asynchronous_commit_returns_at_once_and_calls_back_later(
    broker: odradek.Broker, topic: str, group: str
) -> None:
    # The reply is delayed; a later poll calls the callback with the offsets, and with the error if there is one.
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    calls: list[tuple[Any, list[int]]] = []
    source = consumer(servers, group, on_commit=lambda error, rows: calls.append((error, [row.offset for row in rows])))
    source.assign([TopicPartition(topic, 0, 0)])
    source.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    calls.clear()
    broker.faults.delay("OffsetCommit", 3, topic=topic)
    began = time.monotonic()
    assert source.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=True) is None
    assert time.monotonic() - began < 3, "the call does not wait for the reply"
    source.poll(0.1)
    assert calls == []
    eventually(lambda: source.poll(0.1) is None and calls)
    assert time.monotonic() - began >= 3
    assert calls == [(None, [7])]
    broker.faults.error("OffsetCommit", "OFFSET_METADATA_TOO_LARGE", topic=topic)
    source.commit(offsets=[TopicPartition(topic, 0, 8)], asynchronous=True)
    eventually(lambda: source.poll(0.1) is None and len(calls) == 2)
    assert calls[1][0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert committed(servers, group) == {(topic, 0): 7}
    source.close()


@pytest.mark.claim(69, part="a")
def test_two_consumers_with_assign_both_read_all_records(broker: odradek.Broker, topic: str, group: str) -> None:
    # Both consumers have the same group id and use assign, so the group has no members.
    servers = broker.bootstrap_servers
    create_topic(servers, topic, 2)
    for partition in (0, 1):
        publish(servers, topic, numbers(5), partition=partition)
    readers = [consumer(servers, group) for _ in range(2)]
    for reader in readers:
        reader.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    everything = [(partition, offset) for partition in (0, 1) for offset in range(5)]
    for reader in readers:
        assert sorted((message.partition(), message.offset()) for message in read(reader, 10)) == everything
    member = consumer(servers, group, auto_offset_reset="earliest")
    member.subscribe([topic])
    read(member, 10)
    with pytest.raises(KafkaException) as raised:  # Kafka 4.3: if a group has live members, other clients cannot commit
        readers[0].commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    mixed = python_consumer(servers, unique("group"), topic)
    with pytest.raises(IllegalStateError):
        mixed.subscribe([topic])
    mixed.close()
    for source in (*readers, member):
        source.close()


@pytest.mark.claim(88)
def test_automatic_commits_of_an_idle_consumer_differ_between_clients(
    broker: odradek.Broker, topic: str, group: str
) -> None:
    # librdkafka commits only changed positions. kafka-python, like Java's client, repeats commits of the same offset.
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    publish(servers, topic, numbers(100))
    quiet = consumer(servers, group, auto_offset_reset="earliest", enable_auto_commit=True, auto_commit_interval_ms=200)
    quiet.subscribe([topic])
    read(quiet, 100)
    eventually(lambda: quiet.poll(0.1) is None and committed(servers, group) == {(topic, 0): 100})
    before, until = commits_so_far(servers, group), time.monotonic() + 2
    while time.monotonic() < until:
        assert quiet.poll(0.1) is None
    assert commits_so_far(servers, group) == before
    quiet.close()
    other = unique("group")
    busy = python_consumer(servers, other, topic, enable_auto_commit=True, auto_commit_interval_ms=200)
    take(busy, 100)
    eventually(lambda: busy.poll(100) == {} and committed(servers, other) == {(topic, 0): 100})
    before, until = commits_so_far(servers, other), time.monotonic() + 2
    while time.monotonic() < until:
        assert busy.poll(50) == {}
    assert 4 <= commits_so_far(servers, other) - before <= 12
    assert committed(servers, other) == {(topic, 0): 100}
    busy.close(autocommit=False)


@pytest.mark.claim(13)
def test_a_commit_of_offset_one_million_has_as_many_bytes_as_one_of_offset_1(
    broker: odradek.Broker, topic: str, group: str
) -> None:
    bootstrap = broker.bootstrap_servers
    create_topic(bootstrap, topic)
    partition = partition_for_group(group, 50)
    commit(bootstrap, group, {(topic, 0): 0})
    at = log_end(bootstrap, OFFSETS_TOPIC, partition)
    sizes = []
    for offset in (1, 1_000_000):
        before = log_bytes(bootstrap, OFFSETS_TOPIC, partition)
        commit(bootstrap, group, {(topic, 0): offset})
        sizes.append(log_bytes(bootstrap, OFFSETS_TOPIC, partition) - before)
    assert sizes[0] == sizes[1]
    assert 0 < sizes[0] < 300, "one record in a batch of its own, however many records the group has read"
    assert log_end(bootstrap, OFFSETS_TOPIC, partition) == at + 2
    assert committed(bootstrap, group) == {(topic, 0): 1_000_000}


def log_bytes(bootstrap: str, topic: str, partition: int) -> int:
    """The size of a partition's log in bytes, as DescribeLogDirs of kafka-python's admin client reports it."""
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (broker,) = client.describe_log_dirs({topic: [partition]})
        (found,) = [row for path in broker["log_dirs"] for name in path["topics"] for row in name["partitions"]]
        return int(found["partition_size"])
    finally:
        client.close()
