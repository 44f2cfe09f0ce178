"""The waits of threads for the deliveries of a producer.

A program that waits for each record sends one batch at a time, and the loop would only pass it on. So the thread that
waits takes the batch from its queue as the sender does, and exchanges the request and the reply itself, while the I/O
of the leader's connection is lent. The loop makes every other delivery: with callbacks, in a transaction, with other
batches of the partition under way, and after any error.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from odradek.client.producer.accumulator import DeliveredBatch, ProducerBatch
from odradek.client.producer.engine import DeliveryFailed, ProducerEngine
from odradek.core.ids import TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.net.direct_exchange import PATIENCE_S, IoOwner
from odradek.net.produce_exchange import FLEXIBLE_FROM, SingleBatch
from odradek.wire.api_keys import PRODUCE


class DeliveryWaits:
    """The waits for one producer's deliveries. Threads may share it."""

    def __init__(self, engine: ProducerEngine, sender: Future[None]) -> None:
        self._engine = engine
        self._sender = sender
        self._is_direct = type(engine) is ProducerEngine and engine.producer_config.required_acks != 0
        self._messages: dict[TopicPartition, tuple[int, SingleBatch]] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the sender has ended: nothing is delivered any more."""
        return self._sender.done()

    def outcome(self, batch: ProducerBatch, timeout_s: float | None) -> tuple[int, Exception | None] | None:
        """Waits for the outcome of a batch; None if there is none within the time, or if the sender has ended."""
        engine = self._engine
        if self._may_be_direct(timeout_s):
            self._deliver(batch)
        if batch.outcome is not None:
            return batch.outcome
        with engine.lock:
            if batch.outcome is None:
                batch.closed = True  # ends its linger
                engine.notify()
            engine.waiters += 1
            try:
                engine.lock.wait_for(lambda: batch.outcome is not None or self._sender.done(), timeout_s)
            finally:
                engine.waiters -= 1
            return batch.outcome

    def flush(self, timeout_s: float | None) -> tuple[bool, int, DeliveryFailed | None]:
        """Waits until no record is buffered. Returns whether that is so, the buffered bytes, and the first failure."""
        engine = self._engine
        if self._may_be_direct(timeout_s):
            with engine.lock:
                batch = self._only_batch()
            if batch is not None:
                self._deliver(batch)
        with engine.lock:
            before = engine.times_empty

            def is_done() -> bool:
                # Other threads may send so fast that the buffer is empty only between two of their records.
                return engine.buffered == 0 or engine.times_empty != before

            done = is_done()
            if not done:
                engine.flushing += 1
                engine.waiters += 1
                engine.notify()
                try:
                    done = engine.lock.wait_for(lambda: is_done() or self._sender.done(), timeout_s)
                finally:
                    engine.flushing -= 1
                    engine.waiters -= 1
            return done, engine.buffered, engine.take_failure()

    # --- deliveries on the thread that waits ------------------------------------------------------------------

    def _may_be_direct(self, timeout_s: float | None) -> bool:
        return self._is_direct and (timeout_s is None or timeout_s > 4 * PATIENCE_S)

    def _only_batch(self) -> ProducerBatch | None:
        """Returns the only batch that is buffered, if it waits. Requires the engine's lock."""
        found: ProducerBatch | None = None
        for queue in self._engine.queues.values():
            if queue.in_flight or len(queue.waiting) > 1 or (queue.waiting and found is not None):
                return None
            found = queue.waiting[0] if queue.waiting else found
        return found

    def _deliver(self, batch: ProducerBatch) -> None:
        """Delivers a batch on this thread, if that is possible. Its ``outcome`` is set then."""
        engine = self._engine
        if batch.outcome is not None or batch.deliveries:
            return
        try:
            with engine.lock:
                connection = self._lent_connection(batch)
                queue = engine.queues[batch.partition]
                if connection is None or not queue.take_single(batch, time.monotonic_ns() // 1_000_000):
                    return
            if self._exchange(batch, connection) is None:
                engine.give_to_loop(batch)
        except BaseException:  # Ctrl-C: the loop delivers the batch if this thread has taken it and not sent it
            engine.give_to_loop(batch)
            raise
        if queue.waiting:
            engine.notify()

    def _lent_connection(self, batch: ProducerBatch) -> BrokerConnection | None:
        """Returns the connection to the leader, by metadata that is not old, if its I/O is lent."""
        engine, config = self._engine, self._engine.producer_config
        cluster, now_s = engine.cluster, time.monotonic()
        if config.enable_idempotence and engine.producer_id < 0:
            return None
        if now_s * 1000 >= batch.created_ms + config.delivery_timeout_ms:
            return None
        if now_s - cluster.metadata.refreshed_s > engine.config.metadata_max_age_ms / 1000:
            return None
        connection = cluster.connections.get(cluster.leader(batch.partition))
        if connection is None or connection.direct is None or connection.direct.owner is not IoOwner.LENT:
            return None
        return connection if connection.version(PRODUCE, engine.ceiling) >= FLEXIBLE_FROM else None

    def _message(self, tp: TopicPartition, version: int) -> SingleBatch:
        known = self._messages.get(tp)
        if known is not None and known[0] == version:
            return known[1]
        config, client = self._engine.producer_config, self._engine.config
        made = SingleBatch(version, client.client_id, (config.required_acks, client.request_timeout_ms), tp)
        self._messages[tp] = (version, made)
        return made

    def _exchange(self, batch: ProducerBatch, connection: BrokerConnection) -> bool | None:
        """Returns as ``DirectExchange.exchange``."""
        engine, direct = self._engine, connection.direct
        version = connection.version(PRODUCE, engine.ceiling)
        message = self._message(batch.partition, version)
        try:
            sealed = engine.sealed(batch)
        except Exception:  # the loop seals it again and reports the error
            return None

        def accept(reply: memoryview) -> bool:
            offset = message.base_offset(reply)
            if offset is None:
                return False
            engine.direct_deliveries += 1
            engine.settle(batch, DeliveredBatch(offset), None)
            return True

        def unanswered(reply: asyncio.Future[memoryview]) -> None:
            engine.adopt(batch, connection, version, reply)

        assert direct is not None
        return direct.exchange(PRODUCE, lambda number: message.pack(number, sealed), accept, unanswered)
