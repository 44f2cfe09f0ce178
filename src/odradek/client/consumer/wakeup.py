"""What a poll waits for when there is nothing to return: rung on the loop, heard there or on the caller's thread."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from contextlib import suppress


class Bell:
    """A thread that listens is woken without a turn of the loop: of the time between a record's coming and its
    return, two such turns were the greater part."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._listening = False

    def ring(self) -> None:
        """On the loop."""
        self._event.set()
        listening, self._listening = self._listening, False
        if listening:
            self._queue.put(None)

    def hush(self) -> None:
        """On the loop, before looking for what there is to do."""
        self._event.clear()

    async def heard(self, timeout_s: float) -> None:
        """On the loop: returns when it has rung since ``hush``, or the time has passed."""
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it forgets that it was cancelled, when it rings at the same moment.
            async with asyncio.timeout(timeout_s):
                await self._event.wait()

    def listen(self, timeout_s: float, is_done: Callable[[], bool]) -> None:
        """On the caller's thread: returns when ``is_done``, when it has rung, sometimes for nothing, or in the end."""
        self._listening = True
        try:
            if not is_done():
                self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        finally:
            self._listening = False
