"""Groups whose coordinators move: what brokers answer equals what brokers of Apache Kafka 4.3 answer.

``record_clusters`` has recorded the conversations.
"""

from __future__ import annotations

import pytest
from cluster_group_run import SETTINGS, Scenario, run_group_conversation
from cluster_scenarios import base_of
from cluster_scenarios_groups import SCENARIOS, every_request_during_a_load
from recording import compare, load
from support.simulated_conversation import SimulatedNodes, delay_loads


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    if scenario is every_request_during_a_load:
        delay_loads(monkeypatch)
    found = run_group_conversation(SimulatedNodes(SETTINGS), scenario, base_of(scenario))
    compare(load("moving_groups")[scenario.__name__], found, [])


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("moving_groups")) == sorted(scenario.__name__ for scenario in SCENARIOS)
