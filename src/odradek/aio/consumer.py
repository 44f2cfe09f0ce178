"""The asyncio ``Consumer``: Arrow RecordBatches from a Kafka cluster, on the caller's event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.batches.columns import COLUMNS
from odradek.client.arguments import check_timeout, close_timeout_ms
from odradek.client.client_text import consumer_text
from odradek.client.consumer.calls import ConsumerCalls
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.records import Polled, Record
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.errors import IllegalState
from odradek.client.group.offset_store import store_opener
from odradek.client.other_names import NoOthers, OtherNames, refuse

if TYPE_CHECKING:
    from odradek.client.consumer.setting_types import ConsumerSettings


async def _call(function: Callable[..., object], *args: object) -> object:
    """Calls a callback, which may be a coroutine function. Returns its result."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


_SMALL_BYTES = 16_384
"""The largest number of uncompressed bytes that are decoded on the loop. A thread would take longer for so few."""


class Consumer(ConsumerCalls, OtherNames):
    """Like ``odradek.Consumer``, for one running event loop. Callbacks may be coroutine functions.

    >>> async with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="g") as consumer:  # doctest: +SKIP
    ...     await consumer.subscribe(["flights"])
    ...     polled = await consumer.poll(1.0)
    """

    def __init__(
        self,
        settings: Mapping[str, object] | Sequence[str] | str | None = None,
        /,
        **more: Unpack[ConsumerSettings],
    ) -> None:
        if settings is not None and not isinstance(settings, Mapping):
            settings = {"bootstrap.servers": settings}
        super().__init__(ConsumerConfig.of({**(settings or {}), **more}))
        store_opener(self.config)  # raises ConfigError now, and not in the first call
        self._woken_first = False
        self._closing = self._closed = self._polling = False

    @property
    def _engine(self) -> ConsumerEngine:
        if self._closed:
            raise IllegalState("this Consumer is closed")
        if self._made is None:
            self._made = ConsumerEngine(self.config, _call)
            if self._woken_first:
                self._woken_first = False
                self._made.wakeup()
        return self._made

    def __repr__(self) -> str:
        config, known = self.config, None if self._made is None else self._made.subscription
        return consumer_text(config.bootstrap_servers, config.group_id, known, is_closed=self._closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._made is not None:
            self._made.unreturn_last_poll()  # the block did not process the records: close() does not commit them
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yields records one by one, without end. A record counts as returned when the caller asks for the next one."""
        while True:
            polled = await self._poll(1.0, COLUMNS)
            engine = self._engine
            engine.unfinished.clear()  # here the positions advance record by record
            with engine.record_by_record(polled) as records:
                for record in records:
                    yield record

    async def poll(self, timeout: float = 1.0, **others: Unpack[NoOthers]) -> Polled:
        """Like ``odradek.Consumer.poll``. A thread decodes compressed data, and other data of more than 16 KiB, so that
        the loop stays free. Other tasks may commit, seek or pause meanwhile. The records count as returned when the
        call returns. Raises IllegalState if another task polls.
        """
        if len(others) > 0:
            refuse("poll", others)
        return await self._poll(timeout, None)

    async def _poll(self, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        if self._closing:
            raise IllegalState("this Consumer is being closed")
        if self._polling:
            raise IllegalState("another task polls this Consumer: use one Consumer for each task")
        self._polling = True
        try:
            return await self._poll_on(self._engine, timeout, columns)
        finally:
            self._polling = False

    async def _poll_on(self, engine: ConsumerEngine, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        engine.begin_poll()
        end = time.monotonic() + check_timeout(timeout)
        if timeout <= 0 or engine.has_records():
            await asyncio.sleep(0)  # the calls below may not suspend, and other tasks must run
        while True:
            left = max(0.0, end - time.monotonic())
            await engine.poll(left)
            if engine.fetcher.buffer.is_small(_SMALL_BYTES):
                polled = engine.take(columns)
            else:
                polled = await self._take_in_thread(engine, columns)
            if polled or left <= 0:
                return polled

    async def _take_in_thread(self, engine: ConsumerEngine, columns: tuple[str, ...] | None) -> Polled:
        """Takes records in a thread.

        A cancelled call waits until the thread has ended. A later poll reads the thread's records again."""
        with engine.taking_in_a_thread():
            taking = asyncio.get_running_loop().run_in_executor(None, engine.take, columns)
            cancelled: asyncio.CancelledError | None = None
            while not taking.done():
                try:
                    await asyncio.wait([taking])
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                taking.exception()  # the error is dropped, because a later poll raises it again
                engine.refetch_last_poll()
                raise cancelled
            polled = taking.result()
            engine.drop_stale(polled)
            return polled

    def wakeup(self) -> None:
        """Makes the call that waits for a broker raise Wakeup; if no call waits, the next call. Thread-safe.

        If several tasks wait, only one call raises. See ``odradek.Consumer.wakeup``."""
        self._woken_first = True  # set before the check, because another thread may make the engine meanwhile
        if self._made is not None:
            self._woken_first = False
            self._made.wakeup()

    # A timeout is in seconds; None means default_api_timeout_ms.

    async def close(
        self, *, timeout: float | None = None, timeout_ms: int | None = None, **others: Unpack[NoOthers]
    ) -> None:
        """Commits under ``enable_auto_commit``, leaves the group and closes the connections.

        ``timeout`` is in seconds, 30 if None."""
        if len(others) > 0:
            refuse("close", others)
        limit_ms = close_timeout_ms(timeout, timeout_ms)
        if self._closing:
            return
        self._closing = True
        try:
            if self._made is not None:
                await self._made.close(limit_ms)  # callbacks during the close may still commit
        finally:
            self._closed, self._made = True, None
