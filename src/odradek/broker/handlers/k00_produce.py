"""Produce 3–13: appends the client's record batches to logs.

* 5: log start offset in the reply.
* 7: zstd.
* 8: record errors and an error message in the reply.
* 9: flexible.
* 10: the new leader in the reply.
* 11: the error TRANSACTION_ABORTABLE.
* 12: the broker adds the partition of a transactional batch to its transaction
  (broker/handlers/transaction_verification).
* 13: topic ids.

Versions 0 to 2 are advertised but not served, as in Kafka 4: old versions of librdkafka look for version 0.

acks=0: There is no reply. If such a request fails, the broker closes the connection; the client gets no other sign.
acks=1: The broker replies when the records are in the log.
acks=-1: The broker replies when the high watermark has passed the records. With one replica, the high watermark passes
them at once. Otherwise the request is parked (broker/partitions/purgatory) for at most ``timeout_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.batches.header import ATTRIBUTES_OFFSET, LENGTH_OFFSET, LOG_OVERHEAD, MAGIC, MAGIC_OFFSET
from odradek.broker.limits.quotas import PRODUCER_BYTE_RATE
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.broker.loop.workers import OUTLIVING_BYTES
from odradek.broker.partitions.partition import Partition
from odradek.core.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS
from odradek.storage.append_info import AppendInfo
from odradek.storage.client_batch import time_bounds
from odradek.wire.chunks import Chunk
from odradek.wire.produce_fetch_replies import ProducedPartition, produce_reply, produce_reply_in_steps
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.produce.v13 import request as v13
    from kio.schema.produce.v13.request import PartitionProduceData
    from kio.schema.types import TopicName

    from odradek.batches.steps import BatchSteps
    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.handlers.transaction_verification import BatchVerification
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.storage.verification import Guard

    class TopicProduceData(v13.TopicProduceData):
        name: TopicName  # until version 12

    class ProduceRequest(v13.ProduceRequest):
        topic_data: tuple[TopicProduceData, ...]


VERSIONS = (3, 13)
ADVERTISED_OLDEST = 0
IS_FREQUENT = True
ADMIN_CLIENT_ID = "__admin_client"
_SMALLEST = 14
_ATTRIBUTES_LOW_BYTE = ATTRIBUTES_OFFSET + 1
_COMPRESSION = 0x07
_TRANSACTIONAL = 0x10
_ZSTD = 4
_ERRORS_WITH_LOG_START = frozenset(
    {
        ErrorCode.invalid_record,
        ErrorCode.invalid_timestamp,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_server_error,
    }
)
_ERRORS_WITH_RECORDS = frozenset({ErrorCode.invalid_record, ErrorCode.invalid_timestamp})
_NO_ID = bytes(16)
_ALL_REPLICAS = -1
RECORD_ERRORS = 10_000
"""The most refused records that one reply lists: librdkafka's limit of records per batch."""
AT_ONCE_BYTES = 128 << 10
"""The bytes that a request may append in one step. A larger request is served in steps."""
PARTITION_BYTES = 16 << 10
"""The bytes by which each partition counts towards ``AT_ONCE_BYTES``, in addition to its records."""

STEP_PARTITIONS = 200
"""The partitions per step in work that appends nothing."""

_Topic = tuple[str, KafkaError | None, Iterator["PartitionProduceData"], list[ProducedPartition]]
_Reply = list[Chunk] | Deferred[Any] | None


class _Awaited(NamedTuple):
    """Appended records that wait for the high watermark to reach ``offset``. ``done[position]`` is their result."""

    partition: Partition
    offset: int
    done: list[ProducedPartition]
    position: int


