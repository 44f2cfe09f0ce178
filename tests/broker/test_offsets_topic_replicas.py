"""The replication factor of the offsets topic, and Kafka's default on one broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, eventually, odradek_broker
from support.publish import create_topic

from bench.apache import ApacheBroker, Unavailable
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import DESCRIBE_CONFIGS, FIND_COORDINATOR, METADATA

NAME = "offsets.topic.replication.factor"
DEFAULT_CONFIG = 5
"""Kafka's code for the source of a default value, in the reply to DescribeConfigs."""
Start = Callable[[RunningBroker | ApacheBroker], Wire]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[tuple[Any, Wire]] = []

    def run(broker: RunningBroker | ApacheBroker) -> Wire:
        broker.start()
        wire = Wire(broker.bootstrap)
        started.append((broker, wire))
        return wire

    yield run
    for broker, wire in started:
        wire.socket.close()
        broker.kill()


@pytest.fixture
def apache(tmp_path: Path) -> ApacheBroker:
    """A node of Apache Kafka whose settings do not have ``offsets.topic.replication.factor``."""
    try:
        made = ApacheBroker(tmp_path / "kafka", {}, heap="256m")
    except Unavailable as error:
        pytest.skip(f"no Apache Kafka: {error}")
    settings = made.directory / "server.properties"
    settings.write_text("".join(line for line in settings.open() if not line.startswith(NAME)))
    return made


def default_of(wire: Wire) -> str:
    """Returns the default of ``offsets.topic.replication.factor`` that DescribeConfigs reports."""
    node = wire.call(METADATA, 7, {"topics": [], "allow_auto_topic_creation": False}).brokers[0].node_id
    row = {"resource_type": 4, "resource_name": str(node), "configuration_keys": [NAME]}
    (found,) = wire.call(DESCRIBE_CONFIGS, 4, {"resources": [row], "include_synonyms": True}).results
    (setting,) = found.configs
    return next(str(synonym.value) for synonym in setting.synonyms if synonym.source == DEFAULT_CONFIG)


def answers(wire: Wire, for_s: float = 3) -> set[ErrorCode]:
    """Sends FindCoordinator again and again for ``for_s`` seconds. Returns the error codes of the replies."""
    found, until = set(), time.monotonic() + for_s
    while time.monotonic() < until:
        asked = {"key_type": 0, "coordinator_keys": ["g"]}
        found.add(ErrorCode(wire.call(FIND_COORDINATOR, 4, asked).coordinators[0].error_code))
        time.sleep(0.1)
    return found


def is_there(wire: Wire) -> bool:
    message = {"topics": [{"name": OFFSETS_TOPIC}], "allow_auto_topic_creation": False}
    return bool(wire.call(METADATA, 7, message).topics[0].error_code == ErrorCode.none)


@pytest.mark.slow
@pytest.mark.claim(78, part="a")
def test_one_node_of_apache_kafka_has_no_coordinator_at_its_default_of_three(
    start: Start, apache: ApacheBroker
) -> None:
    """The test waits much longer than the node takes to create another topic with 50 partitions."""
    wire = start(apache)
    assert default_of(wire) == "3"
    began = time.monotonic()
    create_topic(apache.bootstrap, "as-large", 50)
    took_s = time.monotonic() - began
    assert answers(wire, for_s=5 + 5 * took_s) == {ErrorCode.coordinator_not_available}
    assert not is_there(wire)


@pytest.mark.claim(78, part="b")
def test_our_broker_behaves_like_kafka_with_three_replicas_and_has_a_coordinator_by_default(
    start: Start, tmp_path: Path
) -> None:
    """One broker cannot have three replicas, so with Kafka's default no group could ever commit. Our default is one
    replica."""
    asked = start(odradek_broker(tmp_path / "three", {NAME: "3"}))
    assert answers(asked, for_s=0.5) == {ErrorCode.coordinator_not_available}
    assert not is_there(asked)
    unset = start(odradek_broker(tmp_path / "unset", {}))
    assert default_of(unset) == "1"
    eventually(lambda: answers(unset, for_s=0.1) == {ErrorCode.none})
    assert is_there(unset)
