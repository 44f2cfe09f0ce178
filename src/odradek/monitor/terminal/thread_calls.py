"""Calls that block, in threads that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *given: Any) -> T:
    """Returns what ``call`` returns in a daemon thread. The threads of ``asyncio.to_thread`` would hold up the end of
    the process until a lost monitor's timeout."""
    loop = asyncio.get_running_loop()
    promise: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not promise.done():
            set_it(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], object] = (promise.set_result, call(*given))
        except Exception as error:
            outcome = (promise.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await promise
