"""AssignReplicasToDirs 0: notes at the controller in which log directory a broker has its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.cluster.control import ReplicaDirectory
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
LISTENERS = ("controller",)


def handle(
    controller: ControllerServices, context: Context, message: AssignReplicasToDirsRequest
) -> Steps[list[Chunk]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    assigned = []
    for directory in message.directories:
        for topic in directory.topics:
            for part in topic.partitions:
                assigned.append(
                    ReplicaDirectory(topic.topic_id or NO_UUID, part.partition_index, directory.id_ or NO_UUID)
                )
                yield None
    owner = message.broker_id, message.broker_epoch
    promise = controller.role.registered_brokers.submit(
        lambda control, _: control.assign_directories(*owner, assigned), context
    )
    errors = iter((yield from value_of(promise)))
    directories = elements(context, "directories")
    for directory in message.directories:
        topics = elements(context, "directories", "topics")
        for topic in directory.topics:
            partitions = elements(context, "directories", "topics", "partitions")
            for part in topic.partitions:
                partitions.add({"partition_index": part.partition_index, "error_code": next(errors)})
                yield None
            topics.add({"topic_id": topic.topic_id, "partitions": partitions})
        directories.add({"id_": directory.id_, "topics": topics})
        yield None
    return reply(context, {"error_code": ErrorCode.none, "directories": directories})
