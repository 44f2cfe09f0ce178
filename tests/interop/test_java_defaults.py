"""The defaults in the claims are those of Apache Kafka 4.3, and odradek has the same defaults."""

from __future__ import annotations

import subprocess

import pytest
from support.jvm import java_classes, kafka_command

from odradek.broker.settings.keys import broker_keys
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig

CONSUMER = {
    "auto.commit.interval.ms": "5000", "auto.offset.reset": "latest", "default.api.timeout.ms": "60000",
    "enable.auto.commit": "true", "heartbeat.interval.ms": "3000", "max.poll.interval.ms": "300000",
    "max.poll.records": "500", "session.timeout.ms": "45000",
}  # fmt: skip
PRODUCER = {"delivery.timeout.ms": "120000", "retries": "2147483647"}
BROKER = {
    "group.max.session.timeout.ms": "1800000", "group.min.session.timeout.ms": "6000",
    "log.cleaner.backoff.ms": "15000", "log.cleaner.min.cleanable.ratio": "0.5", "offsets.retention.minutes": "10080",
    "offsets.topic.num.partitions": "50", "offsets.topic.segment.bytes": "104857600",
}  # fmt: skip


@pytest.fixture(scope="module")
def defaults(kafka_cp: str) -> dict[str, dict[str, str]]:
    command = [*kafka_command(kafka_cp, java_classes(kafka_cp)), "Defaults"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        owner, name, *value = line.split(" ", 2)
        found.setdefault(owner, {})[name] = "".join(value)
    return found


def our_defaults(config: object, names: dict[str, str]) -> dict[str, str]:
    values = {name: getattr(config, name.replace(".", "_")) for name in names}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


@pytest.mark.slow
@pytest.mark.claim(31, 45, part="d")
@pytest.mark.claim(51, 70, 71, 72, part="b")
@pytest.mark.claim(21, part=True)
def test_consumers_have_the_same_defaults(defaults: dict[str, dict[str, str]]) -> None:
    assert {name: defaults["consumer"][name] for name in CONSUMER} == CONSUMER
    assert our_defaults(ConsumerConfig("a:1"), CONSUMER) == CONSUMER


@pytest.mark.slow
@pytest.mark.claim(65, part="b")
def test_javas_default_assignors_are_range_and_cooperative_sticky(defaults: dict[str, dict[str, str]]) -> None:
    theirs = defaults["consumer"]["partition.assignment.strategy"]
    assert [name.rpartition(".")[2] for name in theirs.strip("[]").split(", ")] == [
        "RangeAssignor", "CooperativeStickyAssignor",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.claim(108, part="b")
def test_producers_have_the_same_defaults(defaults: dict[str, dict[str, str]]) -> None:
    assert {name: defaults["producer"][name] for name in PRODUCER} == PRODUCER
    assert our_defaults(ProducerConfig(), PRODUCER) == PRODUCER


@pytest.mark.slow
@pytest.mark.claim(15, 89, part="b")
@pytest.mark.claim(54, 70, 77, part=True)
def test_brokers_have_the_same_defaults(defaults: dict[str, dict[str, str]]) -> None:
    assert {name: defaults["broker"][name] for name in BROKER} == BROKER
    assert {name: broker_keys()[name].default for name in BROKER} == BROKER
