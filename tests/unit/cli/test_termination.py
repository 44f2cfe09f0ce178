"""Signals that another thread than the main one receives, as after SIGSTOP, SIGTERM and SIGCONT."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from odradek.cli.termination import Terminated, terminable


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """As in a command of a terminal. Under nohup this process ignores SIGHUP, and terminable() respects that."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def _interrupted_wait(number: signal.Signals) -> None:
    """Waits in the main thread without a limit, and lets another thread receive the signal. The lock is free after
    20 s: a wait that does not end fails."""
    lock = threading.Lock()
    lock.acquire()
    sender = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), number))
    release = threading.Timer(20, lock.release)
    started = time.monotonic()
    with terminable():
        sender.start()
        release.start()
        try:
            lock.acquire()
        finally:
            waited_s = time.monotonic() - started
            release.cancel()
            sender.join()
            assert waited_s < 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_another_thread_ends_the_wait_of_the_main_thread(number: signal.Signals) -> None:
    """Before, the handler ran only when the wait was over: a run with --trigger never ended."""
    with pytest.raises(Terminated) as ended:
        _interrupted_wait(number)
    assert ended.value.number == number


def test_ctrl_c_to_another_thread_ends_the_wait_of_the_main_thread() -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted_wait(signal.SIGINT)


def test_nothing_is_left_behind() -> None:
    for _ in range(3):
        with terminable():
            pass
    assert "odradek-signals" not in {thread.name for thread in threading.enumerate()}
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
