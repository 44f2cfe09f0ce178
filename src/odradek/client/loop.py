"""The event loop of the synchronous clients: one background thread per process. A forked child starts its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger("odradek.client")

_lock = threading.Lock()
_current: tuple[int, asyncio.AbstractEventLoop] | None = None
_inherited: list[object] = []


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop for the rest of the process. ``SystemExit`` in a callback of the user would end it, and with it
    every client of this process."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error("a callback has raised %r on the thread of the clients, which continues", error)


def client_loop() -> asyncio.AbstractEventLoop:
    """Returns this process's loop; the first call starts it."""
    global _current  # noqa: PLW0603
    with _lock:
        if _current is None or _current[0] != os.getpid():
            loop = _new_loop()
            threading.Thread(target=_run, args=(loop,), name="odradek-client", daemon=True).start()
            _current = (os.getpid(), loop)
        return _current[1]


def start(
    work: Coroutine[object, object, T], running_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> concurrent.futures.Future[T]:
    """Starts ``work`` on the loop and returns at once. ``running_loop``: that of the clients by default."""
    try:
        running = (running_loop or client_loop)()
    except BaseException:  # Ctrl-C while the thread starts: Python would warn of work that nothing awaited
        work.close()
        raise
    return asyncio.run_coroutine_threadsafe(work, running)


def run(work: Coroutine[object, object, T]) -> T:
    """Runs ``work`` on the loop and waits for its result. An interrupt of the caller cancels ``work``."""
    future = start(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def keep_inherited(thing: object) -> None:
    """Keeps a reference to an object that a forked child inherited.

    Freeing a loop or socket in the child would change the epoll set that the child shares with its parent."""
    _inherited.append(thing)


def _forget_after_fork() -> None:
    global _lock, _current
    keep_inherited(_current)
    _lock, _current = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
