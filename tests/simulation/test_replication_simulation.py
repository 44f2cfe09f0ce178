"""Replicated partitions in a simulated world (invariants: sim_replication_ledger). Planted bugs are found.

100 seeds always, 100,000 in the long suite.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sim_replication import ReplicationScenario
from sim_replication_bugs import BUGS, FIRST_SEEDS
from sim_replication_schedules import OF_TRUNCATIONS
from sim_schedules import counted
from support.world import SimulationFailure

pytestmark = pytest.mark.usefixtures("quiet")


def simulated(first: int, count: int) -> Counter[str]:
    return counted(ReplicationScenario, first, count)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (100, 200))])
def test_replicas_keep_what_is_acknowledged_in_100_seeds(first: int) -> None:
    counts = simulated(first, 100)
    assert counts["acknowledged"] > 30_000
    assert counts["kill"] > 250
    assert counts["power cut"] > 80
    assert counts["clean stop"] > 60
    assert counts["truncate"] > 60
    assert counts["restart of a log"] > 3
    assert counts["topic deleted"] > 40
    assert counts["alter: changed"] > 400
    assert counts["alter: invalid_update_version"] > 5
    assert counts["alter: fenced_leader_epoch"] > 0
    assert counts["alter: ineligible_replica"] > 5
    assert counts["alter: request_timed_out"] > 5
    assert counts["not_enough_replicas"] > 500
    assert counts["lost"] > 50, "of those that this schedule may lose"


def test_replicas_keep_what_is_acknowledged_over_many_truncations() -> None:
    counts = simulated(OF_TRUNCATIONS, 60)
    assert counts["isolate"] > 100
    assert counts["truncate"] > 60


@pytest.mark.slow
@pytest.mark.parametrize("first", range(300, 100_300, 2_500))
def test_replicas_keep_what_is_acknowledged_in_100_000_seeds(first: int) -> None:
    simulated(first, 2_500)


def test_a_seed_can_be_repeated() -> None:
    one, same = ReplicationScenario(7), ReplicationScenario(7)
    one.run()
    same.run()
    assert one.trace(1 << 20) == same.trace(1 << 20)
    assert len(one.trace(1 << 20)) > 30


def test_a_schedule_can_be_run_without_some_of_its_faults() -> None:
    scenario = ReplicationScenario(7, frozenset(range(34)))
    scenario.run()
    assert not any(scenario.counts[name] for name in ("power cut", "pause", "cut", "storm"))


@pytest.mark.parametrize("bug", FIRST_SEEDS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises((SimulationFailure, AssertionError)):
        ReplicationScenario(FIRST_SEEDS[bug]).run()
