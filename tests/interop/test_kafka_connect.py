"""Kafka Connect in distributed mode: two workers, a file source and a file sink.

Both workers and the broker, or each of three, are killed with -9 while lines are copied.

Apache Kafka 4.3 passes this test, too (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connect import ConnectProcess, Writer, repeated, rest
from support.brokers import eventually, unique
from support.three_brokers import Deployment, replicas, restarts

from odradek.client import LATEST, Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.testing.ports import reserve_ports

pytestmark = pytest.mark.slow
WITHIN_S = 150
FIRST = 100
"""Lines that are copied, with their positions stored, before the first kill."""
WRITTEN = 300
"""The minimum of copied lines before each kill."""


class Workers:
    """Two workers of one Connect cluster."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        name = unique("connect")
        self._reservations = reserve_ports(2)
        self.ports = [reservation.port for reservation in self._reservations]
        self.processes = []
        for number, port in enumerate(self.ports):
            settings = {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "listeners": f"http://127.0.0.1:{port}",
                "rest.advertised.host.name": "127.0.0.1",
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                "offset.flush.interval.ms": "500",
                "session.timeout.ms": "8000",
                "heartbeat.interval.ms": "1000",
                "scheduled.rebalance.max.delay.ms": "1000",
                "plugin.discovery": "only_scan",
            }
            for kind in ("offset", "config", "status"):
                settings[f"{kind}.storage.topic"] = f"{name}-{kind}"
                settings[f"{kind}.storage.replication.factor"] = "-1"
            main = "org.apache.kafka.connect.cli.ConnectDistributed"
            self.processes.append(ConnectProcess(main, directory / f"worker-{number}", settings))

    def create(self, name: str, config: dict[str, str]) -> None:
        body = {"name": name, "config": config | {"tasks.max": "1"}}
        eventually(lambda: rest(self.ports[0], "/connectors", body), within_s=WITHIN_S, every_s=1)

    def position(self, name: str, key: str) -> int:
        """A connector's stored position: bytes in its file, or records in its partition; -1 without one."""
        stored: dict[str, Any] = rest(self.ports[0], f"/connectors/{name}/offsets") or {}
        return next((int(one["offset"][key]) for one in stored.get("offsets", [])), -1)

    def running(self, port: int, *connectors: str) -> set[str] | None:
        """The workers on which the connectors' tasks run. None unless each connector has one task and the task runs."""
        found: set[str] = set()
        for name in connectors:
            status: dict[str, Any] = rest(port, f"/connectors/{name}/status") or {}
            tasks = status.get("tasks", [])
            if [task["state"] for task in tasks] != ["RUNNING"]:
                return None
            found.add(tasks[0]["worker_id"])
        return found


@pytest.fixture
def workers_and_broker(deployment: Deployment, tmp_path: Path) -> Iterator[tuple[Workers, Deployment]]:
    workers = Workers(deployment.bootstrap, tmp_path)
    yield workers, deployment
    for process in workers.processes:
        process.kill()


def test_files_are_copied_despite_killed_workers_and_brokers(
    workers_and_broker: tuple[Workers, Deployment], tmp_path: Path
) -> None:
    workers, broker = workers_and_broker
    place, source, sink = TopicPartition(unique("lines"), 0), tmp_path / "source", tmp_path / "sink"
    source.touch()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(place.topic, 1, replicas(broker))])
    for process in workers.processes:
        process.start()
    file = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "file": str(source)}
    workers.create("source", file | {"topic": place.topic})
    file = {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "file": str(sink)}
    workers.create("sink", file | {"topics": place.topic})

    def copied() -> list[int]:
        return [int(line) for line in sink.read_text().splitlines()] if sink.exists() else []

    def sent() -> list[int]:
        with Admin(broker.bootstrap) as admin:
            end = admin.list_offsets({place: LATEST})[place].offset
        return [int(row.value or b"") for row in PartitionReader(as_config(broker.bootstrap), place).read_rows(0, end)]

    def both_run(port: int) -> bool:
        return len(workers.running(port, "source", "sink") or ()) == 2

    with source.open("a", buffering=1) as lines:
        lines.writelines(f"{number}\n" for number in range(FIRST))
    eventually(
        lambda: workers.position("source", "position") == source.stat().st_size
        and workers.position("sink", "kafka_offset") == FIRST,
        within_s=WITHIN_S, every_s=0.5, what="the first lines are copied, and their positions are stored",
    )  # fmt: skip
    assert copied() == list(range(FIRST))
    eventually(lambda: both_run(workers.ports[0]), within_s=WITHIN_S, every_s=0.5, what="each worker runs a task")

    with source.open("a", buffering=1) as lines, Writer(lambda number: lines.write(f"{number}\n"), FIRST) as writer:

        def wait_for_lines(what: str) -> None:
            """Waits until more lines are copied, while others are written."""
            before = max(copied())
            eventually(lambda: max(copied()) >= before + WRITTEN, within_s=WITHIN_S, what=f"lines are copied: {what}")

        wait_for_lines("at first")
        workers.processes[1].kill()
        wait_for_lines("with one worker")
        for _ in restarts(broker):
            wait_for_lines("after a broker was killed")
        workers.processes[1].start()
        eventually(lambda: both_run(workers.ports[1]), within_s=WITHIN_S, every_s=0.5, what="each runs a task again")
        wait_for_lines("with both workers")
        workers.processes[0].kill()
        wait_for_lines("with the other worker")
    written = list(range(writer.next))
    eventually(lambda: set(copied()) == set(written), within_s=WITHIN_S, every_s=0.5, what="no line is lost")

    # A killed task sends the lines after its stored position again: lines may be repeated.
    assert list(dict.fromkeys(copied())) == written, "in order"
    again = len(copied()) - len(written)
    print(f"{len(written)} lines; {repeated(sent())} of them repeated in the topic, {again} in the sink")
    for numbers in (sent(), copied()):
        assert [number for number in numbers if number < FIRST] == list(range(FIRST)), "these lines are not repeated"