def handle(
    broker: BrokerServices, context: Context, message: ProduceRequest
) -> bytes | Deferred[Any] | Steps[_Reply] | None:
    request = _Produce(broker, context, message)
    left = AT_ONCE_BYTES
    topics = iter(message.topic_data)
    for topic in topics:
        if len(topic.partition_data) > STEP_PARTITIONS:
            return _continue_in_steps(request, chain((topic,), topics))
        begun = request.begin_topic(topic)
        name, refused, parts, done = begun
        for part in parts:
            result = _failed(part.index, refused) if refused is not None else request.produce(name, part)
            if not isinstance(result, ProducedPartition):
                return _continue_in_steps(request, topics, begun, result)
            done.append(result)
            left -= PARTITION_BYTES + len(part.records or b"")
            if left < 0:
                return _continue_in_steps(request, topics, begun)
    return request.reply()


def _continue_in_steps(
    request: _Produce,
    topics: Iterable[TopicProduceData],
    begun: _Topic | None = None,
    append: Steps[ProducedPartition] | None = None,
) -> Steps[_Reply]:
    steps = _in_steps(request, topics, begun, append)
    return steps if request.wants_reply else _without_acks(request, steps)


def _in_steps(
    request: _Produce,
    topics: Iterable[TopicProduceData],
    begun: _Topic | None,
    append: Steps[ProducedPartition] | None,
) -> Steps[_Reply]:
    """Serves the rest of a request: first the steps ``append`` of the current partition, then the remaining partitions
    of the current topic ``begun``, then the topics after it."""
    try:
        if begun is not None:
            if append is not None:
                begun[3].append((yield from append))
            yield from _finish_topic(request, begun)
        for topic in topics:
            if len(topic.partition_data) > STEP_PARTITIONS:
                yield from _finish_long_topic(request, topic)
            else:
                yield from _finish_topic(request, request.begin_topic(topic))
                yield None
    except GeneratorExit:  # the client has disconnected
        request.forget()
        raise
    return (yield from request.reply_in_steps())


def _finish_long_topic(request: _Produce, topic: TopicProduceData) -> Steps[None]:
    parts: dict[int, PartitionProduceData] = {}
    try:
        # Of several entries for one partition the last counts, as in Kafka.
        yield from dict_in_steps(((part.index, part) for part in topic.partition_data), parts)
        yield from _finish_topic(request, request.begin_topic(topic, parts.values()))
    finally:
        request.broker.leftovers.add(parts)


def _finish_topic(request: _Produce, topic: _Topic) -> Steps[None]:
    name, refused, parts, done = topic
    for part in parts:
        yield None
        result = _failed(part.index, refused) if refused is not None else request.produce(name, part)
        done.append(result if isinstance(result, ProducedPartition) else (yield from result))


def _without_acks(request: _Produce, steps: Steps[_Reply]) -> Steps[_Reply]:
    """Serves a request with acks=0.

    The request runs to its end even after its connection has closed, if all requests with acks=0 in progress have at
    most ``OUTLIVING_BYTES`` together.
    """
    context, workers = request.context, request.broker.workers
    size = context.request_bytes
    context.must_finish = workers.outliving + size <= OUTLIVING_BYTES
    workers.outliving += size
    try:
        return (yield from steps)
    finally:
        workers.outliving -= size


