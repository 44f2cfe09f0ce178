"""Records partition directories of Apache Kafka 4.3 with transactions in every state: ``python -m
tests.oracle.record_prepared_transactions``.

Kafka sends markers through the listener between brokers, also to its own partitions. At first this listener works, and
Kafka completes transactions. Then Kafka restarts with a closed port as the advertised address of this listener, so a
transaction that ends stays prepared. Then ``kill -9`` ends Kafka. The directories are stored in
``tests/data/kafka-prepared-transactions``; ``tests/broker/test_kafka_transactions_are_finished.py`` opens them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from support.brokers import Wire, eventually
from support.transactions import RawProducer, create_topic, state_of

from bench.apache import ApacheBroker, free_port
from odradek.wire.api_keys import FIND_COORDINATOR, TXN_OFFSET_COMMIT

TARGET = _HERE.parent / "data" / "kafka-prepared-transactions"
TOPIC = "t"
DIRECTORIES = ("__transaction_state-0", "__consumer_offsets-0", "t-0", "t-1")
CONFIG = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.index.size.max.bytes": "1024",  # Kafka allocates this size for the indexes of an active segment
    "transaction.partition.verification.enable": "false",  # the verification would need the listener between brokers
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}
FINISHED = {"committed": True, "aborted": False}
PREPARED = {"prepared-commit": True, "prepared-abort": False}
LEVELS = (0, 2)


class Node(ApacheBroker):
    """A node that can advertise a closed port as the address of its listener between brokers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, CONFIG, heap="512m")
        self._internal = free_port()
        self._lines = (directory / "server.properties").read_text()

    def start(self, timeout_s: float = 300, *, sends_markers: bool = True) -> None:
        clients, port = f"PLAINTEXT://127.0.0.1:{self.port}", self._internal
        said = self._internal if sends_markers else free_port()
        (controller,) = (line.partition("@")[2] for line in self._lines.splitlines() if line.startswith("controller.q"))
        lines = f"listeners={clients},INTERNAL://127.0.0.1:{port},CONTROLLER://{controller}\n"
        lines += f"advertised.listeners={clients},INTERNAL://127.0.0.1:{said}\n"
        (self.directory / "server.properties").write_text(self._lines + lines)  # Kafka uses the last value of a name
        super().start(timeout_s)


def begun(wire: Wire, name: str, level: int) -> RawProducer:
    """Begins a transaction with a record in each partition of the topic, and an offset of the group ``name``."""
    producer = RawProducer(wire, name, level=level).started()
    assert producer.add(TOPIC, (0, 1)) == {0: "none", 1: "none"}
    for partition in (0, 1):
        assert producer.send(TOPIC, name, partition=partition, version=11) == "none"
    assert producer.add_offsets(name) == "none"
    eventually(lambda: commit_offset(producer, name) == "none")
    return producer


def commit_offset(producer: RawProducer, group: str) -> str:
    """Commits offset 7 of partition 0 by the protocol before transaction.version 2."""
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": group}
    message: dict[str, Any] = {"group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None}
    message |= {"transactional_id": producer.transactional_id, "topics": [{"name": TOPIC, "partitions": [row]}]}
    message |= {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    (topic,) = producer.wire.call(TXN_OFFSET_COMMIT, 3, message).topics
    return str(topic.partitions[0].error_code.name)


def find_group_coordinator(wire: Wire, group: str) -> None:
    asked = {"key_type": 0, "coordinator_keys": [group]}
    eventually(lambda: wire.call(FIND_COORDINATOR, 4, asked).coordinators[0].error_code == 0)


def record(node: Node) -> None:
    node.start()
    with Wire(node.bootstrap) as wire:
        create_topic(wire, TOPIC, 2)
        find_group_coordinator(wire, "g")
        for level in LEVELS:
            for name, commit in FINISHED.items():
                producer = begun(wire, f"{name}-{level}", level)
                assert producer.end(commit=commit) == "none"
                eventually(lambda done=producer: state_of(wire, done.transactional_id).startswith("Complete"))
    node.stop()
    node.start(sends_markers=False)
    with Wire(node.bootstrap) as wire:
        find_group_coordinator(wire, "g")
        for level in LEVELS:
            RawProducer(wire, f"empty-{level}", level=level).started()
            begun(wire, f"open-{level}", level)
            for name, commit in PREPARED.items():
                producer = begun(wire, f"{name}-{level}", level)
                assert producer.end(commit=commit) == "none"
                assert state_of(wire, producer.transactional_id) == ("PrepareCommit" if commit else "PrepareAbort")
    node.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory))
        record(node)
        shutil.rmtree(TARGET, ignore_errors=True)
        for name in DIRECTORIES:
            shutil.copytree(node.directory / "data" / name, TARGET / name)
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    main()
