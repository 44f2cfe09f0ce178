"""The ISR that a leader asks for: AlterPartition at Kafka's ReplicationControlManager (KIP-497, 841, 903).

A leader adds followers that have caught up, and removes those that lag. The controller accepts the whole new ISR of a
partition or refuses it. Each accepted change raises the partition epoch, so a request with an older one is refused.

A leader that gets no answer sends its request again over another connection. A refusal raises no epoch, so the former
copy would still be good, and it may come after the later one: a network that works again delivers both. The leader has
the answer to the later copy then, and does not expect another ISR. So ``NewestRequests`` refuses the former copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.catalog.records import Id16, MetadataRecord
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import Topic
from odradek.cluster.cluster_catalog import ControlResult, ControlSteps
from odradek.cluster.partitions.elections import RECOVERED, RECOVERING, partition_change
from odradek.cluster.partitions.partition_changes import PartitionChanges
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import CORRELATION_IDS, NO_EPOCH, NO_NODE, FetchingReplica
from odradek.core.pace import Pace


class IsrProposal(NamedTuple):
    """A partition's new ISR, as its leader asks for it. ``isr``: each with the epoch of the incarnation that has caught
    up; an unknown one is not checked. ``leader_epoch`` and ``partition_epoch``: those that the leader has seen.
    ``recovery_state``: 1 until the leader has recovered from an unclean election."""

    topic_id: Id16
    partition_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[FetchingReplica, ...]
    recovery_state: int = RECOVERED


class IsrState(NamedTuple):
    """The state of a partition after an accepted change."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    recovery_state: int
    partition_epoch: int


class NewestRequests:
    """The newest AlterPartition of each broker. A broker numbers its requests, over all of its connections.

    It belongs to one controller: what another controller has answered is not known here."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, int]] = {}
        """Broker → its broker epoch and the number of its newest request."""

    def check(self, broker_id: int, broker_epoch: int, number: int) -> None:
        """Notes a request. Raises KafkaError (REQUEST_TIMED_OUT) for one that comes again, or after a later one of the
        same incarnation. Numbers begin again at 0 after 2³¹ − 1."""
        known_epoch, newest = self._numbers.get(broker_id, (NO_EPOCH, 0))
        if known_epoch == broker_epoch and (newest - number) % CORRELATION_IDS < CORRELATION_IDS // 2:
            text = f"request {number} of broker {broker_id} comes after its request {newest}"
            raise KafkaError(ErrorCode.request_timed_out, text)
        self._numbers[broker_id] = broker_epoch, number


def change_isrs(
    changes: PartitionChanges, broker_id: int, asked: Sequence[IsrProposal]
) -> ControlSteps[list[IsrState | ErrorCode]]:
    """Generates the records of the ISRs that a leader asks for. The response has the result of each, in their order.

    Errors of a partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER (its epochs are newer than those
    of this controller), FENCED_LEADER_EPOCH, INVALID_REQUEST (the broker does not lead, or this can be no ISR),
    INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, NEW_LEADER_ELECTED (with a record). Raises KafkaError
    (UNKNOWN_SERVER_ERROR for an unknown recovery state).
    """
    catalog = changes.catalog
    generated: list[MetadataRecord] = []
    results: list[IsrState | ErrorCode] = []
    pace = Pace()
    for change in asked:
        if pace.spend():
            yield
        topic = catalog.topics_by_id.get(change.topic_id)
        error = _fault(changes, broker_id, topic, change)
        if topic is None or error is not ErrorCode.none:
            results.append(error)
            continue
        partition = topic.partitions[change.partition_id]
        isr = tuple(member.broker_id for member in change.isr)
        record = partition_change(topic.id, partition, isr, changes.rules(topic, partition), change.recovery_state)
        if record is not None:
            generated.append(record)
            partition = partition.changed(record)
        if record is not None and record.leader not in (None, broker_id):
            results.append(ErrorCode.new_leader_elected)
        else:
            results.append(_state(partition))
    return ControlResult(generated, results)


def _state(partition: PartitionRegistration) -> IsrState:
    return IsrState(
        partition.leader, partition.leader_epoch, partition.isr, partition.recovery_state, partition.partition_epoch
    )


def _fault(changes: PartitionChanges, broker_id: int, topic: Topic | None, change: IsrProposal) -> ErrorCode:
    """Returns why a change is refused, or NONE. As in Kafka, the epochs come before the rest."""
    if topic is None:
        return ErrorCode.unknown_topic_id
    if not 0 <= change.partition_id < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[change.partition_id]
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return ErrorCode.not_controller  # another controller has made these epochs
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if broker_id != partition.leader:
        return ErrorCode.invalid_request
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    if not _is_possible(partition, change):
        return ErrorCode.invalid_request
    if not all(_is_eligible(changes, member) for member in change.isr):
        return ErrorCode.ineligible_replica
    return ErrorCode.none


def _is_possible(partition: PartitionRegistration, change: IsrProposal) -> bool:
    """Returns whether the ISR has only replicas, each once, and the leader; and a leader that recovers is alone."""
    isr = [member.broker_id for member in change.isr]
    if partition.leader == NO_NODE or partition.leader not in isr:
        return False
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        return False
    if change.recovery_state not in (RECOVERED, RECOVERING):
        text = f"Value {change.recovery_state} is not a valid leader recovery state"
        raise KafkaError(ErrorCode.unknown_server_error, text)
    if change.recovery_state == RECOVERING:
        return len(isr) == 1 and partition.recovery_state == RECOVERING
    return True


def _is_eligible(changes: PartitionChanges, member: FetchingReplica) -> bool:
    """Returns whether a broker may be in an ISR: active, and in the incarnation that has caught up."""
    broker = changes.catalog.nodes.brokers.get(member.broker_id)
    return broker is not None and broker.is_active and member.broker_epoch in (NO_EPOCH, broker.epoch)
