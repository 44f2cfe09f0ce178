"""Checks of a ConsumerGroupHeartbeat: its fields, the identity of its member, the member epoch, its records' size."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.effects import SimpleRecord, most_bytes
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.kip848.member import Kip848Member
from odradek.groups.kip848.messages import Kip848Heartbeat

MAX_NAMES = 10_000
"""The largest number of topic names in a heartbeat."""


def check_request(request: Kip848Heartbeat, known: tuple[str, ...]) -> None:
    """Checks the fields of a heartbeat. Raises KafkaError (INVALID_REQUEST, UNSUPPORTED_ASSIGNOR)."""
    epoch = request.member_epoch
    texts = {"GroupId": request.group_id, "InstanceId": request.instance_id, "RackId": request.rack_id}
    if request.names_itself or epoch > 0 or epoch == LEAVE_EPOCH:
        texts = {"MemberId": request.member_id, **texts}
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.invalid_request, f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise KafkaError(ErrorCode.invalid_request, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise KafkaError(ErrorCode.invalid_request, "TopicPartitions must be empty when (re-)joining.")
        if request.topics is None and request.pattern is None:
            text = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            raise KafkaError(ErrorCode.invalid_request, text)
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise KafkaError(ErrorCode.invalid_request, "InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise KafkaError(ErrorCode.invalid_request, "MemberEpoch is invalid.")
    if request.topics is not None and len(request.topics) > MAX_NAMES:
        text = f"SubscribedTopicNames has {len(request.topics)} names; the limit is {MAX_NAMES}."
        raise KafkaError(ErrorCode.invalid_request, text)
    if request.assignor is not None and request.assignor not in known:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(known)}.",
        )


def find_member(group: Kip848Group, member_id: str, instance_id: str | None) -> Kip848Member:
    """Returns the member of a request. Raises KafkaError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID)."""
    if instance_id is None:
        return group.member(member_id)
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def check_epoch(member: Kip848Member, request: Kip848Heartbeat) -> None:
    """Accepts the member's epoch, and its previous one because the reply with the new epoch may have been lost.

    A request with the previous epoch may only report partitions that are assigned to the member.

    Raises KafkaError (FENCED_MEMBER_EPOCH).
    """
    epoch, known = request.member_epoch, member.epoch
    if epoch == known or (epoch < known and epoch == member.previous_epoch and member.owns_only(request.owned)):
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if epoch > known else 'smaller'} member epoch ({epoch}) than the "
        f"one known by the group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def check_size(records: Iterable[SimpleRecord], limit: int) -> None:
    """Raises KafkaError (UNKNOWN_SERVER_ERROR, without a message as in Kafka) if the records do not fit in a batch."""
    if sum(map(most_bytes, records)) > limit:
        raise KafkaError(ErrorCode.unknown_server_error)
