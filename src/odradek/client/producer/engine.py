"""The asynchronous engine of producers: queues and the sender. Both ``Producer`` classes are its faces.

Callers add records under ``lock``; everything else runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.batches.compression import CODES
from odradek.batches.encode import Headers
from odradek.batches.row_sets import needs_columns
from odradek.client.arguments import as_name, check_bytes, whole
from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.config import ClientConfig
from odradek.client.errors import RequestTimedOut, UnknownTopic, error_for
from odradek.client.metadata_wire import NAMES_LEADER
from odradek.client.model import Node
from odradek.client.producer.accumulator import (
    CONCURRENT_BACKOFF_MS,
    MAX_REQUEST_BYTES,
    DeliveredBatch,
    OnDelivery,
    PartitionQueue,
    ProducerBatch,
    is_refused,
    requests_of,
)
from odradek.client.producer.config import ProducerConfig
from odradek.client.producer.partitioner import StickyPartitioner, partition_for_key
from odradek.client.producer.topic_creation import partition_count
from odradek.core.counts import counted, was
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import LAST_MS, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import INIT_PRODUCER_ID, PRODUCE

if TYPE_CHECKING:
    import pyarrow as pa
    from kio.schema.produce.v12.response import ProduceResponse

    from odradek.client.producer.accumulator import BatchReply

# Later versions of Produce have topic ids instead of names.
PRODUCE_NAMES_CEILING = 12
# The limit of one lookup of leaders or of a producer id. The sender then expires old batches and repeats the lookup.
ASKING_MS = 5_000
_LOOK_EVERY_S = 0.005
_IDLE_LOOKS = 10
"""So many looks for records follow the last direct delivery."""


_UNANSWERED = DeliveredBatch()
_TOO_FEW = "fewer replicas than min.insync.replicas are in sync: start the brokers that are down"
_WHY: dict[ErrorCode | None, str] = {
    ErrorCode.not_enough_replicas: _TOO_FEW,
    ErrorCode.not_enough_replicas_after_append: f"the records are in the log, but {_TOO_FEW}",
}


class BufferExhausted(OdradekError):
    """``buffer_memory`` stayed full for ``max_block_ms``: the brokers store records more slowly than the caller
    sends them."""

    @property
    def retriable(self) -> bool:
        return True


class DeliveryFailed(OdradekError):
    """Records without a callback were not delivered, or a callback raised; ``__cause__`` is the first error."""


class RecordMetadata(NamedTuple):
    """The partition and offset of a stored record. ``offset`` is -1 if unknown: under acks=0, and for a duplicate
    whose offset the broker no longer has."""

    topic: str
    partition: int
    offset: int


Delivered = Callable[[RecordMetadata | None, Exception | None], None]
RunDelivered = Callable[[TopicPartition, int, int, Exception | None], None]
RecordToSend = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in ms."""


