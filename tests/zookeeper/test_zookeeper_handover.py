"""Old consumers and ours hand one group back and forth: 1,000 records, each read once.

The old ones are the high-level consumers of Kafka 0.8.2.2 and 1.1.1, on Apache Kafka 3.9.1 and a real ZooKeeper.
Skipped without Java, Maven or the jars.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.brokers import eventually, unique
from support.old_kafka import OldKafka, ServingKafka, register
from support.publish import create_topic, publish
from support.zookeeper_harness import GroupHarness

import odradek
from bench.apache import Unavailable
from odradek.client import PartitionOwned

pytestmark = pytest.mark.slow
RECORDS, ROUNDS = 1_000, 10
START = "--from-beginning"
"""The option for a group without offsets. The program refuses it for a group with offsets."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, zookeeper: odradek.ZooKeeper) -> Iterator[ServingKafka]:
    try:
        kafka = ServingKafka(tmp_path_factory.mktemp("serving") / "kafka")
    except Unavailable as error:
        pytest.skip(f"no Kafka that serves old consumers: {error}")
    kafka.start()
    yield kafka
    kafka.kill()


@pytest.fixture
def shared(serving: ServingKafka, connect: str, kazoo: KazooClient, group: str) -> GroupHarness:
    """A group, and a topic of two partitions with 500 records each; a value names its partition and its offset."""
    topic = unique("topic")
    create_topic(serving.bootstrap, topic, 2)
    for partition in range(2):
        publish(serving.bootstrap, topic, [f"{partition}:{n}" for n in range(RECORDS // 2)], partition=partition)
    register(kazoo, serving.port, {topic: 2})
    return GroupHarness(serving.bootstrap, connect, kazoo, group, topic)


@pytest.fixture
def old(connect: str, tmp_path: Path) -> Callable[[str], OldKafka]:
    def make(version: str) -> OldKafka:
        try:
            return OldKafka(version, connect, tmp_path)
        except Unavailable as error:
            pytest.skip(f"no Kafka {version}: {error}")

    return make


def read_with_old(kafka: OldKafka, shared: GroupHarness, count: int, *arguments: str) -> list[str]:
    """The first ``count`` values that an old consumer reads. The consumer commits at its end."""
    running = kafka.consumer(shared.group, "--topic", shared.topic, "--max-messages", str(count), *arguments)
    return running.communicate(timeout=120)[0].split()


def read_with_ours(shared: GroupHarness, count: int) -> list[str]:
    """The values of ``count`` records that our consumer reads and commits."""
    found: list[str] = []
    with shared.consumer(max_poll_records=count) as one:
        one.subscribe([shared.topic])
        offsets = {}

        def more() -> bool:
            for record in one.poll(0.5).records():
                if len(found) < count:
                    found.append(record.value.decode())
                    offsets[record.topic_partition] = record.next_offset
            return len(found) == count

        eventually(more, within_s=120)
        one.commit(offsets)
    return found


def every_value() -> set[str]:
    return {f"{partition}:{n}" for partition in range(2) for n in range(RECORDS // 2)}


@pytest.mark.claim(113, by="by clients")
def test_a_group_goes_back_and_forth_and_each_record_is_read_once(
    old: Callable[[str], OldKafka], shared: GroupHarness
) -> None:
    """Ten rounds of 100 records: 0.8.2.2, ours, 1.1.1, ours, …"""
    read: list[str] = []
    share = RECORDS // ROUNDS
    for number in range(ROUNDS):
        if number % 2:
            found = read_with_ours(shared, share)
        else:
            version = "0.8.2.2" if number % 4 == 0 else "1.1.1"
            found = read_with_old(old(version), shared, share, *([] if number else [START]))
        assert len(found) == share
        read += found
        assert (shared.offset(0) or 0) + (shared.offset(1) or 0) == len(read)
    assert len(read) == len(set(read)) == RECORDS
    assert set(read) == every_value()


@pytest.mark.parametrize("version", ["0.8.2.2", "1.1.1"])
def test_no_two_kinds_read_at_once(old: Callable[[str], OldKafka], shared: GroupHarness, version: str) -> None:
    """Our consumer waits for a live old consumer and names it. An old consumer gets no partition while ours is live."""
    running = old(version).consumer(shared.group, "--topic", shared.topic, START)
    try:
        eventually(lambda: shared.offset(0) == shared.offset(1) == RECORDS // 2, within_s=120)
        owner = shared.owner(0)
        with shared.consumer(default_api_timeout_ms=1500) as one:
            one.subscribe([shared.topic])
            with pytest.raises(PartitionOwned) as refused:
                eventually(lambda: one.poll(0.2), within_s=60)
            assert str(owner) in str(refused.value)
            assert shared.owner(0) == owner, "the old consumer keeps its partitions"
            stop(running)
            eventually(lambda: one.poll(0.2) or shared.owner(0) not in (None, owner), within_s=60)
            ours = shared.owner(0)
            running = old(version).consumer(shared.group, "--topic", shared.topic)
            eventually(lambda: one.poll(0.2) or len(shared.ids()) == 2, within_s=60)
            publish(shared.bootstrap, shared.topic, ["0:more", "0:and more"])
            seen: list[str] = []

            def both() -> bool:
                seen.extend(record.value.decode() for record in one.poll(0.2).records())
                return len(seen) == 2

            eventually(both, within_s=60)
            one.commit()
            assert (shared.owner(0), shared.owner(1)) == (ours, ours)
        assert stop(running) == "", "the old consumer has read nothing"
        assert shared.offset(0) == RECORDS // 2 + 2
    finally:
        running.kill()
        running.communicate()


def stop(running: subprocess.Popen[str]) -> str:
    """Stops an old consumer, which commits and gives its partitions up. Returns what it has printed."""
    running.send_signal(signal.SIGTERM)
    return running.communicate(timeout=60)[0]
