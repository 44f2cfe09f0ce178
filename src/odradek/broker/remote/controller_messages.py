"""The messages between a broker and its controller: requests of the broker's state machines, and what they take from
replies.

Each has the newest version that Apache Kafka 4.3 has. ``cluster/nodes/lifecycle`` registers and sends heartbeats,
``cluster/metadata_log/log_observer`` reads the log, leaders ask for ISRs (``cluster/partitions/isr_proposals``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.metadata_log.reserved_ids import METADATA_TOPIC_ID, NO_UUID
from odradek.broker.remote.node_request import NodeRequest, schema_request
from odradek.cluster.metadata_log.log_observer import MAX_WAIT_MS, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.metadata_log.observers import LogPlace, ObserverKey
from odradek.cluster.nodes.lifecycle import HeartbeatReply
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.core.errors import ErrorCode
from odradek.core.ids import METADATA_TOPIC, NO_NODE, NO_OFFSET

if TYPE_CHECKING:
    from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData
    from kio.schema.assign_replicas_to_dirs.v0.response import AssignReplicasToDirsResponse
    from kio.schema.broker_heartbeat.v2.response import BrokerHeartbeatResponse
    from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
    from kio.schema.fetch.v18.response import FetchResponse
    from kio.schema.fetch_snapshot.v1.response import FetchSnapshotResponse

FETCH_BYTES = 8 << 20
"""The most bytes of a reply, as in Kafka's Raft client."""
_REGISTRATION, _HEARTBEAT, _FETCH, _FETCH_SNAPSHOT = (62, 4), (63, 2), (1, 18), (59, 1)
_ALTER_PARTITION, _ASSIGN_REPLICAS_TO_DIRS = (56, 3), (73, 0)
IsrAnswer = dict[tuple[UUID, int], IsrState | ErrorCode]
"""What the controller has decided on each partition, by topic id and index."""


def registration(asked: NewBroker) -> NodeRequest[int | ErrorCode]:
    listeners = [
        {"name": one.name, "host": one.host, "port": one.port, "security_protocol": one.security_protocol}
        for one in asked.endpoints
    ]
    features = [
        {"name": one.name, "min_supported_version": one.lowest, "max_supported_version": one.highest}
        for one in asked.features
    ]
    body: dict[str, object] = {
        "broker_id": asked.broker_id,
        "cluster_id": asked.cluster_id,
        "incarnation_id": asked.incarnation_id,
        "listeners": listeners,
        "features": features,
        "rack": asked.rack,
        "is_migrating_zk_broker": asked.is_migrating,
        "log_dirs": list(asked.directories),
        "previous_broker_epoch": NO_OFFSET if asked.previous_epoch is None else asked.previous_epoch,
    }
    return schema_request(*_REGISTRATION, body, _registered)


def _registered(reply: BrokerRegistrationResponse) -> int | ErrorCode:
    """Returns the broker epoch, or the error."""
    return reply.error_code or reply.broker_epoch


def heartbeat(asked: BrokerHeartbeat) -> NodeRequest[HeartbeatReply | ErrorCode]:
    body: dict[str, object] = {
        "broker_id": asked.broker_id,
        "broker_epoch": asked.broker_epoch,
        "current_metadata_offset": asked.metadata_offset,
        "want_fence": asked.wants_fence,
        "want_shut_down": asked.wants_shutdown,
        "offline_log_dirs": [],
        "cordoned_log_dirs": None,
    }
    return schema_request(*_HEARTBEAT, body, _heard)


def _heard(reply: BrokerHeartbeatResponse) -> HeartbeatReply | ErrorCode:
    if reply.error_code:
        return reply.error_code
    return HeartbeatReply(reply.is_caught_up, reply.is_fenced, reply.should_shut_down)


