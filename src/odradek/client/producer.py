"""``Producer``: records, or whole RecordBatches of Arrow, to any Kafka; idempotent, in order, within bounded memory."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from odradek.batches.compression import CODES
from odradek.batches.encode import Headers
from odradek.client import loop
from odradek.client.accumulator import Batch, OnDelivery, PartitionQueue, is_refused
from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import RequestTimedOut, UnknownTopic, error_for
from odradek.client.partitioner import StickyPartitioner, partition_for_key
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

PRODUCE = 0
INIT_PRODUCER_ID = 22
# From version 13 on topics are named by their ids.
NAMES_CEILING = 12
# How long one look for leaders or an id may hold up the sender; then it sees what has expired, and asks again.
ASKING_MS = 5_000
_MAX_REQUEST_BYTES = 1 << 20


class BufferExhausted(OdradekError):
    """``buffer_memory`` stayed full for ``max_block_ms``: the brokers take records slower than they are sent."""


class DeliveryFailed(OdradekError):
    """Records that nobody had a callback for were not delivered; ``__cause__`` is the first error."""


class RecordMetadata(NamedTuple):
    """Where a record went. ``offset`` is -1 where the broker no longer knows it (a duplicate it had dropped)."""

    topic: str
    partition: int
    offset: int


Delivered = Callable[[RecordMetadata | None, Exception | None], None]
RunDelivered = Callable[[TopicPartition, int, int, Exception | None], None]


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Kafka's names and defaults; times in milliseconds, sizes in bytes. Raises ConfigError."""

    acks: str | int = "all"
    enable_idempotence: bool = True
    compression_type: str = "none"
    batch_size: int = 16_384
    linger_ms: int = 5
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576

    def __post_init__(self) -> None:
        if self.acks not in ("all", -1, 1, "-1", "1"):
            raise ConfigError(f"acks: all or 1, not {self.acks!r}")
        if self.enable_idempotence and self.required_acks != -1:
            raise ConfigError("acks=1 needs enable_idempotence=False: only acks=all lets a broker know a batch again")
        if self.compression_type not in CODES:
            raise ConfigError(f"compression_type {self.compression_type!r}: one of {', '.join(CODES)}")
        for name in ("batch_size", "linger_ms", "delivery_timeout_ms", "max_block_ms", "buffer_memory"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name}: expected a whole number of at least 0, not {value!r}")

    @property
    def required_acks(self) -> int:
        return 1 if self.acks in (1, "1") else -1


