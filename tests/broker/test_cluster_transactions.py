"""Processes: transactions of librdkafka over killed coordinators and leaders; descriptions from each broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.brokers import eventually

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic

SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
}  # fmt: skip
WITHIN_S = 90
TRANSACTIONS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(brokers=3, config=SETTINGS) as made:
        yield made


class Transfer:
    """A producer with a transactional id that writes a number to two topics and commits an offset of its group."""

    def __init__(self, cluster: odradek.Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.topics = (f"{name}-a", f"{name}-b")
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            minimum = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(topic, 1, 3, minimum) for topic in self.topics])
        self._settings = {"bootstrap.servers": cluster.bootstrap_servers, "socket.timeout.ms": 10_000}
        self.group = Consumer(self._settings | {"group.id": name, "enable.auto.commit": False})
        self.producer = self._new_producer()

    def _new_producer(self) -> Producer:
        made = Producer(self._settings | {"transactional.id": self.name, "linger.ms": 0})
        made.init_transactions(WITHIN_S)
        return made

    def write(self, number: int, *, between: Callable[[], object] | None = None, commits: bool = True) -> None:
        """Writes a transaction, and again if its producer has to abort it. ``between``: before its end."""
        while True:
            self.producer.begin_transaction()
            try:
                for topic in self.topics:
                    self.producer.produce(topic, str(number).encode())
                offset = [TopicPartition(self.topics[0], 0, number)]
                self.producer.send_offsets_to_transaction(offset, self.group.consumer_group_metadata(), WITHIN_S)
                self.producer.flush(WITHIN_S)
                if between is not None:
                    between()
                if commits:
                    self.producer.commit_transaction(WITHIN_S)
                else:
                    self.producer.abort_transaction(WITHIN_S)
            except KafkaException as failure:
                if not failure.args[0].txn_requires_abort():
                    raise
                self.producer.abort_transaction(WITHIN_S)
                between = None
            else:
                return

    def values(self, topic: str) -> list[int]:
        """The committed records up to the last stable offset."""
        own = {"group.id": "reader", "enable.partition.eof": True, "enable.auto.commit": False}
        reader = Consumer(self._settings | own)
        reader.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        try:
            while True:
                message = reader.poll(5)
                if message is not None and message.error() is not None:
                    return found
                if message is not None:
                    found.append(int(message.value()))
        finally:
            reader.close()

    def check(self, numbers: list[int]) -> None:
        """The markers of a killed leader's partitions follow when they have another one."""
        for topic in self.topics:
            eventually(lambda topic=topic: self.values(topic) == numbers, within_s=WITHIN_S, every_s=0.2)
        (partition,) = self.group.committed([TopicPartition(self.topics[0], 0)], timeout=WITHIN_S)
        assert partition.offset == numbers[-1]


@pytest.mark.parametrize(
    "victim",
    ["coordinator", *(pytest.param(one, marks=pytest.mark.slow) for one in ("leader", "coordinator of the group"))],
)
def test_transactions_outlive_killed_brokers(cluster: odradek.Cluster, victim: str) -> None:
    """Two producers write at the same time. A broker is killed in a transaction, and starts again four later."""
    transfers = [Transfer(cluster, f"{victim.replace(' ', '-')}-{number}") for number in range(2)]
    cluster.wait_until_in_sync()
    killed: list[int] = []

    def kill() -> None:
        first = transfers[0]
        found = {
            "coordinator": lambda: cluster.coordinator(transactional_id=first.name),
            "leader": lambda: cluster.leader(first.topics[0]),
            "coordinator of the group": lambda: cluster.coordinator(first.name),
        }[victim]()
        assert found is not None
        killed.append(found)
        cluster.kill(found)

    for number in range(1, TRANSACTIONS + 1):
        for transfer in transfers:
            is_time = number == 3 and transfer is transfers[0]
            transfer.write(number, between=kill if is_time else None)
            transfer.write(1_000 + number, commits=False)
        if number == 6:
            cluster.start(killed[0])
    assert killed
    for transfer in transfers:
        transfer.check(list(range(1, TRANSACTIONS + 1)))
    cluster.wait_until_in_sync()
    for transfer in transfers:
        transfer.check(list(range(1, TRANSACTIONS + 1)))


def test_each_broker_names_the_same_coordinators_and_transactions(cluster: odradek.Cluster) -> None:
    """A list asks all brokers, and a description the coordinator, whatever broker the tool knows at first."""
    producers = []
    for number in range(6):
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"listed-{number}"})
        producer.init_transactions(WITHIN_S)
        producers.append(producer)
    found = []
    for broker in cluster.brokers:
        with odradek.Admin(cluster.address(broker)) as admin:
            listed = [row for row in admin.list_transactions() if row.transactional_id.startswith("listed-")]
            described = admin.describe_transactions([row.transactional_id for row in listed])
            found.append((listed, {name: (one.coordinator.node_id, one.state) for name, one in described.items()}))
    assert found[0] == found[1] == found[2]
    listed, described = found[0]
    assert len(listed) == len(producers)
    assert {row.transactional_id: row.coordinator for row in listed} == {
        name: coordinator for name, (coordinator, _) in described.items()
    }
    assert len({coordinator for coordinator, _ in described.values()}) > 1


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Runs a command of ``odradek``. Returns the JSON that it prints."""
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_commands_ask_all_brokers(cluster: odradek.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command prints the same whatever broker it is given, with what all coordinators and leaders have."""
    names = [f"asked-{number}" for number in range(6)]
    topic = "asked"
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 3, 3)])
        for name in names:
            admin.alter_group_offsets(name, {odradek.TopicPartition(topic, 0): 1})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "asked", "linger.ms": 0})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"v", partition=partition)
    producer.flush(WITHIN_S)
    assert len({cluster.coordinator(name) for name in names}) > 1
    assert len({cluster.leader(topic, partition) for partition in range(3)}) == 3
    found = []
    for broker in cluster.brokers:
        at = ["-b", cluster.address(broker)]
        groups = printed(capsys, "groups", "list", *at)
        described = printed(capsys, "groups", "describe", *names, *at)
        listed = printed(capsys, "transactions", "list", *at)
        (one,) = [row for row in listed if row["transactional_id"] == "asked"]
        state = printed(capsys, "transactions", "describe", "asked", *at)
        assert state.pop("duration_ms") > 0
        hanging = printed(capsys, "transactions", "find-hanging", topic, "--max-transaction-timeout", "0", *at)
        found.append((groups, described, one, state, hanging))
    assert set(names) <= {row["group"] for row in found[0][0]}
    assert found[0] == found[1] == found[2]
    cluster.wait_until_in_sync()
    followers = [
        printed(capsys, "transactions", "describe-producers", f"{topic}:0", "--broker-id", str(broker), *at)
        for broker in cluster.brokers
    ]
    assert len(followers[0]) == 1
    assert followers[0] == followers[1] == followers[2]
    for broker in cluster.brokers:  # a follower answers for its own log, and the transaction is known
        words = ["--broker-id", str(broker), "--max-transaction-timeout", "0"]
        assert printed(capsys, "transactions", "find-hanging", topic, *words, *at) == []
    producer.abort_transaction(WITHIN_S)
