"""The attempts of one write. Each attempt is one transaction; each time the transaction timeout starts again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.client.producer.errors import ProducerFenced
from odradek.spark.driver import transaction_attempts
from odradek.spark.driver.transaction_attempts import Placement, TasksRepeated, TransactionTimedOut, write_once
from odradek.spark.writes.write_options import parse_write_options

OPTIONS = parse_write_options({
    "kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.transaction.timeout.ms": "900000",
})  # fmt: skip


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Writes with attempts of (seconds, outcome). An outcome is the number of rows, None if a task was repeated, or an
    error."""

    def run(*attempts: tuple[float, Any]) -> int:
        now_s, left = [0.0], list(attempts)

        def attempt(*_: Any) -> Any:
            seconds, outcome = left.pop(0)
            now_s[0] += seconds
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(transaction_attempts, "_attempt", attempt)
        monkeypatch.setattr(transaction_attempts.time, "monotonic", lambda: now_s[0])
        anything: Any = None
        return write_once(anything, OPTIONS, Placement(anything, 1), [], lambda: None)

    return run


def test_the_timeout_counts_for_each_attempt(write: Callable[..., int]) -> None:
    """A producer that is fenced before the timeout of its attempt was fenced by another driver, however long earlier
    attempts took."""
    fenced = ProducerFenced("id")
    with pytest.raises(ProducerFenced):
        write((800, None), (200, fenced))
    with pytest.raises(TransactionTimedOut, match="a transaction of 901 s, with a timeout of 900000 ms"):
        write((1, None), (901, fenced))
    assert write((800, None), (800, 5)) == 5


def test_attempts_are_limited(write: Callable[..., int]) -> None:
    with pytest.raises(TasksRepeated, match="in each of 4 attempts"):
        write(*[(1, None)] * 4)
