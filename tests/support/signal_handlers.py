"""A test that leaves a signal handler behind fails, and not a later test in the same process.

The handler of a closed event loop swallows SIGTERM and Ctrl-C.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGURG")  # Windows has no SIGHUP and no SIGURG
_WATCHED = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))


class SignalHandlers:
    """Compares the handlers after each test with those at the beginning, and restores them."""

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in _WATCHED}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        found = {}
        for number, before in self._before.items():
            now = signal.getsignal(number)
            # A Spark session sets its handler of SIGINT for as long as the process lives.
            if now is not before and not getattr(now, "__module__", "").startswith("pyspark"):
                found[number.name] = now
                signal.signal(number, before)
        if found:
            pytest.fail(f"{item.nodeid} left signal handlers behind: {found}", pytrace=False)
