"""Ctrl-C ends a query without an end in time, whatever Spark does."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from odradek.cli import query_runs
from odradek.cli.query_runs import StopRequest


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
    assert query_runs._finished(running, stop, has_end=False) == ("summary", 0)
    assert stop.is_set()


def test_work_of_spark_that_does_not_end_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(query_runs, "LAST_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        query_runs._finished(Running(), StopRequest(), has_end=False)
    first, second = capsys.readouterr().err.splitlines()
    assert "has 3 s to end" in first
    assert second.startswith("odradek: stopped at once")
    assert query_runs.INTERACTIVE_S < 5


def test_the_failure_of_a_query_stays_its_failure() -> None:
    running = Running()
    running.set_exception(TimeoutError("of the query"))
    with pytest.raises(TimeoutError, match="of the query"):
        query_runs._finished(running, StopRequest(), has_end=False)


def test_an_interrupted_query_with_an_end_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        query_runs._finished(Running(), StopRequest(), has_end=True)
    assert capsys.readouterr().err == ("odradek: interrupted: finished micro-batches stay, and the next run goes on\n")
    assert query_runs.LAST_S < 4.5
