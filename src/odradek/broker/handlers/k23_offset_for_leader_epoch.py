"""OffsetForLeaderEpoch 2–4: returns the end offset of a leader epoch.

* 3: the id of the requesting replica.
* 4: flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.long_replies import reply, rows_of_partitions
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (2, 4)
IS_FREQUENT = True


def handle(broker: BrokerServices, context: Context, message: OffsetForLeaderEpochRequest) -> Steps[list[Chunk]]:
    asked = ((topic.topic, topic.partitions) for topic in message.topics)
    topics = yield from rows_of_partitions(context, "topics", asked, partial(_row, broker), name="topic")
    return reply(context, {"topics": topics})


def _row(broker: BrokerServices, topic: str, part: OffsetForLeaderPartition) -> dict[str, Any]:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    partition = broker.partition(topic, part.partition)
    try:
        if partition is None:
            raise KafkaError(broker.missing_partition(topic, part.partition))
        partition.check_online()
        partition.check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.epoch_end_offset(part.leader_epoch)
    except KafkaError as error:
        code = error.code
    return {"error_code": code, "partition": part.partition, "leader_epoch": epoch, "end_offset": end_offset}
