"""Kafka Connect, distributed: two workers, a file source and a file sink; a worker and the broker are killed with -9.

Apache Kafka 4.3 passes it (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import RunningBroker, eventually, unique
from connect import ConnectProcess, rest

pytestmark = pytest.mark.slow
WITHIN_S = 150
EACH = 100


class Workers:
    """Two workers of one Connect cluster."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        from bench.apache import free_port

        name = unique("connect")
        self.ports = [free_port(), free_port()]
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
                settings[f"{kind}.storage.replication.factor"] = "1"
            main = "org.apache.kafka.connect.cli.ConnectDistributed"
            self.processes.append(ConnectProcess(main, directory / f"worker-{number}", settings))

    def create(self, name: str, config: dict[str, str]) -> None:
        body = {"name": name, "config": config | {"tasks.max": "1"}}
        eventually(lambda: rest(self.ports[0], "/connectors", body), within_s=WITHIN_S, every_s=1)

    def running(self, port: int, *connectors: str) -> set[str] | None:
        """The workers on which tasks run, if the task of every connector does."""
        found: set[str] = set()
        for name in connectors:
            status: dict[str, Any] = rest(port, f"/connectors/{name}/status") or {}
            tasks = status.get("tasks", [])
            if [task["state"] for task in tasks] != ["RUNNING"]:
                return None
            found.add(tasks[0]["worker_id"])
        return found


@pytest.fixture
def stage(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> Iterator[tuple[Workers, RunningBroker]]:
    broker = own_broker()
    workers = Workers(broker.bootstrap, tmp_path)
    yield workers, broker
    for process in workers.processes:
        process.kill()


def test_files_are_copied_whatever_is_killed(stage: tuple[Workers, RunningBroker], tmp_path: Path) -> None:
    workers, broker = stage
    topic, source, sink = unique("lines"), tmp_path / "source", tmp_path / "sink"
    source.touch()
    for process in workers.processes:
        process.start()
    file = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "file": str(source)}
    workers.create("source", file | {"topic": topic})
    file = {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "file": str(sink)}
    workers.create("sink", file | {"topics": topic})

    written: list[str] = []

    def copied(step: str) -> None:
        lines = [f"{step} {number}" for number in range(EACH)]
        with source.open("a") as out:
            out.writelines(f"{line}\n" for line in lines)
        written.extend(lines)
        eventually(
            lambda: sink.exists() and set(written) <= set(sink.read_text().splitlines()),
            within_s=WITHIN_S, every_s=0.5, what=f"every line of {step!r} is in the sink",
        )  # fmt: skip

    copied("at first")
    eventually(lambda: len(workers.running(workers.ports[0], "source", "sink") or ()) == 2, within_s=WITHIN_S)
    workers.processes[1].kill()
    copied("with one worker")
    broker.kill()
    broker.start()
    copied("after the broker was killed")
    workers.processes[1].start()
    eventually(
        lambda: len(workers.running(workers.ports[1], "source", "sink") or ()) == 2,
        within_s=WITHIN_S, every_s=0.5, what="both workers run a task again",
    )  # fmt: skip
    copied("with both workers")
    # A task that was killed sends what it had not noted again: lines may come twice, but none is lost or torn.
    assert set(sink.read_text().splitlines()) == set(written)
    assert list(dict.fromkeys(sink.read_text().splitlines())) == written, "in order"
