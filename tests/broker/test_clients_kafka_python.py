"""kafka-python as a client of the broker.

For snappy, lz4 and zstd kafka-python needs packages that we do not install. The tests of aiokafka cover these codecs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka import errors as kafka_errors
from kafka.admin import NewTopic
from support.brokers import RunningBroker, eventually, unique
from support.member import Member, settled
from support.publish import commit, committed, create_topic, numbers, publish


def consumer(bootstrap: str, group: str | None, *topics: str, **config: Any) -> KafkaConsumer:
    settings = {
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 500,
        "fetch_max_wait_ms": 100,
        "reconnect_backoff_max_ms": 500,
    }
    return KafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, **(settings | config))


def read(source: KafkaConsumer, count: int, *, within_s: float = 20) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        for records in source.poll(timeout_ms=200).values():
            found.extend(records)
        return len(found) >= count

    eventually(enough, within_s=within_s, every_s=0, what=f"{count} records")
    return found


def values(records: list[Any]) -> list[int]:
    return [int(record.value) for record in records]


def assigned(bootstrap: str, group: str | None, topic: str, **config: Any) -> tuple[KafkaConsumer, TopicPartition]:
    where = TopicPartition(topic, 0)
    source = consumer(bootstrap, group, **config)
    source.assign([where])
    return source, where


@pytest.fixture
def ten(bootstrap: str, topic: str) -> str:
    """A topic of one partition with the values 0 to 9 at the offsets 0 to 9."""
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    return topic


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_are_read_back_unchanged(bootstrap: str, topic: str, codec: str | None, idempotent: bool) -> None:
    create_topic(bootstrap, topic)
    sent = [(b"k", b"v" * 300, [("h", b"1"), ("h", b"")]), (None, b"no key", []), (b"no value", None, [])] * 60
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type=codec, enable_idempotence=idempotent, linger_ms=20
    )
    futures = [producer.send(topic, value, key, headers, partition=0) for key, value, headers in sent]
    assert [future.get(20).offset for future in futures] == list(range(180))
    producer.close()
    source, where = assigned(bootstrap, None, topic)
    source.seek_to_beginning(where)
    got = read(source, 180)
    assert [(record.key, record.value, list(record.headers)) for record in got] == sent
    assert [record.offset for record in got] == list(range(180))
    source.close()


@pytest.mark.claim(63)
@pytest.mark.claim(65, part="a")
def test_the_first_poll_joins(bootstrap: str, ten: str, group: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    source = consumer(bootstrap, group, ten, auto_offset_reset="earliest")
    eventually(lambda: source.partitions_for_topic(ten))
    assert group not in {row["group_id"] for row in client.list_groups()}
    assert values(read(source, 10)) == list(range(10))
    described = client.describe_groups([group])[group]
    assert len(described["members"]) == 1
    assert described["protocol_data"] == "range"
    source.close()
    client.close()


@pytest.mark.claim(39)
@pytest.mark.claim(29, 32, part=True)
def test_synchronous_and_asynchronous_commits_store_their_offsets(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    publish(bootstrap, topic, numbers(10))
    source = consumer(bootstrap, group)
    source.assign([zero, one])
    source.seek_to_beginning(zero, one)
    read(source, 10)
    source.commit()
    assert committed(bootstrap, group) == {(topic, 0): 10, (topic, 1): 0}
    source.commit({one: OffsetAndMetadata(5, "note", -1)})
    assert committed(bootstrap, group) == {(topic, 0): 10, (topic, 1): 5}
    assert source.committed(one, metadata=True) == OffsetAndMetadata(5, "note", -1)
    outcomes: list[Any] = []
    source.commit_async(
        {zero: OffsetAndMetadata(7, "", -1)}, callback=lambda offsets, answer: outcomes.append((offsets, answer))
    )

    def called_back() -> bool:
        source.poll(timeout_ms=50)
        return bool(outcomes)

    eventually(called_back)
    assert not isinstance(outcomes[0][1], Exception)
    assert committed(bootstrap, group) == {(topic, 0): 7, (topic, 1): 5}
    source.close()


@pytest.mark.claim(17, 18)
@pytest.mark.claim(45, part="ac")
@pytest.mark.claim(46, part=True)
def test_a_standalone_consumer_resumes_at_its_commit(bootstrap: str, ten: str, group: str) -> None:
    # Claim 45: a poll returns at most max.poll.records. Claim 46: without a commit the next consumer reads the same
    # records again.
    source, where = assigned(bootstrap, group, ten, max_poll_records=3)
    source.seek(where, 0)
    assert values(eventually(lambda: source.poll(timeout_ms=500).get(where))) == [0, 1, 2]
    assert source.position(where) == 3
    assert committed(bootstrap, group) == {}
    heir, _ = assigned(bootstrap, group, ten, max_poll_records=3, auto_offset_reset="earliest")  # as after a crash
    assert values(eventually(lambda: heir.poll(timeout_ms=500).get(where))) == [0, 1, 2]
    heir.close()
    source.commit()
    assert committed(bootstrap, group) == {(ten, 0): 3}
    source.close()
    again, where = assigned(bootstrap, group, ten, max_poll_records=3)
    assert values(eventually(lambda: again.poll(timeout_ms=500).get(where))) == [3, 4, 5]
    again.close()


@pytest.mark.claim(49, 50)
@pytest.mark.claim(51, 52, part="a")
def test_the_start_position_follows_commit_and_reset(bootstrap: str, ten: str) -> None:
    committer = unique("group")
    commit(bootstrap, committer, {(ten, 0): 7})
    for reset in ("earliest", "latest", "none"):
        source, _ = assigned(bootstrap, committer, ten, auto_offset_reset=reset)
        assert values(read(source, 3)) == [7, 8, 9]
        source.close()
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.delete_records({TopicPartition(ten, 0): 4})
    client.close()
    source, where = assigned(bootstrap, unique("group"), ten, auto_offset_reset="earliest")
    assert values(read(source, 6)) == [4, 5, 6, 7, 8, 9]
    assert source.beginning_offsets([where]) == {where: 4}
    assert source.end_offsets([where]) == {where: 10}
    source.close()
    source, where = assigned(bootstrap, unique("group"), ten, auto_offset_reset="latest")
    assert source.position(where) == 10
    publish(bootstrap, ten, [b"10"])
    assert values(read(source, 1)) == [10]
    source.close()
    source, _ = assigned(bootstrap, unique("group"), ten, auto_offset_reset="none")
    with pytest.raises(kafka_errors.NoOffsetForPartitionError, match=ten):
        source.poll(timeout_ms=5000)
    source.close()


@pytest.mark.claim(43, 57, part=True)
def test_an_offset_out_of_range_applies_the_reset(bootstrap: str, ten: str) -> None:
    group = unique("group")
    commit(bootstrap, group, {(ten, 0): 20})
    source, _ = assigned(bootstrap, group, ten, auto_offset_reset="earliest")
    assert values(read(source, 10)) == list(range(10))
    source.close()
    source, _ = assigned(bootstrap, group, ten, auto_offset_reset="none")
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        read(source, 1)
    source.close()


@pytest.mark.claim(58)
@pytest.mark.behaviour(48)
def test_a_seek_and_a_lookup_by_time_find_their_records(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    base = int(time.time() * 1000) - 100_000
    publish(bootstrap, topic, numbers(10), timestamps_ms=[base + 1000 * n for n in range(10)], compression_type="gzip")
    source, where = assigned(bootstrap, group, topic)
    found = source.offsets_for_times({where: base + 4500})
    assert (found[where].offset, found[where].timestamp) == (5, base + 5000)
    assert source.offsets_for_times({where: base + 50_000})[where] is None
    for offset in (8, 6):
        source.seek(where, offset)
        assert values(read(source, 10 - offset)) == list(range(offset, 10))
    source.close()


@pytest.mark.claim(59, 66, 67)
@pytest.mark.claim(64, part=True)
@pytest.mark.parametrize(("assignor", "shares"), [("range", [{0, 1, 2}, {3, 4}]), ("roundrobin", [{0, 2, 4}, {1, 3}])])
def test_two_members_share_and_one_takes_over_when_the_other_leaves(
    bootstrap: str, topic: str, group: str, assignor: str, shares: list[set[int]]
) -> None:
    create_topic(bootstrap, topic, 5)
    for partition in range(5):
        publish(bootstrap, topic, numbers(10), partition=partition)
    with (
        Member("kafka-python", bootstrap, group, topic, assignor=assignor, commit=True) as stays,
        Member("kafka-python", bootstrap, group, topic, assignor=assignor, commit=True) as leaves,
    ):
        settled([stays, leaves], 5)
        assert sorted([stays.assigned, leaves.assigned], key=min) == shares
        eventually(lambda: committed(bootstrap, group) == {(topic, n): 10 for n in range(5)})
        leaves.leave()
        settled([stays], 5)
        for partition in range(5):
            publish(bootstrap, topic, numbers(1), partition=partition)
        eventually(lambda: {(n, 10) for n in range(5)} <= set(stays.records))


@pytest.mark.claim(70, part="a")
def test_a_killed_member_is_replaced_after_its_session_timeout(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 4)
    with (
        Member("kafka-python", bootstrap, group, topic) as stays,
        Member("kafka-python", bootstrap, group, topic) as dies,
    ):
        settled([stays, dies], 4)
        dies.kill()
        settled([stays], 4, within_s=20)


@pytest.mark.claim(72, part="a")
@pytest.mark.claim(75, part=True)
def test_a_member_that_does_not_poll_leaves_the_group(bootstrap: str, topic: str, group: str) -> None:
    # The next commit of the removed member fails with a clear error.
    create_topic(bootstrap, topic, 4)
    slow = consumer(bootstrap, group, topic, auto_offset_reset="earliest", max_poll_interval_ms=3000)
    eventually(lambda: slow.partitions_for_topic(topic))  # support/member.py names the reason
    eventually(lambda: slow.poll(timeout_ms=100) == {} and len(slow.assignment()) == 4)
    with Member("kafka-python", bootstrap, group, topic) as other:
        # From here on the test does not poll. Heartbeats continue in the background.
        settled([other], 4, within_s=20)
        with pytest.raises(kafka_errors.CommitFailedError):
            slow.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    slow.close()


@pytest.mark.claim(73)
@pytest.mark.claim(71, part=True)
def test_heartbeats_continue_without_polls(bootstrap: str, topic: str, group: str) -> None:
    # The session timeout is 6 s. Claim 73: a member that does not poll for 7.5 s stays in the group. Claim 71: such a
    # short pause causes no rebalance.
    create_topic(bootstrap, topic, 4)
    idle = consumer(bootstrap, group, topic, auto_offset_reset="earliest")
    eventually(lambda: idle.partitions_for_topic(topic))
    eventually(lambda: idle.poll(timeout_ms=100) == {} and len(idle.assignment()) == 4)
    generation = idle.group_metadata().generation_id
    began = time.monotonic()
    client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def still_in() -> bool:
        members = client.describe_groups([group])[group]["members"]
        assert len(members) == 1, f"out after {time.monotonic() - began:.1f} s"
        return time.monotonic() - began > 7.5

    eventually(still_in, within_s=15, every_s=0.5)
    idle.poll(timeout_ms=100)
    assert idle.group_metadata().generation_id == generation
    idle.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    client.close()
    idle.close()


@pytest.mark.claim(92, part=True)
def test_a_restart_keeps_records_and_commits(own_broker: Callable[..., RunningBroker], topic: str, group: str) -> None:
    broker = own_broker()
    create_topic(broker.bootstrap, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", reconnect_backoff_max_ms=300)
    for n in range(200):
        producer.send(topic, b"%d" % n)
    producer.flush(20)
    source = consumer(broker.bootstrap, group, topic, auto_offset_reset="earliest", max_poll_records=50)
    eventually(lambda: source.partitions_for_topic(topic))
    seen = values(read(source, 50))
    eventually(lambda: source.commit() or True)
    broker.kill()
    broker.start()
    # The same producer and the same member continue.
    futures = [producer.send(topic, b"%d" % n) for n in range(200, 220)]
    assert [future.get(30).offset for future in futures] == list(range(200, 220))
    seen += values(read(source, 220 - len(seen), within_s=40))
    assert sorted(set(seen)) == list(range(220))
    producer.close()
    source.close()


def test_admin_manages_topics_and_groups(bootstrap: str, topic: str, group: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.create_topics([NewTopic(topic, 3, 1)])
    with pytest.raises(kafka_errors.TopicAlreadyExistsError):
        client.create_topics([NewTopic(topic, 3, 1)])
    assert topic in client.list_topics()
    (described,) = client.describe_topics([topic])
    assert [row["partition_index"] for row in described["partitions"]] == [0, 1, 2]
    assert described["is_internal"] is False
    with Member("kafka-python", bootstrap, group, topic) as member:
        settled([member], 3)
        found = client.describe_groups([group])[group]
        assert found["group_state"] == "Stable"
        assert [row["client_id"] for row in found["members"]] == ["member-kafka-python"]
        assert {row["group_id"]: row["group_state"] for row in client.list_groups()}[group] == "Stable"
        member.leave()
    commit(bootstrap, group, {(topic, 1): 8})
    offsets = client.list_group_offsets(group)
    assert {where: row.offset for where, row in offsets[group].items()} == {TopicPartition(topic, 1): 8}
    client.delete_groups([group])
    assert group not in {row["group_id"] for row in client.list_groups()}
    client.delete_topics([topic])
    eventually(lambda: topic not in client.list_topics())
    client.close()
