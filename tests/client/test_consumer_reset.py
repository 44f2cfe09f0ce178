"""Where a consumer starts without a valid committed offset, for each cause and each ``auto_offset_reset``.

The broker has a test clock. Topics have ten records: 0 to 3 are three hours old, 4 to 6 one hour, 7 to 9 one minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import eventually

from odradek import Admin, Broker, Consumer, OffsetAndMetadata, TopicPartition
from odradek.client import NewTopic
from odradek.client.errors import OffsetOutOfRange
from odradek.client.group.errors import NoOffsetForPartition

AGES_MINUTES = [180] * 4 + [60] * 3 + [1] * 3
POLICIES = {"earliest": 0, "latest": 10, "by_duration:PT2H": 4, "none": None}
"""Each policy with the offset at which a consumer of a complete topic starts; None: polls raise."""
Make = Callable[..., Consumer]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers) as made:
        yield made


def fill(broker: Broker, topic: str, partition: int = 0) -> None:
    now_ms = round(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number, age in enumerate(AGES_MINUTES):
        producer.produce(topic, str(number), partition=partition, timestamp=now_ms - age * 60_000)
    assert producer.flush(20) == 0


def make_topic(broker: Broker, admin: Admin, topic: str) -> TopicPartition:
    admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"})])
    fill(broker, topic)
    return TopicPartition(topic, 0)


@pytest.fixture
def tp(broker: Broker, admin: Admin, topic: str) -> TopicPartition:
    return make_topic(broker, admin, topic)


@pytest.fixture
def consumer(broker: Broker, group: str) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(policy: str, **settings: Any) -> Consumer:
        base = {"group_id": group, "enable_auto_commit": False, "fetch_max_wait_ms": 20,
                "default_api_timeout_ms": 20_000}  # fmt: skip
        made.append(Consumer(broker.bootstrap_servers, auto_offset_reset=policy, **(base | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def check_start(one: Consumer, tp: TopicPartition, expected: int | None) -> None:
    """Checks that ``tp`` is read from ``expected`` on; None: that each poll raises NoOffsetForPartition."""
    one.assign([tp])
    if expected is None:
        for _ in range(2):  # each poll raises
            with pytest.raises(NoOffsetForPartition) as caught:
                one.poll(20)
            assert caught.value.partitions == (tp,)
        one.seek(tp, 3)  # a seek is the remedy
        assert first_read(one) == 3
        return
    assert one.position(tp) == expected
    if expected < 10:
        assert first_read(one) == expected


def first_read(one: Consumer) -> int:
    return next(iter(eventually(lambda: list(one.poll(0.5).records()), within_s=30))).offset


@pytest.mark.claim(50, 51, 52, 53, part=True)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_group_starts_at_the_reset(consumer: Make, tp: TopicPartition, policy: str) -> None:
    check_start(consumer(policy), tp, POLICIES[policy])


@pytest.mark.claim(55)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_recreated_topic_starts_at_the_reset(
    broker: Broker, admin: Admin, consumer: Make, tp: TopicPartition, policy: str
) -> None:
    one = consumer(policy)
    one.commit({tp: 5})
    admin.delete_topics([tp.topic])
    eventually(lambda: tp.topic not in admin.topics())
    make_topic(broker, admin, tp.topic)
    check_start(one, tp, POLICIES[policy])


@pytest.mark.claim(57)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_committed_offset_below_the_log_start_is_reset(
    admin: Admin, consumer: Make, tp: TopicPartition, policy: str
) -> None:
    one = consumer(policy)
    one.commit({tp: 2})
    admin.delete_records({tp: 6})
    one.assign([tp])
    if policy == "none":
        with pytest.raises(OffsetOutOfRange, match="offset 2") as caught:
            one.poll(20)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (6, 10)
        return
    expected = 10 if policy == "latest" else 6
    eventually(lambda: one.poll(0.1).num_rows or one.position(tp) == expected, within_s=30)
    if expected == 6:
        one.seek(tp, 2)
        assert first_read(one) == 6


@pytest.mark.claim(56, part="b")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_partition_starts_at_the_reset(
    broker: Broker, admin: Admin, consumer: Make, tp: TopicPartition, policy: str, protocol: str
) -> None:
    added, expected = TopicPartition(tp.topic, 1), POLICIES[policy]
    consumer("none").commit({tp: 5})
    admin.create_partitions({tp.topic: 2})
    fill(broker, tp.topic, 1)
    one = consumer(policy, group_protocol=protocol)
    one.subscribe([tp.topic])
    if expected is None:
        with pytest.raises(NoOffsetForPartition) as caught:
            eventually(lambda: one.poll(0.5).num_rows < 0, within_s=30)
        assert caught.value.partitions == (added,)
        return
    wanted = {(0, n) for n in range(5, 10)} | {(1, n) for n in range(expected, 10)}
    found: set[tuple[int, int]] = set()
    eventually(
        lambda: (found.update((r.partition, r.offset) for r in one.poll(0.1).records()), found >= wanted)[1],
        within_s=30,
    )
    assert (found, one.position(added)) == (wanted, 10)  # with latest, the first records of a new partition are missed


@pytest.mark.claim(49)
@pytest.mark.claim(56, part=True)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_partition_of_another_member_starts_at_its_commit(consumer: Make, tp: TopicPartition, policy: str) -> None:
    before = consumer("earliest", max_poll_records=5)
    before.subscribe([tp.topic])
    assert first_read(before) == 0
    before.commit()
    one = consumer(policy)
    one.subscribe([tp.topic])
    before.close()
    assert first_read(one) == 5


@pytest.mark.claim(54, part="b")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_partition_with_an_expired_offset_starts_at_the_reset(
    broker: Broker, admin: Admin, consumer: Make, tp: TopicPartition, group: str, policy: str
) -> None:
    one = consumer(policy)
    one.commit({tp: 5})
    assert admin.list_group_offsets(group)[tp].offset == 5
    broker.clock.advance(days=6)
    assert one.committed([tp]) == {tp: OffsetAndMetadata(5)}
    broker.clock.advance(days=2)
    eventually(lambda: one.committed([tp]) == {tp: None})
    check_start(one, tp, POLICIES[policy])
