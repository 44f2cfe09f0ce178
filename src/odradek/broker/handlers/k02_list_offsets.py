"""ListOffsets 1–11: where a partition begins and ends, and which offset belongs to a time.

Special times: −1 latest, −2 earliest; from 7 on −3 the offset of the largest timestamp; from 8 −4 earliest local;
from 9 −5 latest tiered; from 11 −6 earliest not yet uploaded. Others below 0, and these in older versions, get
UNSUPPORTED_VERSION (behaviour 47). Versions: 2 isolation level, 4 leader epochs, 6 flexible, 10 a timeout.
Readers of committed records see no further than the last stable offset (behaviour 50).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from odradek.broker.partition import Partition
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    committed = getattr(message, "isolation_level", 0) == 1
    asked = Counter((topic.name, part.partition_index) for topic in message.topics for part in topic.partitions)
    topics = []
    for topic in message.topics:
        answers = []
        for part in {part.partition_index: part for part in topic.partitions}.values():
            try:
                if asked[topic.name, part.partition_index] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "the partition is named twice")
                offset, timestamp, epoch = _look_up(broker, context.version, topic.name, part, committed)
                code = ErrorCode.none
            except KafkaError as error:
                code, offset, timestamp, epoch = error.code, -1, -1, -1
            answers.append(
                {
                    "partition_index": part.partition_index,
                    "error_code": code,
                    "timestamp": timestamp,
                    "offset": offset,
                    "leader_epoch": epoch,
                }
            )
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


def _look_up(broker: BrokerServer, version: int, topic: str, part: Any, committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch). Raises KafkaError."""
    time = part.timestamp
    if time < 0 and version < _SINCE.get(time, 1 << 15):
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {time} means nothing in version {version}")
    partition = broker.partition(topic, part.partition_index)
    if partition is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    partition.check_online()
    partition.check_epoch(getattr(part, "current_leader_epoch", -1))
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if time == LATEST:
        return limit, -1, partition.leader_epoch
    if time in (EARLIEST, EARLIEST_LOCAL):
        return _earliest(partition)
    if time == LATEST_TIERED:
        return -1, -1, -1
    if time == EARLIEST_PENDING_UPLOAD:
        return -1, -1, -1
    found = partition.log.max_timestamp() if time == MAX_TIMESTAMP else partition.log.find_timestamp(time)
    if found is None or (found.offset >= limit and time != MAX_TIMESTAMP):
        return -1, -1, -1
    return found.offset, found.timestamp, found.leader_epoch


def _earliest(partition: Partition) -> tuple[int, int, int]:
    start = partition.log_start_offset
    return start, -1, partition.log.epochs.epoch_of(start)
