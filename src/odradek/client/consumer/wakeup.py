"""The signal that ends the wait of a poll: given on the loop, awaited there or in the caller's thread."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from contextlib import suppress


class WakeupSignal:
    """Wakes a thread without a turn of the loop: two such turns were the greater part of the time between the arrival
    of a record and its return."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread_waits = False

    def notify(self) -> None:
        """On the loop."""
        self._event.set()
        thread_waits, self._thread_waits = self._thread_waits, False
        if thread_waits:
            self._queue.put(None)

    def clear(self) -> None:
        """On the loop, before looking for what there is to do."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        """On the loop: returns after a ``notify`` since ``clear``, or when the time has passed."""
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it forgets a cancellation when the signal comes at the same moment.
            async with asyncio.timeout(timeout_s):
                await self._event.wait()

    def wait_in_thread(self, timeout_s: float, is_done: Callable[[], bool]) -> None:
        """On the caller's thread: returns when ``is_done``, after a ``notify`` (sometimes an old one), or when the
        time has passed."""
        self._thread_waits = True
        try:
            if not is_done():
                self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        finally:
            self._thread_waits = False
