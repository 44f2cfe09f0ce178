"""Other clients copy a topic in transactions, which contain the copied records and the source offsets.

The clients read with read_committed. They abort and repeat some transactions. In an open transaction, a second producer
with the same transactional id replaces the first. In the end the output has each input record once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import errors as kafka_errors
from support.brokers import unique
from support.publish import committed, create_topic, publish

COUNT, PIECE = 120, 10
Copy = Callable[[str, str, str, str], int]


def output(bootstrap: str, topic: str, level: str, partitions: int = 2) -> list[str]:
    """The values of the partitions up to their ends."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": unique("reader"), "isolation.level": level,
        "enable.partition.eof": True, "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found.append(message.value().decode())
    consumer.close()
    return found


def confluent(bootstrap: str, source: str, target: str, group: str) -> int:
    def new_producer() -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "linger.ms": 0})
        producer.init_transactions(30)
        return producer

    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer, producer = Consumer(settings), new_producer()
    consumer.subscribe([source])
    done, number = 0, 0
    while done < COUNT:
        messages = consumer.consume(PIECE, 10)
        assert messages
        assert [message.error() for message in messages if message.error()] == []
        for attempt in range(3):
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            if number == 4 and attempt == 0:
                producer.flush(30)
                zombie, producer = producer, new_producer()
                with pytest.raises(KafkaException):
                    zombie.commit_transaction(30)
            elif number % 3 == 1 and attempt == 0:
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                break
        done, number = done + len(messages), number + 1
    consumer.close()
    return number


def kafka_python(bootstrap: str, source: str, target: str, group: str) -> int:
    def new_producer() -> KafkaProducer:
        producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
        producer.init_transactions()
        return producer

    consumer = KafkaConsumer(
        source, bootstrap_servers=bootstrap, group_id=group, isolation_level="read_committed",
        auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=PIECE,
    )  # fmt: skip
    producer = new_producer()
    done, number = 0, 0
    while done < COUNT:
        polled = consumer.poll(timeout_ms=10_000)
        assert polled
        for attempt in range(3):
            producer.begin_transaction()
            for tp, records in polled.items():
                for record in records:
                    producer.send(target, record.value, partition=tp.partition)
            offsets = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in polled.items()}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if number == 4 and attempt == 0:
                producer.flush()
                zombie, producer = producer, new_producer()
                with pytest.raises(kafka_errors.KafkaError):
                    zombie.commit_transaction()
                zombie.close(timeout=0)
            elif number % 3 == 1 and attempt == 0:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                break
        done, number = done + sum(map(len, polled.values())), number + 1
    producer.close()
    consumer.close(autocommit=False)
    return number


async def _aiokafka(bootstrap: str, source: str, target: str, group: str) -> int:
    async def new_producer() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
        await producer.start()
        return producer

    consumer = AIOKafkaConsumer(
        source, bootstrap_servers=bootstrap, group_id=group, isolation_level="read_committed",
        auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=PIECE,
    )  # fmt: skip
    await consumer.start()
    producer = await new_producer()
    zombies: list[AIOKafkaProducer] = []
    done, number = 0, 0
    while done < COUNT:
        polled = await consumer.getmany(timeout_ms=10_000)
        assert polled
        for attempt in range(3):
            await producer.begin_transaction()
            for tp, records in polled.items():
                for record in records:
                    await producer.send_and_wait(target, record.value, partition=tp.partition)
            offsets = {AioPartition(*tp): records[-1].offset + 1 for tp, records in polled.items()}
            await producer.send_offsets_to_transaction(offsets, group)
            if number == 4 and attempt == 0:
                zombies, producer = [producer], await new_producer()
                with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
                    await zombies[0].commit_transaction()
            elif number % 3 == 1 and attempt == 0:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                break
        done, number = done + sum(map(len, polled.values())), number + 1
    await producer.stop()
    await consumer.stop()
    return number


def aiokafka(bootstrap: str, source: str, target: str, group: str) -> int:
    return asyncio.run(asyncio.wait_for(_aiokafka(bootstrap, source, target, group), 120))


@pytest.mark.parametrize("copy", [
    confluent, pytest.param(kafka_python, marks=pytest.mark.slow), pytest.param(aiokafka, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_copy_is_complete_despite_aborts_and_a_second_producer(
    bootstrap: str, topic: str, group: str, copy: Copy
) -> None:
    target = f"{topic}-out"
    create_topic(bootstrap, topic, 2)
    create_topic(bootstrap, target, 2)
    for partition in (0, 1):
        publish(bootstrap, topic, map(str, range(partition, COUNT, 2)), partition=partition)
    assert copy(bootstrap, topic, target, group) >= 5, "the producer is replaced in the fifth transaction"
    assert sorted(map(int, output(bootstrap, target, "read_committed"))) == [*range(COUNT)]
    assert len(output(bootstrap, target, "read_uncommitted")) > COUNT, "the aborted records are in the log"
    assert committed(bootstrap, group) == {(topic, 0): COUNT // 2, (topic, 1): COUNT // 2}
