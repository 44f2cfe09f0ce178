"""AlterPartitionReassignments 0–1: accepts only the current assignment. This release moves no replicas.

The current assignment changes nothing. Every other assignment gets Kafka's error, or that of the controller.

* 1: ``allow_replication_factor_change``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import reply, rows_of_partitions
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
    )

    from odradek.broker.handlers.api import BrokerServices, Context, ControllerServices, NodeServices
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

    Check = Callable[[NodeServices, str, int, "tuple[int, ...] | None"], None]

VERSIONS = (0, 1)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: AlterPartitionReassignmentsRequest) -> Steps[list[Chunk]]:
    return _answer(broker, context, message, _check)


def handle_at_controller(
    controller: ControllerServices, context: Context, message: AlterPartitionReassignmentsRequest
) -> Steps[list[Chunk]]:
    return _answer(controller, context, message, _check_at_controller)


def _answer(
    broker: NodeServices, context: Context, message: AlterPartitionReassignmentsRequest, check: Check
) -> Steps[list[Chunk]]:
    if not is_allowed_for_cluster(broker, context, Operation.ALTER):
        return (yield from _refused(context, message))
    if not message.topics:  # Apache Kafka ignores the other fields of such a request
        empty = {"allow_replication_factor_change": True, "error_code": ErrorCode.none, "error_message": ""}
        return reply(context, empty | {"responses": ()})
    asked = ((topic.name, topic.partitions) for topic in message.topics)
    topics = yield from rows_of_partitions(context, "responses", asked, partial(_row, broker, check))
    return reply(
        context,
        {
            "allow_replication_factor_change": context.version < 1 or message.allow_replication_factor_change,
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": topics,
        },
    )


def _refused(context: Context, message: AlterPartitionReassignmentsRequest) -> Steps[list[Chunk]]:
    """Returns the reply to a client that may not alter the cluster. Each partition has the error, too."""
    error = {"error_code": ErrorCode.cluster_authorization_failed, "error_message": "Cluster authorization failed."}

    def row(name: str, part: ReassignablePartition) -> dict[str, object]:
        return {"partition_index": part.partition_index} | error

    asked = ((topic.name, topic.partitions) for topic in message.topics)
    topics = yield from rows_of_partitions(context, "responses", asked, row)
    return reply(context, {"allow_replication_factor_change": True, "responses": topics} | error)


def _row(broker: NodeServices, check: Check, name: str, part: ReassignablePartition) -> dict[str, object]:
    code, text = ErrorCode.none, None
    try:
        check(broker, name, part.partition_index, part.replicas)
    except KafkaError as error:
        code, text = error.code, error.message or None
    return {"partition_index": part.partition_index, "error_code": code, "error_message": text}


def _check(broker: NodeServices, name: str, index: int, replicas: tuple[int, ...] | None) -> None:
    """Raises KafkaError. A lone broker is the only possible replica."""
    topic = broker.catalog.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {name}.")
    if not 0 <= index < topic.partition_count:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    broker.catalog.check_replicas(tuple(replicas))


def _check_at_controller(broker: NodeServices, name: str, index: int, replicas: tuple[int, ...] | None) -> None:
    _check(broker, name, index, replicas)
    topic = broker.catalog.topic(name)
    if topic is not None and replicas is not None and tuple(replicas) != topic.partitions[index].replicas:
        text = f"The replicas of {name}-{index} cannot move: this release of Odradek moves none to other brokers."
        raise KafkaError(ErrorCode.invalid_replica_assignment, text)
