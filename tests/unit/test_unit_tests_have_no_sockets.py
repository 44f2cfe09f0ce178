"""The guard of this folder detects sockets and processes, and allows event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

NEW = "socket.__new__"


def listen(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def serve() -> None:
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


@pytest.mark.parametrize(
    ("act", "event"),
    [
        (socket.socket, NEW),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "socket.getaddrinfo"),
        (lambda: socket.socketpair()[0].bind("here"), "socket.bind"),
        (lambda: listen(asyncio.new_event_loop), NEW),
        (lambda: listen(uvloop.new_event_loop), NEW),
        (lambda: subprocess.run([sys.executable, "--version"], check=True), "subprocess.Popen"),
        (lambda: os.system("true"), "os.system"),
        (os.fork, "os.fork"),
    ],
)
def test_sockets_and_processes_are_refused(guard: Any, act: Callable[[], Any], event: str) -> None:
    with pytest.raises(AssertionError, match=f"starts no process: {event}"):
        act()
    assert guard.seen[0] == event
    guard.seen.clear()


def test_sockets_in_threads_and_behind_caught_errors_are_detected(guard: Any) -> None:
    def connect() -> None:
        with contextlib.suppress(BaseException):
            socket.create_connection(("127.0.0.1", 9))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    assert guard.seen == ["socket.getaddrinfo"]
    guard.seen.clear()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_event_loops_and_socket_pairs_are_allowed(
    guard: Any, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.sleep(0))
    for end in socket.socketpair():
        end.close()
    assert guard.seen == []
