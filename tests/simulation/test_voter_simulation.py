"""The quorum of one voter in a simulated world with power cuts (invariants: sim_voter).

200 seeds always, 10,000 in the long suite. Each planted bug is found within 1,000 seeds.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sim_schedules import counted
from sim_voter import VoterScenario
from sim_voter_bugs import BUGS
from support.world import SimulationFailure

pytestmark = pytest.mark.usefixtures("quiet")


def simulated(first: int, count: int) -> Counter[str]:
    return counted(VoterScenario, first, count)


def test_nothing_acknowledged_is_lost_and_no_epoch_begins_twice_in_200_seeds() -> None:
    counts = simulated(0, 200)
    assert counts["cut_power"] > 200
    assert counts["crash"] > 300
    assert counts["stop"] > 100
    assert counts["sync"] > 600


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 1_000))
def test_nothing_acknowledged_is_lost_in_10_000_seeds(first: int) -> None:
    simulated(first, 1_000)


def test_a_seed_can_be_repeated() -> None:
    one, same = VoterScenario(7), VoterScenario(7)
    one.run()
    same.run()
    assert one.trace == same.trace
    assert len(one.trace) > 20


SLOW_BUGS = {"the mark of a clean stop stays"}
"""Bugs that need some hundred seeds."""


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.slow] * (bug in SLOW_BUGS)) for bug in BUGS])
def test_a_planted_bug_is_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises(SimulationFailure, match=r"^seed \d+: .+; events: "):
        simulated(0, 1_000)
