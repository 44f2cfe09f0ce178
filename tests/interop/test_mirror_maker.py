"""MirrorMaker 2 between two brokers, both ways: translated offsets, and kills with -9 while records are on their way.

Apache Kafka 4.3 passes it (ODRADEK_TEST_ORACLE=1).
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

from odradek.client import LATEST, Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.client.consumer import Consumer
from odradek.client.producer import Producer

pytestmark = pytest.mark.slow
WITHIN_S = 180
WRITTEN = 300
"""Records that a mirror has brought over, at least, before something is killed."""


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
        "one.offset.flush.interval.ms": "500",  # without a cluster's name it says nothing
        "two.offset.flush.interval.ms": "500",
        "emit.heartbeats.enabled": "false",
    }
    for kind in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage",
                 "config.storage"):  # fmt: skip
        settings[f"{kind}.replication.factor"] = "1"
    return settings


@pytest.fixture
def brokers(own_broker: Callable[..., RunningBroker]) -> list[RunningBroker]:
    return [own_broker(), own_broker()]


@pytest.fixture
def mirror(brokers: list[RunningBroker], tmp_path: Path) -> Iterator[ConnectProcess]:
    """Not started yet."""
    made = ConnectProcess("org.apache.kafka.connect.mirror.MirrorMaker", tmp_path / "mirror", settings_of(*brokers))
    yield made
    made.kill()


@dataclass
class Way:
    """A topic that is mirrored from one broker to the other, and a group that reads it. Its records are numbers."""

    source: RunningBroker
    target: RunningBroker
    alias: str
    topic: str = field(default_factory=lambda: unique("mirrored"))
    group: str = field(default_factory=lambda: unique("mirrored-group"))
    written: int = 0

    @property
    def there(self) -> TopicPartition:
        return TopicPartition(f"{self.alias}.{self.topic}", 0)

    def create(self, broker: RunningBroker, name: str) -> None:
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1, 1)])

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
        """The group has read all that was written: on the source."""
        with Admin(self.source.bootstrap) as admin:
            admin.alter_group_offsets(self.group, {TopicPartition(self.topic, 0): self.written})

    def end(self) -> int:
        with Admin(self.target.bootstrap) as admin:
            if self.there.topic not in admin.describe_topics([self.there.topic], missing_ok=True):
                return -1
            return admin.list_offsets({self.there: LATEST})[self.there].offset

    def committed(self) -> int:
        """The group's translated offset, on the target."""
        with Admin(self.target.bootstrap) as admin:
            found = admin.list_group_offsets(self.group).get(self.there)
        return -1 if found is None else found.offset

    def numbers(self, start: int) -> list[int]:
        """Of the target's records from an offset on."""
        reader = PartitionReader(as_config(self.target.bootstrap), self.there)
        return [int(row.value or b"") for row in reader.read_rows(start, self.end())]

    def noted(self) -> int:
        """The last offset of the source that MirrorMaker has noted, and does not go back behind: on the target."""
        topic, found = f"mm2-offsets.{self.alias}.internal", -1
        with Admin(self.target.bootstrap) as admin:
            ends = admin.list_offsets(dict.fromkeys(admin.partitions(topic), LATEST))
        for place, end in ends.items():
            for row in PartitionReader(as_config(self.target.bootstrap), place).read_rows(0, end.offset):
                if self.topic.encode() in (row.key or b""):
                    found = int(json.loads(row.value or b"")["offset"])
        return found

    def until_there(self, first: int) -> None:
        wanted = set(range(first, self.written))
        eventually(lambda: set(self.numbers(0)) == wanted, within_s=WITHIN_S, every_s=0.5, what="nothing is lost")

    def read_on(self, count: int) -> list[int]:
        """What the group reads on the target, from its translated offset: so many records, and what comes behind."""
        with Consumer(self.target.bootstrap, group_id=self.group, enable_auto_commit=False,
                      auto_offset_reset="none") as consumer:  # fmt: skip
            consumer.assign([self.there])
            found: list[int] = []

            def more() -> bool:
                found.extend(int(row.value or b"") for row in consumer.poll(0.5).records())
                return len(found) >= count

            eventually(more, within_s=30)
            found.extend(int(row.value or b"") for row in consumer.poll(0.5).records())
        return found


