"""Three brokers and a controller: the replies of each node equal those of a cluster of Apache Kafka 4.3.

``record_clusters`` has recorded the conversations. The nodes of these tests are whole nodes in a simulated world; to
let time pass, the recording waited, and here the world's clock moves. ``DEVIATIONS`` lists intended differences.
"""

from __future__ import annotations

import re

import pytest
from cluster_conversation import SETTINGS, are_alike, run_conversation
from cluster_scenarios import SCENARIOS, Scenario, base_of
from cluster_scenarios_admin import LAST
from recording import compare, load
from support.simulated_conversation import SimulatedNodes

DEVIATIONS: dict[str, tuple[str, ...]] = {
    # Votes, and news about them, are for several voters. A cluster has one controller.
    "versions_between_nodes": tuple(
        f'1 versions v0.reply.{key}: expected [0, {highest}] found "<absent>"'
        for key, highest in ((52, 2), (53, 1), (54, 1))
    ),
}
"""Scenario → the lines of its differences. Each has its reason in front of it."""


class SharedNodes:
    """One cluster for all conversations. After a failure the next one gets another cluster."""

    def __init__(self) -> None:
        self._nodes: SimulatedNodes | None = None

    def take(self) -> SimulatedNodes:
        nodes, self._nodes = self._nodes, None
        return nodes or SimulatedNodes(SETTINGS)

    def give_back(self, nodes: SimulatedNodes) -> None:
        self._nodes = nodes


@pytest.fixture(scope="module")
def shared() -> SharedNodes:
    return SharedNodes()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_conversation_equals_that_of_apache_kafka(shared: SharedNodes, scenario: Scenario) -> None:
    nodes = shared.take()
    found = run_conversation(nodes, scenario, base_of(scenario))
    listed = [f"^{re.escape(line)}$" for line in DEVIATIONS.get(scenario.__name__, ())]
    expected = load("clusters")[scenario.__name__]
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=False)):
        if theirs["api"] == ours["api"] == "sample":
            assert are_alike(theirs["reply"], ours["reply"]), f"{number}: {theirs} {ours['reply']}"
            ours["reply"] = theirs["reply"]
    compare(expected, found, listed)
    if scenario not in LAST:
        shared.give_back(nodes)


def test_samples_of_other_chances_are_not_alike() -> None:
    """A third each, and a broker that gets more; the same counts are alike."""
    fair, unfair = {"1": 600, "2": 600, "3": 600}, {"1": 800, "2": 500, "3": 500}
    assert are_alike(fair, {"1": 620, "2": 590, "3": 590})
    assert not are_alike(fair, unfair)
    assert not are_alike(fair, {"1": 900, "2": 900})
    assert not are_alike({"2": 200, "3": 340}, {"1": 60, "2": 360, "3": 120}), "rounds of a placement by chance alone"


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("clusters")) == sorted(scenario.__name__ for scenario in SCENARIOS)
    assert DEVIATIONS.keys() <= load("clusters").keys()
