"""Resets to offsets that the log does not have, or does not show yet: nothing is read twice or lost without a line."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from restored_broker import offsets_of
from support.brokers import unique
from support.forks import run_steps
from support.publish import create_topic, numbers, open_transaction, publish

from odradek import Admin, Producer, TopicPartition
from odradek.core.ids import OffsetAndMetadata

COMMITTED = ("--option", "kafka.isolation.level=read_committed")


class IngestRuns:
    """An ingest of a topic with one partition. Its group has the name of the topic."""

    def __init__(self, bootstrap: str, root: Path) -> None:
        self.bootstrap, self.table, self.topic = bootstrap, root / "t", unique("outside")
        create_topic(bootstrap, self.topic)

    def send(self, count: int) -> None:
        publish(self.bootstrap, self.topic, numbers(count))

    def command(self, *more: str) -> list[str]:
        into = ["--topics", self.topic, "--group", self.topic, "--output", str(self.table)]
        return ["pipeline", "ingest", "-b", self.bootstrap, *into, *more]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return run_steps(self.command(*more))

    def done(self, *more: str) -> str:
        """A run that ends with 0. Returns what it says."""
        done = self.run(*more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    def refusal(self, *more: str) -> str:
        done = self.run(*more)
        assert done.returncode != 0, done.stdout
        (line,) = [line for line in done.stderr.splitlines() if "data may have been lost" in line]
        return line

    def reset(self, to: str) -> None:
        line = ["groups", "reset", "-b", self.bootstrap, "--group", self.topic, "--topic", self.topic]
        done = run_steps([*line, *to.split(), "--mark", "--execute"])
        assert done.returncode == 0, done.stderr

    def rows(self) -> Counter[int]:
        return Counter(offset for _, offset in offsets_of(self.table, "parquet"))


@pytest.fixture
def runs(bootstrap: str, tmp_path: Path) -> IngestRuns:
    return IngestRuns(bootstrap, tmp_path)


def test_a_reset_above_the_log_is_a_line(runs: IngestRuns) -> None:
    """Before, the whole partition was read again, and no line said so."""
    runs.send(100)
    runs.done()
    with Admin(runs.bootstrap) as admin:
        beyond = OffsetAndMetadata(2000, metadata="odradek-reset:1:2000")
        admin.alter_group_offsets(runs.topic, {TopicPartition(runs.topic, 0): beyond})
    assert f"group {runs.topic} was reset to offset 2000, and the log ends at 100" in runs.refusal()
    assert runs.rows() == Counter(range(100))
    assert "was reset to offset 2000" in runs.done("--option", "failOnDataLoss=false")
    runs.send(5)
    runs.done()
    assert runs.rows() == Counter(range(105))


@pytest.mark.parametrize(("to", "first"), [(5, 20), (25, 25)])
def test_a_reset_does_not_hide_deleted_records(runs: IngestRuns, to: int, first: int) -> None:
    """Before, records that the query had not read were missing, and no line said so."""
    runs.send(20)
    runs.done()
    runs.send(20)
    runs.reset(f"--to-offset {to}")
    with Admin(runs.bootstrap) as admin:
        admin.delete_records({TopicPartition(runs.topic, 0): 30})
    assert f"offsets {first} to 29 are lost (its log starts at 30)" in runs.refusal()
    assert f"offsets {first} to 29 are lost" in runs.done("--option", "failOnDataLoss=false")
    assert runs.rows() == Counter([*range(20), *range(30, 40)])


def test_a_reset_into_deleted_records_that_were_read_reads_the_rest(runs: IngestRuns) -> None:
    runs.send(40)
    runs.done()
    runs.reset("--to-offset 5")
    with Admin(runs.bootstrap) as admin:
        admin.delete_records({TopicPartition(runs.topic, 0): 30})
    assert "offsets 5 to 29 are lost (its log starts at 30)" in runs.done()
    assert runs.rows() == Counter([*range(40), *range(30, 40)])


def test_a_reset_to_the_end_skips_an_open_transaction(runs: IngestRuns) -> None:
    """Before, a reset above the last stable offset read the whole partition again."""
    runs.send(100)
    runs.done(*COMMITTED)
    with Producer(runs.bootstrap, transactional_id=runs.topic, transaction_timeout_ms=300_000) as producer:
        open_transaction(runs.topic, producer)
        runs.send(10)
        runs.reset("--to-latest")
        runs.done(*COMMITTED)
        runs.done(*COMMITTED)
        assert runs.rows() == Counter(range(100))
        producer.commit_transaction()
    runs.send(5)
    runs.done(*COMMITTED)
    found = runs.rows()
    assert set(found.values()) == {1}
    assert sorted(found) == [*range(100), *range(121, 126)], "110 to 119 are skipped, and 120 is the marker"


def test_a_change_to_read_committed_waits_for_an_open_transaction(runs: IngestRuns) -> None:
    """Before, the log counted as truncated, and the way on read the whole partition again."""
    runs.send(100)
    with Producer(runs.bootstrap, transactional_id=runs.topic, transaction_timeout_ms=300_000) as producer:
        open_transaction(runs.topic, producer)
        runs.done()
        runs.send(5)
        runs.done(*COMMITTED)
        assert runs.rows() == Counter(range(110))
        producer.commit_transaction()
    runs.done(*COMMITTED)
    found = runs.rows()
    assert set(found.values()) == {1}
    assert sorted(found) == list(range(115))


def test_a_group_above_the_last_stable_offset_is_no_loss(runs: IngestRuns) -> None:
    """Before, the line said that the log ends there, and named a reset, which had the same refusal."""
    runs.send(50)
    with Producer(runs.bootstrap, transactional_id=runs.topic, transaction_timeout_ms=300_000) as producer:
        open_transaction(runs.topic, producer)
        with Admin(runs.bootstrap) as admin:
            admin.alter_group_offsets(runs.topic, {TopicPartition(runs.topic, 0): OffsetAndMetadata(55)})
        runs.done(*COMMITTED)
        producer.commit_transaction()
    runs.done(*COMMITTED)
    assert runs.rows() == Counter(range(55, 60))


def test_a_mark_that_confluent_kafka_commits_is_followed(runs: IngestRuns) -> None:
    """It sends metadata with a NUL at its end. Before, the run overwrote the commit, with a warning."""
    runs.send(20)
    runs.done()
    with Admin(runs.bootstrap) as admin:
        marked = OffsetAndMetadata(5, metadata="odradek-reset:1:5\0")
        admin.alter_group_offsets(runs.topic, {TopicPartition(runs.topic, 0): marked})
    runs.done()
    assert runs.rows() == Counter([*range(20), *range(5, 20)])
