"""The appends of a Produce request: its batches are checked, verified, and appended, and wait for all replicas.

acks=0 or 1: The request is complete when the records are in the log.
acks=-1: It is complete when the high watermark has passed the records. With one replica, the high watermark passes them
at once. Otherwise the request is parked (``purgatory``) for at most its timeout.

The handler (``handlers/k00_produce``) names the topics, asks the authorizer, and packs the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from odradek.batches.header import ATTRIBUTES_OFFSET
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.appends import AppendInfo
from odradek.storage.client_batch import single_batch, time_bounds
from odradek.wire.produce_fetch_replies import ProducedPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol
    from uuid import UUID

    from odradek.batches.steps import BatchSteps
    from odradek.broker.loop.leftovers import Leftovers
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.loop.workers import Workers
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.purgatory import Purgatory, PurgatoryClient
    from odradek.broker.partitions.transaction_verification import BatchVerification, TransactionServices
    from odradek.storage.producers.verification import Guard

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class PartitionData(Protocol):
        """The data for one partition."""

        @property
        def index(self) -> int: ...

        @property
        def records(self) -> bytes | None: ...

    class TopicBatches(Protocol):
        """The data for one topic. A version of Produce has either names or ids."""

        @property
        def name(self) -> str: ...

        @property
        def topic_id(self) -> UUID | None: ...

        @property
        def partition_data(self) -> Sequence[PartitionData]: ...

    class ProduceCall(Protocol):
        """A decoded Produce request. ``takes_zstd`` and ``knows_transaction_abortable``: by its version;
        ``adds_partitions``: the broker adds its partitions to its transaction."""

        @property
        def topics(self) -> Sequence[TopicBatches]: ...

        @property
        def acks(self) -> int: ...

        @property
        def timeout_ms(self) -> int: ...

        @property
        def transactional_id(self) -> str | None: ...

        @property
        def takes_zstd(self) -> bool: ...

        @property
        def adds_partitions(self) -> bool: ...

        @property
        def knows_transaction_abortable(self) -> bool: ...

        def describe(self, topic: TopicBatches, count: int) -> tuple[str, str | bytes, KafkaError | None]:
            """Returns a topic's name, its field in the reply, and the error of the whole topic or None.

            ``count``: the partitions that the audit log counts; 0 if it has them already."""

        def denial_of_id(self) -> KafkaError | None:
            """Returns the error if the client may not use the transactional id of the request."""

    class AppendServices(TransactionServices, Protocol):
        """The parts of a broker that appends use."""

        purgatory: Purgatory

        @property
        def leftovers(self) -> Leftovers: ...

        @property
        def workers(self) -> Workers: ...

        def now_ms(self) -> int: ...

        def partition(self, topic: str, index: int) -> Partition | None: ...

        def missing_partition(self, topic: str, index: int) -> ErrorCode: ...


TRANSACTIONAL = 0x10
_ATTRIBUTES_LOW_BYTE = ATTRIBUTES_OFFSET + 1
_COMPRESSION = 0x07
_ZSTD = 4
_ERRORS_WITH_LOG_START = frozenset(
    {
        ErrorCode.invalid_record,
        ErrorCode.invalid_timestamp,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_server_error,
    }
)
_ERRORS_WITH_RECORDS = frozenset({ErrorCode.invalid_record, ErrorCode.invalid_timestamp})
_ALL_REPLICAS = -1
RECORD_ERRORS = 10_000
"""The most refused records that one reply lists: librdkafka's limit of records per batch."""
AT_ONCE_BYTES = 128 << 10
"""The bytes that a request may append in one step. A larger request is served in steps."""
PARTITION_BYTES = 16 << 10
"""The bytes by which each partition counts towards ``AT_ONCE_BYTES``, in addition to its records."""
STEP_PARTITIONS = 200
"""The partitions per step in work that appends nothing."""

_Topic = tuple[str, KafkaError | None, "Iterator[PartitionData]", list[ProducedPartition]]


class AwaitedRecords(NamedTuple):
    """Appended records that wait for the high watermark to reach ``offset``. ``done[position]`` is their result."""

    partition: Partition
    offset: int
    done: list[ProducedPartition]
    position: int


