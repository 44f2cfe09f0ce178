"""A transactional copy by five clients while its group and its broker change.

A second instance joins, the broker, or each of three, is killed with ``kill -9``, the first instance is killed with
``kill -9`` in an open transaction, and a third one takes the id of the first. Every fourth transaction is aborted and
repeated. Each input record is in the committed output once. Apache Kafka 4.3 passes these tests
(ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers import eventually
from support.go_programs import go_program
from support.jvm import java_classes, kafka_command
from support.killed_programs import KilledProgram
from support.publish import create_topic, log_end
from support.three_brokers import Deployment, replicas, restarts
from test_transactional_copy import output

from odradek import Admin

HERE = Path(__file__).parent
PARTITIONS = 4
WITHIN_S = 240
"""Clients start slowly on a busy machine, and each waits for its own back-off after the broker's restart."""


def command(client: str, request: pytest.FixtureRequest) -> list[str]:
    """The start of the command of an instance. Skips if Go, Java or its jars are not available."""
    if client == "franz-go":
        return [str(go_program(HERE / "franz_copier"))]
    if client == "java":
        kafka_cp = request.getfixturevalue("kafka_cp")
        return [*kafka_command(kafka_cp, java_classes(kafka_cp), heap="128m"), "TransactionalCopier"]
    return [sys.executable, str(HERE / "transactional_copier.py"), client]


@contextmanager
def publishing(bootstrap: str, topic: str) -> Iterator[None]:
    """Writes records to all partitions until the end of the block. All records are acknowledged then."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2})
    stop = threading.Event()
    failures: list[str] = []

    def write() -> None:
        for number in itertools.count():
            if stop.wait(0.02):
                break
            producer.produce(
                topic, str(number), partition=number % PARTITIONS,
                on_delivery=lambda error, _: failures.append(str(error)) if error is not None else None,
            )  # fmt: skip
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


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    with Admin(bootstrap) as admin:
        return {(tp.topic, tp.partition): found.offset for tp, found in admin.list_group_offsets(group).items()}


def assignment(instance: KilledProgram) -> set[int]:
    lines = instance.starting("assigned")
    return {int(number) for number in lines[-1][0].split(",")} if lines and lines[-1] else set()


class Copy:
    def __init__(self, broker: Deployment, topic: str, group: str, start: list[str]) -> None:
        self.broker, self.topic, self.target, self.group = broker, topic, f"{topic}-out", group
        self._start = start
        self.instances: list[KilledProgram] = []

    def begin(self, transactional_id: str) -> KilledProgram:
        where = [self.broker.bootstrap, self.topic, self.target, self.group, f"{self.group}-{transactional_id}"]
        self.instances.append(KilledProgram([*self._start, *where]))
        return self.instances[-1]

    def wait_for_assignments(self, *living: KilledProgram) -> None:
        """Waits until these instances share all partitions."""

        def shared() -> bool:
            owned = [assignment(one) for one in living]
            return all(owned) and sorted(itertools.chain(*owned)) == list(range(PARTITIONS))

        eventually(shared, within_s=WITHIN_S, what=f"{[one.lines[-5:] for one in living]} share the partitions")

    def wait_for_commits(self, *living: KilledProgram) -> None:
        """Waits until each of these instances has committed three more transactions."""
        before = [len(one.starting("committed")) for one in living]

        def more() -> bool:
            return all(len(one.starting("committed")) >= had + 3 for one, had in zip(living, before, strict=True))

        eventually(more, within_s=WITHIN_S, what=f"commits of {[one.lines[-5:] for one in living]}")

    def wait_for_all(self) -> None:
        """Waits until the group has committed the ends of all partitions. A busy machine may need long, but goes on."""
        bootstrap = self.broker.bootstrap
        ends = {(self.topic, at): log_end(bootstrap, self.topic, at) for at in range(PARTITIONS)}
        while (before := committed(bootstrap, self.group)) != ends:
            eventually(
                lambda before=before: committed(bootstrap, self.group) != before, within_s=WITHIN_S, every_s=0.3,
                what=f"more commits than {before}, up to {ends}; {[one.lines[-5:] for one in self.instances]}",
            )  # fmt: skip

    def check(self) -> None:
        """Every record of the input is in the committed output once, and aborted records are in the log."""
        bootstrap = self.broker.bootstrap
        wanted = Counter(
            f"{at}/{offset}" for at in range(PARTITIONS) for offset in range(log_end(bootstrap, self.topic, at))
        )
        found = Counter(output(bootstrap, self.target, "read_committed", PARTITIONS))
        assert found - wanted == Counter(), "records are in the output twice"
        assert wanted - found == Counter(), "records are not in the output"
        assert len(output(bootstrap, self.target, "read_uncommitted", PARTITIONS)) > sum(wanted.values())
        assert sum(wanted.values()) > 100
        count = sum(len(one.starting("aborted")) for one in self.instances)
        renewed = sum(len(one.starting("renewed") + one.starting("restarted")) for one in self.instances)
        print(f"{sum(wanted.values())} records, {count} aborts, {renewed} times new clients")


@pytest.fixture
def copy(
    request: pytest.FixtureRequest, deployment: Deployment, topic: str, group: str
) -> Iterator[Callable[[str], Copy]]:
    made: list[Copy] = []

    def make(client: str) -> Copy:
        start = command(client, request)
        one = Copy(deployment, topic, group, start)
        made.append(one)
        for name in (one.topic, one.target):
            create_topic(deployment.bootstrap, name, PARTITIONS, replicas(deployment))
        return one

    yield make
    for one in made:
        for instance in one.instances:
            instance.kill()


@pytest.mark.slow
@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka", "franz-go", "java"])
def test_a_copy_survives_rebalances_and_kill_9(copy: Callable[[str], Copy], client: str) -> None:
    running = copy(client)
    broker = running.broker
    with publishing(broker.bootstrap, running.topic):
        first = running.begin("first")
        running.wait_for_assignments(first)
        running.wait_for_commits(first)
        second = running.begin("second")
        running.wait_for_assignments(first, second)
        running.wait_for_commits(first, second)
        for _ in restarts(broker):
            running.wait_for_commits(first, second)
        running.wait_for_commits(first, second)
        first.kill()
        running.wait_for_assignments(second)
        running.wait_for_commits(second)
        third = running.begin("first")
        running.wait_for_assignments(second, third)
        running.wait_for_commits(second, third)
    running.wait_for_all()
    for instance in (second, third):
        instance.end_input()
        assert (instance.wait(), instance.lines[-1]) == (0, "left")
    running.check()