class Producer:
    """``Producer("host:port", compression_type="zstd", …)``: settings of ``ProducerConfig`` and ``ClientConfig``.

    Threads may share one. Callbacks run on the client's background thread and must not block or call the producer.
    """

    def __init__(self, bootstrap_servers: ClientConfig | str, **settings: Any) -> None:
        own = {name: settings.pop(name) for name in list(settings) if name in ProducerConfig.__dataclass_fields__}
        self.producer_config = ProducerConfig(**own)
        self.config = as_config(bootstrap_servers, **settings)
        self._cluster = Cluster(self.config)
        self._codec = CODES[self.producer_config.compression_type]
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._sticky: dict[str, StickyPartitioner] = {}
        self._counts: dict[str, tuple[int, float]] = {}
        self._lock = threading.Condition()
        self._buffered = 0
        self._flushing = 0
        self._failure: Exception | None = None
        self._closed = False
        self._producer_id = -1
        self._wake = asyncio.Event()
        self._process = os.getpid()
        self._requests: set[asyncio.Task[None]] = set()
        self._sender = loop.start(self._run())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the caller's side ------------------------------------------------------------------------------------

    def send(  # noqa: PLR0917  the order that Kafka's clients have
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """Hands over one record; ``timestamp`` in ms, now if None. ``on_delivery(metadata, error)`` tells its fate.

        Waits while ``buffer_memory`` is full, at most ``max_block_ms`` (BufferExhausted). Raises UnknownTopic,
        MESSAGE_TOO_LARGE.
        """
        count = self._partition_count(topic)
        size = len(key or b"") + len(value or b"") + sum(len(n) + len(v or b"") + 10 for n, v in headers) + 90
        if size > self.producer_config.max_request_size:
            raise KafkaError(ErrorCode.message_too_large, f"a record of {size} bytes, above max_request_size")
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopic(f"topic {topic} has no partition {partition} (it has {count})")
        now_ms = time.time_ns() // 1_000_000
        record = (key, value, headers, now_ms if timestamp is None else timestamp)
        with self._lock:
            self._reserve(size)
            if partition is None:
                partition = (
                    self._sticky_for(topic).partition(size, count) if key is None else partition_for_key(key, count)
                )
            tp = TopicPartition(topic, partition)
            on = None if on_delivery is None else _for_record(tp, on_delivery)
            self._buffered += self._queue(tp).append(_monotonic_ms(), self.producer_config.batch_size, record, on)
        self._notify()

    def send_batch(self, topic: str, batch: pa.RecordBatch, on_delivery: RunDelivered | None = None) -> None:
        """Hands over the rows of a RecordBatch with any of the columns key, value, headers, partition, timestamp.

        Rows go to partitions as ``send`` would send them, in their order. ``on_delivery(partition, offset, count,
        error)`` is called for each run of records that was stored together. Raises ValueError for other columns.
        """
        from odradek.client.producer_columns import pack_columns

        count = self._partition_count(topic)
        limit = max(
            self.producer_config.batch_size, min(_MAX_REQUEST_BYTES, self.producer_config.max_request_size) // 2
        )
        with self._lock:
            sticky = self._sticky_for(topic).partition(batch.nbytes, count)
        for packed in pack_columns(batch, count, sticky, limit, time.time_ns() // 1_000_000):
            tp = TopicPartition(topic, packed.partition)
            if len(packed.body) > self.producer_config.max_request_size:
                raise KafkaError(ErrorCode.message_too_large, f"a record of {len(packed.body)} bytes for {tp}")
            made = Batch(tp, _monotonic_ms(), packed.base_timestamp, packed.max_timestamp, bytearray(packed.body))
            made.count = len(packed.rows)
            made.silent = on_delivery is None
            if on_delivery is not None:
                made.deliveries.append((0, made.count, _for_run(tp, on_delivery)))
            with self._lock:
                self._reserve(made.size)
                self._queue(tp).add_packed(made)
                self._buffered += made.size
            self._notify()

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent so far was delivered or given up; seconds, None for as long as it takes.

        Raises RequestTimedOut, and DeliveryFailed for records that failed without anybody being told.
        """
        with self._lock:
            self._flushing += 1
            self._notify()
            try:
                done = self._lock.wait_for(lambda: self._buffered == 0 or self._sender.done(), timeout)
            finally:
                self._flushing -= 1
            left, failure = self._buffered, self._failure
            self._failure = None
        if self._sender.done() and not self._closed:
            self._sender.result()
        if failure is not None:
            raise DeliveryFailed(f"records were not delivered: {failure}") from failure
        if not done:
            raise RequestTimedOut(f"flush: {left} bytes were not delivered within {timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Delivers what is left, then closes the connections. Raises as ``flush`` does."""
        if self._closed:
            return
        if self._process != os.getpid():
            self._closed = True
            return
        try:
            self.flush(timeout)
        finally:
            self._closed = True
            self._sender.cancel()
            loop.run(self._cluster.close())

    def _partition_count(self, topic: str) -> int:
        if self._closed:
            raise ValueError("this Producer is closed")
        if self._process != os.getpid():
            raise ValueError("this Producer belongs to the process that made it: make another one after a fork")
        known = self._counts.get(topic)
        if known is None or time.monotonic() - known[1] > self.config.metadata_max_age_ms / 1000:
            found = loop.run(self._cluster.topics([topic], self._cluster.deadline(self.producer_config.max_block_ms)))
            known = self._counts[topic] = (len(found[topic].partitions), time.monotonic())
        return known[0]

    def _sticky_for(self, topic: str) -> StickyPartitioner:
        if topic not in self._sticky:
            self._sticky[topic] = StickyPartitioner(self.producer_config.batch_size, random.randrange)
        return self._sticky[topic]

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        if tp not in self._queues:
            self._queues[tp] = PartitionQueue(tp, idempotent=self.producer_config.enable_idempotence)
        return self._queues[tp]

    def _reserve(self, size: int) -> None:
        """Waits, the lock let go, until ``size`` bytes fit; one that never could waits for an empty buffer."""
        limit, wait_s = self.producer_config.buffer_memory, self.producer_config.max_block_ms / 1000

        def fits() -> bool:
            return self._buffered == 0 or self._buffered + size <= limit or self._sender.done()

        if not fits() and not self._lock.wait_for(fits, wait_s):
            raise BufferExhausted(
                f"{self._buffered} of buffer_memory={limit} bytes wait to be delivered for {round(wait_s * 1000)} ms"
            )

    def _notify(self) -> None:
        if not self._wake.is_set():
            loop.client_loop().call_soon_threadsafe(self._wake.set)

    # --- the loop's side --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._expire()
            with self._lock:
                due = any(queue.waiting for queue in self._queues.values())
            if due:
                await self._send_due()
            try:
                async with asyncio.timeout(self._pause_s() if due else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pause_s(self) -> float:
        """Until a batch has lingered long enough or may be tried again; an answer or a record wakes earlier."""
        now_ms, linger = _monotonic_ms(), self.producer_config.linger_ms
        with self._lock:
            times = [max(q.waiting[0].created_ms + linger, q.not_before_ms) for q in self._queues.values() if q.waiting]
        soonest = min((at - now_ms for at in times if at > now_ms), default=100)
        return max(1, min(soonest, 100)) / 1000

    async def _send_due(self) -> None:
        try:
            if self.producer_config.enable_idempotence and self._producer_id < 0:
                self._producer_id = await self._init_producer_id()
            with self._lock:
                wanted = [tp for tp, queue in self._queues.items() if queue.waiting]
            leaders = await self._leaders(wanted)
        except OdradekError as error:
            if not worth_retrying(error) and not isinstance(error, RequestTimedOut):
                self._give_up_all(error)
                return
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
            return
        per_leader: dict[int, list[Batch]] = {}
        now_ms, config = _monotonic_ms(), self.producer_config
        with self._lock:
            for tp, leader in leaders.items():
                queue, flushing = self._queues[tp], self._flushing > 0
                while batch := queue.take(now_ms, config.linger_ms, flushing=flushing, limit=config.batch_size):
                    per_leader.setdefault(leader, []).append(batch)
        for leader, batches in per_leader.items():
            for part in _requests(batches):
                task = asyncio.ensure_future(self._deliver(leader, part))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)

    async def _leaders(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Leaders of those that have one; a topic that is gone takes its own records with it."""
        found: dict[TopicPartition, int] = {}
        for tp in wanted:
            try:
                found |= await self._cluster.leaders([tp], self._asking())
            except UnknownTopic as error:
                self._give_up(tp, error)
            except KafkaError as error:
                if not worth_retrying(error):
                    self._give_up(tp, error)
        return found

    def _asking(self) -> Deadline:
        return self._cluster.deadline(min(ASKING_MS, max(1, self.producer_config.delivery_timeout_ms)))

    async def _init_producer_id(self) -> int:
        async def attempt() -> int:
            connection = await self._cluster.any_connection()
            reply = await connection.call(
                INIT_PRODUCER_ID,
                {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
                ceiling=4,
            )
            if reply.error_code is not ErrorCode.none:
                raise error_for(reply.error_code, "the cluster gave no producer id")
            return int(reply.producer_id)

        return await self._cluster.retrying("asking for a producer id", attempt, self._asking())

    async def _deliver(self, leader: int, batches: list[Batch]) -> None:
        outcome: dict[TopicPartition, Any] = {}
        failure: Exception | None = None
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            row = {"index": batch.partition.partition, "records": batch.sealed(self._codec, self._producer_id)}
            topics.setdefault(batch.partition.topic, []).append(row)
        try:
            connection = await self._cluster.connection(leader)
            reply = await connection.call(
                PRODUCE,
                {
                    "transactional_id": None,
                    "acks": self.producer_config.required_acks,
                    "timeout": self.config.request_timeout_ms,
                    "topic_data": [{"name": name, "partition_data": rows} for name, rows in topics.items()],
                },
                ceiling=NAMES_CEILING,
            )
            for topic in reply.responses:
                for row in topic.partition_responses:
                    outcome[TopicPartition(topic.name, row.index)] = row
        except Exception as error:  # whatever it is, its records have to be answered for
            failure = error
        for batch in batches:
            self._settle(batch, outcome.get(batch.partition), failure)
        self._wake.set()

    def _settle(self, batch: Batch, row: Any, failure: Exception | None) -> None:
        code = row.error_code if row is not None else None
        with self._lock:
            queue = self._queues[batch.partition]
            if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                queue.done(batch, appended=True)
                offset, error = (row.base_offset if code is ErrorCode.none else -1), None
            else:
                error = failure or error_for(
                    code if code is not None else ErrorCode.network_exception,
                    f"{batch.partition}: {getattr(row, 'error_message', None) or 'not appended'}",
                )
                # A broker that has just started may not know its partitions yet.
                again = worth_retrying(error) or is_refused(code) or code is ErrorCode.unknown_topic_or_partition
                self._cluster.forget_topics([batch.partition.topic])
                late = _monotonic_ms() >= batch.created_ms + self.producer_config.delivery_timeout_ms
                if again and not late:
                    queue.failed(batch, _monotonic_ms(), self.config.retry_backoff_ms, code)
                    return
                queue.done(batch, appended=False)
                offset = -1
        self._report(batch, offset, error)

    def _expire(self) -> None:
        limit = self.producer_config.delivery_timeout_ms
        with self._lock:
            old = [b for queue in self._queues.values() for b in queue.expired(_monotonic_ms(), limit)]
        for batch in old:
            said = f"{batch.partition}: {batch.count} records were not delivered within delivery_timeout_ms={limit}"
            self._report(batch, -1, RequestTimedOut(said))

    def _give_up(self, tp: TopicPartition, error: Exception) -> None:
        with self._lock:
            queue = self._queues[tp]
            gone = list(queue.waiting)
            queue.waiting.clear()
            self._counts.pop(tp.topic, None)
        for batch in gone:
            self._report(batch, -1, error)

    def _give_up_all(self, error: Exception) -> None:
        for tp in list(self._queues):
            self._give_up(tp, error)

    def _report(self, batch: Batch, offset: int, error: Exception | None) -> None:
        raised: Exception | None = None
        for first, count, on in batch.deliveries:
            try:
                on(offset + first if offset >= 0 else -1, count, error)
            except Exception as theirs:  # the caller's mistake: flush raises it, the other records go on
                raised = raised or theirs
        with self._lock:
            if raised is not None or (error is not None and batch.silent):
                self._failure = self._failure or raised or error
            self._buffered -= batch.size
            self._lock.notify_all()


def _for_record(tp: TopicPartition, on_delivery: Delivered) -> OnDelivery:
    def tell(offset: int, count: int, error: Exception | None) -> None:
        on_delivery(RecordMetadata(*tp, offset) if error is None else None, error)

    return tell


def _for_run(tp: TopicPartition, on_delivery: RunDelivered) -> OnDelivery:
    def tell(offset: int, count: int, error: Exception | None) -> None:
        on_delivery(tp, offset, count, error)

    return tell


def _requests(batches: list[Batch]) -> list[list[Batch]]:
    """Requests of one batch per partition, none above a megabyte unless by a single batch."""
    made: list[list[Batch]] = []
    for batch in batches:
        last = made[-1] if made else []
        size = sum(other.size for other in last)
        if not last or size + batch.size > _MAX_REQUEST_BYTES or any(o.partition == batch.partition for o in last):
            made.append([batch])
        else:
            last.append(batch)
    return made


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
