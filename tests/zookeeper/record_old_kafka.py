"""Records what Kafka 0.8.2.2 and 1.1.1 write to ZooKeeper, and the files and output of their tools.

``python -m tests.zookeeper.record_old_kafka`` writes ``tests/data/zookeeper-VERSION.json``. It needs Java and Maven.
Names of hosts, times and random parts of consumer ids are replaced by fixed ones.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

from kazoo.client import KazooClient  # noqa: E402  after the paths
from support.brokers import eventually  # noqa: E402
from support.old_kafka import VERSIONS, OldKafka, ServingKafka, register  # noqa: E402
from support.publish import create_topic, publish  # noqa: E402

import odradek  # noqa: E402

DATA = ROOT / "tests" / "data"
STATIC, PATTERN = "recorded-static", "recorded-pattern"
RECORDS = {"recorded-a": [10, 10], "recorded-b": list(range(1, 13))}
"""The number of records in each partition of each topic."""
MEMBER = re.compile(r"(recorded-\w+_)\S+?-\d{13}-[0-9a-f]{8}")
TIME = re.compile(r'("timestamp":)"\d+"')
Tree = dict[str, dict[str, Any]]


def recording_of(version: str) -> Path:
    return DATA / f"zookeeper-{version}.json"


def plain(text: str) -> str:
    """Replaces host, time and random part of consumer ids, and times."""
    return TIME.sub(r'\1"TIME"', MEMBER.sub(r"\1HOST-TIME-RANDOM", text))


def tree(client: KazooClient, path: str) -> Tree:
    """A node and all below it, in the server's order. ``data`` is null without data."""
    data, stat = client.get(path)
    found: Tree = {plain(path): {"data": plain(data.decode()) if data else None, "ephemeral": stat.ephemeralOwner != 0}}
    for name in client.get_children(path):
        found |= tree(client, f"{path}/{name}")
    return found


def offsets(client: KazooClient, group: str) -> dict[str, str]:
    found = tree(client, f"/consumers/{group}") if client.exists(f"/consumers/{group}") else {}
    return {path: node["data"] for path, node in found.items() if re.search(r"/offsets/\S+/\d+$", path)}


def wanted(group: str, topics: list[str]) -> dict[str, str]:
    root = f"/consumers/{group}/offsets"
    return {f"{root}/{topic}/{n}": str(count) for topic in topics for n, count in enumerate(RECORDS[topic])}


class Recorder:
    """The steps for one version, in one ZooKeeper."""

    def __init__(self, old: OldKafka, client: KazooClient, connect: str, folder: Path) -> None:
        self.old, self.client, self.connect, self.folder = old, client, connect, folder
        self.steps: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self._consume("static", STATIC, "--topic", "recorded-a")
        self._consume("pattern", PATTERN, "--whitelist", "recorded-.*")
        self.steps["export all"] = self._export()
        self.steps["export one"] = self._export("--group", STATIC)
        done = self.old.tool("UpdateOffsetsInZK", "earliest", str(self.old.properties(STATIC)), "recorded-a")
        self.steps["to earliest"] = {"exit": done.returncode, "output": done.stdout, "tree": self._tree(STATIC)}
        path = f"/consumers/{STATIC}/offsets/recorded-a"
        self._import("import", f"{path}/0:5\n{path}/1:7\n/consumers/recorded-new/offsets/recorded-a/0:3\n")
        self._import("import of a wrong file", f"{path}/0:abc\n\n{path}/1:9\n")
        return self.steps

    def _tree(self, group: str) -> Tree:
        return tree(self.client, f"/consumers/{group}")

    def _consume(self, name: str, group: str, *arguments: str) -> None:
        """Reads all records with a live consumer, which commits and is then stopped."""
        topics = [topic for topic in RECORDS if re.fullmatch(arguments[-1], topic)]
        running = self.old.consumer(group, "--from-beginning", *arguments)
        try:
            eventually(lambda: offsets(self.client, group) == wanted(group, topics), within_s=60)
            self.steps[f"{name} live"] = self._tree(group)
            self.steps[f"{name} live checks"] = self._checks(group)
        finally:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        self.steps[f"{name} stopped"] = self._tree(group)

    def _checks(self, group: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.old.version == "0.8.2.2":  # Kafka 1.0 dropped this tool
            done = self.old.tool("ConsumerOffsetChecker", "--zookeeper", self.connect, "--group", group)
            found["ConsumerOffsetChecker"] = plain(done.stdout)
        done = self.old.tool("VerifyConsumerRebalance", "--zookeeper.connect", self.connect, "--group", group)
        found["VerifyConsumerRebalance"] = done.stdout
        return found

    def _export(self, *arguments: str) -> str:
        path = self.folder / "exported.txt"
        done = self.old.tool("ExportZkOffsets", "--zkconnect", self.connect, *arguments, "--output-file", str(path))
        assert done.returncode == 0, done.stderr
        return path.read_bytes().decode()

    def _import(self, name: str, text: str) -> None:
        path = self.folder / "imported.txt"
        path.write_text(text)
        done = self.old.tool("ImportZkOffsets", "--zkconnect", self.connect, "--input-file", str(path))
        self.steps[name] = {"exit": done.returncode, "file": text, "tree": tree(self.client, "/consumers")}


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        kafka = ServingKafka(folder / "kafka")
        kafka.start()
        try:
            for topic, counts in RECORDS.items():
                create_topic(kafka.bootstrap, topic, len(counts))
                for partition, count in enumerate(counts):
                    publish(kafka.bootstrap, topic, [f"{partition}:{n}" for n in range(count)], partition=partition)
            for version in VERSIONS:
                with odradek.ZooKeeper() as zookeeper:
                    client = KazooClient(zookeeper.connect_string)
                    client.start()
                    register(client, kafka.port, {topic: len(counts) for topic, counts in RECORDS.items()})
                    old = OldKafka(version, zookeeper.connect_string, folder)
                    steps = Recorder(old, client, zookeeper.connect_string, folder).run()
                    client.stop()
                    client.close()
                path = recording_of(version)
                path.write_text(json.dumps({"version": version, "records": RECORDS, "steps": steps}, indent=1) + "\n")
                print(f"wrote {path.relative_to(ROOT)}")
        finally:
            kafka.kill()


if __name__ == "__main__":
    main()
