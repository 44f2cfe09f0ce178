"""What a broker has applied of the metadata log, and who waits for it."""

from __future__ import annotations

import asyncio

from odradek.core.deferred import Deferred


class AppliedOffsets:
    """``move`` notes how far the log is applied and published; ``wait_for`` waits for an offset."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end = 0
        self._waits: dict[Deferred[bool], tuple[int, asyncio.TimerHandle]] = {}

    def move(self, end_offset: int) -> None:
        """Notes that all records before an offset are applied."""
        self._end = end_offset
        for promise, (offset, timer) in tuple(self._waits.items()):
            if offset <= end_offset:
                timer.cancel()
                del self._waits[promise]
                promise.resolve(True)

    def wait_for(self, end_offset: int, within_ms: int) -> Deferred[bool]:
        """Returns the promise of whether all records before an offset are applied within a time."""
        promise: Deferred[bool] = Deferred()
        if end_offset <= self._end:
            promise.resolve(True)
            return promise
        timer = self._loop.call_later(max(within_ms, 0) / 1000, self._give_up, promise)
        self._waits[promise] = end_offset, timer
        return promise

    def _give_up(self, promise: Deferred[bool]) -> None:
        if self._waits.pop(promise, None) is not None:
            promise.resolve(False)
