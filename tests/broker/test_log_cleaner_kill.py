"""The broker is killed at any moment of a cleaning. No acknowledged record is lost, and no removed record returns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.brokers import RunningBroker, eventually
from support.publish import create_topic

from odradek.testing.process import BrokerProcess

COMPACTED = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "600000",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "3600000",
}


class Keys:
    """Writes keyed records and stores the newest one of each key."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.topic = topic
        self.chance = random.Random(seed)
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        settings = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 50_000,
        }
        self.producer = Producer(settings | {"log_level": 2})
        self.written = 0

    def write(self, count: int) -> None:
        def delivered(error: object, message: object) -> None:
            assert error is None, error
            self.newest[message.key()] = (message.offset(), message.value())

        for _ in range(count):
            self.written += 1
            value = None if self.chance.random() < 0.05 else b"%09d" % self.written + b"v" * 90
            self.producer.produce(self.topic, value, b"key-%d" % self.chance.randrange(400), 0, on_delivery=delivered)
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    def check(self, bootstrap: str) -> int:
        """Reads all records and checks that the newest one of each key is there. Returns the number of records."""
        seen: dict[bytes, tuple[int, bytes | None]] = {}
        count = 0
        for message in everything(bootstrap, self.topic):
            seen[message.key()] = (message.offset(), message.value())
            count += 1
        assert seen == self.newest
        return count


def everything(bootstrap: str, topic: str) -> Iterator[Any]:
    """All records of partition 0, as an ordinary consumer gets them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "all", "enable.partition.eof": True, "log_level": 2}
    source = Consumer(settings | {"enable.auto.commit": False, "auto.offset.reset": "error"})
    source.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            for message in source.consume(1000, timeout=1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
        raise TimeoutError("the end of the partition was not reached")
    finally:
        source.close()


def size_of(broker: RunningBroker, topic: str) -> int:
    assert isinstance(broker, BrokerProcess)
    directory: Path = broker.data_dir / f"{topic}-0"
    return sum(path.stat().st_size for path in directory.glob("*.log") if path.exists())


def rounds(own_broker: Callable[..., RunningBroker], topic: str, count: int, seed: int) -> None:
    broker = own_broker(log_cleaner_backoff_ms="30")
    create_topic(broker.bootstrap, topic, **COMPACTED)
    keys = Keys(broker.bootstrap, topic, seed)
    chance = random.Random(seed)
    for _ in range(count):
        keys.write(20_000)
        time.sleep(chance.random() * 1.5)  # the cleaner process runs for about a second
        broker.kill()
        broker.start()
        keys.check(broker.bootstrap)
    eventually(lambda: size_of(broker, topic) < 1_000_000, within_s=60, what="compacted")
    assert keys.check(broker.bootstrap) < 10_000
    broker.kill()
    broker.start()
    keys.check(broker.bootstrap)
    keys.write(10)  # the broker still knows the sequence of this producer


@pytest.mark.claim(14, part="a")
@pytest.mark.claim(15, part=True)
@pytest.mark.slow
def test_kill_9_during_a_cleaning_loses_and_restores_no_record(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    rounds(own_broker, topic, 3, 1)


@pytest.mark.claim(14, part="a")
@pytest.mark.slow
def test_kill_9_during_many_cleanings_loses_and_restores_no_record(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    rounds(own_broker, topic, 40, 2)
