"""confluent-kafka's transactional producer and its read_committed consumer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.brokers import RunningBroker, Wire, eventually, unique
from support.transactions import create_topic, state_of

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


@pytest.fixture
def made(bootstrap: str, topic: str) -> str:
    with Wire(bootstrap) as wire:
        create_topic(wire, topic, 2)
    return topic


def new_producer(bootstrap: str, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **settings})
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topic: str, *values: str) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    producer.flush(30)


@pytest.fixture
def read(bootstrap: str) -> Callable[..., set[str]]:
    """Returns a function that reads partitions 0 and 1 of a topic to their ends and returns the values."""

    def read_all(topic: str, level: str = "read_committed", bootstrap: str = bootstrap) -> set[str]:
        settings = {
            "bootstrap.servers": bootstrap, "group.id": unique("reader"), "isolation.level": level,
            "enable.partition.eof": True, "enable.auto.commit": False,
        }  # fmt: skip
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
        found, ends = set(), set()
        while len(ends) < 2:
            message = consumer.poll(10)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ends.add(message.partition())
            else:
                found.add(message.value().decode())
        consumer.close()
        return found

    return read_all


def test_committed_records_are_read_and_aborted_ones_are_not(
    bootstrap: str, made: str, read: Callable[..., set[str]]
) -> None:
    producer = new_producer(bootstrap, unique("tx"))
    for number in range(6):
        producer.begin_transaction()
        send(producer, made, f"{number} a", f"{number} b")
        if number == 2:
            assert read(made) == {"0 a", "0 b"}
            assert "2 a" in read(made, "read_uncommitted")
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert read(made) == {f"{number} {letter}" for number in (0, 2, 4) for letter in "ab"}
    assert "1 a" in read(made, "read_uncommitted")


def test_a_zombie_is_fenced(bootstrap: str, made: str, read: Callable[..., set[str]]) -> None:
    name = unique("tx")
    zombie = new_producer(bootstrap, name)
    zombie.begin_transaction()
    send(zombie, made, "of the zombie")
    successor = new_producer(bootstrap, name)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(30)
    assert fenced.value.args[0].code() in FENCED
    assert fenced.value.args[0].fatal()
    successor.begin_transaction()
    send(successor, made, "of the successor")
    successor.commit_transaction(30)
    assert read(made) == {"of the successor"}


def test_a_transaction_that_exceeds_its_timeout_is_aborted(
    own_broker: Callable[..., RunningBroker], topic: str, read: Callable[..., set[str]]
) -> None:
    bootstrap = own_broker(transaction_abort_timed_out_transaction_cleanup_interval_ms="100").bootstrap
    name = unique("tx")
    with Wire(bootstrap) as wire:
        create_topic(wire, topic, 2)
        producer = new_producer(bootstrap, name, **{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
        producer.begin_transaction()
        send(producer, topic, "late")
        eventually(lambda: state_of(wire, name) == "CompleteAbort")
        with pytest.raises(KafkaException) as late:
            producer.commit_transaction(30)
        assert late.value.args[0].code() in FENCED
        assert read(topic, bootstrap=bootstrap) == set()


def test_a_transaction_can_be_committed_after_kill_9_of_the_broker(
    own_broker: Callable[..., RunningBroker], topic: str, read: Callable[..., set[str]]
) -> None:
    running = own_broker(transaction_state_log_num_partitions="2")
    with Wire(running.bootstrap) as wire:
        create_topic(wire, topic, 2)
    producer = new_producer(running.bootstrap, unique("tx"))
    for number in range(3):
        producer.begin_transaction()
        send(producer, topic, f"{number} a", f"{number} b")
        running.kill()
        running.start()
        send(producer, topic, f"{number} c", f"{number} d")
        producer.commit_transaction(60)
        assert len(read(topic, bootstrap=running.bootstrap)) == 4 * (number + 1)


def committed(bootstrap: str, group: str, topic: str) -> int:
    """Returns the group's committed offset of partition 0; negative if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (position,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    consumer.close()
    return int(position.offset)


@pytest.mark.behaviour(33, part=True)
def test_offsets_of_a_consumer_are_committed_with_the_records(
    bootstrap: str, made: str, read: Callable[..., set[str]]
) -> None:
    group, source = unique("group"), unique("source")
    with Wire(bootstrap) as wire:
        create_topic(wire, source)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(4):
        plain.produce(source, str(number), partition=0)
    plain.flush(30)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    producer = new_producer(bootstrap, unique("tx"))
    for number, is_committed in enumerate((True, False, True)):
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == str(number).encode()
        producer.begin_transaction()
        send(producer, made, f"copy of {number}")
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        assert committed(bootstrap, group, source) == (number + 1 if is_committed else number)
    consumer.close()
    assert read(made) == {"copy of 0", "copy of 2"}


def test_offsets_of_a_transaction_survive_kill_9(
    own_broker: Callable[..., RunningBroker], topic: str, group: str
) -> None:
    running = own_broker(transaction_state_log_num_partitions="2", offsets_topic_num_partitions="3")
    with Wire(running.bootstrap) as wire:
        create_topic(wire, topic, 2)
    name = unique("tx")
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": group})
    for number in range(1, 4):
        producer = new_producer(running.bootstrap, name)  # after a restart librdkafka has lost the coordinator
        producer.begin_transaction()
        send(producer, topic, "a")
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, number)], consumer.consumer_group_metadata(), 30)
        running.kill()
        running.start()
        if number == 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
        assert committed(running.bootstrap, group, topic) == (1 if number == 2 else number)
    consumer.close()
