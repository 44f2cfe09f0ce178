"""MirrorMaker 2 between two clusters, in both directions: translated offsets, and kills with -9 during the mirroring.

One cluster is one broker, the other one broker or three.

Apache Kafka 4.3 passes these tests (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from connect import ConnectProcess, Writer, repeated
from support.brokers import RunningBroker, eventually, unique
from support.three_brokers import Deployment, replicas, restarts

from odradek.client import LATEST, Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.client.consumer import Consumer
from odradek.client.producer import Producer

pytestmark = pytest.mark.slow
WITHIN_S = 180
WRITTEN = 300
"""The minimum of records that are mirrored before the first kill, and after each kill."""


def settings_of(one: Deployment, two: Deployment) -> dict[str, str]:
    settings = {
        "clusters": "one,two",
        "one.bootstrap.servers": one.bootstrap,
        "two.bootstrap.servers": two.bootstrap,
        "one->two.enabled": "true",
        "two->one.enabled": "true",
        "topics": "mirrored-.*",
        "groups": "mirrored-.*",
        "replication.factor": "-1",
        "tasks.max": "1",
        "offset.lag.max": "0",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.topics.interval.seconds": "5",
        "refresh.groups.interval.seconds": "5",
        "one.offset.flush.interval.ms": "500",  # without the cluster's name the setting has no effect
        "two.offset.flush.interval.ms": "500",
        "emit.heartbeats.enabled": "false",
    }
    for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage",
                 "config.storage"):  # fmt: skip
        settings[f"{kind}.replication.factor"] = "-1"
    return settings


@pytest.fixture
def brokers(own_broker: Callable[..., RunningBroker], deployment: Deployment) -> list[Deployment]:
    return [own_broker(), deployment]


@pytest.fixture
def mirror(brokers: list[Deployment], tmp_path: Path) -> Iterator[ConnectProcess]:
    """MirrorMaker between the two brokers, not started yet."""
    made = ConnectProcess("org.apache.kafka.connect.mirror.MirrorMaker", tmp_path / "mirror", settings_of(*brokers))
    yield made
    made.kill()


@dataclass
class Direction:
    """A topic that is mirrored from one broker to the other, and its consumer group. Its records are numbers."""

    source: Deployment
    target: Deployment
    alias: str
    topic: str = field(default_factory=lambda: unique("mirrored"))
    group: str = field(default_factory=lambda: unique("mirrored-group"))
    written: int = 0

    @property
    def mirrored(self) -> TopicPartition:
        return TopicPartition(f"{self.alias}.{self.topic}", 0)

    def create(self, broker: Deployment, name: str) -> None:
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1, replicas(broker))])

    def write(self, count: int) -> None:
        with Producer(self.source.bootstrap) as producer:
            for number in range(self.written, self.written + count):
                producer.send(self.topic, b"%d" % number, partition=0)
        self.written += count

    def writer(self, stack: ExitStack) -> Writer:
        producer = stack.enter_context(Producer(self.source.bootstrap))
        return stack.enter_context(
            Writer(lambda number: producer.send(self.topic, b"%d" % number, partition=0), self.written)
        )

    def commit(self) -> None:
        """Commits the end of the topic for the group, on the source."""
        with Admin(self.source.bootstrap) as admin:
            admin.alter_group_offsets(self.group, {TopicPartition(self.topic, 0): self.written})

    def end(self) -> int:
        with Admin(self.target.bootstrap) as admin:
            if self.mirrored.topic not in admin.describe_topics([self.mirrored.topic], missing_ok=True):
                return -1
            return admin.list_offsets({self.mirrored: LATEST})[self.mirrored].offset

    def committed(self) -> int:
        """The group's translated offset on the target; -1 without one."""
        with Admin(self.target.bootstrap) as admin:
            found = admin.list_group_offsets(self.group).get(self.mirrored)
        return -1 if found is None else found.offset

    def numbers(self, start: int) -> list[int]:
        """The numbers in the target's records from an offset on."""
        reader = PartitionReader(as_config(self.target.bootstrap), self.mirrored)
        return [int(row.value or b"") for row in reader.read_rows(start, self.end())]

    def stored_offset(self) -> int:
        """The newest source offset that MirrorMaker has stored on the target; -1 without one. After a kill, MirrorMaker
        continues after this offset."""
        topic, found = f"mm2-offsets.{self.alias}.internal", -1
        with Admin(self.target.bootstrap) as admin:
            ends = admin.list_offsets(dict.fromkeys(admin.partitions(topic), LATEST))
        for place, end in ends.items():
            for row in PartitionReader(as_config(self.target.bootstrap), place).read_rows(0, end.offset):
                if self.topic.encode() in (row.key or b""):
                    found = int(json.loads(row.value or b"")["offset"])
        return found

    def wait_for_all(self, first: int) -> None:
        wanted = set(range(first, self.written))
        eventually(lambda: set(self.numbers(0)) == wanted, within_s=WITHIN_S, every_s=0.5, what="no record is lost")

    def read_on(self, count: int) -> list[int]:
        """Reads on the target from the translated offset: ``count`` records, and those that follow."""
        with Consumer(self.target.bootstrap, group_id=self.group, enable_auto_commit=False,
                      auto_offset_reset="none") as consumer:  # fmt: skip
            consumer.assign([self.mirrored])
            found: list[int] = []

            def more() -> bool:
                found.extend(int(row.value or b"") for row in consumer.poll(0.5).records())
                return len(found) >= count

            eventually(more, within_s=30)
            found.extend(int(row.value or b"") for row in consumer.poll(0.5).records())
        return found


