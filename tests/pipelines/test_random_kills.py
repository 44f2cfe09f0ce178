"""Thirty kills of each pipeline that is not an ingest: kill -9 at random moments of real commands with Spark.

A seed chooses the moments. Half of them are random times of a run, from its start on. The others follow what a run can
be seen to do: a file that it creates, or a record that it sends. Each run is the same command. It continues the work
of the killed one, and the topic grows before it. ``ODRADEK_KILLS`` sets the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from ingest_runs import committed, delta, duckdb_count, ends, expected, parquet, record_ids
from support.brokers import RunningBroker
from support.publish import create_topic, numbers, publish
from transaction_runs import Run, a_driver, a_worker, committed_records, run_command
from two_drivers import source_of

from odradek.client.admin import Admin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc"),
]
KILLS = int(os.environ.get("ODRADEK_KILLS", "30"))
SEED = int(os.environ.get("ODRADEK_KILLS_SEED", "1"))
PARTITIONS = 4
MASTER = ["--master", "local[2,2]"]


class KilledRuns:
    """Runs of one command that are killed. ``seen``: counts what can be seen of the work; it rises during a run.
    ``check``: checks what readers see after each kill."""

    def __init__(
        self,
        broker: RunningBroker,
        name: str,
        log_file: Path,
        line: list[str],
        *,
        seen: Callable[[], int],
        check: Callable[[], None],
        steps: int,
        grown: int,
    ) -> None:
        """``steps``: how far ``seen`` rises at most before a kill. ``grown``: by how many records each partition grows
        before a run."""
        self.broker, self.line, self.log_file = broker, [*line, *MASTER], log_file
        self.chance = random.Random(f"{name} {SEED}")
        self._seen, self._check, self._steps, self._grown = seen, check, steps, grown
        self._seconds = 20.0
        """How long a run takes at most, as far as it is known."""

    def grow(self) -> None:
        for partition in range(PARTITIONS):
            publish(self.broker.bootstrap, "events", numbers(self._grown), partition=partition)

    def kill_all(self, kills: int) -> None:
        killed = late = 0
        while killed < kills:
            self.grow()
            done = self._killed_run()
            killed += bool(done.killed)
            late += not done.killed
            print(f"kill {killed}: {done.killed or 'too late'}, code {done.code}", flush=True)
            assert done.code in ((0, 1, -signal.SIGKILL) if done.killed in ("worker", "") else (-signal.SIGKILL,)), done
            assert late <= kills, "most runs end before their kill"
            self._check()

    def _killed_run(self) -> Run:
        """Runs the command until it is killed, or ends before."""
        chance, begun = self.chance, time.monotonic()
        by_time = chance.random() < 0.5
        at_s, at = chance.uniform(0, self._seconds), self._seen() + chance.randrange(1, self._steps)
        wait_s, victim = chance.random() * 0.3, a_worker if chance.random() < 0.15 else a_driver

        def disturb(pid: int) -> str | None:
            if (time.monotonic() - begun < at_s) if by_time else (self._seen() < at):
                return None
            if not by_time:
                time.sleep(wait_s)  # the kill comes at a random moment behind what was seen
            return victim(self.broker, chance, pid)

        done = run_command(self.line, self.log_file, disturb)
        if not done.killed:
            self._seconds = (self._seconds + time.monotonic() - begun) / 2
        return done

    def complete(self) -> Run:
        done = run_command(self.line, self.log_file)
        assert done.code == 0, done
        return done


def once(found: Counter[tuple[str, int, int]]) -> None:
    twice = [one for one, count in found.items() if count > 1]
    assert not twice, (len(twice), sorted(twice)[:4])


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_replay_into_a_table(table_format: str, own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    """Each format gets half of the kills."""
    broker, output = own_broker(), tmp_path / "lake" / "table"
    output.parent.mkdir()
    create_topic(broker.bootstrap, "events", PARTITIONS, retention_ms="-1")

    def found() -> Counter[tuple[str, int, int]]:
        if not any(output.rglob("*.parquet")):
            return Counter()
        if table_format == "delta":
            return record_ids(delta(output)) if (output / "_delta_log").exists() else Counter()
        rows = record_ids(parquet(output))
        assert duckdb_count(output) == rows.total()
        return rows

    line = ["pipeline", "replay", "-b", broker.bootstrap, "--topics", "events", "--output", str(output)]
    runs = KilledRuns(
        broker, f"replay {table_format}", tmp_path / "log.txt", [*line, "--table-format", table_format],
        seen=lambda: sum(len(names) for _, _, names in os.walk(output.parent)), check=lambda: once(found()),
        steps=8, grown=2_000,
    )  # fmt: skip
    with Admin(broker.bootstrap) as admin:
        runs.kill_all(KILLS // 2)
        runs.grow()
        runs.complete()
        assert found() == expected(admin, "events")
        assert "Nothing was added" in runs.complete().output
        assert found() == expected(admin, "events")


def test_a_replay_into_a_topic(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = own_broker()
    create_topic(broker.bootstrap, "events", PARTITIONS, retention_ms="-1")
    create_topic(broker.bootstrap, "copies", 3)

    def found() -> Counter[tuple[str, int, int]]:
        records = committed_records(broker.bootstrap, "copies")
        return Counter(source_of(dict(one.headers)["odradek-replayed-from"]) for one in records)

    line = ["pipeline", "replay", "-b", broker.bootstrap, "--topics", "events", "--to-topic", "copies"]
    line += ["--exactly-once", "--batch-size", "20k"]
    with Admin(broker.bootstrap) as admin:
        runs = KilledRuns(
            broker, "replay topic", tmp_path / "log.txt", line,
            seen=lambda: sum(ends(admin, "copies").values()), check=lambda: None, steps=2_000, grown=500,
        )  # fmt: skip
        runs.kill_all(KILLS)
        runs.complete()
        assert found() == expected(admin, "events")
        assert "Nothing was added" in runs.complete().output
        assert found() == expected(admin, "events")


def test_a_transform(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker, checkpoint = own_broker(), tmp_path / "checkpoint"
    create_topic(broker.bootstrap, "events", PARTITIONS)
    create_topic(broker.bootstrap, "rows", 3)
    line = ["pipeline", "transform", "-b", broker.bootstrap, "--topics", "events", "--group", "copy"]
    line += ["--to-topic", "rows", "--checkpoint", str(checkpoint), "--max-offsets", "60"]
    line += ["--sql", "SELECT concat(topic, '-', partition, '@', offset) AS value FROM records"]
    with Admin(broker.bootstrap) as admin:

        def seen() -> int:
            files = sum(1 for log in ("offsets", "commits") for _ in (checkpoint / log).glob("[0-9]*"))
            return files * 60 + sum(ends(admin, "rows").values())

        runs = KilledRuns(
            broker, "transform", tmp_path / "log.txt", line, seen=seen, check=lambda: None, steps=600, grown=100
        )
        runs.kill_all(KILLS)
        runs.complete()
        found = Counter(source_of(one.value) for one in committed_records(broker.bootstrap, "rows"))
        assert found == expected(admin, "events")
        assert committed(admin, "copy") == ends(admin, "events")
