"""The synchronous ``Producer``: sends records or Arrow RecordBatches to a Kafka cluster, with limited memory."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from odradek.batches.encode import Headers
from odradek.client import loop
from odradek.client.arguments import as_headers, check_callbacks, chosen_partition
from odradek.client.client_text import producer_text
from odradek.client.config import ClientConfig
from odradek.client.context_managers import Closeable
from odradek.client.errors import IllegalState, RequestTimedOut
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.client.producer.config import ProducerConfig, split_settings
from odradek.client.producer.delivery import Delivery
from odradek.client.producer.delivery_waits import DeliveryWaits
from odradek.client.producer.engine import (
    BufferExhausted,
    Delivered,
    DeliveryFailed,
    ProducerEngine,
    RecordMetadata,
    RunDelivered,
)
from odradek.client.producer.errors import TransactionAbortable
from odradek.client.producer.shared_transaction import JoinedEngine, SharedTransaction
from odradek.client.producer.transactional_engine import TransactionalEngine
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.producer.setting_types import ProducerSettings

__all__ = [
    "BufferExhausted",
    "Delivered",
    "Delivery",
    "DeliveryFailed",
    "Producer",
    "ProducerConfig",
    "RecordMetadata",
    "RunDelivered",
]

logger = logging.getLogger("odradek.producer")

_open: dict[ProducerEngine, Future[None]] = {}
"""The engines of this process's open producers, with the futures of their senders."""


def _end_open_ones() -> None:
    """Closes the open producers when the process ends, and logs a warning if undelivered records are lost."""
    for engine, sender in list(_open.items()):
        with engine.lock:
            left = engine.buffered
        if left:
            logger.warning(
                "a Producer was not closed: %d bytes were not delivered and are lost. Use a with block, or call "
                "flush() or close()",
                left,
            )
        sender.cancel()
        loop.run(engine.close())


def _forget_after_fork() -> None:
    """Removes the parent's producers in a forked child."""
    loop.keep_inherited(dict(_open))
    _open.clear()


