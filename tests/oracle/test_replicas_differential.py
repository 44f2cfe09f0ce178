"""Topics with several replicas: what each broker shows equals what brokers of Apache Kafka 4.3 show.

``record_clusters`` has recorded the conversations. They are compared at rest: a scenario waits until the ISR is as it
has to be at the end. ``DEVIATIONS`` lists intended differences.
"""

from __future__ import annotations

import re

import pytest
from cluster_conversation import SETTINGS, run_conversation
from cluster_scenarios import base_of
from cluster_scenarios_failover import SCENARIOS as OF_FAILOVER
from cluster_scenarios_replicas import SCENARIOS as OF_ASSIGNMENTS
from cluster_scenarios_replicas import SETTINGS as OF_REPLICAS
from cluster_scenarios_replicas import Scenario
from recording import compare, load
from support.simulated_conversation import SimulatedNodes

SCENARIOS = (*OF_FAILOVER, *OF_ASSIGNMENTS)
DEVIATIONS: dict[str, tuple[str, ...]] = {}
"""Scenario → the lines of its differences. Each has its reason in front of it."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario) -> None:
    """Each scenario has a cluster of its own, so that a failure comes again."""
    found = run_conversation(SimulatedNodes(SETTINGS | OF_REPLICAS), scenario, base_of(scenario))
    listed = [f"^{re.escape(line)}$" for line in DEVIATIONS.get(scenario.__name__, ())]
    compare(load("replicas")[scenario.__name__], found, listed)


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("replicas")) == sorted(scenario.__name__ for scenario in SCENARIOS)
    assert DEVIATIONS.keys() <= load("replicas").keys()
