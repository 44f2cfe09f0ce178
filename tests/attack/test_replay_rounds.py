"""Rounds of two drivers that do one replay into a table, without Spark: each record of the ranges is there once.

The first driver is paused or killed, at a random moment or at an operation of the commit machine. The second one runs
the same command to its end, and the first goes on. ODRADEK_REPLAY_ROUNDS changes the number of rounds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from attack_drivers import AttackedDriver, CommandEnd
from support.brokers import unique
from support.publish import create_topic, numbers, publish

OPERATIONS = ("publish", "WriteRows", "FinishEntry", "HasLeftovers", "RemoveLeftovers", "DeleteEntry")
ROUNDS = int(os.environ.get("ODRADEK_REPLAY_ROUNDS", "30"))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stops all processes of a driver through /proc")


class ReplayRounds:
    """Rounds on one table. ``expected``: how often each record has to be there."""

    def __init__(self, place: Path, bootstrap: str, table_format: str, drivers: tuple[AttackedDriver, AttackedDriver]):
        self.bootstrap, self.table_format, self.output = bootstrap, table_format, place / table_format
        self.first, self.second = drivers
        self.topic = unique("again")
        create_topic(bootstrap, self.topic, 2)
        self.expected: Counter[tuple[int, int]] = Counter()
        self.history: list[str] = []
        self._sent = [0, 0]
        self._seconds = 1.0

    def a_round(self, rng: random.Random) -> None:
        command = self._publish(rng)
        self._disturb(rng, command)
        begun = time.monotonic()
        second = self._run(self.second, command)
        self._seconds = max(0.3, time.monotonic() - begun)
        assert second.is_done, (second.err, self.history)
        self._check()
        if self.first.is_stopped:
            self.first.go_on()
        if self.first.is_running:
            first = self.first.end()
            assert first is not None
            self.history.append(f"first: {first.code} {first.error}")
            assert first.is_done or (first.error and "\n" not in first.error), (first.err, self.history)
        self._check()
        last = self._run(self.second, command)
        assert last.is_done, (last.err, self.history)
        assert last.result["already"], self.history
        self._check()

    def _publish(self, rng: random.Random) -> list[str]:
        """Publishes records; returns the command that replays them, and from the second round on some earlier ones in
        each other round: they are there once more."""
        ranges = {}
        for partition in range(2):
            count = rng.randrange(20, 120)
            publish(self.bootstrap, self.topic, numbers(count), partition=partition)
            start, end = self._sent[partition], self._sent[partition] + count
            ranges[str(partition)] = [rng.randrange(start + 1) if rng.random() < 0.3 else start, end]
            self._sent[partition] = end
            self.expected.update((partition, at) for at in range(*ranges[str(partition)]))
        offsets = json.dumps({self.topic: ranges})
        into = ["--output", str(self.output), "--table-format", self.table_format, "--json"]
        return ["pipeline", "replay", "-b", self.bootstrap, "--offsets", offsets, *into]

    def _disturb(self, rng: random.Random, command: list[str]) -> None:
        sent, halt = rng.choice(("STOP", "KILL")), None
        if rng.random() < 0.6:
            when, nth = rng.choice(("before", "after")), rng.choice((1, 1, 2))
            halt = {"operation": rng.choice(OPERATIONS), "when": when, "nth": nth, "signal": sent}
        self.history.append(f"{sent} {halt}")
        self.first.begin(command, locks=False, halt=halt)
        if halt is not None:
            end = self.first.end()
            self.history.append(f"the first {'is stopped' if end is None else f'ends with {end.code}'}")
            return
        time.sleep(rng.uniform(0, self._seconds))
        self.first.stop() if sent == "STOP" else self.first.kill()

    def _run(self, driver: AttackedDriver, command: list[str]) -> CommandEnd:
        driver.begin(command, locks=False)
        end = driver.end()
        assert end is not None
        self.history.append(f"second: {end.code} {end.error}")
        return end

    def _check(self) -> None:
        if self.table_format == "delta":
            rows = deltalake.DeltaTable(self.output).to_pyarrow_table(columns=["partition", "offset"])
        else:
            rows = ds.dataset(self.output).to_table(columns=["partition", "offset"])
        found = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        assert found == self.expected, (found - self.expected, self.expected - found, self.history)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[tuple[AttackedDriver, AttackedDriver]]:
    both = (
        AttackedDriver("first", tmp_path / "first", is_plain=True),
        AttackedDriver("second", tmp_path / "second", is_plain=True),
    )
    yield both
    for one in both:
        one.kill()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_round_of_two_replays(
    table_format: str, drivers: tuple[AttackedDriver, AttackedDriver], bootstrap: str, tmp_path: Path
) -> None:
    ReplayRounds(tmp_path, bootstrap, table_format, drivers).a_round(random.Random(table_format))


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_rounds_of_two_replays(
    table_format: str, drivers: tuple[AttackedDriver, AttackedDriver], bootstrap: str, tmp_path: Path
) -> None:
    rounds = ReplayRounds(tmp_path, bootstrap, table_format, drivers)
    for seed in range(ROUNDS):
        rounds.a_round(random.Random(f"{table_format} {seed}"))
        print(seed, rounds.history[-4:], flush=True)
