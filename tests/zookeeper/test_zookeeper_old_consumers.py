"""The high-level consumers of Kafka 0.8.2.2 and 1.1.1 against real ZooKeeper: where they commit and where they resume.

They read from Apache Kafka 3.9.1. Skipped without Java, Maven or the jars.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.brokers import eventually, unique
from support.old_kafka import VERSIONS, OldKafka, ServingKafka, register
from support.publish import create_topic, log_end, publish

import odradek
from bench.apache import Unavailable
from odradek.client import Admin
from odradek.client.group.config import ConsumerConfig
from odradek.core.ids import OFFSETS_TOPIC
from odradek.core.ids import TopicPartition as Tp

pytestmark = pytest.mark.slow
RECORDS = 20
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
def serving_admin(serving: ServingKafka) -> Iterator[Admin]:
    with Admin(serving.bootstrap) as admin:
        yield admin


@pytest.fixture
def old_topic(serving: ServingKafka, kazoo: KazooClient) -> str:
    """A topic of one partition with the numbers 0 to 19, which old consumers find."""
    name = unique("topic")
    create_topic(serving.bootstrap, name)
    publish(serving.bootstrap, name, range_of(RECORDS))
    register(kazoo, serving.port, {name: 1})
    return name


@pytest.fixture
def old(connect: str, tmp_path: Path) -> Callable[[str], OldKafka]:
    def make(version: str = "0.8.2.2") -> OldKafka:
        try:
            return OldKafka(version, connect, tmp_path)
        except Unavailable as error:
            pytest.skip(f"no Kafka {version}: {error}")

    return make


def range_of(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def read(running: subprocess.Popen[str], count: int) -> list[str]:
    """The next values that a consumer prints."""
    assert running.stdout is not None
    return [running.stdout.readline().strip() for _ in range(count)]


def read_and_stop(running: subprocess.Popen[str]) -> list[str]:
    """All values of a consumer that ends by itself (``--max-messages``); it commits at its end."""
    return running.communicate(timeout=60)[0].split()


def in_znode(client: KazooClient, group: str, topic: str) -> int | None:
    path = f"/consumers/{group}/offsets/{topic}/0"
    return int(client.get(path)[0]) if client.exists(path) else None


def in_kafka(admin: Admin, group: str, topic: str) -> int | None:
    found = admin.list_group_offsets(group).get(Tp(topic, 0))
    return found.offset if found else None


@pytest.mark.claim(113, by="by clients")
@pytest.mark.claim(115, part="a", by="by clients")
@pytest.mark.parametrize("version", VERSIONS)
def test_old_consumers_commit_to_zookeeper_and_resume_there(
    old: Callable[[str], OldKafka], serving: ServingKafka, serving_admin: Admin, kazoo: KazooClient, old_topic: str,
    group: str, version: str,
) -> None:  # fmt: skip
    """The default of offsets.storage is zookeeper."""
    kafka = old(version)
    had_offsets_topic = OFFSETS_TOPIC in serving_admin.topics()
    before = log_end(serving.bootstrap, OFFSETS_TOPIC) if had_offsets_topic else 0
    arguments = ["--topic", old_topic, "--max-messages"]
    assert read_and_stop(kafka.consumer(group, *arguments, "12", START)) == range_of(12)
    assert in_znode(kazoo, group, old_topic) == 12
    assert read_and_stop(kafka.consumer(group, *arguments, "8")) == range_of(8, 12)
    assert in_znode(kazoo, group, old_topic) == RECORDS
    # The logs of the broker have not changed: no commit is in the offsets topic, and no record was added.
    assert log_end(serving.bootstrap, old_topic) == RECORDS
    assert (OFFSETS_TOPIC in serving_admin.topics()) == had_offsets_topic
    assert (log_end(serving.bootstrap, OFFSETS_TOPIC) if had_offsets_topic else 0) == before
    assert in_kafka(serving_admin, group, old_topic) is None


@pytest.mark.claim(115, part="a", by="by clients")
@pytest.mark.parametrize("version", VERSIONS)
def test_old_consumers_commit_to_the_topic_with_storage_kafka(
    old: Callable[[str], OldKafka], serving_admin: Admin, kazoo: KazooClient, old_topic: str, group: str, version: str
) -> None:
    storage = {"offsets_storage": "kafka", "dual_commit_enabled": "false"}
    arguments = ["--topic", old_topic, "--max-messages"]
    assert read_and_stop(old(version).consumer(group, *arguments, "12", START, **storage)) == range_of(12)
    assert (in_kafka(serving_admin, group, old_topic), in_znode(kazoo, group, old_topic)) == (12, None)
    assert read_and_stop(old(version).consumer(group, *arguments, "8", **storage)) == range_of(8, 12)


@pytest.mark.claim(114, by="by clients")
def test_a_crash_repeats_what_came_since_the_last_commit(
    old: Callable[[str], OldKafka], serving: ServingKafka, kazoo: KazooClient, old_topic: str, group: str
) -> None:
    """The default of auto.commit.interval.ms is 60 s in Kafka 0.8.2.2, and 5 s in Kafka 4.3."""
    kafka, other = old("0.8.2.2"), f"{group}-5"
    slow = kafka.consumer(group, "--topic", old_topic, START, auto_commit_interval_ms=None)
    quick = kafka.consumer(other, "--topic", old_topic, START, auto_commit_interval_ms="5000")
    assert read(slow, RECORDS) == read(quick, RECORDS) == range_of(RECORDS)
    eventually(lambda: in_znode(kazoo, other, old_topic) == RECORDS, within_s=30)
    assert in_znode(kazoo, group, old_topic) is None
    eventually(lambda: in_znode(kazoo, group, old_topic) == RECORDS, within_s=90)
    publish(serving.bootstrap, old_topic, range_of(5, RECORDS))
    for running, name in ((slow, group), (quick, other)):
        assert read(running, 5) == range_of(5, RECORDS)
        running.kill()
        running.communicate()
        committed = in_znode(kazoo, name, old_topic)
        assert committed is not None
        publish(serving.bootstrap, old_topic, ["end"])
        end = log_end(serving.bootstrap, old_topic)
        repeated = read_and_stop(kafka.consumer(name, "--topic", old_topic, "--max-messages", str(end - committed)))
        assert repeated[: 25 - committed] == range_of(25 - committed, committed)
    assert ConsumerConfig(bootstrap_servers=serving.bootstrap).auto_commit_interval_ms == 5000
    assert ConsumerConfig(bootstrap_servers=serving.bootstrap, group_id="g").enable_auto_commit is True


@pytest.mark.claim(118, by="by clients")
def test_while_zookeeper_is_down_commits_to_the_topic_go_on(
    old: Callable[[str], OldKafka], serving: ServingKafka, serving_admin: Admin, kazoo: KazooClient, old_topic: str,
    zookeeper: odradek.ZooKeeper,
) -> None:  # fmt: skip
    to_kafka, to_zookeeper = unique("group"), unique("group")
    storage = {"offsets_storage": "kafka", "dual_commit_enabled": "false"}
    first = old("0.8.2.2").consumer(to_kafka, "--topic", old_topic, START, **storage)
    second = old("0.8.2.2").consumer(to_zookeeper, "--topic", old_topic, START)
    try:
        assert read(first, RECORDS) == read(second, RECORDS) == range_of(RECORDS)
        eventually(lambda: in_kafka(serving_admin, to_kafka, old_topic) == RECORDS, within_s=30)
        eventually(lambda: in_znode(kazoo, to_zookeeper, old_topic) == RECORDS, within_s=30)
        zookeeper.kill()
        publish(serving.bootstrap, old_topic, range_of(5, RECORDS))
        assert read(first, 5) == read(second, 5) == range_of(5, RECORDS)
        eventually(lambda: in_kafka(serving_admin, to_kafka, old_topic) == RECORDS + 5, within_s=30)
        assert in_kafka(serving_admin, to_zookeeper, old_topic) is None
    finally:
        for running in (first, second):
            running.kill()
            running.communicate()
        zookeeper.start()
    kept = kazoo.retry(kazoo.get, f"/consumers/{to_zookeeper}/offsets/{old_topic}/0")[0]
    assert kept == b"20", "the commit could not reach ZooKeeper"


def test_after_dual_commit_zookeeper_keeps_its_last_offset(
    old: Callable[[str], OldKafka], serving_admin: Admin, kazoo: KazooClient, old_topic: str, group: str
) -> None:
    """With dual commit a consumer starts at the larger of the two offsets. When dual commit is off, ZooKeeper keeps the
    last offset that it got."""
    kafka, arguments = old("0.8.2.2"), ["--topic", old_topic, "--max-messages"]
    dual = {"offsets_storage": "kafka", "dual_commit_enabled": "true"}
    assert read_and_stop(kafka.consumer(group, *arguments, "10", START, **dual)) == range_of(10)
    assert (in_kafka(serving_admin, group, old_topic), in_znode(kazoo, group, old_topic)) == (10, 10)
    kazoo.set(f"/consumers/{group}/offsets/{old_topic}/0", b"5")
    assert read_and_stop(kafka.consumer(group, *arguments, "2", **dual)) == range_of(2, 10)
    single = {"offsets_storage": "kafka", "dual_commit_enabled": "false"}
    assert read_and_stop(kafka.consumer(group, *arguments, "3", **single)) == range_of(3, 12)
    assert (in_kafka(serving_admin, group, old_topic), in_znode(kazoo, group, old_topic)) == (15, 12)
    rolled_back = kafka.consumer(group, *arguments, "1", offsets_storage="zookeeper")
    assert read_and_stop(rolled_back) == ["12"], "records 12 to 14 are read again"
