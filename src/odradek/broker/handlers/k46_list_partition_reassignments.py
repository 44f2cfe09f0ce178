"""ListPartitionReassignments 0: returns no reassignments, because there is one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import reply, rows_of_partitions
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
LISTENERS = ("client", "controller")


def handle(
    broker: BrokerServices, context: Context, message: ListPartitionReassignmentsRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    if not is_allowed_for_cluster(broker, context, Operation.DESCRIBE):
        return _refused(context, message)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}


def _refused(context: Context, message: ListPartitionReassignmentsRequest) -> Steps[list[Chunk]]:
    """Returns the reply to a client that may not describe the cluster. As in Kafka, it repeats the request's rows."""

    def row(name: str, index: int) -> dict[str, object]:
        return {"partition_index": index, "replicas": (), "adding_replicas": (), "removing_replicas": ()}

    asked = ((topic.name, topic.partition_indexes) for topic in message.topics or ())
    topics = yield from rows_of_partitions(context, "topics", asked, row)
    error = {"error_code": ErrorCode.cluster_authorization_failed, "error_message": "Cluster authorization failed."}
    return reply(context, error | {"topics": topics})
