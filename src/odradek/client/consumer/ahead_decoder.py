"""Decoding of fetched records ahead of polls: on the client's own event loop, or in a thread beside the user's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from odradek.client.consumer.fetch_buffer import FetchBuffer
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.subscription import SubscriptionState

WORTH_DECODING_BYTES = 1 << 16
"""Smaller fetches are not decoded ahead: the handover takes longer than decoding."""
_READY_BYTES = 8 << 20
"""One RecordBatch may be decoded ahead for every 8 MiB of ``buffer_memory``. All of them need up to a third of this
memory."""


class AheadDecoder:
    """Decodes fetches before a poll returns them.

    Calls ``changed`` after each decoded RecordBatch, and ``fail`` with an error of the decoder itself."""

    def __init__(
        self,
        config: ConsumerConfig,
        buffer: FetchBuffer,
        subscription: SubscriptionState,
        *,
        changed: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.on_loop = False
        """True on the client's own event loop, which then decodes. False on the user's loop: a thread decodes."""
        self.columns = config.columns
        """The columns of the newest poll."""
        self._config, self._buffer, self._subscription = config, buffer, subscription
        self._changed, self._fail = changed, fail
        self._is_scheduled = False
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def schedule(self) -> None:
        """Starts decoding unless it is running."""
        if not self._is_scheduled:
            self._decode_soon()

    def _decode_soon(self) -> None:
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if self.on_loop:
            loop.call_soon(self._decode_on_loop)
        else:
            loop.run_in_executor(None, self._decode_in_thread, loop).add_done_callback(self._on_thread_end)

    def _decode_on_loop(self) -> None:
        """Decodes one RecordBatch in each tick, since other work waits for the loop."""
        self._is_scheduled = False
        try:
            decoded = self._decode_one()
        except Exception as error:  # the loop would only log it, and no poll would learn of it
            self._fail(error)
            return
        if decoded:
            self._changed()
            self._decode_soon()

    def _decode_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Decodes in a thread until there is nothing left to decode."""
        while self._decode_one():
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed)

    def _on_thread_end(self, done: asyncio.Future[None]) -> None:
        self._is_scheduled = False
        if not done.cancelled() and (error := done.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _decode_one(self) -> bool:
        """Decodes one RecordBatch; returns False if there is none. A poll may use earlier fetches at the same time."""
        if self._closed:
            return False
        most = self._config.buffer_memory // _READY_BYTES
        fetch = self._buffer.reserve_for_decoding(
            self._subscription.paused(), least_bytes=WORTH_DECODING_BYTES, most_ready=most
        )
        if fetch is None:
            return False
        try:
            fetch.begin(self.columns, check_crcs=self._config.check_crcs)
            fetch.decode_ahead()
        finally:
            self._buffer.release_reserved(fetch)
        return True
