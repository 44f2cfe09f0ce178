"""The query commits each micro-batch as soon as it is finished, with any trigger interval and also if no trigger
follows."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_runs import StreamingRun, rows_of, span
from support.brokers import eventually, unique
from support.publish import consumer, create_topic, numbers, publish

from odradek.core.ids import LATEST, TopicPartition
from odradek.spark.driver import micro_batch_commits
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.plan import Commits

TEN_MINUTES = {"processingTime": "10 minutes"}
Work = Callable[[int], None]


@pytest.fixture
def filled(stream: StreamingRun) -> StreamingRun:
    create_topic(stream.bootstrap, stream.topic)
    publish(stream.bootstrap, stream.topic, numbers(30))
    return stream


class Running:
    """A query with its own trigger. ``work`` is called with the number of each micro-batch after its rows were read."""

    def __init__(self, run: StreamingRun) -> None:
        self.run = run
        self.rows: list[tuple[int, int]] = []
        self.query: Any = None

    def start(self, trigger: dict[str, Any], work: Work = lambda batch: None, **options: str) -> None:
        def add(frame: Any, batch: int) -> None:
            self.rows += rows_of(frame)
            work(batch)

        writer = self.run.frame(**options).writeStream.foreachBatch(add)
        self.query = writer.option("checkpointLocation", str(self.run.checkpoint)).trigger(**trigger).start()

    def wait_for_batch(self, batch: int) -> None:
        """Waits until Spark has marked the micro-batch as complete."""

        def is_done() -> bool:
            assert self.query.exception() is None
            progress = self.query.lastProgress
            return progress is not None and progress["batchId"] >= batch

        eventually(is_done, within_s=60, every_s=0.01, what=f"micro-batch {batch}")

    def watched(self) -> list[micro_batch_commits._Run]:
        """The runs of this query that the driver watches. It may still watch queries of other test modules."""
        return [
            run
            for listener in micro_batch_commits._listeners.values()
            for run in list(listener._runs.values())
            if any(lookups.group_id == self.run.group for lookups in run.sources.values())
        ]

    def wait_for_the_end(self) -> None:
        """Waits until the last commit of the ended query is done or dropped."""
        eventually(lambda: not self.watched(), within_s=30, what="the end of the query")

    def wait_for_commit(self, offset: int) -> None:
        eventually(lambda: self.run.committed() == {0: offset}, within_s=30, what=f"a commit of {offset}")


@pytest.fixture
def running(filled: StreamingRun) -> Iterator[Running]:
    made = Running(filled)
    yield made
    if made.query is not None:
        made.query.stop()
        made.wait_for_the_end()


def test_a_micro_batch_is_committed_when_it_is_finished_not_when_the_next_one_begins(running: Running) -> None:
    running.start(TEN_MINUTES)
    running.wait_for_commit(30)
    assert running.run.log("offsets") == [0], "no other micro-batch was planned"
    assert running.query.isActive


def test_a_running_micro_batch_is_not_committed(running: Running) -> None:
    begun, proceed = threading.Event(), threading.Event()

    def work(batch: int) -> None:
        if batch == 1:
            begun.set()
            assert proceed.wait(60)

    running.start({"processingTime": "1 second"}, work, maxOffsetsPerTrigger="10")
    try:
        assert begun.wait(60)
        running.wait_for_commit(10)
        # After a finished micro-batch, every commit comes within less time than this.
        assert not proceed.wait(micro_batch_commits._REPORT_DELAY_S + micro_batch_commits._TRIGGER_RETRY_S + 0.5)
        assert running.run.committed() == {0: 10}
    finally:
        proceed.set()
    running.wait_for_commit(30)


def test_the_only_micro_batch_of_trigger_once_is_committed(running: Running) -> None:
    running.start({"once": True})
    assert running.query.awaitTermination(120)
    running.wait_for_commit(30)


@pytest.mark.slow
def test_a_process_that_ends_with_its_query_has_committed(filled: StreamingRun, spark_python: str) -> None:
    assert filled.group is not None
    child = Path(__file__).with_name("spark_child.py")
    arguments = ["auto", filled.bootstrap, filled.topic, filled.group, str(filled.checkpoint)]
    command = [sys.executable, str(child), "once", *arguments]
    own = os.environ | {"SPARK_FORKS": spark_python}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240, env=own)
    assert '"ended": true' in done.stdout
    assert "threw an exception" not in done.stderr, "Spark calls no listener after the end"
    assert filled.committed() == {0: 30}


def test_the_planner_commits_nearly_all_consecutive_micro_batches(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver commits only if the machine pauses between two triggers: here for at most two of ten
    micro-batches."""
    commit, written = Lookups.commit, []

    def counted(lookups: Lookups, commits: Commits) -> None:  # the planner is another process
        if commits and lookups.group_id == running.run.group:
            written.append(commits)
        commit(lookups, commits)

    monkeypatch.setattr(Lookups, "commit", counted)
    running.start({"processingTime": "0 seconds"}, maxOffsetsPerTrigger="3")
    running.wait_for_batch(9)
    running.wait_for_commit(30)
    assert len(written) <= 2, "a machine may pause between two triggers"


def test_a_query_that_is_stopped_right_after_a_micro_batch_has_committed_it(running: Running) -> None:
    running.start(TEN_MINUTES)
    running.wait_for_batch(0)
    running.query.stop()
    running.wait_for_commit(30)


