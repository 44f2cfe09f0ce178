"""ListOffsets 1–11: returns an offset of a partition for a timestamp.

All versions have the special timestamps −2 for the log start offset and −1 for the high watermark (with read_committed:
for the last stable offset).

* 2: isolation level.
* 4: leader epochs.
* 6: flexible.
* 7: special timestamp −3: the offset of the largest timestamp.
* 8: special timestamp −4: the earliest local offset.
* 9: special timestamp −5: the latest tiered offset.
* 10: a timeout.
* 11: special timestamp −6: the earliest offset that is not uploaded yet.

A special timestamp in an older version gets UNSUPPORTED_VERSION, and so does any other negative timestamp
(behaviour 47). With read_committed, a search finds only records below the last stable offset (behaviour 50).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.long_lists import count_in_steps
from odradek.broker.partitions.partition import Partition
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 11)
IS_FREQUENT = True
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


AT_ONCE = 100
"""The most partitions that a request looks up in one step. A longer request is served in steps."""

_Result = tuple[int, int, int]
"""Offset, timestamp, leader epoch. All are -1 if there is no result."""
Parts = dict[int, "ListOffsetsPartition | None"]
"""The entries of one topic by partition; ``None`` for a partition with two entries."""


def handle(
    broker: BrokerServices, context: Context, message: ListOffsetsRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    topics = message.topics
    if len(topics) > AT_ONCE or sum([len(topic.partitions) for topic in topics]) > AT_ONCE or _names_times(message):
        return _in_steps(broker, context, message)
    by_topic: dict[str, Parts] = {}
    for topic in message.topics:
        _add(by_topic.setdefault(topic.name, {}), topic.partitions)
    return {
        "topics": [
            {
                "name": name,
                "partitions": [_partition_row(broker, context, message, (name, *part)) for part in parts.items()],
            }
            for name, parts in by_topic.items()
        ]
    }


def _names_times(message: ListOffsetsRequest) -> bool:
    """Returns whether the request searches for records, which is done in steps."""
    return any(
        part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP for topic in message.topics for part in topic.partitions
    )


def _in_steps(broker: BrokerServices, context: Context, message: ListOffsetsRequest) -> Steps[list[Chunk]]:
    """Serves a long request. It keeps entries only of the present topic, and of topics that the request has twice."""
    times = yield from count_in_steps(topic.name for topic in message.topics)
    twice: dict[str, Parts] = {}
    for topic in message.topics:
        if times[topic.name] > 1:
            yield from _add_in_steps(twice.setdefault(topic.name, {}), topic.partitions)
        yield None
    topics = elements(context, "topics")
    for topic in message.topics:
        name = topic.name
        parts = twice.pop(name, None) if times[name] > 1 else {}
        if parts is None:  # the topic has its row
            yield None
            continue
        if times[name] == 1:
            yield from _add_in_steps(parts, topic.partitions)
        partitions = elements(context, "topics", "partitions")
        for part in parts.items():
            row = _partition_row(broker, context, message, (name, *part))
            partitions.add(row if isinstance(row, dict) else (yield from row))
            yield None
        topics.add({"name": name, "partitions": partitions})
        broker.leftovers.add(parts)
    broker.leftovers.add(times)
    return reply(context, {"topics": topics})


def _add_in_steps(parts: Parts, more: Sequence[ListOffsetsPartition]) -> Steps[None]:
    for first in range(0, len(more), AT_ONCE):
        _add(parts, more[first : first + AT_ONCE])
        yield None


def _add(parts: Parts, more: Iterable[ListOffsetsPartition]) -> None:
    for part in more:
        parts[part.partition_index] = None if part.partition_index in parts else part


def _partition_row(
    broker: BrokerServices,
    context: Context,
    message: ListOffsetsRequest,
    item: tuple[str, int, ListOffsetsPartition | None],
) -> dict[str, object] | Steps[dict[str, object]]:
    name, index, part = item
    committed = context.version >= 2 and message.isolation_level == 1
    try:
        check(broker, context, Operation.DESCRIBE, Resource.TOPIC, name)
        if part is None:
            raise KafkaError(ErrorCode.invalid_request, "duplicate partition")
        if message.replica_id >= 0 and part.timestamp == LATEST:
            result: _Result | Steps[_Result] = _log_end(broker, name, part)
        else:
            result = _look_up(broker, context.version, name, part, committed)
    except KafkaError as error:
        return _entry(index, error.code)
    return _entry(index, ErrorCode.none, result) if isinstance(result, tuple) else _search_entry(index, result)


def _search_entry(index: int, search: Steps[_Result]) -> Steps[dict[str, object]]:
    try:
        return _entry(index, ErrorCode.none, (yield from search))
    except KafkaError as error:
        return _entry(index, error.code)


def _entry(index: int, code: ErrorCode, result: _Result = (-1, -1, -1)) -> dict[str, object]:
    offset, timestamp, epoch = result
    return {
        "partition_index": index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _look_up(
    broker: BrokerServices, version: int, topic: str, part: ListOffsetsPartition, committed: bool
) -> _Result | Steps[_Result]:
    """Returns the result, or steps that return it if records have to be searched. Raises KafkaError."""
    time = part.timestamp
    if time < 0 and version < _SINCE.get(time, 1 << 15):
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {time} is not supported in version {version}")
    partition = broker.partition(topic, part.partition_index)
    if partition is None:
        raise KafkaError(broker.missing_partition(topic, part.partition_index))
    partition.check_online()
    partition.check_epoch(part.current_leader_epoch if version >= 4 else -1)
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if time == LATEST:
        _check_end_known(partition, version)
        return limit, -1, partition.leader_epoch
    if time in (EARLIEST, EARLIEST_LOCAL):
        return _earliest(partition)
    if time == LATEST_TIERED:
        return -1, -1, -1
    if time == EARLIEST_PENDING_UPLOAD:
        return -1, -1, -1
    return _search(broker, version, partition, time, limit)


def _log_end(broker: BrokerServices, topic: str, part: ListOffsetsPartition) -> _Result:
    """Returns the log end for a broker that follows the partition: its log goes beyond the high watermark."""
    partition = broker.partition(topic, part.partition_index)
    if partition is None:
        raise KafkaError(broker.missing_partition(topic, part.partition_index))
    partition.check_online()
    partition.check_epoch(part.current_leader_epoch)
    return partition.log_end_offset, -1, partition.leader_epoch


def _check_end_known(partition: Partition, version: int) -> None:
    """Raises OFFSET_NOT_AVAILABLE if a new leader does not know the end of the committed records yet.

    Versions before 5 do not have this code, and get LEADER_NOT_AVAILABLE, which clients repeat, too."""
    try:
        partition.check_end_known()
    except KafkaError as error:
        if version < 5:
            raise KafkaError(ErrorCode.leader_not_available, error.message) from error
        raise


def _search(broker: BrokerServices, version: int, partition: Partition, time: int, limit: int) -> Steps[_Result]:
    """Finds the first record that is not older than ``time``; for MAX_TIMESTAMP, the record with the largest timestamp.
    There is no result for a record at or after the offset ``limit``."""
    log = partition.log
    steps = log.search_max_timestamp() if time == MAX_TIMESTAMP else log.search_timestamp(time)
    record = yield from broker.workers.run(steps)
    if record is None or record.offset >= limit:
        _check_end_known(partition, version)
        return -1, -1, -1
    return record.offset, record.timestamp, record.leader_epoch


def _earliest(partition: Partition) -> _Result:
    start = partition.log_start_offset
    return start, -1, partition.log.epochs.epoch_of(start)
