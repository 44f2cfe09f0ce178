"""The asyncio ``Producer``: records or Arrow RecordBatches to a Kafka cluster, on the caller's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

from odradek.batches.encode import Headers
from odradek.client.arguments import as_headers, check_callbacks, chosen_partition
from odradek.client.client_text import producer_text
from odradek.client.config import ClientConfig
from odradek.client.context_managers import AsyncCloseable
from odradek.client.errors import IllegalState, RequestTimedOut
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.client.producer.config import split_settings
from odradek.client.producer.engine import (
    Delivered,
    ProducerEngine,
    RecordMetadata,
    RunDelivered,
)
from odradek.client.producer.errors import TransactionAbortable
from odradek.client.producer.transactional_engine import TransactionalEngine
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.producer.setting_types import ProducerSettings


class Producer(OtherNames, AsyncCloseable):
    """Like ``odradek.Producer``, for one running event loop. Callbacks are plain functions that run on the loop.

    >>> async with Producer("127.0.0.1:9092") as producer:  # doctest: +SKIP
    ...     await producer.send("flights", b"UA1545", key=b"EWR")
    ...     where = await producer.send_and_wait("flights", b"UA1714", key=b"LGA")

    Raises ConfigError.
    """

    def __init__(
        self,
        bootstrap_servers: ClientConfig | Mapping[str, object] | Sequence[str] | str,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.producer_config, self.config = split_settings(bootstrap_servers, settings)
        self._made: tuple[ProducerEngine, asyncio.Task[None]] | None = None
        self._freed: asyncio.Event = asyncio.Event()
        self._closed = False

    @property
    def _engine(self) -> ProducerEngine:
        if self._closed:
            raise ValueError("this Producer is closed")
        if self._made is None:
            kind = ProducerEngine if self.producer_config.transactional_id is None else TransactionalEngine
            engine = kind(self.producer_config, self.config, lambda function: function(), self._freed.set)
            self._made = engine, asyncio.ensure_future(engine.run())
        return self._made[0]

    async def send(  # noqa: PLR0917  the order that Kafka's clients have
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Delivered | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Queues one record. ``timestamp`` is in ms, None means now. ``on_delivery(metadata, error)`` gets the result.

        Waits while ``buffer_memory`` is full, at most ``max_block_ms`` (BufferExhausted). Raises UnknownTopic,
        MESSAGE_TOO_LARGE; TypeError, ValueError if the record is invalid.
        """
        if len(others) > 0:
            refuse("send", others)
        engine, count = self._engine, await self._partition_count(topic)
        check_callbacks(on_delivery=on_delivery)
        now_ms = time.time_ns() // 1_000_000
        record = (key, value, as_headers(headers), now_ms if timestamp is None else timestamp)
        size = engine.size_of(record)
        if partition is not None:
            partition = chosen_partition(topic, partition, count)
        await self._reserve(size)
        with engine.lock:
            if partition is None:
                partition = engine.choose(topic, count, key, size)
            engine.put(TopicPartition(topic, partition), record, on_delivery)
        engine.notify()

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        **others: Unpack[NoOthers],
    ) -> RecordMetadata:
        """Like ``send``, but waits until the record is stored. Returns its partition and offset; raises the error."""
        answer: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()

        def settle(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if answer.done():
                return
            if metadata is not None:
                answer.set_result(metadata)
            else:
                answer.set_exception(error or RuntimeError("the record was not delivered"))

        await self.send(topic, value, key, headers, partition, timestamp, on_delivery=settle, **others)
        return await answer

    async def send_batch(
        self, topic: str, batch: pa.RecordBatch | pa.Table, on_delivery: RunDelivered | None = None
    ) -> None:
        """Queues the rows of a RecordBatch or Table with any of the columns key, value, headers, partition, timestamp.

        Like ``odradek.Producer.send_batch``; a thread encodes the rows, so that the loop stays free. Raises ValueError
        for other columns.
        """
        engine, count = self._engine, await self._partition_count(topic)
        check_callbacks(on_delivery=on_delivery)
        packed = await asyncio.to_thread(lambda: list(engine.pack(topic, count, batch, on_delivery)))
        for one in packed:
            await self._reserve(one.size)
            with engine.lock:
                engine.put_packed(one)
            engine.notify()

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions. Asks a broker at most every ``metadata_max_age_ms``. Raises UnknownTopic."""
        return [TopicPartition(topic, number) for number in range(await self._partition_count(topic))]

    async def flush(self, timeout: float | None = None, **others: Unpack[NoOthers]) -> None:
        """Waits until all records so far are delivered or given up. ``timeout`` is in seconds, None means no limit.

        Raises RequestTimedOut, and DeliveryFailed for failed records without a callback.
        """
        if len(others) > 0:
            refuse("flush", others)
        if self._made is None:
            return
        engine, _ = self._made
        engine.flushing += 1
        engine.notify()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: engine.buffered == 0)
        except TimeoutError:
            raise RequestTimedOut(f"flush: {engine.buffered} bytes were not delivered within {timeout} s") from None
        finally:
            engine.flushing -= 1
            with engine.lock:
                failure = engine.take_failure()
        if failure is not None:
            raise failure

    # --- transactions -----------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Gets the producer id and the epoch of ``transactional_id``; ends the transaction that an earlier producer has
        left open.

        Call it once, before the first transaction. The calls of transactions wait at most ``max_block_ms``
        (RequestTimedOut; then call again). Raises TransactionFatal, ProducerFenced, IllegalState."""
        await self._transactional().init()

    def begin_transaction(self) -> None:
        """Begins a transaction, without a request. Raises IllegalState with the state and the remedy."""
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        """Makes the offsets of a consumer's group part of the transaction; ``group`` is ``consumer.group_metadata()``.

        Each offset is that of the next record to read. The consumer itself must not commit. Raises TransactionAbortable
        (for example if the group has rebalanced), ProducerFenced, IllegalState."""
        await self._transactional().send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Delivers all records of the transaction, then commits it.

        Raises TransactionAbortable if a record was not delivered; ProducerFenced, TransactionFatal, IllegalState. After
        RequestTimedOut the commit may have succeeded: call ``commit_transaction`` again."""
        await self._transactional().commit()

    async def abort_transaction(self) -> None:
        """Drops the unsent records and aborts the transaction.

        Raises ProducerFenced, TransactionFatal, IllegalState. After RequestTimedOut call this method again."""
        await self._transactional().abort()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction for an ``async with`` block: the end of the block commits it, an exception aborts it.

        >>> async with producer.transaction():                              # doctest: +SKIP
        ...     await producer.send("flights", b"UA1545")
        """
        engine = self._transactional()
        engine.begin()
        try:
            yield
        except BaseException as error:
            await self._abort_after(engine, error)
            raise
        try:
            await engine.commit()
        except TransactionAbortable as error:
            await self._abort_after(engine, error)
            raise

    async def _abort_after(self, engine: TransactionalEngine, error: BaseException) -> None:
        """Aborts an open transaction after ``error``, which the ``async with`` block raises even if the abort fails."""
        if engine.transaction.is_open:
            try:
                await engine.abort()
            except OdradekError as failure:
                error.add_note(f"abort_transaction() failed, too: {failure}")

    def _transactional(self) -> TransactionalEngine:
        engine = self._engine
        if not isinstance(engine, TransactionalEngine):
            raise IllegalState("this Producer has no transactions: make it with transactional_id=…")
        return engine

    def __repr__(self) -> str:
        buffered = None if self._closed else 0 if self._made is None else self._made[0].buffered
        return producer_text(self.config.bootstrap_servers, self.producer_config.transactional_id, buffered)

    async def close(self, timeout: float | None = None) -> None:
        """Aborts an open transaction, delivers the remaining records, and closes the connections.

        ``timeout`` (seconds) limits the whole call. None: the abort takes at most ``max_block_ms``, and the delivery
        has no limit. Raises the errors of ``flush``."""
        if self._closed:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if self._made is not None and isinstance(self._made[0], TransactionalEngine):
                await self._made[0].abort_open(timeout)
            await self.flush(None if deadline is None else max(deadline - time.monotonic(), 0))
        finally:
            self._closed = True
            if self._made is not None:
                engine, sender = self._made
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
                await engine.close()

    async def _partition_count(self, topic: str) -> int:
        known = self._engine.known_count(topic)
        return known if known is not None else await self._engine.look_up_count(topic)

    async def _reserve(self, size: int) -> None:
        engine = self._engine
        if engine.fits(size):
            return
        try:
            async with asyncio.timeout(self.producer_config.max_block_ms / 1000):
                await self._until(lambda: engine.fits(size))
        except TimeoutError:
            raise engine.exhausted_error() from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for replies until ``condition()`` is true. Raises the error that has ended the sender."""
        assert self._made is not None
        sender = self._made[1]
        while not condition():
            if sender.done():
                sender.result()
                raise ValueError("this Producer is closed")
            self._freed.clear()
            await self._freed.wait()
