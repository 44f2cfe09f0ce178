"""Kafka Streams with ``exactly_once_v2``: words are counted through a repartition topic and a store with a changelog.

An instance is killed with ``kill -9`` and another one takes its place with an empty directory; the broker, or each of
three, is killed with ``kill -9`` and started again. The committed output has each count of each word once, in order,
and the changelog ends with the same counts. Apache Kafka 4.3 passes this test, too (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RdPartition
from support.brokers import eventually, unique
from support.jvm import java_classes, kafka_command
from support.killed_programs import KilledProgram
from support.publish import create_topic
from support.three_brokers import Deployment, replicas, restarts

from odradek import TopicPartition
from odradek.client import LATEST, Admin

pytestmark = pytest.mark.slow
PARTITIONS = 2
WITHIN_S = 240
MORE = 300
"""Records of the output that the test waits for between two events."""


@pytest.fixture(scope="session")
def streams_command() -> list[str]:
    """The start of the command of an instance. Skips if Java or the jars are not available."""
    from bench.apache import Unavailable, streams_class_path

    try:
        path = streams_class_path()
        return [*kafka_command(path, java_classes(path, "java_streams")), "StreamsCount"]
    except Unavailable as error:
        pytest.skip(f"Kafka Streams is not available: {error}")


@contextmanager
def writing(bootstrap: str, topic: str, written: Counter[str]) -> Iterator[None]:
    """Writes words until the end of the block, and counts each word. Then each word is acknowledged and stored once."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2})
    stop = threading.Event()
    failures: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    def write() -> None:
        for number in itertools.count():
            if stop.wait(0.01):
                break
            word = f"word-{number * number % 23}"
            producer.produce(topic, word, partition=number % PARTITIONS, on_delivery=delivered)
            written[word] += 1
            producer.poll(0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert producer.flush(WITHIN_S) == 0
    assert failures == []


def committed_records(bootstrap: str, topic: str) -> list[tuple[str, bytes]]:
    """Key and value of the committed records, partition after partition."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": unique("reader"), "isolation.level": "read_committed",
        "enable.partition.eof": True, "enable.auto.commit": False, "log_level": 2,
    }  # fmt: skip
    reader = Consumer(settings)
    found = []
    for partition in range(PARTITIONS):
        reader.assign([RdPartition(topic, partition, 0)])
        while True:
            message = reader.poll(30)
            assert message is not None, f"no end of {topic}-{partition} within 30 s"
            if message.error():
                break
            found.append((message.key().decode(), message.value()))
    reader.close()
    return found


class Application:
    def __init__(self, broker: Deployment, name: str, start: list[str], directory: Path) -> None:
        self.broker, self.name, self.output = broker, name, f"{name}-out"
        self._start, self._directory = start, directory
        self.instances: list[KilledProgram] = []

    def begin(self) -> KilledProgram:
        directory = self._directory / f"instance-{len(self.instances)}"
        arguments = [self.broker.bootstrap, self.name, self.output, f"{self.name}-app", str(directory)]
        self.instances.append(KilledProgram([*self._start, *arguments]))
        return self.instances[-1]

    def count(self) -> int:
        """The sum of the log end offsets of the output's partitions."""
        asked = {TopicPartition(self.output, at): LATEST for at in range(PARTITIONS)}
        with Admin(self.broker.bootstrap) as admin:
            return sum(found.offset for found in admin.list_offsets(asked).values())

    def wait_for_more(self, what: str) -> None:
        before = self.count()
        eventually(
            lambda: self.count() >= before + MORE, within_s=WITHIN_S, every_s=0.5,
            what=f"records of the output {what}; {[one.lines[-3:] for one in self.instances]}",
        )  # fmt: skip

    def changelog(self) -> dict[str, int]:
        records = committed_records(self.broker.bootstrap, f"{self.name}-app-counts-changelog")
        return {word: int.from_bytes(value[-8:], "big") for word, value in records}


@pytest.fixture
def application(
    deployment: Deployment, streams_command: list[str], topic: str, tmp_path: Path
) -> Iterator[Application]:
    made = Application(deployment, topic, streams_command, tmp_path)
    for name in (made.name, made.output):
        create_topic(made.broker.bootstrap, name, PARTITIONS, replicas(deployment))
    yield made
    for instance in made.instances:
        instance.kill()


def test_counts_are_exact_although_an_instance_and_brokers_are_killed(application: Application) -> None:
    broker, written = application.broker, Counter[str]()
    with writing(broker.bootstrap, application.name, written):
        first, second = application.begin(), application.begin()
        eventually(lambda: "RUNNING" in first.lines and "RUNNING" in second.lines, within_s=WITHIN_S)
        application.wait_for_more("at first")
        first.kill()
        third = application.begin()
        eventually(lambda: "RUNNING" in third.lines, within_s=WITHIN_S)
        application.wait_for_more("after an instance was replaced")
        for _ in restarts(broker):
            application.wait_for_more("after a broker was killed")
        application.wait_for_more("after the brokers were killed")

    def counted() -> bool:
        return len(committed_records(broker.bootstrap, application.output)) >= written.total()

    eventually(counted, within_s=WITHIN_S, every_s=1, what=f"{written.total()} records of the output")
    for instance in (second, third):
        instance.end_input()
        assert instance.wait() == 0
        assert "closed" in instance.lines
    counts: dict[str, list[int]] = {}
    for word, value in committed_records(broker.bootstrap, application.output):
        counts.setdefault(word, []).append(int(value))
    assert counts == {word: list(range(1, count + 1)) for word, count in written.items()}
    assert application.changelog() == written
    replaced = sum(len(one.starting("replaced")) for one in application.instances)
    print(f"{written.total()} records, {len(written)} words, {replaced} threads replaced")
