"""A controller and its brokers in a simulated world (invariants: sim_cluster). Planted bugs are found.

100 seeds always, 10,000 in the long suite.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sim_cluster import ClusterScenario
from sim_cluster_bugs import BUGS
from sim_schedules import counted
from support.world import SimulationFailure

FIRST_SEED = {
    "the log stays beside a later snapshot": 100,
    "a snapshot does not end what is being applied": 60,
    "a start applies the whole copy": 20,
    "a diverging log is not cut off": 20,
}
"""Bugs that few schedules show."""


pytestmark = pytest.mark.usefixtures("quiet")


def simulated(first: int, count: int) -> Counter[str]:
    return counted(ClusterScenario, first, count)


def test_brokers_agree_with_their_controller_in_100_seeds() -> None:
    counts = simulated(0, 100)
    assert counts["power cut"] > 50
    assert counts["fence"] > 200
    assert counts["unfenced"] > 400
    assert counts["unclean"] > 300
    assert counts["controlled shutdown"] > 25
    assert counts["snapshot"] > 100
    assert counts["snapshot read by a broker"] > 100
    assert counts["snapshot of a broker"] > 25
    assert counts["truncation"] > 15
    assert counts["power cut of a broker"] > 50
    assert counts["unregistration"] > 50
    assert counts["damaged reply"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_brokers_agree_with_their_controller_in_10_000_seeds(first: int) -> None:
    simulated(first, 500)


def test_a_seed_can_be_repeated() -> None:
    one, same = ClusterScenario(7), ClusterScenario(7)
    one.run()
    same.run()
    assert one.trace == same.trace
    assert len(one.trace) > 50


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises(SimulationFailure):
        simulated(FIRST_SEED.get(bug, 0), 20)