class ProduceAppends:
    """The appends of one request. ``begin`` first; when its steps have ended, ``results`` and ``awaited``.

    ``results``: for each topic its field in the reply and the results of its partitions. ``awaited``: the appended
    records that are not replicated yet; None if the results are complete. ``is_led_elsewhere``: whether a result is
    NOT_LEADER_OR_FOLLOWER.
    """

    __slots__ = ("_broker", "_call", "_errors_left", "_long", "_verification", "awaited", "is_led_elsewhere", "results")

    def __init__(self, broker: AppendServices, call: ProduceCall) -> None:
        self._broker = broker
        self._call = call
        self._verification: BatchVerification | None = None
        self.awaited: list[AwaitedRecords] | None = None
        self.is_led_elsewhere = False
        self._errors_left = RECORD_ERRORS
        self._long: list[list[ProducedPartition]] = []  # the results of topics with many partitions
        self.results: list[tuple[str | bytes, list[ProducedPartition]]] = []

    # --- the order of the partitions ----------------------------------------------------------------------------

    def begin(self) -> Steps[None] | None:
        """Appends all batches. Returns the steps that are left, if that takes long."""
        left = AT_ONCE_BYTES
        topics = iter(self._call.topics)
        for topic in topics:
            if len(topic.partition_data) > STEP_PARTITIONS:
                return self._rest(chain((topic,), topics))
            begun = self._begin_topic(topic)
            name, refused, parts, done = begun
            for part in parts:
                result = self._append(name, part) if refused is None else _failed(part.index, refused)
                if not isinstance(result, ProducedPartition):
                    return self._rest(topics, begun, result)
                done.append(result)
                left -= PARTITION_BYTES + len(part.records or b"")
                if left < 0:
                    return self._rest(topics, begun)
        return None

    def _rest(
        self,
        topics: Iterable[TopicBatches],
        begun: _Topic | None = None,
        append: Steps[ProducedPartition] | None = None,
    ) -> Steps[None]:
        """Serves the rest of a request: first the steps ``append`` of the current partition, then the remaining
        partitions of the current topic ``begun``, then the topics after it."""
        try:
            if begun is not None:
                if append is not None:
                    begun[3].append((yield from append))
                yield from self._finish_topic(begun)
            for topic in topics:
                if len(topic.partition_data) > STEP_PARTITIONS:
                    yield from self._finish_long_topic(topic)
                else:
                    yield from self._finish_topic(self._begin_topic(topic))
                    yield None
        except GeneratorExit:  # the client has disconnected
            self.forget()
            raise

    def _begin_topic(self, topic: TopicBatches, parts: Iterable[PartitionData] | None = None) -> _Topic:
        """Returns the topic's name, the error of the whole topic or None, its partitions, and the list for results.

        ``parts``: the partitions, if the caller has already removed duplicate entries.
        """
        count = len(topic.partition_data)
        name, key, refused = self._call.describe(topic, count)
        done: list[ProducedPartition] = []
        if parts is not None:
            self._long.append(done)
        else:
            parts = topic.partition_data
            if count > 1:
                parts = {part.index: part for part in parts}.values()  # of duplicates the last counts, as in Kafka
        self.results.append((key, done))
        return name, refused, iter(parts), done

    def _finish_topic(self, topic: _Topic) -> Steps[None]:
        name, refused, parts, done = topic
        for part in parts:
            yield None
            result = self._append(name, part) if refused is None else _failed(part.index, refused)
            done.append(result if isinstance(result, ProducedPartition) else (yield from result))

    def _finish_long_topic(self, topic: TopicBatches) -> Steps[None]:
        parts: dict[int, PartitionData] = {}
        try:
            # Of several entries for one partition the last counts, as in Kafka.
            yield from dict_in_steps(((part.index, part) for part in topic.partition_data), parts)
            yield from self._finish_topic(self._begin_topic(topic, parts.values()))
        finally:
            self._broker.leftovers.add(parts)

    def forget(self) -> None:
        """Frees the results."""
        self._broker.leftovers.add(*self._long, self.results)

    # --- one partition ------------------------------------------------------------------------------------------

    def _append(self, topic: str, part: PartitionData) -> ProducedPartition | Steps[ProducedPartition]:
        batch = self._batch(topic, part)
        if isinstance(batch, ProducedPartition):
            return batch
        partition, data = batch
        if data[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL:
            return self._verify(partition, part.index, data)
        return self._append_batch(partition, part.index, data)

    def _batch(self, topic: str, part: PartitionData) -> tuple[Partition, bytes] | ProducedPartition:
        """Returns the partition and its batch, or the row of the reply if they are refused."""
        partition = self._broker.partition(topic, part.index)
        if partition is None:
            return self._missing(topic, part.index)
        try:
            data = single_batch(part.records or b"")
        except KafkaError as error:
            return _failed(part.index, error)
        if data[_ATTRIBUTES_LOW_BYTE] & _COMPRESSION == _ZSTD and not self._call.takes_zstd:
            return ProducedPartition(part.index, ErrorCode.unsupported_compression_type)
        return partition, data

    def _append_batch(
        self, partition: Partition, index: int, data: bytes, guard: Guard = None
    ) -> ProducedPartition | Steps[ProducedPartition]:
        try:
            if partition.is_replicated and self._call.acks == _ALL_REPLICAS:
                partition.check_in_sync()
            info = partition.produce(data, guard)
        except KafkaError as error:
            return self._refusal(partition, index, data, error)
        if not isinstance(info, AppendInfo):
            return self._append_later(partition, index, data, info)
        if partition.is_held:
            self._await_replicas(partition, info.last_offset)
        return ProducedPartition(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)

    def _append_later(
        self, partition: Partition, index: int, data: bytes, steps: BatchSteps[AppendInfo]
    ) -> Steps[ProducedPartition]:
        try:
            info = yield from self._broker.workers.run(steps)
        except KafkaError as error:
            if self._broker.partition(partition.topic, index) is not partition:
                return self._missing(partition.topic, index)
            refused = self._refusal(partition, index, data, error)
            return refused if isinstance(refused, ProducedPartition) else (yield from refused)
        if partition.is_held:
            self._await_replicas(partition, info.last_offset)
        return ProducedPartition(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)

    # --- transactions -------------------------------------------------------------------------------------------

    def _verify(self, partition: Partition, index: int, data: bytes) -> ProducedPartition | Steps[ProducedPartition]:
        """Appends a transactional batch once its partition is known to be in the transaction."""
        call = self._call
        if (denial := call.denial_of_id()) is not None:
            return _failed(index, denial)
        if self._verification is None:
            from odradek.broker.partitions.transaction_verification import BatchVerification

            self._verification = BatchVerification(
                self._broker, call.transactional_id, adds=call.adds_partitions,
                knows_transaction_abortable=call.knows_transaction_abortable,
            )  # fmt: skip
            counts = [len(topic.partition_data) for topic in call.topics[: STEP_PARTITIONS + 1]]
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
        seen: set[tuple[str, int]] = set()
        for topic in reversed(self._call.topics):
            name, _, refused = self._call.describe(topic, 0)
            if refused is not None:
                continue
            for part in reversed(topic.partition_data):
                batch = None if (name, part.index) in seen else self._batch(name, part)
                seen.add((name, part.index))
                if batch is None or isinstance(batch, ProducedPartition) or not is_transactional(batch[1]):
                    yield None
                else:
                    yield batch

    def _append_verified(
        self, verification: BatchVerification, partition: Partition, index: int, data: bytes
    ) -> ProducedPartition | Steps[ProducedPartition]:
        try:
            guard, promise = verification.result(partition)
        except KafkaError as error:
            return ProducedPartition(index, error.code)
        if promise is None:
            return self._append_batch(partition, index, data, guard)
        if not promise.resolved:
            return self._verify_later(partition, index, data, guard, promise)
        if promise.value is not None:
            return _failed(index, promise.value)
        if partition.leader_epoch != verification.term(partition):  # this one waited for an earlier one of the request
            return self._led_elsewhere(index)
        return self._append_batch(partition, index, data, guard)

    def _verify_later(
        self, partition: Partition, index: int, data: bytes, guard: Guard, promise: Deferred[KafkaError | None]
    ) -> Steps[ProducedPartition]:
        """Waits for the coordinator, which is busy, or another broker. The connection serves no later request
        meanwhile. An answer of a former term is void: another leader may have written the end of the transaction."""
        assert self._verification is not None
        epoch = self._verification.term(partition)
        refusal: KafkaError | None = yield promise
        if refusal is not None:
            return _failed(index, refusal)
        if self._broker.partition(partition.topic, index) is not partition or partition.leader_epoch != epoch:
            if partition.leader_epoch != epoch:
                return self._led_elsewhere(index)
            return ProducedPartition(index, self._broker.missing_partition(partition.topic, index))
        result = self._append_batch(partition, index, data, guard)
        return result if isinstance(result, ProducedPartition) else (yield from result)

    def _led_elsewhere(self, index: int) -> ProducedPartition:
        self.is_led_elsewhere = True
        return ProducedPartition(index, ErrorCode.not_leader_or_follower)

    def _missing(self, topic: str, index: int) -> ProducedPartition:
        """Returns the result for a partition that this broker does not lead."""
        code = self._broker.missing_partition(topic, index)
        if code is ErrorCode.not_leader_or_follower:
            self.is_led_elsewhere = True
        return ProducedPartition(index, code)

    # --- refused batches ----------------------------------------------------------------------------------------

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
        now_ms = self._broker.now_ms()
        try:
            steps = partition.log.refused_records(data, now_ms, most=self._errors_left)
            refused = yield from self._broker.workers.run(steps)
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

    # --- replicas -----------------------------------------------------------------------------------------------

    def _await_replicas(self, partition: Partition, last_offset: int) -> None:
        if self._call.acks != _ALL_REPLICAS:
            return
        if self.awaited is None:
            self.awaited = []
        done = self.results[-1][1]
        self.awaited.append(AwaitedRecords(partition, last_offset + 1, done, len(done)))

    def replication(self, client: PurgatoryClient) -> Deferred[None]:
        """Returns a promise that is resolved when the records are replicated, or the timeout ends."""
        promise: Deferred[None] = Deferred()
        awaited, self.awaited = self.awaited or [], None

        def complete(errors: list[ErrorCode]) -> None:
            for (_, _, done, number), error in zip(awaited, errors, strict=True):
                if error:
                    if error is ErrorCode.not_leader_or_follower:
                        self.is_led_elsewhere = True
                    done[number] = done[number]._replace(error_code=error)
            promise.resolve(None)

        offsets = [(row.partition, row.offset) for row in awaited]
        self._broker.purgatory.park_produce(client, offsets, self._call.timeout_ms, complete)
        return promise


def is_transactional(data: bytes) -> bool:
    """Returns whether the first batch in a client's data is transactional."""
    return len(data) > _ATTRIBUTES_LOW_BYTE and bool(data[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL)


def _failed(index: int, error: KafkaError) -> ProducedPartition:
    return ProducedPartition(index, error.code, error_message=error.message or None)
