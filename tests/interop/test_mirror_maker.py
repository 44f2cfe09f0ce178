"""MirrorMaker 2 between two brokers, both ways, with translated offsets; one broker is killed with -9.

Apache Kafka 4.3 passes it (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from brokers import RunningBroker, eventually, unique
from connect import ConnectProcess

from odradek.client import LATEST, Admin, NewTopic, TopicPartition
from odradek.client.producer import Producer

pytestmark = pytest.mark.slow
WITHIN_S = 180


def settings_of(one: RunningBroker, two: RunningBroker) -> dict[str, str]:
    settings = {
        "clusters": "one,two",
        "one.bootstrap.servers": one.bootstrap,
        "two.bootstrap.servers": two.bootstrap,
        "one->two.enabled": "true",
        "two->one.enabled": "true",
        "topics": "mirrored-.*",
        "groups": "mirrored-.*",
        "replication.factor": "1",
        "tasks.max": "1",
        "offset.lag.max": "0",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.topics.interval.seconds": "5",
        "refresh.groups.interval.seconds": "5",
        "offset.flush.interval.ms": "500",
        "emit.heartbeats.enabled": "false",
    }
    for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage",
                 "config.storage"):  # fmt: skip
        settings[f"{kind}.replication.factor"] = "1"
    return settings


@pytest.fixture
def brokers(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> Iterator[list[RunningBroker]]:
    pair = [own_broker(), own_broker()]
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    mirror = ConnectProcess(main, tmp_path / "mirror", settings_of(*pair))
    mirror.start()
    yield pair
    mirror.kill()


def send(broker: RunningBroker, topic: str, count: int) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def end(broker: RunningBroker, topic: str) -> int:
    place = TopicPartition(topic, 0)
    with Admin(broker.bootstrap) as admin:
        if topic not in admin.describe_topics([topic], missing_ok=True):
            return -1
        return admin.list_offsets({place: LATEST})[place].offset


def commit(broker: RunningBroker, group: str, topic: str, offset: int) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): offset})


def committed(broker: RunningBroker, group: str, topic: str) -> int:
    with Admin(broker.bootstrap) as admin:
        found = admin.list_group_offsets(group).get(TopicPartition(topic, 0))
    return -1 if found is None else found.offset


def test_both_ways_with_translated_offsets(brokers: list[RunningBroker]) -> None:
    names = [("one", "two", unique("mirrored-a"), 50), ("two", "one", unique("mirrored-b"), 30)]
    of = dict(zip(("one", "two"), brokers, strict=True))
    groups = {source: unique(f"mirrored-{source}") for source in of}
    for source, _, topic, count in names:
        with Admin(of[source].bootstrap) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)])
        send(of[source], topic, count)
        commit(of[source], groups[source], topic, count)

    def seen() -> dict[str, tuple[int, int]]:
        """Of each mirrored topic its end, and the group's translated offset."""
        found = {}
        for source, target, topic, _ in names:
            there = f"{source}.{topic}"
            found[there] = end(of[target], there), committed(of[target], groups[source], there)
        return found

    def mirrored(more: int) -> None:
        wanted = {f"{source}.{topic}": (count + more, count + more) for source, _, topic, count in names}
        eventually(lambda: seen() == wanted, within_s=WITHIN_S, every_s=0.5, what=f"{wanted}")

    mirrored(0)
    of["two"].kill()
    of["two"].start()
    for source, _, topic, count in names:
        send(of[source], topic, 10)
        commit(of[source], groups[source], topic, count + 10)
    mirrored(10)
