"""A unit test must not open a socket or start a process. The guard makes it fail: such a test belongs in another
folder."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FORBIDDEN = frozenset({
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen",
    "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname",
    "socket.sendmsg", "socket.sendto",
})  # fmt: skip
"""Events of Python's audit. An event loop's own socket pair, which wakes the loop up, raises no such event."""
SEEN = FORBIDDEN | {"socket.__new__"}
NETWORK = (socket.AF_INET, socket.AF_INET6)


class Guard:
    """Records forbidden events during a unit test, and refuses them. ``others``: threads from before the test."""

    def __init__(self) -> None:
        self.is_on = False
        self.others: frozenset[int] = frozenset()
        self.seen: list[str] = []

    def on_event(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook. Python cannot remove it, so it must be fast between unit tests."""
        if self.is_on and event in SEEN and is_forbidden(event, args) and threading.get_ident() not in self.others:
            self.seen.append(event)
            raise AssertionError(f"a unit test opens no socket and starts no process: {event}")


def is_forbidden(event: str, args: tuple[Any, ...]) -> bool:
    # uvloop binds and connects without an event, but Python creates its listening sockets.
    return event in FORBIDDEN or (event == "socket.__new__" and args[1] in NETWORK)


GUARD = Guard()
sys.addaudithook(GUARD.on_event)


@contextmanager
def guarded() -> Iterator[None]:
    """Fails at its end, too, if there was an event: the test, or the code that it tests, may have caught the error."""
    GUARD.seen.clear()
    GUARD.others = frozenset(one.ident or 0 for one in threading.enumerate()) - {threading.get_ident()}
    GUARD.is_on = True
    try:
        yield
    finally:
        GUARD.is_on = False
    assert GUARD.seen == [], "a unit test opens no socket and starts no process"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with guarded():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Does not guard the teardown: the teardown of the last test stops the brokers that other folders share."""
    with guarded():
        yield


@pytest.fixture
def guard() -> Guard:
    return GUARD
