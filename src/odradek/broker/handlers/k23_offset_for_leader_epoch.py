"""OffsetForLeaderEpoch 2–4: where a leader's epoch ended. 3 names the asking replica, 4 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.long_replies import elements, reply
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.scheduler import Steps
    from odradek.broker.server import BrokerServer
    from odradek.wire.hot_log import Chunk


def handle(broker: BrokerServer, context: Context, message: Any) -> Steps[list[Chunk]]:
    topics = elements(context, "topics")
    for topic in message.topics:
        partitions = elements(context, "topics", "partitions")
        for part in topic.partitions:
            partitions.add(_answer(broker, topic.topic, part))
            yield None
        topics.add({"topic": topic.topic, "partitions": partitions})
        yield None
    return reply(context, {"topics": topics})


def _answer(broker: BrokerServer, topic: str, part: Any) -> dict[str, Any]:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    partition = broker.partition(topic, part.partition)
    try:
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition.check_online()
        partition.check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.epoch_end_offset(part.leader_epoch)
    except KafkaError as error:
        code = error.code
    return {"error_code": code, "partition": part.partition, "leader_epoch": epoch, "end_offset": end_offset}