def until_mirrored(*wanted: tuple[Direction, int, int]) -> None:
    """``wanted``: a direction, the end of its mirrored topic, and the translated offset of its group."""
    eventually(
        lambda: [(one.end(), one.committed()) for one, *_ in wanted] == [(end, offset) for _, end, offset in wanted],
        within_s=WITHIN_S, every_s=0.5, what=f"{wanted}",
    )  # fmt: skip


def test_translated_offsets_differ_and_the_group_continues_at_them(
    brokers: list[Deployment], mirror: ConnectProcess
) -> None:
    one, two = brokers
    shorter, longer = Direction(one, two, "one"), Direction(two, one, "two")
    for direction in (shorter, longer):
        direction.create(direction.source, direction.topic)
    shorter.write(50)
    with Admin(one.bootstrap) as admin:  # the mirrored topic begins with record 20
        admin.delete_records({TopicPartition(shorter.topic, 0): 20})
    longer.write(30)
    longer.create(one, longer.mirrored.topic)
    with Producer(one.bootstrap) as producer:  # seven records of another producer come first in the mirrored topic
        for _ in range(7):
            producer.send(longer.mirrored.topic, b"-1", partition=0)
    for direction in (shorter, longer):
        direction.commit()
    mirror.start()
    until_mirrored((shorter, 30, 30), (longer, 37, 37))

    for direction in (shorter, longer):  # the group does not read these
        direction.write(10)
    until_mirrored((shorter, 40, 30), (longer, 47, 37))
    assert shorter.read_on(10) == list(range(50, 60))
    assert longer.read_on(10) == list(range(30, 40))

    for direction in (shorter, longer):
        direction.commit()
    until_mirrored((shorter, 40, 40), (longer, 47, 47))


def test_no_record_is_lost_despite_a_killed_broker_and_mirror(
    brokers: list[Deployment], mirror: ConnectProcess
) -> None:
    one, two = brokers
    directions = [Direction(one, two, "one"), Direction(two, one, "two")]
    for direction in directions:
        direction.create(direction.source, direction.topic)
        direction.write(20)
    with Admin(one.bootstrap) as admin:
        admin.delete_records({TopicPartition(directions[0].topic, 0): 10})
    mirror.start()
    until_mirrored((directions[0], 10, -1), (directions[1], 20, -1))
    for direction in directions:
        eventually(
            lambda direction=direction: direction.stored_offset() == 19,
            within_s=WITHIN_S,
            every_s=0.5,
            what="offsets are stored",
        )

    with ExitStack() as stack:
        writers = [direction.writer(stack) for direction in directions]

        def wait_for_records(what: str) -> None:
            """Waits until records are mirrored in both directions, while others are written."""
            before = [direction.end() for direction in directions]
            eventually(
                lambda: all(one.end() >= end + WRITTEN for one, end in zip(directions, before, strict=True)),
                within_s=WITHIN_S, what=f"records are mirrored: {what}",
            )  # fmt: skip

        wait_for_records("at first")
        for _ in restarts(two):  # the target of one direction, the source of the other
            wait_for_records("after a broker was killed")
        mirror.kill()
        mirror.start()
        wait_for_records("after the mirror was killed")
    for direction, writer, start in zip(directions, writers, (10, 0), strict=True):
        direction.written = writer.next
        direction.wait_for_all(start)
        print(
            f"{direction.alias}: {direction.written - start} records, {repeated(direction.numbers(0))} of them repeated"
        )
        first = [number for number in direction.numbers(0) if number < 20]
        assert first == list(range(start, 20)), "records up to the stored offset are not repeated"
        direction.commit()

    # The mirrored topic also has the repeated records, and the translated offsets count them.
    until_mirrored(*((direction, direction.end(), direction.end()) for direction in directions))
    for direction in directions:
        direction.write(5)
        assert direction.read_on(5) == list(range(direction.written - 5, direction.written))
