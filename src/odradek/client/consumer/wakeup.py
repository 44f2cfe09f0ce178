"""The signal that ends the wait of a poll. The loop sends it; the loop or the caller's thread waits for it."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from contextlib import suppress


class WakeupSignal:
    """Wakes a task of the event loop, or a thread.

    A thread is woken without a tick of the loop. A tick would take most of the time between the arrival of a record and
    its return by poll.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.thread_waits = False

    def notify(self) -> None:
        """Ends the wait. Runs on the loop."""
        self._event.set()
        thread_waits, self.thread_waits = self.thread_waits, False
        if thread_waits:
            self._queue.put(None)

    def clear(self) -> None:
        """Resets the signal. Runs on the loop, before the poll looks for records and group work."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        """Waits on the loop for a ``notify`` since ``clear``, or until the time has passed."""
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with the signal.
            async with asyncio.timeout(timeout_s):
                await self._event.wait()

    def wait_in_thread(self, timeout_s: float, is_done: Callable[[], bool]) -> None:
        """Waits on the caller's thread for a ``notify`` (perhaps an old one), at most ``timeout_s``.

        Returns at once if ``is_done()`` is True; it is called only once, before the wait."""
        self.thread_waits = True
        try:
            if not is_done():
                self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        finally:
            self.thread_waits = False
