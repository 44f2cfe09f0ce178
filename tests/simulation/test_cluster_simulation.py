"""A controller and its brokers in a simulated world (invariants: sim_cluster). Planted bugs are found.

30 seeds always, 10,000 in the long suite.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sim_cluster import LOSSES, MESSAGES, MOST_FAULTS, ClusterScenario, Entry, shrunk
from sim_cluster_bugs import BUGS
from sim_schedules import counted
from support.world import SimulationFailure

ROOT = Path(__file__).parent.parent.parent
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


LEAST_IN_100 = {
    "power cut": 50, "fence": 200, "unfenced": 400, "unclean": 300, "controlled shutdown": 25, "snapshot": 100,
    "snapshot read by a broker": 100, "snapshot of a broker": 25, "truncation": 15, "power cut of a broker": 50,
    "unregistration": 50, "damaged reply": 50,
}  # fmt: skip


@pytest.mark.parametrize("seeds", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_brokers_agree_with_their_controller(seeds: int) -> None:
    counts = simulated(0, seeds)
    rare = {name: counts[name] for name, least in LEAST_IN_100.items() if counts[name] * 100 <= least * seeds}
    assert rare == {}


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


def test_a_failing_seed_gives_the_same_failure_again_and_shrinks() -> None:
    """The failure needs few of the faults of its schedule."""

    def simulate(*options: str) -> str:
        command = [sys.executable, "-m", "tests.simulation.clusters", "0", "--planted", "each stop is clean", *options]
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 1, done.stderr
        return done.stdout

    first, again, short = simulate(), simulate(), simulate("--shrink")
    assert first == again
    assert "FAILS: SimulationFailure: seed 0: " in first
    before, after = (text.partition("the schedule has: ")[2].splitlines()[0].split(", ") for text in (first, short))
    assert set(after) < set(before)
    assert len(after) <= len(before) // 2
    assert "FAILS: " in short


def test_a_shrunk_schedule_keeps_what_the_failure_needs() -> None:
    tried: list[frozenset[Entry]] = []

    def run(seed: int, without: frozenset[Entry]) -> tuple[list[Entry], str]:
        tried.append(without)
        return [*MESSAGES, *range(9)], "it fails" if without.isdisjoint({LOSSES, 3, 7}) else ""

    assert shrunk(1, run) == {*MESSAGES, *range(MOST_FAULTS)} - {LOSSES, 3, 7}
    assert len(tried) < 40
    assert shrunk(1, lambda seed, without: ([*MESSAGES], "")) == frozenset(), "a seed that passes"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises(SimulationFailure):
        simulated(FIRST_SEED.get(bug, 0), 20)
