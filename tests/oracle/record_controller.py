"""Records what the controller of Apache Kafka decides and replies: ``python -m tests.oracle.record_controller``.

* ``controller_java/ControllerDecisions.java`` runs with Kafka's jars, for elections, placement and sessions of chance.
* The scenarios of ``controller_scenarios`` and ``partition_scenarios`` run against a controller of Apache Kafka without
  brokers, for which the scenarios speak.
* The scenarios of ``observer_scenarios`` run against a controller each, as followers of its metadata log.

The comparison with Odradek needs no Java.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parent.parent)]

from controller_conversation import SESSION_MS, Conversation
from controller_scenarios import SCENARIOS
from observer_conversation import CONTROLLER, SETTINGS, SNAPSHOTS, Observation
from observer_scenarios import SCENARIOS as OBSERVER_SCENARIOS
from observer_scenarios import SNAPSHOT_SCENARIOS
from partition_scenarios import PERIODIC_SCENARIOS, PERIODIC_SETTINGS
from partition_scenarios import SCENARIOS as PARTITION_SCENARIOS
from recording import packed_traces
from support.brokers import Wire
from support.jvm import java_classes, kafka_command

from bench.apache import ApacheBroker, class_path, new_cluster_id
from odradek.batches.rows import iter_records
from odradek.catalog.records import MetadataRecord
from odradek.cluster.records import decode

DECISIONS = _HERE / "traces" / "controller_decisions.jsonl"
CONVERSATIONS = _HERE / "traces" / "controller.json"
PARTITIONS = _HERE / "traces" / "partitions.json"
OBSERVATIONS = _HERE / "traces" / "observers.json"
BASES = range(1000, 1000 + 100 * max(len(SCENARIOS), len(PARTITION_SCENARIOS)), 100)
"""The broker ids of each scenario are above its number: all scenarios share a controller."""
OF_A_FORMAT = (23, 24)
"""The records BeginTransaction and EndTransaction are around the first records of a new metadata log."""


def record_decisions() -> None:
    jars = class_path()
    command = kafka_command(jars, java_classes(jars, "controller_java"))
    program = "org.apache.kafka.controller.ControllerDecisions"
    done = subprocess.run([*command, program], check=True, capture_output=True, text=True, timeout=120)
    DECISIONS.write_text(done.stdout)
    print(f"{DECISIONS.relative_to(_HERE.parent.parent)}: {done.stdout.count(chr(10))} decisions")


@contextmanager
def apache_controller(settings: Mapping[str, str], node_id: int = 1) -> Iterator[tuple[ApacheBroker, str]]:
    """A controller of Apache Kafka without brokers. Yields it with the id of its cluster."""
    with tempfile.TemporaryDirectory() as directory:
        node = ApacheBroker(Path(directory), {}, heap="256m")
        port = node._reservations[1].port
        own = {
            "process.roles": "controller", "node.id": str(node_id),
            "controller.quorum.voters": f"{node_id}@127.0.0.1:{port}",
            "listeners": f"CONTROLLER://127.0.0.1:{port}", "advertised.listeners": f"CONTROLLER://127.0.0.1:{port}",
        }  # fmt: skip
        with (Path(directory) / "server.properties").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in {**own, **settings}.items())
        cluster_id = new_cluster_id()
        node.format(cluster_id)
        node.port = port
        node.start()
        try:
            yield node, cluster_id
        finally:
            node.kill()


def record_conversations() -> None:
    _write(CONVERSATIONS, _record(SCENARIOS, {}))


def record_partitions() -> None:
    traces = _record(PARTITION_SCENARIOS, {}) | _record(PERIODIC_SCENARIOS, PERIODIC_SETTINGS)
    _write(PARTITIONS, traces)


def _record(
    scenarios: Sequence[Callable[[Conversation], None]], settings: Mapping[str, str]
) -> dict[str, list[dict[str, Any]]]:
    with apache_controller({"broker.session.timeout.ms": str(SESSION_MS), **settings}) as (node, cluster_id):
        log = node.directory / "data" / "__cluster_metadata-0"
        return _run_all(scenarios, f"127.0.0.1:{node.port}", cluster_id, log)


def _write(trace: Path, traces: Mapping[str, list[dict[str, Any]]]) -> None:
    trace.write_text(packed_traces(traces))
    print(f"{trace.relative_to(_HERE.parent.parent)}: {len(traces)} conversations")


def record_observers() -> None:
    traces = {}
    for scenarios, settings in ((OBSERVER_SCENARIOS, SETTINGS), (SNAPSHOT_SCENARIOS, SNAPSHOTS)):
        for scenario in scenarios:
            with apache_controller(settings, CONTROLLER) as (node, cluster_id):
                traces[scenario.__name__] = _observe(scenario, node, cluster_id)
    OBSERVATIONS.write_text(packed_traces(traces))
    print(f"{OBSERVATIONS.relative_to(_HERE.parent.parent)}: {len(traces)} conversations")


def _observe(scenario: Callable[[Observation], None], node: ApacheBroker, cluster_id: str) -> list[dict[str, Any]]:
    def restart() -> None:
        node.stop()
        node.start()

    observation = Observation(
        lambda: Wire(f"127.0.0.1:{node.port}"),
        restart,
        lambda ms: time.sleep(ms / 1000),
        lambda: time.monotonic() * 1000,
        cluster_id,
    )
    scenario(observation)
    return observation.steps


def _run_all(
    scenarios: Sequence[Callable[[Conversation], None]], bootstrap: str, cluster_id: str, log: Path
) -> dict[str, list[dict[str, Any]]]:
    def read_records() -> list[MetadataRecord]:
        data = b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))
        rows = [row for row in iter_records(data) if not row.is_control]
        values = [row.value or b"" for row in rows]
        return [decode(value, lambda packed: UUID(bytes=packed)) for value in values if value[1] not in OF_A_FORMAT]

    traces = {}
    for scenario, base in zip(scenarios, BASES, strict=False):
        with Wire(bootstrap) as wire:
            conversation = Conversation(wire, cluster_id, read_records, lambda ms: time.sleep(ms / 1000), base)
            conversation.wait_until_active()
            try:
                scenario(conversation)
            except BaseException:
                print(scenario.__name__, json.dumps(conversation.steps, indent=1), file=sys.stderr)
                raise
            conversation.close()
        traces[scenario.__name__] = conversation.steps
    return traces


if __name__ == "__main__":
    recorders = {
        "decisions": record_decisions, "conversations": record_conversations, "partitions": record_partitions,
        "observers": record_observers,
    }  # fmt: skip
    for wanted in sys.argv[1:] or recorders:
        recorders[wanted]()
