"""ListOffsets 1–11: where a partition begins and ends, and which offset belongs to a time.

Special times: −1 latest, −2 earliest; from 7 on −3 the offset of the largest timestamp; from 8 −4 earliest local;
from 9 −5 latest tiered; from 11 −6 earliest not yet uploaded. Others below 0, and these in older versions, get
UNSUPPORTED_VERSION (behaviour 47). Versions: 2 isolation level, 4 leader epochs, 6 flexible, 10 a timeout.
Readers of committed records see no further than the last stable offset (behaviour 50).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from odradek.broker.long_replies import elements, reply
from odradek.broker.partition import Partition
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest

    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 11)
IS_FREQUENT = True
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


AT_ONCE = 100
"""So many partitions are looked up without a break; more are looked up in shares of the loop."""

_Place = tuple[int, int, int]
"""Offset, timestamp, leader epoch."""
Parts = dict[int, "ListOffsetsPartition | None"]
"""What is asked for of a topic, by partition; ``None`` for one that is named twice."""


def handle(
    broker: BrokerServices, context: Context, message: ListOffsetsRequest
) -> dict[str, Any] | Steps[list[Chunk]]:
    if sum(len(topic.partitions) for topic in message.topics) > AT_ONCE or _names_times(message):
        return _in_steps(broker, context, message)
    asked: dict[str, Parts] = {}
    for topic in message.topics:
        _add(asked.setdefault(topic.name, {}), topic.partitions)
    return {
        "topics": [
            {"name": name, "partitions": [_answer(broker, context, message, (name, *row)) for row in parts.items()]}
            for name, parts in asked.items()
        ]
    }


def _names_times(message: ListOffsetsRequest) -> bool:
    """Whether records are to be looked for, which takes steps."""
    return any(
        part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP for topic in message.topics for part in topic.partitions
    )


def _in_steps(broker: BrokerServices, context: Context, message: ListOffsetsRequest) -> Steps[list[Chunk]]:
    asked: dict[str, Parts] = {}
    for topic in message.topics:
        for first in range(0, len(topic.partitions), AT_ONCE):
            _add(asked.setdefault(topic.name, {}), topic.partitions[first : first + AT_ONCE])
            yield None
    topics = elements(context, "topics")
    for name, parts in asked.items():
        partitions = elements(context, "topics", "partitions")
        for row in parts.items():
            answer = _answer(broker, context, message, (name, *row))
            partitions.add(answer if isinstance(answer, dict) else (yield from answer))
            yield None
        topics.add({"name": name, "partitions": partitions})
    return reply(context, {"topics": topics})


def _add(parts: Parts, more: Iterable[ListOffsetsPartition]) -> None:
    for part in more:
        parts[part.partition_index] = None if part.partition_index in parts else part


def _answer(
    broker: BrokerServices,
    context: Context,
    message: ListOffsetsRequest,
    asked: tuple[str, int, ListOffsetsPartition | None],
) -> dict[str, Any] | Steps[dict[str, Any]]:
    name, index, part = asked
    committed = context.version >= 2 and message.isolation_level == 1
    try:
        if part is None:
            raise KafkaError(ErrorCode.invalid_request, "the partition is named twice")
        found = _look_up(broker, context.version, name, part, committed)
    except KafkaError as error:
        return _entry(index, error.code)
    return _entry(index, ErrorCode.none, found) if isinstance(found, tuple) else _searched(index, found)


def _searched(index: int, search: Steps[_Place]) -> Steps[dict[str, Any]]:
    try:
        return _entry(index, ErrorCode.none, (yield from search))
    except KafkaError as error:
        return _entry(index, error.code)


def _entry(index: int, code: ErrorCode, found: _Place = (-1, -1, -1)) -> dict[str, Any]:
    offset, timestamp, epoch = found
    return {
        "partition_index": index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _look_up(
    broker: BrokerServices, version: int, topic: str, part: ListOffsetsPartition, committed: bool
) -> _Place | Steps[_Place]:
    """(offset, timestamp, leader epoch); a time is looked up in steps. Raises KafkaError."""
    time = part.timestamp
    if time < 0 and version < _SINCE.get(time, 1 << 15):
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {time} means nothing in version {version}")
    partition = broker.partition(topic, part.partition_index)
    if partition is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    partition.check_online()
    partition.check_epoch(part.current_leader_epoch if version >= 4 else -1)
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if time == LATEST:
        return limit, -1, partition.leader_epoch
    if time in (EARLIEST, EARLIEST_LOCAL):
        return _earliest(partition)
    if time == LATEST_TIERED:
        return -1, -1, -1
    if time == EARLIEST_PENDING_UPLOAD:
        return -1, -1, -1
    return _search(broker, partition, time, limit)


def _search(broker: BrokerServices, partition: Partition, time: int, limit: int) -> Steps[_Place]:
    """The record of a time, unless it is one at ``limit`` or behind it."""
    log = partition.log
    steps = log.search_max_timestamp() if time == MAX_TIMESTAMP else log.search_timestamp(time)
    found = yield from broker.workers.run(steps)
    if found is None or (found.offset >= limit and time != MAX_TIMESTAMP):
        return -1, -1, -1
    return found.offset, found.timestamp, found.leader_epoch


def _earliest(partition: Partition) -> _Place:
    start = partition.log_start_offset
    return start, -1, partition.log.epochs.epoch_of(start)