class _Produce:
    """One request and the parts of its reply so far."""

    __slots__ = (
        "_acks", "_authorizer", "_awaited", "_errors_left", "_id_refusal", "_long", "_message", "_timeout", "_topics",
        "_verification", "broker", "context",
    )  # fmt: skip

    def __init__(self, broker: BrokerServices, context: Context, message: ProduceRequest) -> None:
        self.broker = broker
        self.context = context
        self._acks: int = message.acks
        self._message = message
        self._verification: BatchVerification | None = None
        self._timeout = message.timeout
        self._awaited: list[_Awaited] | None = None
        self._errors_left = RECORD_ERRORS
        authorizer = self._authorizer = broker.authorizer
        self._id_refusal = None if authorizer is None else self._refused_id(authorizer)
        self._topics: list[tuple[str | bytes, list[ProducedPartition]]] = []
        self._long: list[list[ProducedPartition]] = []  # the results of topics with many partitions

    @property
    def wants_reply(self) -> bool:
        return self._acks != 0

    def begin_topic(self, topic_data: TopicProduceData, parts: Iterable[PartitionProduceData] | None = None) -> _Topic:
        """Returns the topic's name, the error of the whole topic or None, its partitions, and the list for results.

        ``parts``: the partitions, if the caller has already removed duplicate entries.
        """
        name: str | None
        key: str | bytes
        if self.context.version < 13:
            name = key = topic_data.name
        else:
            name, key = self._name_and_key(topic_data)
        refused = self._refused(name, len(topic_data.partition_data))
        done: list[ProducedPartition] = []
        if parts is not None:
            self._long.append(done)
        else:
            parts = topic_data.partition_data
            if len(topic_data.partition_data) > 1:
                parts = {part.index: part for part in parts}.values()  # of duplicates the last counts, as in Kafka
        self._topics.append((key, done))
        return name or "", refused, iter(parts), done

    def _refused(self, name: str | None, count: int) -> KafkaError | None:
        """Returns the error of a whole topic, or None. ``count``: its partitions; 0 if the audit log has the topic."""
        if self._authorizer is not None:
            if self._id_refusal is not None:
                return self._id_refusal
            if name is not None and not self._authorizer.allows(
                self.context, Operation.WRITE, Resource.TOPIC, name,
                count=count, logs_grant=count > 0, logs_denial=count > 0,
            ):  # fmt: skip
                return KafkaError(ErrorCode.topic_authorization_failed)
        if self._acks not in (-1, 0, 1):
            return KafkaError(ErrorCode.invalid_required_acks)
        if name is None:
            return KafkaError(ErrorCode.unknown_topic_id)
        if name in INTERNAL_TOPICS and self.context.client_id != ADMIN_CLIENT_ID:
            return KafkaError(ErrorCode.invalid_topic_exception)
        return None

    def _refused_id(self, authorizer: Authorizer) -> KafkaError | None:
        """Returns the error of the whole request if its client may not use the transactional id.

        Only the first partitions are searched for a transactional batch. ``_verify`` asks about a later one.
        """
        if self._message.transactional_id is None or not _has_transactional_batch(self._message):
            return None
        return self._denial_of_id(authorizer)

    def _denial_of_id(self, authorizer: Authorizer) -> KafkaError | None:
        """Returns the error if the client may not use the transactional id of the request."""
        name = self._message.transactional_id
        if name is None or authorizer.allows(self.context, Operation.WRITE, Resource.TRANSACTIONAL_ID, name):
            return None
        return KafkaError(ErrorCode.transactional_id_authorization_failed)

    def _name_and_key(self, topic_data: TopicProduceData) -> tuple[str | None, str | bytes]:
        """Returns the name of a topic, None if it is unknown, and the topic's field in the reply."""
        if self.context.version < 13:
            return topic_data.name, topic_data.name
        if topic_data.topic_id is None:
            return None, _NO_ID
        topic = self.broker.catalog.topic_by_id(topic_data.topic_id)
        return (None if topic is None else topic.name), topic_data.topic_id.bytes

    def reply(self) -> bytes | Deferred[Any] | None:
        if self._awaited is not None:
            return self._park(self._awaited, lambda promise: promise.resolve(self.reply()))
        self._count_bytes()
        if self._acks:
            return produce_reply(self.context.version, self._topics)
        self._raise_hangup({part.error_code for _, parts in self._topics for part in parts})
        return None

    def _park(self, awaited: list[_Awaited], resolve: Callable[[Deferred[Any]], None]) -> Deferred[Any]:
        """Returns a promise of the reply. ``resolve`` is called when the records are replicated or the timeout ends."""
        promise: Deferred[Any] = Deferred()

        def complete(errors: list[ErrorCode]) -> None:
            self._awaited = None
            for (_, _, done, number), error in zip(awaited, errors, strict=True):
                if error:
                    done[number] = done[number]._replace(error_code=error)
            resolve(promise)

        offsets = [(row.partition, row.offset) for row in awaited]
        timeout_ms = milliseconds(self._timeout)
        self.broker.purgatory.park_produce(self.context.connection, offsets, timeout_ms, complete)
        return promise

    def reply_in_steps(self) -> Steps[_Reply]:
        if self._awaited is not None:
            start = self.broker.scheduler.start
            return self._park(self._awaited, lambda promise: start(self.reply_in_steps()).then(promise.resolve))
        self._count_bytes()
        try:
            if self.wants_reply:
                return (yield from produce_reply_in_steps(self.context.version, self._topics))
            codes: set[int] = set()
            for number, (_, parts) in enumerate(self._topics):
                for first in range(0, len(parts), STEP_PARTITIONS):
                    codes.update([part.error_code for part in parts[first : first + STEP_PARTITIONS]])
                    if first or not number % STEP_PARTITIONS:
                        yield None
            self._raise_hangup(codes)
            return None
        finally:
            self.forget()

    def forget(self) -> None:
        """Frees the parts of the reply."""
        self.broker.leftovers.add(*self._long, self._topics)

    def _count_bytes(self) -> None:
        broker, context = self.broker, self.context
        if broker.quotas.has_quota(PRODUCER_BYTE_RATE):
            used = context.request_bytes
            context.throttle(broker.quotas.record(PRODUCER_BYTE_RATE, context.user, context.client_id, used))

    @staticmethod
    def _raise_hangup(codes: set[int]) -> None:
        """Closes the connection on an error: the only way to report one to a client with acks=0."""
        failed = codes - {0}
        if failed:
            names = sorted(ErrorCode(code).name for code in failed)
            raise Hangup(f"produce without acks failed: {', '.join(names)}")

    def produce(self, topic: str, part: PartitionProduceData) -> ProducedPartition | Steps[ProducedPartition]:
        found = self._batch(topic, part)
        if isinstance(found, ProducedPartition):
            return found
        partition, data = found
        # This line reads the attributes without ``_attributes``: a call would take a hundredth of the time of a request
        # of one record.
        if len(data) > _ATTRIBUTES_LOW_BYTE and data[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL:
            return self._verify(partition, part.index, data)
        return self._append(partition, part.index, data)

    def _batch(self, topic: str, part: PartitionProduceData) -> tuple[Partition, bytes] | ProducedPartition:
        """Returns the partition and its batch, or the row of the reply if they are refused."""
        partition = self.broker.partition(topic, part.index)
        if partition is None:
            return ProducedPartition(part.index, self.broker.missing_partition(topic, part.index))
        try:
            data = _one_batch(part.records or b"")
        except KafkaError as error:
            return ProducedPartition(part.index, error.code, error_message=error.message or None)
        if self.context.version < 7 and _attributes(data) & _COMPRESSION == _ZSTD:
            return ProducedPartition(part.index, ErrorCode.unsupported_compression_type)
        return partition, data

    def _append(
        self, partition: Partition, index: int, data: bytes, guard: Guard = None
    ) -> ProducedPartition | Steps[ProducedPartition]:
        try:
            info = partition.produce(data, guard)
        except KafkaError as error:
            return self._refusal(partition, index, data, error)
        if isinstance(info, AppendInfo):
            if partition.is_replicated and self._acks == _ALL_REPLICAS:
                self._await_replicas(partition, info.last_offset)
            return ProducedPartition(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)
        return self._produce_later(partition, index, data, info)

    def _verify(self, partition: Partition, index: int, data: bytes) -> ProducedPartition | Steps[ProducedPartition]:
        """Appends a transactional batch once its partition is known to be in the transaction."""
        if self._authorizer is not None and (denial := self._denial_of_id(self._authorizer)) is not None:
            return _failed(index, denial)
        if self._verification is None:
            from odradek.broker.handlers.transaction_verification import BatchVerification

            message = self._message
            self._verification = BatchVerification(self.broker, message.transactional_id, self.context.version)
            counts = [len(topic.partition_data) for topic in message.topic_data[: STEP_PARTITIONS + 1]]
            steps = self._verification.ask([(partition, data)] if counts == [1] else self._transactional_batches())
            if len(counts) + sum(counts) > STEP_PARTITIONS:
                return self._verify_in_steps(steps, partition, index, data)
            for _ in steps:
                pass
        return self._append_verified(self._verification, partition, index, data)

    def _verify_in_steps(
        self, steps: Iterable[None], partition: Partition, index: int, data: bytes
    ) -> Steps[ProducedPartition]:
        yield from steps
        assert self._verification is not None
        result = self._append_verified(self._verification, partition, index, data)
        return result if isinstance(result, ProducedPartition) else (yield from result)

    def _transactional_batches(self) -> Iterator[tuple[Partition, bytes] | None]:
        """Yields each partition that has a transactional batch, with the batch, and None for each other entry.

        Of several entries for one partition the last counts.
        """
        seen: set[tuple[str | None, int]] = set()
        for topic in reversed(self._message.topic_data):
            name, _ = self._name_and_key(topic)
            if self._refused(name, 0) is not None:
                continue
            for part in reversed(topic.partition_data):
                found = None if (name, part.index) in seen else self._batch(name or "", part)
                seen.add((name, part.index))
                if found is None or isinstance(found, ProducedPartition) or not _attributes(found[1]) & _TRANSACTIONAL:
                    yield None
                else:
                    yield found

    def _append_verified(
        self, verification: BatchVerification, partition: Partition, index: int, data: bytes
    ) -> ProducedPartition | Steps[ProducedPartition]:
        try:
            guard, promise = verification.result(partition)
        except KafkaError as error:
            return ProducedPartition(index, error.code)
        if promise is None:
            return self._append(partition, index, data, guard)
        if not promise.resolved:
            return self._verify_later(partition, index, data, guard, promise)
        if promise.value is not None:
            return _failed(index, promise.value)
        return self._append(partition, index, data, guard)

    def _verify_later(
        self, partition: Partition, index: int, data: bytes, guard: Guard, promise: Deferred[KafkaError | None]
    ) -> Steps[ProducedPartition]:
        """Waits for the coordinator, which is busy. The connection serves no later request meanwhile."""
        refusal: KafkaError | None = yield promise
        if refusal is not None:
            return _failed(index, refusal)
        if self.broker.partition(partition.topic, index) is not partition:
            return ProducedPartition(index, self.broker.missing_partition(partition.topic, index))
        result = self._append(partition, index, data, guard)
        return result if isinstance(result, ProducedPartition) else (yield from result)

    def _await_replicas(self, partition: Partition, last_offset: int) -> None:
        if self._awaited is None:
            self._awaited = []
        done = self._topics[-1][1]
        self._awaited.append(_Awaited(partition, last_offset + 1, done, len(done)))

    def _produce_later(
        self, partition: Partition, index: int, data: bytes, steps: BatchSteps[AppendInfo]
    ) -> Steps[ProducedPartition]:
        try:
            info = yield from self.broker.workers.run(steps)
        except KafkaError as error:
            if self.broker.partition(partition.topic, index) is not partition:
                return ProducedPartition(index, self.broker.missing_partition(partition.topic, index))
            refused = self._refusal(partition, index, data, error)
            return refused if isinstance(refused, ProducedPartition) else (yield from refused)
        if partition.is_replicated and self._acks == _ALL_REPLICAS:
            self._await_replicas(partition, info.last_offset)
        return ProducedPartition(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)

    def _refusal(
        self, partition: Partition, index: int, data: bytes, error: KafkaError
    ) -> ProducedPartition | Steps[ProducedPartition]:
        code = error.code
        if code is ErrorCode.unsupported_for_message_format:
            code = ErrorCode.invalid_record
        if code not in _ERRORS_WITH_LOG_START:
            return ProducedPartition(index, code)
        if code not in _ERRORS_WITH_RECORDS or not self._errors_left:
            return ProducedPartition(index, code, log_start_offset=partition.log_start_offset)
        return self._list_refused_records(partition, index, data, KafkaError(code, error.message))

    def _list_refused_records(
        self, partition: Partition, index: int, data: bytes, error: KafkaError
    ) -> Steps[ProducedPartition]:
        """Lists the records of a refused batch that break a rule of their topic, by index in the batch, with a reason.

        A client sends the other records again and drops the listed ones.
        """
        now_ms = self.broker.now_ms()
        try:
            steps = partition.log.refused_records(data, now_ms, most=self._errors_left)
            refused = yield from self.broker.workers.run(steps)
            earliest, latest = time_bounds(partition.log.config, now_ms)
            start = partition.log_start_offset
        except KafkaError:
            return ProducedPartition(index, error.code, log_start_offset=partition.log_start_offset)
        record_errors: tuple[tuple[int, str | None], ...] = tuple(
            (
                record.number,
                f"a record without a key, and {partition.topic} is compacted"
                if record.is_keyless and partition.log.config.is_compacted
                else f"timestamp {record.timestamp} is not within [{earliest}, {latest}]",
            )
            for record in refused
        )
        self._errors_left -= len(record_errors)
        text = error.message if record_errors else None  # as in Kafka: a message only together with record errors
        return ProducedPartition(
            index, error.code, log_start_offset=start, record_errors=record_errors, error_message=text
        )


def _has_transactional_batch(message: ProduceRequest) -> bool:
    parts = chain.from_iterable(topic.partition_data for topic in message.topic_data[:STEP_PARTITIONS])
    return any(_attributes(bytes(part.records or b"")) & _TRANSACTIONAL for part in islice(parts, STEP_PARTITIONS))


def _failed(index: int, error: KafkaError) -> ProducedPartition:
    return ProducedPartition(index, error.code, error_message=error.message or None)


def _attributes(data: bytes) -> int:
    """Returns the low byte of a batch's attributes."""
    return data[_ATTRIBUTES_LOW_BYTE] if len(data) > _ATTRIBUTES_LOW_BYTE else 0


def _one_batch(data: bytes) -> bytes:
    """Returns the single batch in a partition's data. Trailing bytes that form no batch are dropped, as in Kafka.

    Raises KafkaError, with a message where Kafka has one: INVALID_RECORD for no batch, an incomplete batch, two batches
    or an old format; CORRUPT_MESSAGE for data that cannot be a batch.
    """
    end = _batch_end(data, 0)
    if not end or data[MAGIC_OFFSET] != MAGIC:
        raise KafkaError(ErrorCode.invalid_record)
    if end == len(data):
        return data
    if _batch_end(data, end):
        raise KafkaError(ErrorCode.invalid_record)
    return data[:end]


def _batch_end(data: bytes, start: int) -> int:
    """Returns the end position of the batch at ``start``, or 0 if it is incomplete. Raises KafkaError."""
    left = len(data) - start
    if left < LOG_OVERHEAD:
        return 0
    length = int.from_bytes(data[start + LENGTH_OFFSET : start + LOG_OVERHEAD], "big", signed=True)
    if length < _SMALLEST:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"Record size {length} is less than the minimum record overhead ({_SMALLEST})",
        )
    if left <= MAGIC_OFFSET:
        return 0
    magic = data[start + MAGIC_OFFSET]
    if magic > MAGIC:
        raise KafkaError(ErrorCode.corrupt_message, f"Invalid magic found in record: {magic}")
    return start + LOG_OVERHEAD + length if left >= LOG_OVERHEAD + length else 0
