"""Apache Kafka's own consumers in KIP-848 and classic groups, which Kafka's tool describes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, eventually
from support.jvm import KafkaTools, kafka_command
from support.publish import committed, create_topic, publish

PARTITIONS = 2
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def java(kafka_cp: str) -> Callable[..., list[str]]:
    """The command line of one of Apache Kafka's tools, with a small heap."""

    def command(name: str, *arguments: str) -> list[str]:
        return [*kafka_command(kafka_cp, heap="128m"), f"org.apache.kafka.tools.{name}", *arguments]

    return command


@pytest.fixture
def broker(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(
        group_consumer_min_heartbeat_interval_ms="200",
        group_consumer_heartbeat_interval_ms="200",
        group_consumer_assignment_interval_ms="100",
    )


@pytest.fixture
def reader(
    broker: RunningBroker, java: Callable[..., list[str]], topic: str, group: str, tmp_path: Path
) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], Path]]]:
    """Starts console consumers of a KIP-848 group. Returns each with the file to which it prints."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*subscription: str) -> tuple[subprocess.Popen[bytes], Path]:
        printed = tmp_path / f"reader-{len(started)}"
        command = java(
            "consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap, *subscription, "--group", group,
            "--from-beginning", "--consumer-property", "group.protocol=consumer",
            "--consumer-property", "auto.commit.interval.ms=100",
        )  # fmt: skip
        with printed.open("wb") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
        return started[-1], printed

    yield start
    for process in started:
        process.kill()
        process.wait()


def described(bootstrap: str, group: str) -> Any:
    with Wire(bootstrap) as wire:
        return wire.call(69, 1, {"group_ids": [group], "include_authorized_operations": False}).groups[0]


def shares(bootstrap: str, group: str) -> list[int]:
    """The number of partitions of each member; an empty list unless the group is Stable."""
    found = described(bootstrap, group)
    if found.group_state != "Stable":
        return []
    return sorted(sum(len(row.partitions) for row in m.assignment.topic_partitions) for m in found.members)


@pytest.mark.slow
def test_two_java_consumers_share_a_topic_and_the_tool_describes_them(
    broker: RunningBroker, kafka_tools: KafkaTools, reader: Callable[..., Any], topic: str, group: str
) -> None:
    create_topic(broker.bootstrap, topic, PARTITIONS)
    for partition in range(PARTITIONS):
        publish(broker.bootstrap, topic, [f"early-{partition}"], partition=partition)
    first, one = reader("--topic", topic)
    second, two = reader("--include", f"{topic[:-1]}.")  # as a pattern
    eventually(lambda: shares(broker.bootstrap, group) == [1, 1], within_s=60)
    for partition in range(PARTITIONS):
        publish(broker.bootstrap, topic, [f"late-{partition}"], partition=partition)

    def read() -> set[str]:
        return {*one.read_text().split(), *two.read_text().split()}

    wanted = {f"{when}-{partition}" for when in ("early", "late") for partition in range(PARTITIONS)}
    eventually(lambda: wanted <= read(), within_s=30, what="every record printed")

    def tool(*what: str) -> list[list[str]]:
        done = kafka_tools.run(GROUPS, "--bootstrap-server", broker.bootstrap, *what)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split() for line in done.stdout.splitlines() if line.strip()]

    members = tool("--describe", "--group", group, "--members", "--verbose")
    assert sorted(row[0] for row in members[1:]) == [group, group]
    assert all(topic in " ".join(row) for row in members[1:])
    assert [group, "Consumer"] in tool("--list", "--type", "consumer")
    second.terminate()  # it leaves, as a Java consumer does on SIGTERM
    second.wait(timeout=60)
    eventually(lambda: shares(broker.bootstrap, group) == [PARTITIONS], within_s=60)
    eventually(lambda: _offsets(broker.bootstrap, group, topic) == [2, 2], within_s=30)
    offsets = tool("--describe", "--group", group)
    heading, rows = offsets[0], sorted(offsets[1:])
    at = {name: heading.index(name) for name in ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")}
    values = [tuple(row[at[name]] for name in at) for row in rows]
    assert values == [(topic, str(partition), "2", "2", "0") for partition in range(PARTITIONS)]
    first.terminate()
    first.wait(timeout=60)
    eventually(lambda: described(broker.bootstrap, group).group_state == "Empty")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignor", "shares"),
    [
        pytest.param("RangeAssignor", ["0,1,2", "3,4"], marks=pytest.mark.claim(66)),
        pytest.param("RoundRobinAssignor", ["0,2,4", "1,3"], marks=pytest.mark.claim(67)),
    ],
)
def test_kafka_s_assignors_give_five_partitions_to_two_java_consumers(
    broker: RunningBroker,
    kafka_tools: KafkaTools,
    java: Callable[..., list[str]],
    topic: str,
    group: str,
    assignor: str,
    shares: list[str],
) -> None:
    """Kafka's tool prints the assignment of each member. In a classic group, a member computes all assignments, and
    the broker passes them on."""
    create_topic(broker.bootstrap, topic, 5)
    command = java(
        "consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group,
        "--consumer-property", f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}",
    )  # fmt: skip

    def assignments() -> list[str]:
        what = ("--describe", "--group", group, "--members", "--verbose")
        done = kafka_tools.run(GROUPS, "--bootstrap-server", broker.bootstrap, *what)
        return sorted(re.findall(rf"\b{topic}:([\d,]+)", done.stdout))

    members = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        eventually(lambda: len(assignments()) == 2, within_s=90, what="two members with partitions")
        assert assignments() == shares
    finally:
        for member in members:
            member.kill()
            member.wait()


def _offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    found = committed(bootstrap, group)
    return [found.get((topic, partition), -1) for partition in range(PARTITIONS)]
