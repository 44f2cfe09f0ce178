"""The settings of the suite's broker, and a topic with orders."""

from __future__ import annotations

import pytest

import odradek


@pytest.fixture(scope="session")
def odradek_broker_config() -> dict[str, str]:
    return {"num.partitions": "3"}


@pytest.fixture
def orders(odradek_broker: odradek.Broker, odradek_topic: str) -> str:
    with odradek.Producer(odradek_broker.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(odradek_topic, b"order %d" % number, key=b"%d" % number)
    return odradek_topic
