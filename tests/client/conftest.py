"""A topic with ten records in each of two partitions, and an Admin for the broker under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from odradek.client import Admin, NewTopic

Publish = Callable[..., None]


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap, default_api_timeout_ms=20_000) as made:
        yield made


@pytest.fixture
def publish(bootstrap: str) -> Publish:
    """``publish(topic, {partition: count})``: the value is ``partition:number``, and key and header are the number."""

    def send(topic: str, counts: dict[int, int], **config: object) -> None:
        failed: list[str] = []
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5} | config)
        for partition, count in counts.items():
            for number in range(count):
                producer.produce(
                    topic, f"{partition}:{number}", str(number), partition, headers=[("n", str(number).encode())],
                    on_delivery=lambda error, message: failed.append(str(error)) if error else None,
                    timestamp=1_700_000_000_000 + number,
                )  # fmt: skip
            producer.flush(20)
        assert failed == []

    return send


@pytest.fixture
def filled(admin: Admin, publish: Publish, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 2, 1)])
    publish(topic, {0: 10, 1: 10})
    return topic
