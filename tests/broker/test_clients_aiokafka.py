"""aiokafka as a client of the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as aiokafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.structs import OffsetAndMetadata
from support.brokers import RunningBroker, eventually, unique
from support.member import Member, settled
from support.publish import commit, committed, create_topic, numbers, publish

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


@asynccontextmanager
async def consuming(bootstrap: str, group: str | None, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 500,
        "fetch_max_wait_ms": 100,
    }
    source = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, **(settings | config))
    await source.start()
    try:
        yield source
    finally:
        await source.stop()


async def read(source: AIOKafkaConsumer, count: int, within_s: float = 20) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for records in (await source.getmany(timeout_ms=200)).values():
            found.extend(records)
    return found


def values(records: list[Any]) -> list[int]:
    return [int(record.value) for record in records]


@pytest.fixture
def ten(bootstrap: str, topic: str) -> str:
    """A topic of one partition with the values 0 to 9 at the offsets 0 to 9."""
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    return topic


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_are_read_back_unchanged(bootstrap: str, topic: str, codec: str | None, idempotent: bool) -> None:
    sent = [(b"k", b"v" * 300, [("h", b"1"), ("h", b"")]), (None, b"no key", []), (b"no value", None, [])] * 60

    async def steps() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            compression_type=codec,
            enable_idempotence=idempotent,
            linger_ms=20,
        ) as producer:
            futures = [
                await producer.send(topic, value, key, partition=0, headers=headers) for key, value, headers in sent
            ]
            answers = await asyncio.gather(*futures)
        assert [answer.offset for answer in answers] == list(range(180))
        async with consuming(bootstrap, None) as source:
            where = TopicPartition(topic, 0)
            source.assign([where])
            await source.seek_to_beginning(where)
            got = await read(source, 180)
            assert [(record.key, record.value, list(record.headers)) for record in got] == sent
            assert [record.offset for record in got] == list(range(180))

    create_topic(bootstrap, topic)
    run(steps())


def test_many_records_and_a_large_one_are_read_back(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)

    async def steps() -> None:
        big = bytes(range(256)) * 3600
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=900_000) as producer:
            futures = [await producer.send(topic, b"%0100d" % n, partition=0) for n in range(5000)]
            await asyncio.gather(*futures)
            assert (await producer.send_and_wait(topic, big, partition=0)).offset == 5000
        async with consuming(bootstrap, None) as source:
            where = TopicPartition(topic, 0)
            source.assign([where])
            source.seek(where, 0)
            got = await read(source, 5001)
            assert values(got[:-1]) == list(range(5000))
            assert got[-1].value == big

    run(steps())


@pytest.mark.claim(39)
@pytest.mark.claim(18, 29, 46, part=True)
def test_commits_with_and_without_given_offsets_are_stored(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10))
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def steps() -> None:
        async with consuming(bootstrap, group) as source:
            source.assign([zero, one])
            await source.seek_to_beginning()
            await read(source, 10)
            assert await source.position(zero) == 10
            await source.commit()
            await source.commit({one: (5, "note")})
            assert await source.committed(one) == 5
        async with AIOKafkaAdmin(bootstrap) as client:
            found = await client.list_consumer_group_offsets(group)
            assert found == {zero: OffsetAndMetadata(10, ""), one: OffsetAndMetadata(5, "note")}

    run(steps())
    assert committed(bootstrap, group) == {(topic, 0): 10, (topic, 1): 5}


@asynccontextmanager
async def AIOKafkaAdmin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.claim(49, 50)
@pytest.mark.claim(51, part="a")
@pytest.mark.claim(45, part="ac")
@pytest.mark.claim(52, part=True)
def test_the_start_position_follows_commit_and_reset(bootstrap: str, ten: str) -> None:
    where = TopicPartition(ten, 0)
    committer = unique("group")
    commit(bootstrap, committer, {(ten, 0): 7})

    async def steps() -> None:
        for reset in ("earliest", "latest", "none"):
            async with consuming(bootstrap, committer, auto_offset_reset=reset) as source:
                source.assign([where])
                assert values(await read(source, 3)) == [7, 8, 9]
        async with AIOKafkaAdmin(bootstrap) as client:
            assert await client.delete_records({where: RecordsToDelete(4)}) == {where: 4}
        async with consuming(bootstrap, unique("group"), auto_offset_reset="earliest", max_poll_records=2) as source:
            source.assign([where])
            first = await source.getmany(timeout_ms=5000)
            assert values(first[where]) == [4, 5]
            assert await source.beginning_offsets([where]) == {where: 4}
            assert await source.end_offsets([where]) == {where: 10}
        async with consuming(bootstrap, unique("group"), auto_offset_reset="none") as source:
            source.assign([where])
            with pytest.raises(aiokafka_errors.NoOffsetForPartitionError):
                await source.getmany(timeout_ms=5000)
        async with consuming(bootstrap, unique("group"), auto_offset_reset="latest") as source:
            source.assign([where])
            assert await source.position(where) == 10
            publish(bootstrap, ten, [b"10"])
            assert values(await read(source, 1)) == [10]

    run(steps())


@pytest.mark.claim(43, 57, part=True)
def test_an_offset_out_of_range_applies_the_reset(bootstrap: str, ten: str) -> None:
    where = TopicPartition(ten, 0)
    group = unique("group")
    commit(bootstrap, group, {(ten, 0): 20})

    async def steps() -> None:
        async with consuming(bootstrap, group, auto_offset_reset="earliest") as source:
            source.assign([where])
            assert values(await read(source, 10)) == list(range(10))
        async with consuming(bootstrap, group, auto_offset_reset="none") as source:
            source.assign([where])
            with pytest.raises(aiokafka_errors.OffsetOutOfRangeError):
                await read(source, 1)

    run(steps())


@pytest.mark.claim(58)
@pytest.mark.behaviour(48)
def test_a_seek_and_a_lookup_by_time_find_their_records(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    base = int(time.time() * 1000) - 100_000
    publish(bootstrap, topic, numbers(10), timestamps_ms=[base + 1000 * n for n in range(10)], compression_type="zstd")
    where = TopicPartition(topic, 0)

    async def steps() -> None:
        async with consuming(bootstrap, group) as source:
            source.assign([where])
            found = await source.offsets_for_times({where: base + 4500})
            assert (found[where].offset, found[where].timestamp) == (5, base + 5000)
            assert (await source.offsets_for_times({where: base + 50_000}))[where] is None
            for offset in (8, 6):
                source.seek(where, offset)
                assert values(await read(source, 10 - offset)) == list(range(offset, 10))

    run(steps())


@pytest.mark.claim(59, 67)
@pytest.mark.claim(64, part=True)
def test_two_members_share_and_one_takes_over_when_the_other_leaves(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 5)
    for partition in range(5):
        publish(bootstrap, topic, numbers(10), partition=partition)
    with (
        Member("aiokafka", bootstrap, group, topic, assignor="roundrobin", commit=True) as stays,
        Member("aiokafka", bootstrap, group, topic, assignor="roundrobin", commit=True) as leaves,
    ):
        settled([stays, leaves], 5)
        assert sorted([stays.assigned, leaves.assigned], key=min) == [{0, 2, 4}, {1, 3}]
        eventually(lambda: committed(bootstrap, group) == {(topic, n): 10 for n in range(5)})
        leaves.leave()
        settled([stays], 5)
        for partition in range(5):
            publish(bootstrap, topic, numbers(1), partition=partition)
        eventually(lambda: {(n, 10) for n in range(5)} <= set(stays.records))


@pytest.mark.claim(59)
@pytest.mark.claim(70, part="a")
@pytest.mark.claim(45, 64, part="b")
@pytest.mark.claim(66, part=True)
def test_members_of_three_clients_share_one_group(bootstrap: str, topic: str, group: str) -> None:
    # The coordinator chooses the leader. Later one member is killed, and another one leaves.
    create_topic(bootstrap, topic, 6)
    with (
        Member("confluent", bootstrap, group, topic, commit=True) as confluent,
        Member("kafka-python", bootstrap, group, topic, commit=True) as kafka_python,
        Member("aiokafka", bootstrap, group, topic, commit=True) as aiokafka,
    ):
        members = [confluent, kafka_python, aiokafka]
        settled(members, 6)
        assert sorted([member.assigned for member in members], key=min) == [{0, 1}, {2, 3}, {4, 5}]
        for partition in range(6):
            publish(bootstrap, topic, numbers(20), partition=partition)
        eventually(lambda: committed(bootstrap, group) == {(topic, n): 20 for n in range(6)})
        aiokafka.kill()
        settled([confluent, kafka_python], 6, within_s=25)
        confluent.leave()
        settled([kafka_python], 6)
        for partition in range(6):
            publish(bootstrap, topic, numbers(1), partition=partition)
        eventually(lambda: {(n, 20) for n in range(6)} <= set(kafka_python.records))
        everything = [row for member in members for row in member.records]
        assert sorted(everything) == [(n, k) for n in range(6) for k in range(21)]


@pytest.mark.claim(77, part="ab")
def test_the_offsets_topic_is_created_for_the_first_group(
    own_broker: Callable[..., RunningBroker], topic: str, group: str
) -> None:
    # Neither producers nor readers without a group create the topic.
    broker = own_broker()
    where = TopicPartition(topic, 0)
    create_topic(broker.bootstrap, topic)
    publish(broker.bootstrap, topic, numbers(3))

    async def steps() -> None:
        async with AIOKafkaAdmin(broker.bootstrap) as client:
            async with consuming(broker.bootstrap, None) as source:
                source.assign([where])
                source.seek(where, 0)
                assert values(await read(source, 3)) == [0, 1, 2]
            assert await client.list_topics() == [topic]
            async with consuming(broker.bootstrap, group, topic, auto_offset_reset="earliest") as source:
                await read(source, 3)
                await source.commit({where: 2})
            assert sorted(await client.list_topics()) == ["__consumer_offsets", topic]
        found = {path.name for path in (broker.directory / "data").glob("__consumer_offsets-*")}
        assert found == {f"__consumer_offsets-{number}" for number in range(50)}

    run(steps())


@pytest.mark.claim(92, part="a")
def test_a_restart_keeps_records_and_commits(own_broker: Callable[..., RunningBroker], topic: str, group: str) -> None:
    broker = own_broker()
    create_topic(broker.bootstrap, topic)
    where = TopicPartition(topic, 0)

    async def steps() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            for n in range(100):
                await producer.send(topic, b"%d" % n, partition=0)
            await producer.flush()
            async with consuming(broker.bootstrap, group, topic, auto_offset_reset="earliest") as source:
                assert values(await read(source, 100)) == list(range(100))
                await source.commit({where: 60})
            broker.kill()
            broker.start()
            # The idempotent producer continues with its next sequence numbers.
            answers = [await producer.send_and_wait(topic, b"%d" % n, partition=0) for n in range(100, 110)]
            assert [answer.offset for answer in answers] == list(range(100, 110))
        async with consuming(broker.bootstrap, group, topic) as source:
            assert values(await read(source, 50, within_s=30)) == list(range(60, 110))

    run(steps())


def test_admin_manages_topics_and_groups(bootstrap: str, topic: str, group: str) -> None:
    async def steps() -> None:
        async with AIOKafkaAdmin(bootstrap) as client:
            answer = await client.create_topics([NewTopic(topic, 3, 1)])
            assert [row[1] for row in answer.topic_errors] == [0]
            assert topic in await client.list_topics()
            (described,) = await client.describe_topics([topic])
            assert sorted(row["partition"] for row in described["partitions"]) == [0, 1, 2]
            async with consuming(bootstrap, group, topic, auto_offset_reset="earliest") as source:
                await source.getmany(timeout_ms=100)
                (answer,) = await client.describe_consumer_groups([group])
                (found,) = answer.groups
                assert (found[0], found[1], found[2]) == (0, group, "Stable")
                assert len(found[5]) == 1
                assert group in {row[0] for row in await client.list_consumer_groups()}
            await client.delete_topics([topic])
            for _ in range(100):
                if topic not in await client.list_topics():
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail("the topic is still listed")

    run(steps())
