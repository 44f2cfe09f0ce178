"""Followers of the metadata log at its leader: odradek's replies equal those of Apache Kafka's controller.

``record_controller`` has recorded the conversations. ``DEVIATIONS`` lists intended differences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from observer_conversation import SETTINGS, SNAPSHOTS, Observation
from observer_scenarios import SCENARIOS, SNAPSHOT_SCENARIOS, Scenario
from support.simulated_controller import BlockingWire, SimulatedController

TRACE: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).resolve().parent / "traces" / "observers.json").read_text()
)
_NULL_RECORDS = (
    "Kafka's reply with an error of the partition cannot be packed, because its records are null. So it has the code "
    "UNKNOWN_SERVER_ERROR. This reply has the code that the protocol names."
)
DEVIATIONS: dict[tuple[str, str], str] = dict.fromkeys(
    (
        ("wrong_requests_for_snapshots", what)
        for what in (
            "at the end", "far behind the end", "before the start", "end_offset 1", "epoch 99", "end_offset -1",
            "the first snapshot", "an earlier epoch", "a later epoch", "no epoch", "another topic", "another partition",
        )
    ),
    _NULL_RECORDS,
)  # fmt: skip
"""(scenario, what is asked) → why the reply is another one."""


def run(scenario: Scenario) -> list[dict[str, Any]]:
    controller = SimulatedController(SNAPSHOTS if scenario in SNAPSHOT_SCENARIOS else SETTINGS)
    observation = Observation(
        lambda: BlockingWire(controller, "c", answer_ms=60_000),
        lambda: controller.restart(cleanly=True),
        controller.world.advance,
        lambda: controller.world.now_ms,
        controller.broker.cluster_id,
    )
    scenario(observation)
    controller.node.kill()
    return json.loads(json.dumps(observation.steps))


@pytest.mark.parametrize("scenario", [*SCENARIOS, *SNAPSHOT_SCENARIOS], ids=lambda scenario: scenario.__name__)
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario) -> None:
    found, expected = run(scenario), TRACE[scenario.__name__]
    assert len(found) == len(expected)
    for number, (ours, kafkas) in enumerate(zip(found, expected, strict=True)):
        if (scenario.__name__, kafkas.get("asked", "")) in DEVIATIONS:
            assert ours != kafkas, f"step {number} is no deviation any more"
        else:
            assert ours == kafkas, f"step {number}"


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(TRACE) == sorted(scenario.__name__ for scenario in (*SCENARIOS, *SNAPSHOT_SCENARIOS))
    assert {name for name, _ in DEVIATIONS} <= TRACE.keys()
