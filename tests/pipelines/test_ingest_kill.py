"""``kill -9`` of the driver, a Python worker or the broker at random moments of an ingest.

After each round every record is in the table exactly once. pyarrow (for Iceberg: pyiceberg) and DuckDB read each table,
and Spark reads the Parquet tables. The group's committed offsets equal the end offsets of the checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pytest
from ingest_runs import checkpoint_end, committed, delta, duckdb_count, ends, expected, parquet, record_ids
from support.brokers import RunningBroker
from support.processes import command_of, descendants, kill_tree
from support.publish import create_topic, publish
from support.three_brokers import Deployment, ThreeBrokers, replicas

from odradek.client.admin import Admin
from odradek.pipelines import ingest

TOPIC, GROUP = "events", "event-lake"
RECORDS_PER_ROUND = 400
BATCH_RECORDS = 60
RUN_S = 300.0

if TYPE_CHECKING or importlib.util.find_spec("pyiceberg") is not None:
    import iceberg_tables

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc")


class Run(NamedTuple):
    """The exit code and error output of the command, and the name of what was killed; "" if nothing was."""

    code: int
    err: str
    killed: str


class Rounds:
    """A table that is filled in rounds, each of which is disturbed once."""

    def __init__(
        self,
        broker: Deployment,
        place: Path,
        table_format: str,
        *,
        by_uri: bool = False,
    ) -> None:
        self.broker = broker
        self.output = place / "table"
        self._given = f"file://{self.output}" if by_uri else str(self.output)
        self.table_format = table_format
        self._files = place
        if table_format == "iceberg":
            iceberg_tables.catalog_in(place)
        create_topic(broker.bootstrap, TOPIC, 4, replicas(broker))

    def publish(self) -> None:
        for partition in range(4):
            values = [b'{"id":%d}' % n for n in range(RECORDS_PER_ROUND // 4)]
            publish(self.broker.bootstrap, TOPIC, values, partition=partition)

    def command(self, schema: str = "id bigint") -> list[str]:
        line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", self.broker.bootstrap]
        line += ["--topics", TOPIC, "--group", GROUP, "--output", self._given]
        line += ["--table-format", self.table_format, "--value-format", "json", "--schema", schema]
        if self.table_format == "iceberg":
            line += ["--catalog", f"sqlite:///{self._files}/catalog.db", "--table", "db.events"]
        return [*line, "--max-offsets", str(BATCH_RECORDS), "--master", "local[2,2]", "--option", "failOnDataLoss=true"]

    def run(self, disturb: Callable[[int], str | None] = lambda pid: "", schema: str = "id bigint") -> Run:
        """Calls ``disturb`` with the command's process id until it returns what it killed, or the command ends."""
        line = self.command(schema)
        # Files, not pipes: children that outlive a killed run would hold a pipe open.
        with (self._files / "out.txt").open("w+") as out, (self._files / "err.txt").open("w+") as err:
            process = subprocess.Popen(line, stdout=out, stderr=err, text=True)
            killed: str | None = None
            while killed is None and process.poll() is None:
                killed = disturb(process.pid)
                time.sleep(0.002)
            code = process.wait(RUN_S)
            err.seek(0)
            return Run(code, err.read(), killed or "")

    def steps(self) -> int:
        """Measures the run's progress: the number of staged files, written files and files of the query's logs."""
        hidden = self.output.parent / f".{self.output.name}.staging"
        state = self.output / "_odradek"
        looked = (state / "batches", state / "checkpoint" / "offsets", state / "checkpoint" / "commits", self.output)
        count = 0
        for folder in looked:
            with contextlib.suppress(FileNotFoundError):
                count += sum(1 for path in folder.iterdir() if path.suffix != ".crc")
        with contextlib.suppress(FileNotFoundError):
            count += sum(1 for _ in hidden.glob("**/*.parquet"))
        return count

    def check(self, spark: Any) -> None:
        with Admin(self.broker.bootstrap) as admin:
            wanted, log_ends, group = expected(admin, TOPIC), ends(admin, TOPIC), committed(admin, GROUP)
        assert group == log_ends == checkpoint_end(self.output / "_odradek" / "checkpoint")
        if self.table_format == "iceberg":
            table = iceberg_tables.catalog_in(self._files).load_table(iceberg_tables.NAME)
            assert record_ids(table.scan().to_arrow()) == wanted
            paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
            assert duckdb.sql(f"SELECT count(*) FROM read_parquet({paths!r})").fetchall() == [(wanted.total(),)]
            assert {path.name for path in (self.output / "data").rglob("*.parquet")} == iceberg_tables.published_files(
                self._files
            )
            return
        if self.table_format == "delta":
            assert record_ids(delta(self.output)) == wanted
            assert duckdb_count(self.output) == wanted.total(), "every file belongs to a version"
            return
        assert record_ids(parquet(self.output)) == wanted
        assert duckdb_count(self.output) == wanted.total()
        frame = spark.read.parquet(str(self.output))
        assert frame.count() == frame.select("topic", "partition", "offset").distinct().count() == wanted.total()


def a_driver(rounds: Rounds, chance: random.Random, pid: int) -> str:
    """Kills Python, Java and the workers at once, or only Python. In the second case Java notices the end of Python."""
    whole = chance.random() < 0.6
    if whole:
        kill_tree(pid)
    os.kill(pid, signal.SIGKILL)
    return "driver with all its children" if whole else "driver"


def a_worker(rounds: Rounds, chance: random.Random, pid: int) -> str | None:
    workers = []
    for child in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "pyspark" in command_of(child) and "java" not in command_of(child).split()[0]:
                workers.append(child)
    if not workers:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(workers), signal.SIGKILL)
        return "worker"
    return None