def test_a_query_that_ends_before_its_commit_is_harmless(running: Running) -> None:
    running.start(TEN_MINUTES)
    (run,) = running.watched()
    running.wait_for_commit(30)
    running.query.stop()
    running.wait_for_the_end()
    eventually(lambda: run.is_over, what="its connections closed")
    run.committed_ends.clear()
    assert micro_batch_commits._ends_of_last_batch(run), "there is a micro-batch to commit"
    micro_batch_commits._commit_run(run)
    assert [lookups._admin for lookups in run.sources.values()] == [None], "its connections stay closed"
    assert not run.committed_ends


def test_a_failed_micro_batch_is_not_committed_and_the_previous_one_is(running: Running) -> None:
    def work(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("no room")

    running.start({"processingTime": "1 second"}, work, maxOffsetsPerTrigger="10")
    with pytest.raises(Exception, match="no room"):
        running.query.awaitTermination(120)
    running.wait_for_the_end()
    assert running.run.log("offsets") == [0, 1]
    assert running.rows == span(0, 0, 20)
    assert running.run.committed() == {0: 10}


def test_a_reset_during_a_micro_batch_is_kept_for_the_next_run(running: Running) -> None:
    running.start({"once": True}, lambda batch: running.run.reset({0: 7}))
    assert running.query.awaitTermination(120)
    running.wait_for_the_end()
    assert running.run.committed() == {0: 7}
    assert running.run.rows() == span(0, 7, 30)
    assert running.run.committed() == {0: 30}


def test_with_on_group_reset_ignore_the_commit_of_the_micro_batch_overwrites_the_reset(running: Running) -> None:
    running.start(TEN_MINUTES, lambda batch: running.run.reset({0: 7}), onGroupReset="ignore")
    running.wait_for_commit(30)


def test_a_warning_names_members_of_the_group_and_the_next_commit_succeeds(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "odradek.spark.commits")
    run = running.run
    assert run.group is not None
    member = consumer(run.bootstrap, run.group, client_id="the-newcomer")

    def join(batch: int) -> None:
        member.subscribe([run.topic])
        eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")

    try:
        running.start(TEN_MINUTES, join)
        # A late event of an earlier test's query may cause another warning, of another group.
        failure = f"are not committed to group {run.group} yet"
        eventually(lambda: [text for text in caplog.messages if failure in text], within_s=60, what="a warning")
        assert all("the-newcomer at " in text for text in caplog.messages if failure in text)
        assert running.query.isActive
        assert run.committed() == {}
    finally:
        member.close()
    running.query.stop()
    running.wait_for_commit(30)


def test_without_commits_there_is_no_listener_and_a_second_register_adds_none(running: Running) -> None:
    from odradek.spark import register

    before = list(micro_batch_commits._listeners)
    register(running.run.spark)
    assert list(micro_batch_commits._listeners) == before
    running.start(TEN_MINUTES, commitOffsets="false")
    running.wait_for_batch(0)
    assert running.watched() == []
    assert running.run.committed() == {}


@pytest.fixture
def one_shuffle_partition(spark: Any) -> Iterator[None]:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "1")
    yield
    spark.conf.set(name, before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_shuffle_partition")
def test_a_stream_joined_with_itself_continues(running: Running) -> None:
    """Spark makes two sources from one ``load()``, each with a different id."""
    run = running.run
    for _ in range(2):
        frame = run.frame()
        joined = frame.alias("a").join(frame.alias("b"), ["partition", "offset"])
        query = (
            joined.writeStream.foreachBatch(lambda rows, batch: running.rows.extend(rows_of(rows)))
            .option("checkpointLocation", str(run.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        publish(run.bootstrap, run.topic, numbers(10))
    assert sorted(running.rows) == span(0, 0, 40)
    running.wait_for_commit(40)


@pytest.mark.slow
@pytest.mark.usefixtures("one_shuffle_partition")
def test_two_joined_topics_are_committed_to_one_group(running: Running) -> None:
    """Each source commits its own topic. Rows wait in Spark's state for their partners, so a row that has arrived in a
    later micro-batch than its partner is joined, also after a restart."""
    run = running.run
    other = unique("joined")
    create_topic(run.bootstrap, other, 1)
    seen: list[tuple[int, int]] = []

    def read() -> None:
        left, right = run.frame().alias("a"), run.frame(subscribe=other).alias("b")
        joined = left.join(right, left["offset"] == right["offset"]).select("a.partition", "a.offset")
        query = (
            joined.writeStream.foreachBatch(lambda rows, batch: seen.extend(rows_of(rows)))
            .option("checkpointLocation", str(run.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    def commits() -> dict[TopicPartition, int]:
        assert run.group is not None
        return {tp: commit.offset for tp, commit in run.admin.list_group_offsets(run.group).items()}

    mine, theirs = TopicPartition(run.topic, 0), TopicPartition(other, 0)
    total = run.admin.list_offsets({mine: LATEST})[mine].offset
    publish(run.bootstrap, other, numbers(5))
    read()
    assert sorted(seen) == span(0, 0, min(5, total))
    publish(run.bootstrap, other, numbers(20))
    publish(run.bootstrap, run.topic, numbers(5))
    read()
    read()
    assert sorted(seen) == span(0, 0, min(25, total + 5)), "each pair once"
    eventually(lambda: commits() == {mine: total + 5, theirs: 25}, what="the commits of both topics")
