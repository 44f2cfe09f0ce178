"""The driver's commits, with a fake query and a fake group: no Spark, no broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.driver import micro_batch_commits
from odradek.spark.driver.micro_batch_commits import GroupCommits, commit_finished
from odradek.spark.offsets.commit_marks import mark_commit
from odradek.spark.offsets.plan import CommitDecision, Commits, decide_commits
from odradek.spark.offsets.source_offset import SourceOffset
from odradek.spark.options import OnGroupReset

P0 = TopicPartition("t", 0)
END = '{"t": {"0": 5}}'


class Query:
    """A fake of Spark's query. It reports the ends in ``reported`` in order and then repeats the last end."""

    def __init__(self, *reported: str, is_active: bool = True) -> None:
        self.reported, self.active = list(reported or [END]), is_active
        self.in_trigger: Iterator[bool] = iter(())
        self.looks = 0

    def isActive(self) -> bool:
        return self.active

    def status(self) -> Any:
        self.looks += 1
        return SimpleNamespace(isTriggerActive=lambda: next(self.in_trigger, False))

    def lastProgress(self) -> Any:
        end = self.reported.pop(0) if len(self.reported) > 1 else self.reported[0]
        return SimpleNamespace(sources=lambda: [SimpleNamespace(endOffset=lambda: end)])


class Group:
    """A fake ``Lookups``."""

    def __init__(self, on_reset: OnGroupReset = OnGroupReset.FOLLOW) -> None:
        self.options = SimpleNamespace(on_group_reset=on_reset)
        self.group_id = "g"
        self.commits = {P0: mark_commit(3)}
        self.asked: list[str] = []
        self.written = threading.Event()
        self.closed = False
        self.refusals = 0
        self.is_behind = False

    def partitions(self) -> list[TopicPartition]:
        self.asked.append("partitions")
        return [P0]

    def ends(self, partitions: Any) -> dict[TopicPartition, int]:
        self.asked.append("ends")
        return {P0: 10}

    def existing_ends(self, done: SourceOffset, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.asked.append("existing_ends")
        return ends

    def committed(self, partitions: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        self.asked.append("committed")
        return dict(self.commits)

    def commit_decision(self, done: SourceOffset, committed: Commits) -> CommitDecision:
        return decide_commits(done, committed, self.options.on_group_reset, "any")

    def commit_existing(self, decision: CommitDecision, held: Any, query: str) -> bool:
        self.asked.append("commit")
        self.is_behind = self.refusals > 0
        if self.is_behind:
            self.refusals -= 1
            return False
        self.commits.update(decision.commits)
        self.written.set()
        return True

    def close(self) -> None:
        self.closed = True


def text(value: str) -> Any:
    return SimpleNamespace(toString=lambda: value)


def reports(run_id: str) -> Any:
    return SimpleNamespace(progress=lambda: SimpleNamespace(runId=lambda: text(run_id)))


def ends(run_id: str) -> Any:
    return SimpleNamespace(runId=lambda: text(run_id))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GroupCommits]]:
    """A listener whose queries are the given ones, by their names. The queries end with the test."""
    monkeypatch.setattr(micro_batch_commits, "_REPORT_DELAY_S", 0.001)
    monkeypatch.setattr(micro_batch_commits, "_TRIGGER_RETRY_S", 0.001)
    monkeypatch.setattr(micro_batch_commits, "_run_of", lambda run: run)
    monkeypatch.setattr(micro_batch_commits, "_complete_first_batch", lambda query: None)  # a query has no checkpoint
    made: list[GroupCommits] = []

    def make(**runs: micro_batch_commits._Run) -> GroupCommits:
        manager = SimpleNamespace(get=lambda name: runs[name])
        one = GroupCommits(SimpleNamespace(streams=SimpleNamespace(_jsqm=manager)))
        for name in runs:
            one.onQueryStarted(SimpleNamespace(id=lambda name=name: text(name), runId=lambda name=name: text(name)))
        made.append(one)
        return one

    yield make
    for one in made:
        for name in list(one._runs):
            one.onQueryTerminated(ends(name))


def run_of(query: Query, group: Group) -> micro_batch_commits._Run:
    return micro_batch_commits._Run(query, {0: group}, 1)