def the_broker(rounds: Rounds, chance: random.Random, pid: int) -> str:
    assert not isinstance(rounds.broker, ThreeBrokers)
    rounds.broker.kill()
    rounds.broker.start()
    return "broker"


KilledProgram = Callable[[Rounds, random.Random, int], str | None]
VICTIMS: tuple[KilledProgram, ...] = (a_driver, a_worker, the_broker)


def play(rounds: Rounds, spark: Any, seed: int, count: int) -> list[str]:
    """Plays random rounds. Returns the killed process of each round."""
    chance = random.Random(seed)
    killed: list[str] = []
    while len(killed) < count:
        number = len(killed)
        victim = VICTIMS[(seed + number) % len(VICTIMS)]
        rounds.publish()
        at = rounds.steps() + chance.randrange(1, 24)

        def disturb(pid: int, at: int = at, victim: KilledProgram = victim) -> str | None:
            return victim(rounds, chance, pid) if rounds.steps() >= at else None

        first = rounds.run(disturb)
        if first.killed:  # if the run ended before the kill, the round is repeated
            killed.append(first.killed)
        assert first.code == -signal.SIGKILL or not first.killed.startswith("driver"), first
        # Spark may have repeated the task of a lost worker, and the client may have waited for the broker.
        assert first.code in (0, 1, -signal.SIGKILL), first
        assert first.err.count("\n") <= 1, first
        if first.code != 0:
            last = rounds.run()
            assert (last.code, last.err) == (0, ""), (seed, number, first, last)
        rounds.check(spark)
        victim_is = first.killed or f"none (too late) {first.err.strip()}"
        print(f"seed {seed} round {number}: {victim_is}, then code {first.code}", flush=True)
    return killed


BEGUN = """
import os, signal, sys
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.tables.table import Table
from odradek.pipelines.formats.target import Target
from odradek.pipelines.values.record_values import ValueFormat, Values
target = Target(sys.argv[1], values=Values(ValueFormat.JSON, "idd bigint"))
table = Table(target, None)
table._id = begin_table(table.location, target.layout(), table._has_records)
if sys.argv[2] == "bound":
    table.bind()
os.kill(os.getpid(), signal.SIGKILL)
"""
"""What a run does to its table before its query starts. It needs no Spark."""


@pytest.mark.parametrize("last", [pytest.param("begun", marks=pytest.mark.slow), "bound"])
def test_the_schema_of_a_run_that_was_killed_before_its_query_may_be_corrected(
    last: str, spark: Any, bootstrap: str, admin: Admin, topic: str, group: str, tmp_path: Path
) -> None:
    """The killed run leaves its record, its lock, and the description of an empty table."""
    output = tmp_path / "table"
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, [b'{"id":1}'] * BATCH_RECORDS, partition=0)
    killed = subprocess.run([sys.executable, "-c", BEGUN, str(output), last], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "idd" in (output / "_odradek" / "table.json").read_text()
    given: dict[str, Any] = {"topics": topic, "group": group, "output": output, "value_format": "json"}
    ingest(bootstrap, **given, schema="id bigint", spark=spark)
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic) == checkpoint_end(output / "_odradek" / "checkpoint")
    assert [field.name for field in parquet(output).schema.field("value").type] == ["id"]


@pytest.mark.slow  # a Java of its own; the test above has the states of the table without it
def test_after_a_killed_first_run_the_schema_may_be_corrected(
    own_broker: Callable[..., RunningBroker], spark: Any, tmp_path: Path
) -> None:
    """The killed run had begun the table, which is still empty."""
    rounds = Rounds(own_broker(), tmp_path, "parquet")
    publish(rounds.broker.bootstrap, TOPIC, [b'{"id":1}'] * BATCH_RECORDS, partition=0)
    begun = rounds.output / "_odradek" / "table.json"

    def disturb(pid: int) -> str | None:
        return a_driver(rounds, random.Random(1), pid) if begun.exists() else None

    assert rounds.run(disturb, "idd bigint").killed.startswith("driver")
    assert "idd" in begun.read_text()
    given: dict[str, Any] = {"topics": TOPIC, "group": GROUP, "output": rounds.output, "value_format": "json"}
    ingest(rounds.broker.bootstrap, **given, schema="id bigint", spark=spark)
    rounds.check(spark)
    assert [field.name for field in parquet(rounds.output).schema.field("value").type] == ["id"]


@pytest.mark.claim(102, 103)
@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("seed", range(10))
def test_three_rounds_with_kills_write_each_record_once(
    seed: int, table_format: str, own_broker: Callable[..., RunningBroker], spark: Any, tmp_path: Path
) -> None:
    """Each case kills a driver, a worker and the broker, one in each round. Every other seed names the table
    with a ``file:`` URI."""
    rounds = Rounds(own_broker(), tmp_path, table_format, by_uri=seed % 2 == 1)
    assert len(play(rounds, spark, seed, 3)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_two_runs_at_once_write_each_record_once(
    table_format: str, own_broker: Callable[..., RunningBroker], spark: Any, tmp_path: Path
) -> None:
    """A run that starts during the other run is refused, and its error names the other run's process."""
    rounds = Rounds(own_broker(), tmp_path, table_format)
    rounds.publish()
    pipe = subprocess.PIPE
    both = [subprocess.Popen(rounds.command(), stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    said = [process.communicate(timeout=RUN_S)[1] for process in both]
    assert sorted(process.returncode for process in both) in ([0, 0], [0, 1], [0, 2]), said
    for process, other, errors in zip(both, reversed(both), said, strict=True):
        if process.returncode:
            assert errors.count("\n") == 1, errors
            assert str(other.pid) in errors, errors
    rounds.check(spark)
