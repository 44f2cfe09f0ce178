"""Brokers at a controller: odradek's replies and records equal those of Apache Kafka's controller.

``record_controller`` has recorded the conversations. The controller of these tests is a whole node on files in memory;
to let time pass, the recording waited, and here the world's clock moves. ``DEVIATIONS`` lists intended differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from controller_conversation import SESSION_MS, Conversation
from controller_scenarios import SCENARIOS, Scenario
from partition_scenarios import PERIODIC_SCENARIOS, PERIODIC_SETTINGS
from partition_scenarios import SCENARIOS as PARTITION_SCENARIOS
from support.simulated_controller import SimulatedController
from support.simulated_node import HOME

from odradek.batches.rows import iter_records
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.catalog.records import MetadataRecord
from odradek.cluster.records import decode

TRACES = Path(__file__).resolve().parent / "traces"
TRACE: dict[str, list[dict[str, Any]]] = {
    name: steps
    for trace in ("controller.json", "partitions.json")
    for name, steps in json.loads((TRACES / trace).read_text()).items()
}
ALL = (*SCENARIOS, *PARTITION_SCENARIOS, *PERIODIC_SCENARIOS)
BASE = 1000
DEVIATIONS: dict[tuple[str, int], str] = {}
"""(scenario, step) → why the reply is another one."""


@pytest.fixture
def controller(scenario: Scenario) -> Iterator[SimulatedController]:
    settings = {"broker.session.timeout.ms": str(SESSION_MS)}
    settings |= PERIODIC_SETTINGS if scenario in PERIODIC_SCENARIOS else {}
    made = SimulatedController(settings)
    yield made
    made.node.kill()


def records_of(controller: SimulatedController) -> list[MetadataRecord]:
    data = b"".join(
        controller.files.read(HOME / DIRECTORY / name)
        for name in sorted(controller.files.list(HOME / DIRECTORY))
        if name.endswith(".log")
    )
    rows = [row for row in iter_records(data) if not row.is_control]
    return [decode(row.value or b"", lambda packed: UUID(bytes=packed)) for row in rows]


def run(controller: SimulatedController, scenario: Scenario) -> list[dict[str, Any]]:
    conversation = Conversation(
        controller.connect(),
        controller.broker.cluster_id,
        lambda: records_of(controller),
        controller.world.advance,
        BASE,
    )
    scenario(conversation)
    return json.loads(json.dumps(conversation.steps))  # type: ignore[no-any-return]


@pytest.mark.parametrize("scenario", ALL, ids=[scenario.__name__ for scenario in ALL])
def test_a_conversation_equals_that_of_apache_kafka(controller: SimulatedController, scenario: Scenario) -> None:
    found, expected = run(controller, scenario), TRACE[scenario.__name__]
    assert len(found) == len(expected)
    for number, (ours, kafkas) in enumerate(zip(found, expected, strict=True)):
        if (scenario.__name__, number) in DEVIATIONS:
            assert ours != kafkas, f"step {number} is no deviation any more"
        else:
            assert ours == kafkas, f"step {number}"


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(TRACE) == sorted(scenario.__name__ for scenario in ALL)
    assert {name for name, _ in DEVIATIONS} <= TRACE.keys()
