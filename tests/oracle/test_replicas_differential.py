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
_SERVED = (
    ("error_code", '"none"', '"not_leader_or_follower"'), ("high_watermark", "4", "-1"),
    ("last_stable_offset", "4", "-1"), ("log_start_offset", "0", "-1"),
)  # fmt: skip
_REFUSED = {5: "offset_out_of_range", 7: "unknown_leader_epoch"}
DEVIATIONS: dict[str, tuple[str, ...]] = {
    # A follower serves replicas, and no consumers (KIP-392): a client gets the leader, and asks there.
    "a_consumer_at_a_follower": (
        *(
            f"{step} fetch v12.reply.responses[0].partitions[0].{field}: expected {theirs} found {ours}"
            for step in (2, 3, 4, 6)
            for field, theirs, ours in _SERVED
        ),
        *(
            f"{step} fetch v12.reply.responses[0].partitions[0].records: "
            'expected "<200 bytes, crc a594e6f3>" found "<0 bytes, crc 00000000>"'
            for step in (2, 3, 6)
        ),
        *(
            f'{step} fetch v12.reply.responses[0].partitions[0].error_code: expected "{theirs}" '
            'found "not_leader_or_follower"'
            for step, theirs in _REFUSED.items()
        ),
    ),
}
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