def fetch(asked: RecordsRequest, observer: ObserverKey, cluster_id: str) -> NodeRequest[RecordsReply]:
    part = {
        "partition": 0,
        "current_leader_epoch": asked.leader_epoch,
        "fetch_offset": asked.offset,
        "last_fetched_epoch": asked.last_epoch,
        "log_start_offset": NO_OFFSET,
        "partition_max_bytes": 0,
        "replica_directory_id": observer.directory,
        "high_watermark": asked.high_watermark,
    }
    body: dict[str, object] = {
        "cluster_id": cluster_id,
        "replica_state": {"replica_id": observer.node_id, "replica_epoch": -1},
        "max_wait": MAX_WAIT_MS,
        "min_bytes": 0,
        "max_bytes": FETCH_BYTES,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": METADATA_TOPIC_ID, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return schema_request(*_FETCH, body, _fetched)


def _fetched(reply: FetchResponse) -> RecordsReply:
    if reply.error_code or not reply.responses or not reply.responses[0].partitions:
        return RecordsReply(reply.error_code or ErrorCode.unknown_server_error, NO_NODE, NO_NODE)
    part = reply.responses[0].partitions[0]
    diverging, snapshot = part.diverging_epoch, part.snapshot_id
    return RecordsReply(
        part.error_code,
        part.current_leader.leader_id,
        part.current_leader.leader_epoch,
        part.high_watermark,
        bytes(part.records or b""),
        LogPlace(diverging.end_offset, diverging.epoch) if diverging.epoch >= 0 else None,
        LogPlace(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 and snapshot.end_offset >= 0 else None,
    )


def fetch_snapshot(asked: PartRequest, observer: ObserverKey, cluster_id: str) -> NodeRequest[PartReply]:
    part = {
        "partition": 0,
        "current_leader_epoch": asked.leader_epoch,
        "snapshot_id": {"end_offset": asked.snapshot.end_offset, "epoch": asked.snapshot.epoch},
        "position": asked.position,
        "replica_directory_id": observer.directory,
    }
    body: dict[str, object] = {
        "cluster_id": cluster_id,
        "replica_id": observer.node_id,
        "max_bytes": FETCH_BYTES,
        "topics": [{"name": METADATA_TOPIC, "partitions": [part]}],
    }
    return schema_request(*_FETCH_SNAPSHOT, body, _part_of_snapshot)


def _part_of_snapshot(reply: FetchSnapshotResponse) -> PartReply:
    if reply.error_code or not reply.topics or not reply.topics[0].partitions:
        return PartReply(reply.error_code or ErrorCode.unknown_server_error, NO_NODE, NO_NODE)
    part = reply.topics[0].partitions[0]
    leader = part.current_leader
    data = bytes(part.unaligned_records)
    return PartReply(part.error_code, leader.leader_id, leader.leader_epoch, part.size, part.position, data)


def isr_changes(broker_id: int, broker_epoch: int, asked: Iterable[IsrProposal]) -> NodeRequest[IsrAnswer | ErrorCode]:
    """Returns the request of a leader for the ISRs of partitions. Its answer is an error for the whole request
    (STALE_BROKER_EPOCH, NOT_CONTROLLER, …), or has the state of each partition after its change, or why it has none."""
    topics: dict[UUID, list[dict[str, object]]] = {}
    for change in asked:
        members = [{"broker_id": one.broker_id, "broker_epoch": one.broker_epoch} for one in change.isr]
        part = {
            "partition_index": change.partition_id,
            "leader_epoch": change.leader_epoch,
            "new_isr_with_epochs": members,
            "leader_recovery_state": change.recovery_state,
            "partition_epoch": change.partition_epoch,
        }
        topics.setdefault(UUID(bytes=change.topic_id.bytes), []).append(part)
    body: dict[str, object] = {
        "broker_id": broker_id,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()],
    }
    return schema_request(*_ALTER_PARTITION, body, _isrs)


def _isrs(reply: AlterPartitionResponse) -> IsrAnswer | ErrorCode:
    if reply.error_code:
        return reply.error_code
    return {
        (topic.topic_id or NO_UUID, part.partition_index): _isr(part)
        for topic in reply.topics
        for part in topic.partitions
    }


def _isr(part: PartitionData) -> IsrState | ErrorCode:
    if part.error_code:
        return part.error_code
    return IsrState(part.leader_id, part.leader_epoch, part.isr, part.leader_recovery_state, part.partition_epoch)


def directory_of_replicas(
    broker_id: int, broker_epoch: int, directory: UUID, replicas: Mapping[UUID, Sequence[int]]
) -> NodeRequest[ErrorCode]:
    """Returns the request of a broker that says in which directory it has these replicas: partitions by topic id. A
    topic that is deleted meanwhile is no error."""
    topics = [
        {"topic_id": topic_id, "partitions": [{"partition_index": index} for index in indexes]}
        for topic_id, indexes in replicas.items()
    ]
    body: dict[str, object] = {
        "broker_id": broker_id,
        "broker_epoch": broker_epoch,
        "directories": [{"id_": directory, "topics": topics}],
    }
    return schema_request(*_ASSIGN_REPLICAS_TO_DIRS, body, _assigned)


def _assigned(reply: AssignReplicasToDirsResponse) -> ErrorCode:
    return reply.error_code