def test_the_commit_follows_the_read_of_the_group_without_another_request() -> None:
    group = Group()
    assert commit_finished(group, SourceOffset({P0: 5}), lambda: True)
    assert group.asked == ["partitions", "ends", "existing_ends", "committed", "commit"]


@pytest.mark.parametrize("moved", ["another end", "a trigger"])
def test_the_driver_leaves_the_commits_of_a_continuing_query_to_its_planner(moved: str) -> None:
    query = Query(END, '{"t": {"0": 7}}') if moved == "another end" else Query()
    if moved == "a trigger":
        query.in_trigger = iter([True])
    group = Group()
    run = run_of(query, group)
    micro_batch_commits._commit_run(run)
    assert group.asked[-1] == "committed"
    assert not run.committed_ends
    micro_batch_commits._commit_run(run)
    assert group.asked[-1] == "commit"


def test_the_driver_waits_until_no_trigger_is_active(listener: Callable[..., GroupCommits]) -> None:
    query, group = Query(), Group()
    query.in_trigger = iter([True] * 5)
    listener(q=run_of(query, group)).onQueryProgress(reports("q"))
    assert group.written.wait(30)
    assert group.asked == ["partitions", "ends", "existing_ends", "committed", "commit"], "the group is read only once"
    assert query.looks == 5 + 2, "the last two looks at the query are before and after the reads of the group"


def test_a_failed_commit_is_retried_without_another_micro_batch(
    listener: Callable[..., GroupCommits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro_batch_commits, "COMMIT_RETRY_S", 0.001)
    query, group = Query(), Group()
    group.refusals = 3
    one = listener(q=run_of(query, group))
    one.onQueryProgress(reports("q"))
    assert group.written.wait(30)
    assert group.asked.count("commit") == 4
    one.onQueryTerminated(ends("q"))
    assert group.asked.count("commit") == 4, "three refused attempts and a successful one"


def test_a_query_that_has_ended_has_no_active_trigger() -> None:
    query, group = Query(is_active=False), Group()
    query.in_trigger = iter([True])
    micro_batch_commits._commit_run(run_of(query, group))
    assert group.written.is_set()


@pytest.mark.parametrize("where", ["the query", "the group", "its end"])
def test_an_unexpected_error_is_logged_and_other_queries_are_committed(
    where: str, listener: Callable[..., GroupCommits], caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Group(), Group()
    query = Query("no JSON") if where == "its end" else Query()
    if where == "the query":
        query.status = lambda: None  # it fails when it is asked
    if where == "the group":
        # Such a reply does not exist, so reading it raises an error.
        bad.committed = lambda partitions: None
    both = listener(bad=run_of(query, bad), good=run_of(Query(), good))
    both.onQueryProgress(reports("bad"))
    both.onQueryProgress(reports("good"))
    assert good.written.wait(30)
    assert both._thread is not None
    assert both._thread.is_alive()
    (warning, *_) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.exc_info is not None
    both.onQueryTerminated(ends("bad"))
    assert bad.closed
    assert list(both._runs) == ["good"]


def test_a_thread_that_died_is_replaced(listener: Callable[..., GroupCommits]) -> None:
    query, group = Query(), Group()
    one = listener()
    one._thread = threading.Thread(target=int)
    one._thread.start()
    one._thread.join()
    one._manager = SimpleNamespace(get=lambda name: run_of(query, group))
    one.onQueryStarted(SimpleNamespace(id=lambda: text("q"), runId=lambda: text("q")))
    one.onQueryProgress(reports("q"))
    assert group.written.wait(30)


def test_a_failure_to_add_a_listener_is_harmless_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listeners: dict[str, Any] = {}
    monkeypatch.setattr(micro_batch_commits, "_listeners", listeners)
    spark: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(sessionUUID=lambda: "s"))
    tries: list[Any] = []

    def add(given: Any) -> str:
        tries.append(given)
        if len(tries) == 1:
            raise OSError("no port")
        return "listener"

    monkeypatch.setattr(micro_batch_commits, "_add_listener", add)
    micro_batch_commits.commit_finished_batches(spark)
    assert "no port" in caplog.text
    assert not listeners
    micro_batch_commits.commit_finished_batches(spark)
    micro_batch_commits.commit_finished_batches(spark)
    assert listeners == {"s": "listener"}
    assert len(tries) == 2
