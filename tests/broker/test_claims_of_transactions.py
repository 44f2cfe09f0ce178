"""The articles' claims about transactions, and numbered behaviours of transactions, shown with confluent-kafka."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.brokers import RunningBroker, Wire, eventually, unique
from support.transactions import RawProducer, create_topic

from odradek.client.admin import Admin
from odradek.lag.describe import lag_table
from odradek.wire.api_keys import JOIN_GROUP, OFFSET_COMMIT, TXN_OFFSET_COMMIT

TESTS = Path(__file__).parent.parent


@pytest.fixture
def made(bootstrap: str, topic: str) -> str:
    with Wire(bootstrap) as wire:
        create_topic(wire, topic, 2)
    return topic


def new_producer(bootstrap: str, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **settings})
    producer.init_transactions(30)
    return producer


def new_consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**common, "enable.auto.commit": False, "isolation.level": "read_committed", **settings})


# --- behaviour 32 -----------------------------------------------------------------------------------------------


def subscribed(bootstrap: str, group: str, topic: str) -> Consumer:
    """A member of the group with an assignment."""
    consumer = new_consumer(bootstrap, group)
    consumer.subscribe([topic])

    def is_assigned() -> bool:
        consumer.poll(0.05)
        return bool(consumer.assignment())

    eventually(is_assigned)
    return consumer


def error_of_commit(producer: Producer, topic: str, offset: int, metadata: object) -> int | None:
    """Commits an offset in a transaction. Returns None after a success.

    After an error it aborts the transaction and returns librdkafka's error code.
    """
    producer.begin_transaction()
    try:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, 30)
    except KafkaException as error:
        producer.abort_transaction(30)
        return int(error.args[0].code())
    producer.commit_transaction(30)
    return None


def raw_commit(producer: RawProducer, group: str, topic: str, member: str, generation: int) -> str:
    row = {"partition_index": 0, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
    message: dict[str, Any] = {"group_id": group, "generation_id": generation, "member_id": member}
    message |= {"group_instance_id": None, "topics": [{"name": topic, "partitions": [row]}]}
    message |= {"transactional_id": producer.transactional_id, "producer_id": producer.producer_id}
    (found,) = producer.wire.call(TXN_OFFSET_COMMIT, 5, message | {"producer_epoch": producer.epoch}).topics
    return str(found.partitions[0].error_code.name)


@pytest.mark.behaviour(32)
def test_behaviour_32_only_member_fields_fence_a_transactional_commit(bootstrap: str, made: str, group: str) -> None:
    """A transactional commit with the member id of a zombie is refused. One without member fields succeeds. In the
    middle of a rebalance a member's OffsetCommit is refused, but its transactional commit succeeds."""
    producer = new_producer(bootstrap, unique("tx"))
    zombie = subscribed(bootstrap, group, made)
    stale = zombie.consumer_group_metadata()
    assert error_of_commit(producer, made, 1, stale) is None
    zombie.close()
    member = subscribed(bootstrap, group, made)
    assert error_of_commit(producer, made, 2, stale) in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
    assert error_of_commit(producer, made, 3, member.consumer_group_metadata()) is None
    outsider = new_consumer(bootstrap, group)  # it has joined no group
    assert error_of_commit(producer, made, 4, outsider.consumer_group_metadata()) is None
    (found,) = outsider.committed([TopicPartition(made, 0)], timeout=30)
    assert found.offset == 4
    outsider.close()
    member.close()

    rebalancing = unique("group")
    with Wire(bootstrap) as wire:
        raw = RawProducer(wire, unique("tx")).started()
        join = {
            "group_id": rebalancing, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
            "group_instance_id": "i", "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}], "reason": None,
        }  # fmt: skip
        eventually(lambda: wire.call(JOIN_GROUP, 9, join).error_code == 0)
        joined = wire.call(JOIN_GROUP, 9, join)
        name, generation = joined.member_id, joined.generation_id
        row = {"partition_index": 0, "committed_offset": 8, "committed_leader_epoch": -1, "committed_metadata": ""}
        plain = {"group_id": rebalancing, "generation_id_or_member_epoch": generation, "member_id": name}
        plain |= {"group_instance_id": "i", "topics": [{"name": made, "partitions": [row]}]}
        (refused,) = wire.call(OFFSET_COMMIT, 9, plain).topics
        assert refused.partitions[0].error_code.name == "rebalance_in_progress", "the leader has sent no assignment"
        assert raw_commit(raw, rebalancing, made, name, generation) == "none"
        assert raw_commit(raw, rebalancing, made, name, generation + 1) == "illegal_generation"
        assert raw_commit(raw, rebalancing, made, "another", generation) == "unknown_member_id"
        assert raw_commit(raw, rebalancing, made, "", -1) == "none"
        assert raw.end() == "none"