class ProducerEngine:
    """The engine of a producer. ``on_loop`` calls a function on the engine's loop; ``freed`` is called there when
    buffer memory becomes free."""

    # Subclasses use _attributes, _epoch, _give_up, _give_up_all, _is_worth_retrying, _leaders,
    # _lookup_deadline, _report, _transactional_id and _wake.

    def __init__(
        self,
        config: ProducerConfig,
        client: ClientConfig,
        on_loop: Callable[[Callable[[], None]], object],
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.producer_config = config
        self.config, self.cluster = client, Cluster(client)
        self.lock = threading.Condition()
        self.buffered = self.flushing = 0
        self.waiters = 0
        """The number of threads that wait for deliveries."""
        self.direct_deliveries = 0
        """The number of batches that threads have delivered themselves."""
        self._looks_at = -1  # ``direct_deliveries`` at the last look for records that no thread delivers; -1: no looks
        self.times_empty = 0
        """How often the last buffered record was delivered or given up."""
        self.failure: Exception | None = None
        self._on_loop = on_loop
        self._freed = freed
        self._transactional_id: str | None = None
        self._attributes = 0  # the attribute bits of every batch, without the codec
        self._epoch = 0
        self.ceiling = PRODUCE_NAMES_CEILING
        self._codec = CODES[config.compression_type]
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._sticky: dict[str, StickyPartitioner] = {}
        self.counts: dict[str, tuple[int, float]] = {}
        self.producer_id = -1
        self._wake = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._unanswered: dict[int, BrokerConnection] = {}

    async def close(self) -> None:
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.cluster.close()

    # --- the caller's side ------------------------------------------------------------------------------------

    def known_count(self, topic: str) -> int | None:
        """Returns the topic's number of partitions, if its lookup is younger than ``metadata_max_age_ms``."""
        known = self.counts.get(topic)
        fresh = known is not None and time.monotonic() - known[1] <= self.config.metadata_max_age_ms / 1000
        return known[0] if known is not None and fresh else None

    async def look_up_count(self, topic: str) -> int:
        """Looks up the topic's number of partitions.

        Raises UnknownTopic, LEADER_NOT_AVAILABLE, RequestTimedOut after ``max_block_ms``, TypeError unless the topic is
        a str."""
        as_name(topic, "topic")
        count = await partition_count(self.cluster, topic, self.producer_config.max_block_ms)
        if not count:
            raise KafkaError(ErrorCode.leader_not_available, f"topic {topic} has no partitions")
        self.counts[topic] = (count, time.monotonic())
        return count

    def fits(self, size: int) -> bool:
        """Returns whether the buffer has room for ``size`` bytes. More than ``buffer_memory`` fits only into an empty
        buffer."""
        return self.buffered == 0 or self.buffered + size <= self.producer_config.buffer_memory

    def exhausted_error(self) -> BufferExhausted:
        limit, waited_ms = self.producer_config.buffer_memory, self.producer_config.max_block_ms
        return BufferExhausted(
            f"{self.buffered} of buffer_memory={limit} bytes are not delivered after max_block_ms={waited_ms}"
        )

    def size_of(self, record: RecordToSend) -> int:
        """Returns an upper limit of a record's encoded size in bytes.

        Raises MESSAGE_TOO_LARGE; TypeError, ValueError if the record is invalid."""
        key, value, headers, timestamp = record
        check_bytes("key", key)
        check_bytes("value", value)
        for name, content in headers:
            if not isinstance(name, str):
                raise TypeError(f"headers: a name is text, not {type(name).__name__}")
            check_bytes(f"header {name}", content)
        if whole("timestamp", timestamp, " of milliseconds since 1970") < 0:
            raise ValueError(f"timestamp: {timestamp} ms is before 1970")
        if timestamp > LAST_MS:
            raise ValueError(f"timestamp: {timestamp} ms does not fit into 64 bits")
        size = len(key or b"") + len(value or b"") + sum(len(n) + len(v or b"") + 10 for n, v in headers) + 90
        if size > self.producer_config.max_request_size:
            raise self._too_large(f"a record of {size:,} bytes")
        return size

    def _too_large(self, what: str) -> KafkaError:
        limit = self.producer_config.max_request_size
        return KafkaError(
            ErrorCode.message_too_large,
            f"{what} is larger than max_request_size, {limit:,}: raise it, and max.message.bytes of the topic",
        )

    def choose(self, topic: str, count: int, key: bytes | None, size: int) -> int:
        """Chooses the partition of a record without one. Requires ``lock``."""
        return self._sticky_for(topic).partition(size, count) if key is None else partition_for_key(key, count)

    def put(self, tp: TopicPartition, record: RecordToSend, on_delivery: Delivered | None) -> ProducerBatch:
        """Adds a record that ``fits``. Returns its batch, in which it is the last record. Requires ``lock``."""
        on = None if on_delivery is None else _for_record(tp, on_delivery)
        queue = self._queue(tp)
        self.buffered += queue.append(_monotonic_ms(), self.producer_config.batch_size, record, on)
        return queue.waiting[-1]

    def pack(
        self, topic: str, count: int, rows: pa.RecordBatch | pa.Table, on_delivery: RunDelivered | None
    ) -> Iterator[ProducerBatch]:
        """Encodes the rows of a RecordBatch or Table by partition.

        Raises TypeError for other objects, ValueError, MESSAGE_TOO_LARGE."""
        with needs_columns("send_batch()"):
            import pyarrow as pa

            from odradek.client.producer.columns import pack_columns

        if not isinstance(rows, pa.RecordBatch | pa.Table):
            raise TypeError(f"expected a RecordBatch or Table of pyarrow, not {type(rows).__name__}")
        config = self.producer_config
        limit = max(config.batch_size, min(MAX_REQUEST_BYTES, config.max_request_size) // 2)
        now_ms = time.time_ns() // 1_000_000

        def sticky(size: int) -> int:
            with self.lock:
                return self._sticky_for(topic).partition(size, count)

        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        for packed in (one for batch in batches for one in pack_columns(batch, count, sticky, limit, now_ms)):
            tp = TopicPartition(topic, packed.partition)
            if len(packed.body) > config.max_request_size:
                raise self._too_large(f"a record of {len(packed.body):,} bytes for {tp}")
            made = ProducerBatch(tp, _monotonic_ms(), packed.base_timestamp, packed.max_timestamp, packed.body)
            made.count = len(packed.rows)
            made.silent = on_delivery is None
            if on_delivery is not None:
                made.deliveries.append((0, made.count, _for_run(tp, on_delivery)))
            yield made

    def put_packed(self, batch: ProducerBatch) -> None:
        """Adds a batch that ``fits``. Requires ``lock``."""
        self._queue(batch.partition).add_packed(batch)
        self.buffered += batch.size

    def take_failure(self) -> DeliveryFailed | None:
        """Returns the first error that no callback got or that a callback raised, and clears it. None: no such error.

        Requires ``lock``."""
        failure, self.failure = self.failure, None
        if failure is None:
            return None
        failed = DeliveryFailed(f"records were not delivered: {failure}")
        failed.__cause__ = failure
        return failed

    def notify(self) -> None:
        """Wakes the sender."""
        if not self._wake.is_set():
            self._on_loop(self._wake.set)

    def _sticky_for(self, topic: str) -> StickyPartitioner:
        if topic not in self._sticky:
            self._sticky[topic] = StickyPartitioner(self.producer_config.batch_size, random.randrange)
        return self._sticky[topic]

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        if tp not in self.queues:
            config = self.producer_config
            in_flight = config.max_in_flight_requests_per_connection
            self.queues[tp] = PartitionQueue(
                tp, idempotent=config.enable_idempotence, epoch=self._epoch, in_flight=in_flight
            )
        return self.queues[tp]

    # --- the loop's side --------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._wake.clear()
            self._expire()
            with self.lock:
                due = any(queue.waiting for queue in self.queues.values())
            if due:
                await self._send_due()
            try:
                async with asyncio.timeout(self._pause_s() if due else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pause_s(self) -> float:
        """Returns the seconds until a batch has lingered or may be retried, at most 0.1. A reply or a new record wakes
        the sender earlier."""
        now_ms, linger = _monotonic_ms(), self.producer_config.linger_ms
        with self.lock:
            times = [max(q.waiting[0].created_ms + linger, q.not_before_ms) for q in self.queues.values() if q.waiting]
        soonest = min((at - now_ms for at in times if at > now_ms), default=100)
        return max(1, min(soonest, 100)) / 1000

    async def _send_due(self) -> None:
        try:
            if self.producer_config.enable_idempotence and self.producer_id < 0:
                self.producer_id = await self._init_producer_id()
            with self.lock:
                wanted = [tp for tp, queue in self.queues.items() if queue.waiting]
            leaders = await self._leaders(wanted)
        except OdradekError as error:
            if not worth_retrying(error) and not isinstance(error, RequestTimedOut):
                self._give_up_all(error)
                return
            with self.lock:
                for queue in self.queues.values():
                    queue.last_error = error
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
            return
        per_leader: dict[int, list[ProducerBatch]] = {}
        now_ms, config = _monotonic_ms(), self.producer_config
        with self.lock:
            for tp, leader in leaders.items():
                if self.cluster.is_throttled(leader):
                    continue
                queue, flushing = self.queues[tp], self.flushing > 0
                while batch := queue.take(now_ms, config.linger_ms, flushing=flushing, limit=config.batch_size):
                    per_leader.setdefault(leader, []).append(batch)
        for leader, batches in per_leader.items():
            for part in requests_of(batches):
                self._start(self._deliver(leader, part))

    async def _leaders(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Looks up the leaders; leaves out partitions without one.

        Gives up a partition's records after an error that is not retried."""
        leaders: dict[TopicPartition, int] = {}
        for tp in wanted:
            try:
                leaders |= await self.cluster.leaders([tp], self._lookup_deadline())
            except UnknownTopic as error:
                self._give_up(tp, error)
            except KafkaError as error:
                if not worth_retrying(error):
                    self._give_up(tp, error)
                with self.lock:
                    self._queue(tp).last_error = error
        return leaders

    def _lookup_deadline(self) -> Deadline:
        return self.cluster.deadline(min(ASKING_MS, max(1, self.producer_config.delivery_timeout_ms)))

    async def _init_producer_id(self) -> int:
        async def attempt() -> int:
            connection = await self.cluster.any_connection()
            reply = await connection.call(
                INIT_PRODUCER_ID,
                {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
                ceiling=4,
            )
            if reply.error_code is not ErrorCode.none:
                reason = "the cluster returned no producer id"
                if reply.error_code is ErrorCode.cluster_authorization_failed:
                    reason = "the user has the right to write to no topic: an ACL must grant Write"
                raise error_for(reply.error_code, reason)
            return int(reply.producer_id)

        return await self.cluster.retry("asking for a producer id", attempt, self._lookup_deadline())

    async def _deliver(self, leader: int, batches: list[ProducerBatch]) -> None:
        topics: dict[str, list[dict[str, object]]] = {}
        for batch in list(batches):
            try:
                sealed = self.sealed(batch)
            except Exception as error:  # the batch fails with this error; the other batches are sent
                batches.remove(batch)
                self.settle(batch, None, error)
                continue
            row = {"index": batch.partition.partition, "records": sealed}
            topics.setdefault(batch.partition.topic, []).append(row)
        message = {
            "transactional_id": self._transactional_id,
            "acks": self.producer_config.required_acks,
            "timeout": self.config.request_timeout_ms,
            "topic_data": [{"name": name, "partition_data": rows} for name, rows in topics.items()],
        }
        connection: BrokerConnection | None = None

        async def ask() -> ProduceResponse | None:
            nonlocal connection
            connection = await self.cluster.connection(leader)
            if self.producer_config.required_acks == 0:
                await self._post(leader, connection, message)
                return None
            return await connection.call(PRODUCE, message, ceiling=self.ceiling)

        are_waited_for = self.waiters > 0
        await self._settle_all(batches, ask())
        if are_waited_for and connection is not None and self.buffered == 0:
            connection.lend()
            if self._looks_at < 0:
                self._look_for_records(_IDLE_LOOKS)

    def sealed(self, batch: ProducerBatch) -> bytes:
        """Returns the bytes of a batch."""
        return batch.seal(self._codec, self.producer_id, self._attributes)

    async def _settle_all(self, batches: list[ProducerBatch], reply: Awaitable[ProduceResponse | None]) -> None:
        """Settles the batches of one request by its reply, which is None under acks=0."""
        outcome: dict[TopicPartition, BatchReply] = {}
        moved: set[TopicPartition] = set()
        failure: Exception | None = None
        try:
            answer = await reply
            if answer is None:
                outcome = dict.fromkeys((batch.partition for batch in batches), _UNANSWERED)
            else:
                for topic in answer.responses:
                    for row in topic.partition_responses:
                        outcome[TopicPartition(topic.name, row.index)] = row
                moved = self._take_leaders(outcome, answer)
        except Exception as error:  # any error is reported for the records of all batches
            failure = error
        for batch in batches:
            self.settle(batch, outcome.get(batch.partition), failure, is_moved=batch.partition in moved)
        self._wake.set()

    def notify_of(self, batch: ProducerBatch) -> None:
        """Wakes the sender for the last record of a batch. Requires ``lock``.

        While threads deliver their records themselves, the sender would wake for nothing. So it looks at intervals for
        a record that no thread delivers, unless a second one has come."""
        if self._looks_at < 0 or batch.count > 1 or len(self.queues[batch.partition].waiting) > 1:
            self.notify()

    def _look_for_records(self, left: int) -> None:
        """Wakes the sender if there is a record. Ends after ``left`` looks without a direct delivery."""
        with self.lock:
            is_used = self._looks_at != self.direct_deliveries
            left = _IDLE_LOOKS if is_used else left - 1
            self._looks_at = self.direct_deliveries if left else -1
            if any(queue.waiting for queue in self.queues.values()):
                self._wake.set()
        if left:
            asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look_for_records, left)

    def adopt(
        self, batch: ProducerBatch, connection: BrokerConnection, version: int, reply: asyncio.Future[memoryview]
    ) -> None:
        """Settles a batch that a caller has sent, and whose reply the loop reads."""

        async def read() -> ProduceResponse:
            return connection.decoded(PRODUCE, version, await reply)

        batch.is_with_caller = False
        self._start(self._settle_all([batch], read()))

    def take_from_caller(self, batch: ProducerBatch) -> None:
        """Delivers a batch that a caller has taken and cannot deliver. Runs on the loop."""
        if batch.is_with_caller and batch.outcome is None:
            batch.is_with_caller = False
            self._start(self._deliver(self.cluster.leader(batch.partition), [batch]))

    def give_to_loop(self, batch: ProducerBatch) -> None:
        """Makes the loop deliver a batch that the calling thread has taken."""
        self._on_loop(partial(self.take_from_caller, batch))

    def _start(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(delivery)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _take_leaders(self, rows: Mapping[TopicPartition, BatchReply], reply: ProduceResponse) -> set[TopicPartition]:
        """Takes over the leaders that a reply names. Returns the partitions that have a newer leader by it."""
        refused = {tp: getattr(row, "current_leader", None) for tp, row in rows.items()
                   if row.error_code in NAMES_LEADER}  # fmt: skip
        leaders = {tp: (one.leader_id, one.leader_epoch) for tp, one in refused.items() if one is not None}
        ends = getattr(reply, "node_endpoints", None) or ()
        nodes = (Node(one.node_id, one.host, one.port, one.rack) for one in ends)
        return self.cluster.take_leaders(leaders, nodes) if leaders else set()

    async def _post(self, leader: int, connection: BrokerConnection, message: Mapping[str, Any]) -> None:
        """Sends a request under acks=0. A broker refuses it by closing the connection, without a reason.

        So a new connection makes the sender look up the leaders again."""
        before = self._unanswered.get(leader)
        if before is not None and before is not connection:
            self.cluster.forget_topics([topic["name"] for topic in message["topic_data"]])
        self._unanswered[leader] = connection
        await connection.post(PRODUCE, connection.version(PRODUCE, PRODUCE_NAMES_CEILING), message)

    def settle(
        self, batch: ProducerBatch, row: BatchReply | None, failure: Exception | None, *, is_moved: bool = False
    ) -> None:
        """``is_moved``: the reply names a newer leader, which is asked at once."""
        code = row.error_code if row is not None else None
        with self.lock:
            queue = self.queues[batch.partition]
            if batch.outcome is not None:
                return  # its caller has settled it before a signal came
            if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                queue.remove_answered(batch, appended=True)
                offset, error = (row.base_offset if row is not None and code is ErrorCode.none else -1), None
            else:
                error = failure or error_for(
                    code if code is not None else ErrorCode.network_exception,
                    f"{batch.partition}: {getattr(row, 'error_message', None) or _WHY.get(code) or 'not appended'}",
                )
                again = self._is_worth_retrying(batch, code, error)
                if not is_moved:
                    self.cluster.forget_topics([batch.partition.topic])
                late = _monotonic_ms() >= batch.created_ms + self.producer_config.delivery_timeout_ms
                if again and late:
                    error = self._too_late(batch, error)
                elif again and batch.tries <= self.producer_config.retries:
                    queue.put_back(batch, _monotonic_ms(), 0 if is_moved else self._backoff_ms(code), code)
                    queue.last_error = error
                    return
                queue.remove_answered(batch, appended=False)
                offset = -1
        self._report(batch, offset, error)

    def _is_worth_retrying(self, batch: ProducerBatch, code: ErrorCode | None, error: Exception) -> bool:
        """In a transaction, a refused batch without an earlier one is lost: the gap in the sequences would stay."""
        if self._transactional_id is not None and is_refused(code):
            return code is not ErrorCode.invalid_producer_epoch and self.queues[batch.partition].has_earlier(batch)
        # A broker that has just started may not have loaded its partitions yet.
        return worth_retrying(error) or is_refused(code) or code is ErrorCode.unknown_topic_or_partition

    def _backoff_ms(self, code: ErrorCode | None) -> int:
        backoff_ms = self.config.retry_backoff_ms
        return min(backoff_ms, CONCURRENT_BACKOFF_MS) if code is ErrorCode.concurrent_transactions else backoff_ms

    def _expire(self) -> None:
        limit = self.producer_config.delivery_timeout_ms
        with self.lock:
            queues = tuple(self.queues.values())
            old = [(b, queue.last_error) for queue in queues for b in queue.remove_expired(_monotonic_ms(), limit)]
        for batch, last in old:
            self._report(batch, -1, self._too_late(batch, last))

    def _too_late(self, batch: ProducerBatch, last: Exception | None = None) -> RequestTimedOut:
        limit, why = self.producer_config.delivery_timeout_ms, "" if last is None else f": {last}"
        what = f"{batch.partition}: {counted(batch.count, 'record')} {was(batch.count)} not delivered"
        text = f"{what} within delivery_timeout_ms={limit}{why}"
        error = RequestTimedOut(text)
        error.__cause__ = last
        return error

    def _give_up(self, tp: TopicPartition, error: Exception) -> None:
        with self.lock:
            queue = self.queues[tp]
            given_up = list(queue.waiting)
            queue.waiting.clear()
            self.counts.pop(tp.topic, None)
        for batch in given_up:
            self._report(batch, -1, error)

    def _give_up_all(self, error: Exception) -> None:
        for tp in list(self.queues):
            self._give_up(tp, error)

    def _report(self, batch: ProducerBatch, offset: int, error: Exception | None) -> None:
        raised: Exception | None = None
        for first, count, on in batch.deliveries:
            try:
                on(offset + first if offset >= 0 else -1, count, error)
            except Exception as theirs:  # an error of the user's callback: flush raises it
                raised = raised or theirs
            except BaseException as theirs:  # such as sys.exit(): it must end no thread of ours
                raised = raised or RuntimeError(f"a callback has raised {theirs!r}")
        with self.lock:
            if raised is not None or (error is not None and batch.silent):
                self.failure = self.failure or raised or error
            size, outcome = batch.size, (offset, error)
            self.buffered -= size  # no call between these two lines: a signal could come there
            batch.outcome = outcome
            self.times_empty += self.buffered == 0
            batch.body = bytearray()  # a Delivery may hold the batch for long
            self.lock.notify_all()
        self._freed()


def _for_record(tp: TopicPartition, on_delivery: Delivered) -> OnDelivery:
    def tell(offset: int, count: int, error: Exception | None) -> None:
        on_delivery(RecordMetadata(*tp, offset) if error is None else None, error)

    return tell


def _for_run(tp: TopicPartition, on_delivery: RunDelivered) -> OnDelivery:
    def tell(offset: int, count: int, error: Exception | None) -> None:
        on_delivery(tp, offset, count, error)

    return tell


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