def until_mirrored(*wanted: tuple[Way, int, int]) -> None:
    """``wanted``: the mirrored topic's end, and the group's translated offset."""
    eventually(
        lambda: [(way.end(), way.committed()) for way, *_ in wanted] == [(end, offset) for _, end, offset in wanted],
        within_s=WITHIN_S, every_s=0.5, what=f"{wanted}",
    )  # fmt: skip


def test_translated_offsets_are_others_and_the_group_reads_on_from_them(
    brokers: list[RunningBroker], mirror: ConnectProcess
) -> None:
    one, two = brokers
    shorter, longer = Way(one, two, "one"), Way(two, one, "two")
    for way in (shorter, longer):
        way.create(way.source, way.topic)
    shorter.write(50)
    with Admin(one.bootstrap) as admin:  # the mirrored topic begins with record 20
        admin.delete_records({TopicPartition(shorter.topic, 0): 20})
    longer.write(30)
    longer.create(one, longer.there.topic)
    with Producer(one.bootstrap) as producer:  # seven records of somebody else come first in the mirrored topic
        for _ in range(7):
            producer.send(longer.there.topic, b"-1", partition=0)
    for way in (shorter, longer):
        way.commit()
    mirror.start()
    until_mirrored((shorter, 30, 30), (longer, 37, 37))

    for way in (shorter, longer):  # the group has not read these
        way.write(10)
    until_mirrored((shorter, 40, 30), (longer, 47, 37))
    assert shorter.read_on(10) == list(range(50, 60))
    assert longer.read_on(10) == list(range(30, 40))

    for way in (shorter, longer):
        way.commit()
    until_mirrored((shorter, 40, 40), (longer, 47, 47))


def test_nothing_is_lost_whatever_is_killed(brokers: list[RunningBroker], mirror: ConnectProcess) -> None:
    one, two = brokers
    ways = [Way(one, two, "one"), Way(two, one, "two")]
    for way in ways:
        way.create(way.source, way.topic)
        way.write(20)
    with Admin(one.bootstrap) as admin:
        admin.delete_records({TopicPartition(ways[0].topic, 0): 10})
    mirror.start()
    until_mirrored((ways[0], 10, -1), (ways[1], 20, -1))
    for way in ways:
        eventually(lambda way=way: way.noted() == 19, within_s=WITHIN_S, every_s=0.5, what="the first are noted")

    with ExitStack() as stack:
        writers = [way.writer(stack) for way in ways]

        def on_their_way(what: str) -> None:
            """The mirror brings records over, both ways, and more are written meanwhile."""
            before = [way.end() for way in ways]
            eventually(
                lambda: all(way.end() >= end + WRITTEN for way, end in zip(ways, before, strict=True)),
                within_s=WITHIN_S, what=f"records are on their way: {what}",
            )  # fmt: skip

        on_their_way("at first")
        two.kill()  # the target of one way, the source of the other
        two.start()
        on_their_way("after the broker was killed")
        mirror.kill()
        mirror.start()
        on_their_way("after the mirror was killed")
    for way, writer, start in zip(ways, writers, (10, 0), strict=True):
        way.written = writer.next
        way.until_there(start)
        print(f"{way.alias}: {way.written - start} records, {repeated(way.numbers(0))} of them again")
        first = [number for number in way.numbers(0) if number < 20]
        assert first == list(range(start, 20)), "what was noted before the kills comes once"
        way.commit()

    # What came twice moves the translated offsets too: those differ from the source's by so much.
    until_mirrored(*((way, way.end(), way.end()) for way in ways))
    for way in ways:
        way.write(5)
        assert way.read_on(5) == list(range(way.written - 5, way.written))
