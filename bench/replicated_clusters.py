"""Clusters of three brokers with one interface, whose brokers can be killed and started: ours and Apache Kafka's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from bench.apache import ApacheBroker, new_cluster_id
from bench.cluster import active_controller
from bench.raw import Connection
from bench.sides import ask_metadata, with_descendants
from odradek import __version__
from odradek.broker.repair.cluster_layout import ClusterNode, lay_out, prepare
from odradek.core.errors import ErrorCode
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from odradek.wire import frames
from odradek.wire.api_keys import CREATE_TOPICS, DELETE_TOPICS, METADATA

BROKERS = (1, 2, 3)
PATIENCE_S = 120.0


class ReplicatedCluster(Protocol):
    """Brokers 1 to 3, each with a directory."""

    name: str

    def start(self) -> None:
        """Starts all nodes, and returns when all brokers serve."""

    def kill(self, broker: int) -> None:
        """kill -9."""

    def stop(self, broker: int) -> None:
        """SIGTERM, and waits for the end."""

    def restart(self, broker: int) -> None:
        """Starts a broker again that was killed or stopped."""

    def end(self) -> None: ...
    def address(self, broker: int) -> str: ...
    def folder(self, broker: int) -> Path:
        """The folder of a broker's partitions."""

    def controller(self) -> int:
        """The broker that is also the active controller; 0 if no broker is."""

    @property
    def pids(self) -> list[int]:
        """All processes of the cluster."""


Make = Callable[[Path, Mapping[str, str]], ReplicatedCluster]
"""Makes a cluster in a directory, with settings of its brokers."""


class OdradekBrokers:
    """Three brokers and one controller: processes as ``odradek serve --brokers 3`` starts them."""

    name = f"odradek {__version__}"

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._reservations = reserve_ports(len(BROKERS) + 1)
        nodes = lay_out(directory, "127.0.0.1", [one.port for one in self._reservations], (), settings)
        prepare(nodes)
        self._nodes = {node.node_id: _process(node) for node in nodes}

    def start(self) -> None:
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(BrokerProcess.start, self._nodes.values()))

    def kill(self, broker: int) -> None:
        self._nodes[broker].kill()

    def stop(self, broker: int) -> None:
        self._nodes[broker].stop()

    def restart(self, broker: int) -> None:
        self._nodes[broker].start()

    def end(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def address(self, broker: int) -> str:
        return self._nodes[broker].bootstrap_servers

    def folder(self, broker: int) -> Path:
        return self._directory / str(broker)

    def controller(self) -> int:
        return 0

    @property
    def pids(self) -> list[int]:
        return with_descendants([node.pid for node in self._nodes.values() if node.pid is not None])


def _process(node: ClusterNode) -> BrokerProcess:
    host, _, port = node.address.rpartition(":")
    folder = node.data_dir.with_name(f"{node.data_dir.name}-log")
    return BrokerProcess(folder, config=node.settings, host=host, port=int(port), data_dir=node.data_dir)


class ApacheBrokers:
    """Three nodes of Apache Kafka, each broker and controller, with the heap of its own scripts (1 GB)."""

    name = ApacheBroker.name

    def __init__(self, directory: Path, settings: Mapping[str, str], cp: str) -> None:
        self._reservations = reserve_ports(len(BROKERS))
        ports = {node: one.port for node, one in zip(BROKERS, self._reservations, strict=True)}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
        self._nodes: dict[int, ApacheBroker] = {}
        cluster = new_cluster_id()
        for node, port in ports.items():
            made = self._nodes[node] = ApacheBroker(directory / str(node), dict(settings), cp=cp)
            with (made.directory / "server.properties").open("a") as lines:
                lines.write(f"node.id={node}\ncontroller.quorum.voters={voters}\n")
                lines.write(f"listeners=PLAINTEXT://127.0.0.1:{made.port},CONTROLLER://127.0.0.1:{port}\n")
            made.format(cluster)

    def start(self) -> None:
        for node in self._nodes.values():
            node.spawn()
        for node in self._nodes.values():
            node.wait(PATIENCE_S)

    def kill(self, broker: int) -> None:
        self._nodes[broker].kill()

    def stop(self, broker: int) -> None:
        self._nodes[broker].stop()

    def restart(self, broker: int) -> None:
        self._nodes[broker].start(PATIENCE_S)

    def end(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def address(self, broker: int) -> str:
        return self._nodes[broker].bootstrap

    def folder(self, broker: int) -> Path:
        return self._nodes[broker].directory / "data"

    def controller(self) -> int:
        return active_controller(self._nodes[1].bootstrap)

    @property
    def pids(self) -> list[int]:
        return with_descendants([pid for node in self._nodes.values() for pid in node.pids])


# --- topics -----------------------------------------------------------------------------------------------------


def create_topic(cluster: ReplicatedCluster, name: str, partitions: int) -> None:
    """Creates a topic with three replicas and min.insync.replicas=2, and waits until all are in sync."""
    first = [BROKERS[(index + shift) % 3] for index in range(partitions) for shift in range(3)]
    rows = [{"partition_index": n, "broker_ids": first[3 * n : 3 * n + 3]} for n in range(partitions)]
    topic = {
        "name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows,
        "configs": [{"name": "min.insync.replicas", "value": "2"}],
    }  # fmt: skip
    message = {"topics": [topic], "timeout": 30_000, "validate_only": False}
    reply = _ask(cluster.address(1), CREATE_TOPICS, 7, message)
    if reply.topics[0].error_code is not ErrorCode.none:
        raise RuntimeError(f"{name} was not created: {reply.topics[0]}")
    wait_until_in_sync(cluster, name)


def delete_topic(cluster: ReplicatedCluster, name: str) -> None:
    reply = _ask(cluster.address(1), DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 30_000})
    if reply.responses[0].error_code is not ErrorCode.none:
        raise RuntimeError(f"{name} was not deleted: {reply.responses[0]}")


def partitions_of(address: str, topic: str, within_s: float = 10) -> list[Any]:
    """The partitions of a topic, as one broker describes them. Raises OSError without a reply."""
    message = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False,
               "include_topic_authorized_operations": False}  # fmt: skip
    found = _ask(address, METADATA, 12, message, within_s).topics[0].partitions
    return sorted(found, key=lambda one: one.partition_index)


def wait_until_in_sync(cluster: ReplicatedCluster, topic: str) -> None:
    """Waits until each broker says that all replicas of a topic are in sync, and knows all brokers."""
    deadline = time.monotonic() + PATIENCE_S
    for broker in BROKERS:
        while True:
            with suppress(OSError):
                found = partitions_of(cluster.address(broker), topic)
                known = len(ask_metadata(cluster.address(broker)).brokers)
                if found and known == len(BROKERS) and all(len(one.isr_nodes) == len(BROKERS) for one in found):
                    break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} is not in sync")
            time.sleep(0.05)


def _ask(address: str, api: int, version: int, message: dict[str, Any], within_s: float = 40) -> Any:
    connection = Connection(address)
    try:
        connection.socket.settimeout(within_s)
        reply = connection.call(frames.encode_request(api, version, 0, "bench", message))
    finally:
        connection.socket.close()
    return frames.decode_reply(api, version, reply)[1]
