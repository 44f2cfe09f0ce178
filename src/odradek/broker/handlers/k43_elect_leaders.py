"""ElectLeaders 0–2: elects preferred or unclean leaders.

A lone broker replies ELECTION_NOT_NEEDED for each partition with a leader: it has one replica, which leads it. A broker
of a cluster forwards the request to the controller.

* 1: the election type; an error code for the whole reply.
* 2: flexible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply, rows_of_partitions
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import MAX_CHANGE_RECORDS
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

    from odradek.broker.handlers.api import Context, ControllerServices, NodeServices
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
LISTENERS = ("client", "controller")
PREFERRED, UNCLEAN = 0, 1
_FAILED = {
    PREFERRED: (ErrorCode.preferred_leader_not_available, "The preferred leader was not available."),
    UNCLEAN: (ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."),
}
"""The replies for a partition whose replicas are all fenced."""


def handle(broker: NodeServices, context: Context, message: ElectLeadersRequest) -> Steps[list[Chunk]]:
    whole = ErrorCode.none
    kind = message.election_type if context.version >= 1 else PREFERRED
    row: Callable[[str, int], dict[str, object]] = partial(_row, broker, kind)
    if not is_allowed_for_cluster(broker, context, Operation.ALTER):
        whole, row = ErrorCode.cluster_authorization_failed, _refused
    elif kind not in _FAILED:
        whole, row = ErrorCode.invalid_request, partial(_unknown_type, kind)
    rows = message.topic_partitions
    asked: Iterable[tuple[str, Iterable[int]]]
    if rows is not None:
        asked = ((topic.topic, topic.partitions) for topic in rows)
    else:
        asked = () if whole else _without_leaders(broker)
    topics = yield from rows_of_partitions(
        context, "replica_election_results", asked, row,
        name="topic", partitions="partition_result",
    )  # fmt: skip
    return reply(context, {"error_code": whole, "replica_election_results": topics})


def handle_at_controller(
    controller: ControllerServices, context: Context, message: ElectLeadersRequest
) -> Steps[list[Chunk]]:
    from odradek.cluster.partitions.elections import Election  # a lone broker has none

    rows = message.topic_partitions
    kind = message.election_type if context.version >= 1 else PREFERRED
    is_known = kind in _FAILED or rows == ()  # as in Kafka, nothing is nothing in every type
    if not is_known or not is_allowed_for_cluster(controller, context, Operation.ALTER):
        return (yield from handle(controller, context, message))
    election = Election.UNCLEAN if kind == UNCLEAN else Election.PREFERRED
    asked = None if rows is None else [(topic.topic, topic.partitions) for topic in rows]
    promise = controller.role.registered_brokers.submit(
        lambda control, _: control.elect_leaders(election, asked), context, max_records=MAX_CHANGE_RECORDS
    )
    topics = elements(context, "replica_election_results")
    for name, results in (yield from value_of(promise)):
        partitions = elements(context, "replica_election_results", "partition_result")
        for index, code, text in results:
            partitions.add({"partition_id": index, "error_code": code, "error_message": text})
            yield None
        topics.add({"topic": name, "partition_result": partitions})
    return reply(context, {"error_code": ErrorCode.none, "replica_election_results": topics})


def _without_leaders(broker: NodeServices) -> Iterator[tuple[str, Iterable[int]]]:
    """Yields all topics, as Kafka does, each with those of its partitions that have no leader."""
    for topic in broker.catalog.topics():
        yield topic.name, (part.partition_id for part in topic.partitions if part.leader == NO_NODE)


def _unknown_type(kind: int, name: str, index: int) -> dict[str, object]:
    return {
        "partition_id": index,
        "error_code": ErrorCode.invalid_request,
        "error_message": f"Unknown election type {kind}",
    }


def _refused(name: str, index: int) -> dict[str, object]:
    code, text = ErrorCode.cluster_authorization_failed, "Cluster authorization failed."
    return {"partition_id": index, "error_code": code, "error_message": text}


def _row(broker: NodeServices, kind: int, name: str, index: int) -> dict[str, object]:
    topic = broker.catalog.topic(name)
    if topic is None:
        code, text = ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    elif not 0 <= index < topic.partition_count:
        code, text = ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    elif topic.partitions[index].leader == NO_NODE:
        code, text = _FAILED[kind]
    else:
        code, text = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    return {"partition_id": index, "error_code": code, "error_message": text}
