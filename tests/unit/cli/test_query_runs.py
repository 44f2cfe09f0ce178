"""Ctrl-C ends a query without an end in time, whatever Spark does."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import ClassVar

import pytest

from odradek.cli.pipeline import query_runs
from odradek.cli.pipeline.query_runs import StopRequest
from odradek.cli.termination import ExitAtOnce
from odradek.pipelines.group_commit import COMMITTED, UNFINISHED, CommitState
from odradek.pipelines.queries import _run_to_end


class Running(Future[str]):
    """A query during which Ctrl-C is pressed once."""

    is_pressed = False

    def result(self, timeout: float | None = None) -> str:
        if not self.is_pressed:
            self.is_pressed = True
            raise KeyboardInterrupt
        return super().result(timeout)


def test_a_query_that_ends_in_time_has_its_summary() -> None:
    running, stop = Running(), StopRequest()
    timer = threading.Timer(0.01, running.set_result, ("summary",))
    timer.start()
    done, code = query_runs.wait_for_end(running, stop, has_end=False)
    assert (done, code) == ("summary", 0)
    assert stop.is_set()
    assert isinstance(code, ExitAtOnce), "after the summary, the end of Java took two seconds more"


def test_work_of_spark_that_does_not_end_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        query_runs.wait_for_end(Running(), StopRequest(), has_end=False, last_s=0.01)
    first, second = capsys.readouterr().err.splitlines()
    assert "has 3 s to end" in first
    assert second.startswith("odradek: stopped at once")
    assert query_runs.INTERACTIVE_S < 5


def test_the_failure_of_a_query_stays_its_failure() -> None:
    running = Running()
    running.set_exception(TimeoutError("of the query"))
    with pytest.raises(TimeoutError, match="of the query"):
        query_runs.wait_for_end(running, StopRequest(), has_end=False)


def test_an_interrupted_query_with_an_end_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        query_runs.wait_for_end(Running(), StopRequest(), has_end=True)
    assert capsys.readouterr().err == ("odradek: interrupted: finished micro-batches stay, and the next run goes on\n")
    assert query_runs.LAST_S < 4.5


def test_a_run_that_was_stopped_in_its_first_micro_batch_does_not_say_nothing_new() -> None:
    state = CommitState(False, UNFINISHED, "The next run commits it")
    assert query_runs.nothing_line("rows", state) == "No micro-batch was finished: 0 rows"
    assert query_runs.nothing_line("rows", COMMITTED) == "Nothing new: 0 rows"
    assert query_runs.nothing_line("rows", CommitState(False, "the group has members")) == "Nothing new: 0 rows"


class BusyQuery:
    """A micro-batch that does not end, on a machine where each answer of Java takes a second."""

    isActive = True  # noqa: N815  Spark's name
    status: ClassVar = {"isTriggerActive": True}

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def awaitTermination(self, seconds: float) -> bool:
        self._now[0] += seconds + 1
        return False

    def stop(self) -> None:
        self.isActive = False


def test_the_time_of_a_micro_batch_after_ctrl_c_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("odradek.pipelines.queries.time.monotonic", lambda: now[0])
    stop, query = StopRequest(query_runs.INTERACTIVE_S), BusyQuery(now)
    stop.set()
    _run_to_end(query, stop, lambda: None)
    assert not query.isActive
    assert now[0] - 100 <= query_runs.INTERACTIVE_S + 1.5, "polls were counted: ten seconds"


def test_if_no_value_of_avro_can_be_read_the_framing_is_asked_for() -> None:
    plain = "2 records with an unreadable value: see columns error and raw."
    assert query_runs.unreadable_line(2, 3, "avro", "none") == query_runs.unreadable_line(2, 2, "json", "none") == plain
    assert "is it --framing confluent?" in query_runs.unreadable_line(2, 2, "avro", "none")
    assert "is it --framing none?" in query_runs.unreadable_line(2, 2, "avro", "confluent")
