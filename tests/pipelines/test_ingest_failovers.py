"""``odradek pipeline ingest`` from three brokers: ten kills of leaders and of the group's coordinator.

No run fails, every record is in the table exactly once, and the group's committed offsets equal the end offsets of the
checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.three_brokers import Failovers, ThreeBrokers
from test_ingest_kill import GROUP, TOPIC, Rounds, Run

KILLS = 10

pytestmark = pytest.mark.slow


@pytest.fixture
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as made:
        yield made


def has_succeeded(run: Run) -> bool:
    """Whether the run ended without an error. A line that says which brokers it waits for is none."""
    return run.code == 0 and all("no answer yet" in line for line in run.err.splitlines())


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_each_record_is_there_once_after_ten_kills_of_leaders_and_coordinators(
    brokers: ThreeBrokers, table_format: str, spark: Any, tmp_path: Path
) -> None:
    rounds, cluster, chance = Rounds(brokers, tmp_path, table_format), brokers.cluster, random.Random(1)
    failovers = Failovers(
        brokers, lambda: cluster.leader(TOPIC, len(failovers.killed) % 4), lambda: cluster.coordinator(GROUP)
    )
    runs, at = 0, 0

    def kill_next(pid: int) -> str | None:
        nonlocal at
        if len(failovers.killed) == KILLS:
            return "all"
        if rounds.steps() >= at:
            failovers.next()
            at = rounds.steps() + chance.randrange(1, 12)
        return None

    while len(failovers.killed) < KILLS:
        for _ in range(3):
            rounds.publish()
        at = rounds.steps() + chance.randrange(1, 24)
        done = rounds.run(kill_next)
        assert has_succeeded(done), (done, failovers.killed)
        runs += 1
    failovers.end()
    last = rounds.run()
    assert has_succeeded(last), last
    rounds.check(spark)
    print(f"{table_format}: killed {failovers.killed} in {runs} runs")
