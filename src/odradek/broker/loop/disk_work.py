"""The work on the disk that no tick of a node's loop waits for: syncs and removals in a thread, repeated writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.disk.write_failures import RETRY_S

log = logging.getLogger("odradek.broker")


class DiskWork:
    """``call_in(delay_ms, job)`` calls a job later, by the node's clock.

    ``retry`` tries all failed writes once more, and returns whether some fail again. ``is_over``: the node stops.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retry: Callable[[], bool],
        call_in: Callable[[int, Callable[[], None]], object],
        is_over: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._retry_writes = retry
        self._call_in = call_in
        self._is_over = is_over
        self._will_retry = False

    def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]:
        """Runs a job that takes longer than a tick of the loop. The promise holds its exception, or None."""
        promise: Deferred[BaseException | None] = Deferred()
        self._loop.run_in_executor(None, job).add_done_callback(lambda done: promise.resolve(done.exception()))
        return promise

    def sync_later(self, job: Callable[[], None]) -> None:
        self.in_thread(job).then(_report)

    def remove_later(self, delay_ms: int, job: Callable[[], None]) -> None:
        self._call_in(delay_ms, lambda: self.sync_later(job))

    def retry_later(self) -> None:
        """Tries failed writes again, until all succeed or the node stops. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._begin_retries)

    def _begin_retries(self) -> None:
        if not self._will_retry:
            self._will_retry = True
            self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._will_retry = False
        if not self._is_over() and self._retry_writes():
            self._begin_retries()


def _report(error: BaseException | None) -> None:
    if isinstance(error, KafkaError) and error.code is ErrorCode.kafka_storage_error:
        return  # the log is offline and has logged the reason
    if error is not None:
        log.error("the sync or removal of log files failed", exc_info=error)
