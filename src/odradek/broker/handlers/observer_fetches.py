"""Fetches of the metadata log at its leader: the replies of ``k01_fetch`` and ``k59_fetch_snapshot`` to observers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.controller.observer_reads import ObserverFetch, ObserverReply
from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.metadata_log.reserved_ids import METADATA_TOPIC_ID, NO_UUID
from odradek.cluster.metadata_log.observers import LogPlace, ObserverKey
from odradek.core.access.acl import Operation
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import METADATA_TOPIC
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.fetch.v18.request import FetchPartition, FetchRequest
    from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest, PartitionSnapshot

    from odradek.broker.controller.observer_reads import ObserverReads
    from odradek.broker.handlers.api import Context, ControllerServices, Reply

NO_PLACE = {"end_offset": -1, "epoch": -1}
_NOT_SAID = (1 << 63) - 1
_WITH_TOPIC_ID, _WITH_DIRECTORY, _WITH_ENDPOINTS, _WITH_WATERMARK = 13, 17, 17, 18
"""The first versions of Fetch that have ids of topics, the directory of an observer, and its high watermark. The reply
has the leader's address from 17 on, as in Kafka, although 16 has the field."""


def fetch(
    controller: ControllerServices, context: Context, message: FetchRequest, replica_id: int
) -> dict[str, object] | Deferred[Reply]:
    """Answers a fetch at once, or when records are committed or the time is over."""
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    reads = _reads(controller)
    if context.version >= 12 and message.cluster_id not in (None, controller.cluster_id):
        return _refused(ErrorCode.inconsistent_cluster_id)
    part = _only_partition(context.version, message)
    if part is None:
        return _refused(ErrorCode.invalid_request)
    asked = _asked(context.version, message, part, replica_id)
    reply = reads.fetch(asked)
    if reply.is_due(asked):
        return _fetched(controller, context, reply)
    promise: Deferred[Reply] = Deferred()
    controller.purgatory.park(
        context.connection,
        (reads,),
        1,
        asked.max_wait_ms,
        lambda wake: promise.resolve(_fetched(controller, context, reply if wake is None else reads.fetch(asked))),
    )
    return promise


def _reads(controller: ControllerServices) -> ObserverReads:
    return controller.role.registered_brokers.observer_reads


def _only_partition(version: int, message: FetchRequest) -> FetchPartition | None:
    """Returns the partition of a request for the metadata log alone."""
    if version < _WITH_TOPIC_ID or len(message.topics) != 1:
        return None
    (topic,) = message.topics
    if topic.topic_id != METADATA_TOPIC_ID or len(topic.partitions) != 1 or topic.partitions[0].partition != 0:
        return None
    return topic.partitions[0]


def _asked(version: int, message: FetchRequest, part: FetchPartition, replica_id: int) -> ObserverFetch:
    directory = (part.replica_directory_id or NO_UUID) if version >= _WITH_DIRECTORY else NO_UUID
    return ObserverFetch(
        ObserverKey(replica_id, directory),
        part.current_leader_epoch,
        part.fetch_offset,
        part.last_fetched_epoch,
        part.high_watermark if version >= _WITH_WATERMARK else _NOT_SAID,
        message.max_bytes,
        milliseconds(message.max_wait),
    )


def _refused(code: ErrorCode) -> dict[str, object]:
    return {"error_code": code, "session_id": 0, "responses": [], "node_endpoints": []}


def _fetched(controller: ControllerServices, context: Context, reply: ObserverReply) -> dict[str, object]:
    diverging, snapshot = reply.diverging, reply.snapshot
    partition: dict[str, object] = {
        "partition_index": 0,
        "error_code": reply.error,
        "high_watermark": reply.high_watermark,
        "last_stable_offset": -1,
        "log_start_offset": _reads(controller).start_offset,
        "diverging_epoch": NO_PLACE if diverging is None else _place(diverging),
        "current_leader": {"leader_id": controller.quorum.leader, "leader_epoch": controller.quorum.epoch},
        "snapshot_id": NO_PLACE if snapshot is None else _place(snapshot),
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": reply.records,
    }
    topic = {"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}
    return {
        "error_code": ErrorCode.none,
        "session_id": 0,
        "responses": [topic],
        "node_endpoints": [_leader_node(controller, context)] if context.version >= _WITH_ENDPOINTS else [],
    }


def _place(place: LogPlace) -> dict[str, object]:
    return {"end_offset": place.end_offset, "epoch": place.epoch}


def _leader_node(controller: ControllerServices, context: Context) -> dict[str, object]:
    host, port = controller.advertised_address(context)
    return {"node_id": controller.quorum.leader, "host": host, "port": port, "rack": None}


# --- FetchSnapshot ----------------------------------------------------------------------------------------------


def fetch_snapshot(
    controller: ControllerServices, context: Context, message: FetchSnapshotRequest
) -> dict[str, object]:
    """Answers with a part of a snapshot."""
    reads = _reads(controller)
    if message.cluster_id not in (None, controller.cluster_id):
        return {"error_code": ErrorCode.inconsistent_cluster_id, "topics": [], "node_endpoints": []}
    if not message.topics or not message.topics[0].partitions:
        return {"error_code": ErrorCode.invalid_request, "topics": [], "node_endpoints": []}
    name, asked = message.topics[0].name, message.topics[0].partitions[0]
    if (name, asked.partition) != (METADATA_TOPIC, 0):
        leader = {"leader_id": 0, "leader_epoch": 0}
        row = _snapshot_row(asked.partition, ErrorCode.unknown_topic_or_partition) | {"current_leader": leader}
    else:
        row = _metadata_snapshot(controller, reads, asked, message.max_bytes)
    return {
        "error_code": ErrorCode.none,
        "topics": [{"name": name, "partitions": [row]}],
        "node_endpoints": [_leader_node(controller, context)],
    }


def _metadata_snapshot(
    controller: ControllerServices, reads: ObserverReads, asked: PartitionSnapshot, max_bytes: int
) -> dict[str, object]:
    leader = {"current_leader": {"leader_id": controller.quorum.leader, "leader_epoch": controller.quorum.epoch}}
    if refusal := reads.check_leader(asked.current_leader_epoch):
        return _snapshot_row(0, refusal) | leader
    place = LogPlace(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    try:
        part = reads.read_snapshot(place, asked.position, max_bytes)
    except KafkaError as error:
        return _snapshot_row(0, error.code) | leader
    content = {"size": part.size, "position": part.position, "unaligned_records": part.data}
    return _snapshot_row(0, ErrorCode.none) | leader | content | {"snapshot_id": _place(place)}


def _snapshot_row(index: int, error: ErrorCode) -> dict[str, object]:
    return {
        "index": index,
        "error_code": error,
        "snapshot_id": {"end_offset": 0, "epoch": 0},
        "size": 0,
        "position": 0,
        "unaligned_records": b"",
    }
