"""Three nodes of Apache Kafka 4.3 from its jars, on loopback, for behaviour that needs several brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.apache import ApacheBroker, new_cluster_id
from odradek.client import Admin
from odradek.client.model import PartitionDescription
from odradek.core.errors import ErrorCode
from odradek.testing.ports import reserve_ports
from support.brokers import Wire, eventually
from support.jvm import kafka_java_options

ALTER_PARTITION_REASSIGNMENTS = 45
ELECT_LEADERS = 43
HEAP = "200m"
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "auto.leader.rebalance.enable": "false",
    # Long enough that the controller fences no node on a busy machine.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "10000",
    "auto.create.topics.enable": "false",
    # The default, 128 MiB in one array, does not fit into the heap: the node ends without a message.
    "log.cleaner.dedupe.buffer.size": "10485760",
}


class ApacheCluster:
    """Nodes 1, 2 and 3, each broker and controller. ``settings``: further ones, or others than those of ``CONFIG``.

    Raises Unavailable if Java or the jars are missing."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._settings = CONFIG | dict(settings or {})
        self._reservations = reserve_ports(3)
        controllers = {node: reservation.port for node, reservation in enumerate(self._reservations, 1)}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        self.nodes = {node: self._node(directory, node, port, voters) for node, port in controllers.items()}
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())

    def _node(self, directory: Path, number: int, controller: int, voters: str) -> ApacheBroker:
        made = ApacheBroker(directory / str(number), self._settings, heap=HEAP, java_options=kafka_java_options())
        with (made.directory / "server.properties").open("a") as settings:
            settings.write(f"node.id={number}\ncontroller.quorum.voters={voters}\n")
            settings.write(f"listeners=PLAINTEXT://127.0.0.1:{made.port},CONTROLLER://127.0.0.1:{controller}\n")
        return made

    def start(self) -> None:
        cluster = new_cluster_id()
        for node in self.nodes.values():
            node.format(cluster)
            node.spawn()
        for node in self.nodes.values():
            node.wait(120)
        with Admin(self.bootstrap) as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == 3, within_s=60)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()

    # --- changes of replicas and leaders --------------------------------------------------------------------------

    def partition(self, admin: Admin, topic: str, number: int = 0) -> PartitionDescription:
        return admin.describe_topics([topic])[topic].partitions[number]

    def reassign(self, admin: Admin, topic: str, replicas: Sequence[int], number: int = 0) -> None:
        """Moves a partition, and waits until exactly ``replicas`` have it, all are in sync, and the first of them
        is the leader."""
        rows = [{"partition_index": number, "replicas": list(replicas)}]
        message = {"timeout": 30_000, "topics": [{"name": topic, "partitions": rows}]}
        self._change(ALTER_PARTITION_REASSIGNMENTS, message)

        def moved() -> bool:
            found = self.partition(admin, topic, number)
            return set(found.replicas) == set(found.isr) == set(replicas)

        eventually(moved, within_s=60, what=f"{topic}-{number} on {replicas}")
        self.elect(admin, topic, replicas[0], number)

    def elect(self, admin: Admin, topic: str, leader: int, number: int = 0) -> None:
        """Elects the preferred leader, the first replica, which must be ``leader``."""
        rows = [{"topic": topic, "partitions": [number]}]
        self._change(ELECT_LEADERS, {"election_type": 0, "topic_partitions": rows, "timeout": 30_000})
        eventually(lambda: self.partition(admin, topic, number).leader == leader, within_s=60)

    def _change(self, api: int, message: Mapping[str, Any]) -> None:
        """Sends the request to any live node, which forwards it to the controller."""
        node = next(node for node in self.nodes.values() if node.pids)
        with Wire(node.bootstrap) as wire:
            reply = wire.call(api, wire.newest(api), message)
        assert reply.error_code in (ErrorCode.none, ErrorCode.election_not_needed), reply
