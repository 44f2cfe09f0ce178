"""OffsetForLeaderEpoch 2–4: returns the end offset of a leader epoch.

* 3: the id of the requesting replica.
* 4: flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check, is_allowed_for_cluster
from odradek.broker.handlers.long_replies import reply, rows_of_partitions
from odradek.core.access.acl import Operation, Resource
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
    is_broker = is_allowed_for_cluster(broker, context, Operation.CLUSTER_ACTION, logs_denial=False)
    row = partial(_row, broker, None if is_broker else context)
    topics = yield from rows_of_partitions(context, "topics", asked, row, name="topic")
    return reply(context, {"topics": topics})


def _row(
    broker: BrokerServices, client: Context | None, topic: str, part: OffsetForLeaderPartition
) -> dict[str, object]:
    """Returns the row of a partition. ``client``: a client that is no broker; it needs a permission."""
    code, epoch, end_offset = ErrorCode.none, -1, -1
    partition = broker.partition(topic, part.partition)
    try:
        if client is not None:
            check(broker, client, Operation.DESCRIBE, Resource.TOPIC, topic)
        if partition is None:
            raise KafkaError(broker.missing_partition(topic, part.partition))
        partition.check_online()
        partition.check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.epoch_end_offset(part.leader_epoch)
    except KafkaError as error:
        code = error.code
    return {"error_code": code, "partition": part.partition, "leader_epoch": epoch, "end_offset": end_offset}