# --- behaviour 41 -----------------------------------------------------------------------------------------------


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_behaviour_41_lag_reaches_0_over_the_markers_of_transactions(
    bootstrap: str, made: str, group: str, ends: str
) -> None:
    """The last offset of each partition is a marker. If ``ends`` is abort, the records before the
    marker are aborted."""
    producer = new_producer(bootstrap, unique("tx"))
    for number, end in enumerate(("commit", "abort", "commit", ends)):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(made, str(number), partition=partition)
        producer.flush(30)
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(30)
    consumer = subscribed(bootstrap, group, made)
    values, at_end = 0, set()

    def is_read() -> bool:
        nonlocal values
        for message in consumer.consume(100, 0.1):
            values += message.error() is None
        at_end.update(
            where.partition
            for where in consumer.position(consumer.assignment())
            if where.offset == consumer.get_watermark_offsets(where, 30)[1]
        )
        return len(at_end) == 2

    eventually(is_read, what="positions after the last markers")
    consumer.commit(asynchronous=False)
    consumer.close()
    with Admin(bootstrap) as admin:
        rows = {row.partition: row for row in lag_table(admin, group)}
    assert {number: (row.current_offset, row.log_end_offset, row.lag) for number, row in rows.items()} == {
        0: (8, 8, 0), 1: (8, 8, 0),
    }  # fmt: skip


# --- behaviour 56 -----------------------------------------------------------------------------------------------


@pytest.mark.behaviour(56, part="a")
def test_behaviour_56_a_transaction_timeout_above_the_maximum_is_refused(
    own_broker: Callable[..., RunningBroker],
) -> None:
    bootstrap = own_broker(transaction_max_timeout_ms="20000").bootstrap
    with pytest.raises(KafkaException) as refused:
        new_producer(bootstrap, unique("tx"), **{"transaction.timeout.ms": 20_001})
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    new_producer(bootstrap, unique("tx"), **{"transaction.timeout.ms": 20_000})


# --- claim 105 --------------------------------------------------------------------------------------------------

COUNT = 84
KILLS = (("begun", 0), ("sent", 1), ("offsets", 0), ("committed", 1))
"""When the test kills the program: the step, and the number of the transaction in this run, from 0."""


def values_of(bootstrap: str, topic: str, level: str) -> list[str]:
    consumer = new_consumer(bootstrap, unique("reader"), **{"isolation.level": level, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    found, ends = [], 0
    while ends < 2:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found.append(message.value().decode())
    consumer.close()
    return sorted(found)


@pytest.mark.claim(105)
def test_claim_105_a_killed_program_processes_each_message_once(bootstrap: str, made: str, group: str) -> None:
    """A program reads, processes and writes in transactions. The test kills it four times. A read_committed consumer
    reads each output once."""
    target = unique("output")
    with Wire(bootstrap) as wire:
        create_topic(wire, target, 2)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        plain.produce(made, str(number), partition=number % 2)
    plain.flush(30)
    command = [sys.executable, "-m", "support.transactional_copy", bootstrap, made, target, group]
    for step, number in KILLS:
        running = subprocess.Popen(
            [*command, step, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS
        )
        assert running.stdout is not None
        assert running.stdout.readline() == f"{step}\n"
        running.kill()
        running.communicate()
    subprocess.run(command, check=True, cwd=TESTS, timeout=120)
    expected = sorted(f"processed {number}" for number in range(COUNT))
    assert values_of(bootstrap, target, "read_committed") == expected
    assert len(values_of(bootstrap, target, "read_uncommitted")) > COUNT, "some attempts were aborted"
