"""Consumers that say their rack: what each broker answers equals what brokers of Apache Kafka 4.3 answer."""

from __future__ import annotations

import pytest
from cluster_conversation import SETTINGS, run_conversation
from cluster_scenarios import base_of
from cluster_scenarios_racks import SCENARIOS
from cluster_scenarios_racks import SETTINGS as OF_RACKS
from cluster_scenarios_replicas import Scenario
from recording import compare, load
from support.simulated_conversation import SimulatedNodes


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario) -> None:
    found = run_conversation(SimulatedNodes(SETTINGS | OF_RACKS), scenario, base_of(scenario))
    compare(load("racks")[scenario.__name__], found, [])


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("racks")) == sorted(scenario.__name__ for scenario in SCENARIOS)
