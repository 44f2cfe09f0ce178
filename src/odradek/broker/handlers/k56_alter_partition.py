"""AlterPartition 2–3: the ISR of partitions, as their leader asks for it.

* 2: the reply has Kafka's present codes; the request names topics by their ids.
* 3: each member of the ISR with its broker epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica

if TYPE_CHECKING:
    from kio.schema.alter_partition.v3.request import AlterPartitionRequest, PartitionData

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (2, 3)
LISTENERS = ("controller",)


def handle(controller: ControllerServices, context: Context, message: AlterPartitionRequest) -> Steps[list[Chunk]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    if not message.topics:  # as in Kafka, also for an old broker epoch
        return reply(context, {"error_code": ErrorCode.none, "topics": ()})
    asked = []
    for topic in message.topics:
        for part in topic.partitions:
            asked.append(_change(context.version, topic.topic_id or NO_UUID, part))
            yield None
    leader = message.broker_id, message.broker_epoch
    promise = controller.role.registered_brokers.submit(
        lambda control, _: control.change_isrs(*leader, asked, context.correlation_id), context
    )
    results = iter((yield from value_of(promise)))
    topics = elements(context, "topics")
    for topic in message.topics:
        partitions = elements(context, "topics", "partitions")
        for part in topic.partitions:
            partitions.add({"partition_index": part.partition_index} | _row(next(results)))
            yield None
        topics.add({"topic_id": topic.topic_id, "partitions": partitions})
    return reply(context, {"error_code": ErrorCode.none, "topics": topics})


def _change(version: int, topic_id: UUID, part: PartitionData) -> IsrProposal:
    if version < 3:
        isr = tuple(map(FetchingReplica, part.new_isr))  # type: ignore[attr-defined]  # a field of version 2
    else:
        isr = tuple(FetchingReplica(member.broker_id, member.broker_epoch) for member in part.new_isr_with_epochs)
    return IsrProposal(
        topic_id, part.partition_index, part.leader_epoch, part.partition_epoch, isr, part.leader_recovery_state
    )


def _row(result: IsrState | ErrorCode) -> dict[str, object]:
    """Returns the rest of a partition's row. As in Kafka, a refused change has none of the partition's values."""
    if not isinstance(result, IsrState):
        values: dict[str, object] = {"leader_id": 0, "leader_epoch": 0, "isr": (), "partition_epoch": 0}
        return values | {"error_code": result, "leader_recovery_state": 0}
    return {
        "error_code": ErrorCode.none,
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": result.recovery_state,
        "partition_epoch": result.partition_epoch,
    }
