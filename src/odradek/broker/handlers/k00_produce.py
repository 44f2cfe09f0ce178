"""Produce 3–13: batches into logs, as they came.

Versions: 5 log start in the reply, 7 zstd, 8 record errors and a message, 9 flexible, 10 a hint at the new leader,
13 topic ids. Version 0 is advertised though not served: old librdkafka looks for it, as Kafka 4 knows.
acks=0 gets no reply; where such a request fails, the connection is closed, which is all the client can notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.batches.rows import iter_records
from odradek.broker.partition import Partition
from odradek.broker.quotas import PRODUCER_BYTE_RATE
from odradek.broker.router import Hangup
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS
from odradek.wire.hot_log import ProducedPartition, produce_response

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


ADMIN_CLIENT_ID = "__admin_client"
_MAGIC_BYTE = 16
_MAGIC = 2
_LOG_OVERHEAD = 12
_SMALLEST = 14
_ATTRIBUTES_LOW_BYTE = 22
_COMPRESSION = 0x07
_TRANSACTIONAL = 0x10
_ZSTD = 4
_TOLD_WITH_LOG_START = frozenset(
    {
        ErrorCode.invalid_record,
        ErrorCode.invalid_timestamp,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_server_error,
    }
)
_NO_ID = bytes(16)
_TOLD_RECORDS = 10_000  # as many as librdkafka puts into a batch; some bound there has to be


def handle(broker: BrokerServer, context: Context, message: Any) -> bytes | None:
    version, acks = context.version, message.acks
    by_id = version >= 13
    failed = False
    topics: list[tuple[str | bytes, list[ProducedPartition]]] = []
    for asked in message.topic_data:
        if by_id:
            topic = broker.catalog.topic_by_id(asked.topic_id) if asked.topic_id is not None else None
            name = topic.name if topic is not None else None
            key: str | bytes = asked.topic_id.bytes if asked.topic_id is not None else _NO_ID
        else:
            name = key = asked.name
        refused = _refused(context, name, acks, message.transactional_id)
        parts = asked.partition_data
        if len(parts) > 1:
            parts = {part.index: part for part in parts}.values()  # named twice, the last one counts, as in Kafka
        partitions = [
            _produce(broker, version, name or "", part) if refused is None else _failed(part.index, refused)
            for part in parts
        ]
        failed = failed or any(part.error_code for part in partitions)
        topics.append((key, partitions))
    if broker.quotas.limited(PRODUCER_BYTE_RATE):
        used = context.request_bytes
        context.throttle(broker.quotas.record(PRODUCER_BYTE_RATE, context.user, context.client_id, used))
    if acks == 0:
        if failed:
            codes = {ErrorCode(part.error_code).name for _, parts in topics for part in parts if part.error_code}
            raise Hangup(f"produce without acks failed: {', '.join(sorted(codes))}")
        return None
    return produce_response(version, topics)


def _refused(context: Context, name: str | None, acks: int, transactional_id: str | None) -> KafkaError | None:
    """What is wrong with a topic as a whole."""
    if acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.invalid_required_acks)
    if name is None:
        return KafkaError(ErrorCode.unknown_topic_id)
    if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return KafkaError(ErrorCode.invalid_topic_exception)
    if transactional_id is not None:
        return KafkaError(ErrorCode.transactional_id_authorization_failed)
    return None


def _failed(index: int, error: KafkaError) -> ProducedPartition:
    return ProducedPartition(index, error.code)


def _one_batch(data: bytes) -> bytes:
    """The one batch a partition's data must be; bytes behind it that make no other are let fall, as in Kafka.

    Raises KafkaError, with a message where Kafka gives one: INVALID_RECORD for none, half a batch, two or an old
    format, CORRUPT_MESSAGE for what cannot be a batch.
    """
    end = _batch_end(data, 0)
    if not end or data[_MAGIC_BYTE] != _MAGIC:
        raise KafkaError(ErrorCode.invalid_record)
    if end == len(data):
        return data
    if _batch_end(data, end):
        raise KafkaError(ErrorCode.invalid_record)
    return data[:end]


def _batch_end(data: bytes, start: int) -> int:
    """Where the batch that begins at ``start`` ends; 0 where there is no whole one. Raises KafkaError."""
    left = len(data) - start
    if left < _LOG_OVERHEAD:
        return 0
    length = int.from_bytes(data[start + 8 : start + _LOG_OVERHEAD], "big", signed=True)
    if length < _SMALLEST:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"Record size {length} is less than the minimum record overhead ({_SMALLEST})",
        )
    if left <= _MAGIC_BYTE:
        return 0
    magic = data[start + _MAGIC_BYTE]
    if magic > _MAGIC:
        raise KafkaError(ErrorCode.corrupt_message, f"Invalid magic found in record: {magic}")
    return start + _LOG_OVERHEAD + length if left >= _LOG_OVERHEAD + length else 0


def _produce(broker: BrokerServer, version: int, topic: str, part: Any) -> ProducedPartition:
    partition = broker.partition(topic, part.index)
    if partition is None:
        return ProducedPartition(part.index, ErrorCode.unknown_topic_or_partition)
    try:
        data = _one_batch(part.records or b"")
    except KafkaError as error:
        return ProducedPartition(part.index, error.code, error_message=error.message or None)
    attributes = data[_ATTRIBUTES_LOW_BYTE] if len(data) > _ATTRIBUTES_LOW_BYTE else 0
    if version < 7 and attributes & _COMPRESSION == _ZSTD:
        return ProducedPartition(part.index, ErrorCode.unsupported_compression_type)
    if attributes & _TRANSACTIONAL:
        return ProducedPartition(part.index, ErrorCode.transactional_id_authorization_failed)
    try:
        info = partition.produce(data)
    except KafkaError as error:
        if error.code is ErrorCode.unsupported_for_message_format:
            error = KafkaError(ErrorCode.invalid_record, error.message)
        if error.code not in _TOLD_WITH_LOG_START:
            return ProducedPartition(part.index, error.code)
        guilty = _guilty(partition, data, broker.now_ms())
        text = error.message if guilty else None  # as in Kafka, told where records can be named
        start = partition.log_start_offset
        return ProducedPartition(
            part.index, error.code, log_start_offset=start, record_errors=guilty, error_message=text
        )
    return ProducedPartition(part.index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)


def _guilty(partition: Partition, data: bytes, now_ms: int) -> tuple[tuple[int, str | None], ...]:
    """Which records of a refused batch broke a rule of their topic, and how, by place in the batch.

    All of them: a client sends the others again, and those that are named never.
    """
    config = partition.log.config
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    found: list[tuple[int, str | None]] = []
    try:
        for place, row in enumerate(iter_records(data)):
            if config.is_compacted and row.key is None:
                found.append((place, f"a record without a key, and {partition.topic} is compacted"))
            elif not config.is_log_append_time and not earliest <= row.timestamp <= latest:
                found.append((place, f"timestamp {row.timestamp} is not within [{earliest}, {latest}]"))
            if len(found) == _TOLD_RECORDS:
                break
    except KafkaError:
        return ()
    return tuple(found)
