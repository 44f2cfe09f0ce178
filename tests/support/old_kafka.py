"""Kafka 0.8.2.2 and 1.1.1 with their offsets in ZooKeeper: their tools and high-level consumers, from Maven's jars.

The old consumers read from Apache Kafka 3.9.1, the last Kafka that serves their requests. Kafka 3.9.1 runs here without
ZooKeeper, so this module writes the znodes by which the consumers find the broker (``/brokers``).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient

from bench.apache import ApacheBroker, java, old_class_path
from support.jvm import SHORT_LIVED

VERSIONS = ("0.8.2.2", "1.1.1")
BROKER_VERSION = "3.9.1"
BROKER_ID = 1


class ServingKafka(ApacheBroker):
    """Apache Kafka 3.9.1."""

    name = "Apache Kafka " + BROKER_VERSION

    def __init__(self, directory: Path) -> None:
        config = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
        super().__init__(directory, config, cp=old_class_path(BROKER_VERSION), heap="256m", java_options=SHORT_LIVED)


def register(client: KazooClient, port: int, topics: Mapping[str, int]) -> None:
    """Writes the znodes by which old clients find a broker on this machine and the partitions of topics."""

    def put(path: str, value: Mapping[str, object]) -> None:
        client.ensure_path(path)
        client.set(path, json.dumps(value, separators=(",", ":")).encode())

    broker = {"jmx_port": -1, "timestamp": "1700000000000", "host": "127.0.0.1", "version": 1, "port": port}
    put(f"/brokers/ids/{BROKER_ID}", broker)
    for topic, count in topics.items():
        put(f"/brokers/topics/{topic}", {"version": 1, "partitions": {str(n): [BROKER_ID] for n in range(count)}})
        for n in range(count):
            state = {"controller_epoch": 1, "leader": BROKER_ID, "version": 1, "leader_epoch": 0, "isr": [BROKER_ID]}
            put(f"/brokers/topics/{topic}/partitions/{n}/state", state)


class OldKafka:
    """The programs of one version against one ZooKeeper. Raises Unavailable without Java, Maven or the jars."""

    def __init__(self, version: str, connect: str, directory: Path) -> None:
        self.version = version
        self._cp = old_class_path(version)
        self._connect = connect
        self._directory = directory

    def tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a class of ``kafka.tools`` to its end."""
        command = [*self._java(), f"kafka.tools.{name}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=self._directory)

    def consumer(self, group: str, *arguments: str, **settings: str | None) -> subprocess.Popen[str]:
        """Starts a console consumer with the high-level consumer. It prints the value of each record.

        It commits every 200 ms unless ``settings`` (underscores for dots) say otherwise. A setting of None has Kafka's
        default."""
        chosen = {"auto_commit_interval_ms": "200"} | settings
        properties = self.properties(group, **{name: value for name, value in chosen.items() if value is not None})
        command = [*self._java(), "kafka.tools.ConsoleConsumer", "--zookeeper", self._connect]
        command += ["--consumer.config", str(properties), *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self._directory
        )

    def properties(self, group: str, **settings: str) -> Path:
        """Writes the settings of a consumer (underscores for dots) to a file."""
        chosen = {
            "zookeeper.connect": self._connect,
            "zookeeper.session.timeout.ms": "6000",
            "zookeeper.connection.timeout.ms": "30000",
            "group.id": group,
        } | {name.replace("_", "."): value for name, value in settings.items()}
        path = self._directory / f"{group}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
        return path

    def _java(self) -> list[str]:
        return [java(), "-Xmx128m", *SHORT_LIVED, "-cp", self._cp]