atexit.register(_end_open_ones)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class Producer(OtherNames, Closeable):
    """``Producer("host:port", compression_type="zstd", …)``, or ``Producer({"bootstrap.servers": …, "acks": "1"})``.

    The settings are those of ``ProducerConfig`` and ``ClientConfig``, with underscores or dots. Threads may share an
    instance. Callbacks run on the client's background thread and must not block or call the producer.

    With ``shared_transaction``, the result of ``share_transaction`` of another producer, all records belong to that
    transaction; its owner ends it. Raises ConfigError.
    """

    def __init__(
        self,
        bootstrap_servers: ClientConfig | Mapping[str, object] | Sequence[str] | str,
        *,
        shared_transaction: SharedTransaction | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.producer_config, self.config = split_settings(bootstrap_servers, settings)
        self._engine = _engine(self.producer_config, self.config, shared_transaction)
        self._closed = False
        self._process = os.getpid()
        self._sender = loop.start(self._engine.run())
        self._sender.add_done_callback(self._wake_waiters)
        self._waits = DeliveryWaits(self._engine, self._sender)
        _open[self._engine] = self._sender

    def send(  # noqa: PLR0917  the order that Kafka's clients have
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Delivered | None = None,
        **others: Unpack[NoOthers],
    ) -> Delivery:
        """Queues one record. ``timestamp`` is in ms, None means now. ``on_delivery(metadata, error)`` gets the result.

        ``result()`` of the returned Delivery waits for the record's offset. A program that calls it after each ``send``
        sends one record per round trip.

        Waits while ``buffer_memory`` is full, at most ``max_block_ms`` (BufferExhausted). Raises UnknownTopic,
        MESSAGE_TOO_LARGE; TypeError, ValueError if the record is invalid.
        """
        if len(others) > 0:
            refuse("send", others)
        engine, count = self._engine, self._partition_count(topic)
        check_callbacks(on_delivery=on_delivery)
        now_ms = time.time_ns() // 1_000_000
        record = (key, value, as_headers(headers), now_ms if timestamp is None else timestamp)
        size = engine.size_of(record)
        if partition is not None:
            partition = chosen_partition(topic, partition, count)
        with engine.lock:
            self._reserve(size)
            if partition is None:
                partition = engine.choose(topic, count, key, size)
            batch = engine.put(TopicPartition(topic, partition), record, on_delivery)
            delivery = Delivery(batch, batch.count - 1, self._waits)
            engine.notify_of(batch)
        return delivery

    def send_batch(self, topic: str, batch: pa.RecordBatch | pa.Table, on_delivery: RunDelivered | None = None) -> None:
        """Queues the rows of a RecordBatch or Table with any of the columns key, value, headers, partition, timestamp.

        Rows get partitions by the rules of ``send`` and keep their order within a partition. ``on_delivery(partition,
        offset, count, error)`` is called for each run of records that is stored together. Raises ValueError for unknown
        columns, wrong types and partitions that do not exist.
        """
        engine = self._engine
        check_callbacks(on_delivery=on_delivery)
        for packed in engine.pack(topic, self._partition_count(topic), batch, on_delivery):
            with engine.lock:
                self._reserve(packed.size)
                engine.put_packed(packed)
            engine.notify()

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions; looks them up at most every ``metadata_max_age_ms``. Raises UnknownTopic."""
        return [TopicPartition(topic, number) for number in range(self._partition_count(topic))]

    def flush(self, timeout: float | None = None, **others: Unpack[NoOthers]) -> None:
        """Waits until all records are delivered or given up, also those that other threads send meanwhile.

        ``timeout`` is in seconds, None means no limit.

        Raises RequestTimedOut, and DeliveryFailed for failed records without a callback or a callback that raised.
        """
        if len(others) > 0:
            refuse("flush", others)
        done, left, failure = self._waits.flush(timeout)
        if self._sender.done() and not self._closed:
            self._sender.result()
        if failure is not None:
            raise failure
        if not done:
            raise RequestTimedOut(f"flush: {left} bytes were not delivered within {timeout:.3g} s")

    # --- transactions -----------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Gets the producer id and the epoch of ``transactional_id``; ends the transaction that an earlier producer has
        left open.

        Call it once, before the first transaction. The calls of transactions wait at most ``max_block_ms``
        (RequestTimedOut; then call again). Raises TransactionFatal, ProducerFenced, IllegalState."""
        loop.run(self._transactional().init())

    def begin_transaction(self) -> None:
        """Begins a transaction, without a request. Raises IllegalState with the state and the remedy."""
        self._transactional().begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        """Makes the offsets of a consumer's group part of the transaction; ``group`` is ``consumer.group_metadata()``.

        An offset is that of the next record to read. The consumer itself must not commit. Raises TransactionAbortable
        (for example if the group has rebalanced), ProducerFenced, IllegalState."""
        loop.run(self._transactional().send_offsets(offsets, group))

    def share_transaction(self, partitions: Sequence[TopicPartition]) -> SharedTransaction:
        """Lets other producers (``Producer(…, shared_transaction=…)``, in any process) write in this transaction.

        ``partitions`` are all partitions that the other producers write to. Only one producer of a transaction may
        write to a partition. Before the commit, wait for the others' ``flush``. If no producer has added a record or
        offsets, the commit raises TransactionAbortable at transaction.version 2. Raises the errors of ``send`` in a
        transaction, RequestTimedOut."""
        return loop.run(self._transactional().share(partitions))

    def commit_transaction(self) -> None:
        """Delivers all records of the transaction, then commits it.

        Raises TransactionAbortable if a record was not delivered; ProducerFenced, TransactionFatal, IllegalState. After
        RequestTimedOut the commit may have succeeded: call it again."""
        loop.run(self._transactional().commit())

    def abort_transaction(self) -> None:
        """Drops the unsent records and aborts the transaction. Raises ProducerFenced, TransactionFatal, IllegalState;
        after RequestTimedOut call it again."""
        loop.run(self._transactional().abort())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction for a ``with`` block: the end of the block commits it, an exception aborts it.

        >>> with producer.transaction():                                    # doctest: +SKIP
        ...     producer.send("flights", b"UA1545")
        """
        engine = self._transactional()
        engine.begin()
        try:
            yield
        except BaseException as error:
            self._abort_after(engine, error)
            raise
        try:
            self.commit_transaction()
        except TransactionAbortable as error:
            self._abort_after(engine, error)
            raise

    def _abort_after(self, engine: TransactionalEngine, error: BaseException) -> None:
        """Aborts an open transaction after ``error``, which the ``with`` block raises even if the abort fails."""
        if engine.transaction.is_open:
            try:
                self.abort_transaction()
            except OdradekError as failure:
                error.add_note(f"abort_transaction() failed, too: {failure}")

    def _transactional(self) -> TransactionalEngine:
        self._check()
        if not isinstance(self._engine, TransactionalEngine):
            raise IllegalState("this Producer has no transactions: make it with transactional_id=…")
        return self._engine

    def close(self, timeout: float | None = None) -> None:
        """Aborts an open transaction, delivers the remaining records, then closes the connections.

        ``timeout`` (seconds) limits the whole call. None: the abort takes at most ``max_block_ms``, and the delivery
        has no limit. Raises the errors of ``flush``."""
        if self._closed:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._process != os.getpid():
            self._closed = True
            return
        try:
            if isinstance(self._engine, TransactionalEngine):
                loop.run(self._engine.abort_open(timeout))
            self.flush(None if deadline is None else max(deadline - time.monotonic(), 0))
        finally:
            self._closed = True
            _open.pop(self._engine, None)
            self._sender.cancel()
            loop.run(self._engine.close())

    def _wake_waiters(self, sender: Future[None]) -> None:
        """Ends the waits of other threads when the sender has ended."""
        with self._engine.lock:
            self._engine.lock.notify_all()

    def __repr__(self) -> str:
        buffered = None if self._closed else self._engine.buffered
        return producer_text(self.config.bootstrap_servers, self.producer_config.transactional_id, buffered)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("this Producer is closed")
        if self._process != os.getpid():
            raise ValueError("this Producer belongs to its parent process: make a new Producer after a fork")

    def _partition_count(self, topic: str) -> int:
        self._check()
        known = self._engine.known_count(topic)
        return known if known is not None else loop.run(self._engine.look_up_count(topic))

    def _reserve(self, size: int) -> None:
        """Waits until ``size`` bytes fit; releases the lock meanwhile. Raises BufferExhausted."""
        engine = self._engine

        def fits() -> bool:
            return engine.fits(size) or self._sender.done()

        if not fits() and not engine.lock.wait_for(fits, self.producer_config.max_block_ms / 1000):
            raise engine.exhausted_error()


def _engine(config: ProducerConfig, client: ClientConfig, shared: SharedTransaction | None) -> ProducerEngine:
    """Returns the engine of these settings. Raises ConfigError."""

    def on_loop(function: Callable[[], None]) -> object:
        return loop.client_loop().call_soon_threadsafe(function)

    if shared is not None:
        return JoinedEngine(shared, config, client, on_loop)
    kind = ProducerEngine if config.transactional_id is None else TransactionalEngine
    return kind(config, client, on_loop)
