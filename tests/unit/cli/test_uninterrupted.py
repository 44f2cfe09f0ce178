"""Ctrl-C waits for a short piece of work, but not for long, and not a second time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from odradek.cli.termination import uninterrupted


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals need the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(limit_s: float, times: int, work: Callable[[], object]) -> None:
    """Runs work in which Ctrl-C is pressed before its end."""
    with uninterrupted(limit_s):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        work()


def test_the_work_ends_before_ctrl_c_is_raised() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(60, 1, lambda: done.append("work"))
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_the_work() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(60, 2, lambda: done.append("never"))
    assert done == []


def test_work_that_blocks_is_ended_after_the_limit() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(0.05, 1, lambda: time.sleep(60))


def test_without_ctrl_c_nothing_changes() -> None:
    with uninterrupted(60):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_a_program_stays() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with uninterrupted(60):
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]
