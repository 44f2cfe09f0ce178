"""ConsumerGroupDescribe 0–1: returns the state, members and assignments of KIP-848 groups.

* 1: the protocol of each member (``member_type``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.k15_describe_groups import OPERATIONS_NOT_ASKED, group_operations
from odradek.broker.handlers.long_replies import elements, reply
from odradek.catalog.features import GROUP
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.varints import uvarint
from odradek.groups.kip848.member import Kip848Member, Partitions
from odradek.groups.kip848.messages import DescribedKip848Group, DescribeKip848Group

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (0, 1)
CLASSIC, CONSUMER = 0, 1
_SHORT = MAX_STRING_BYTES // 8
"""The error message of a group id with at most this number of characters fits into a string."""
_HIDDEN = "The group has described topic(s) that the client is not authorized to describe."
Fields = dict[str, object]


def handle(broker: BrokerServices, context: Context, message: ConsumerGroupDescribeRequest) -> Steps[list[Chunk]]:
    asked = message.include_authorized_operations
    groups = elements(context, "groups")

    known: dict[str, list[bytes]] = {}
    end = b""
    for group_id in message.group_ids:
        packed = known.get(group_id)
        if packed is None:
            group = yield _described(broker, context, group_id)
            if group.error is ErrorCode.none and broker.authorizer is not None:
                group = yield from _with_topics_allowed(broker, context, group)
            if group.error is ErrorCode.none or len(group_id) > _SHORT:
                packed = groups.packed((yield from _pack(broker, context, asked, group)))
            else:
                end = end or _end(groups, (yield from _pack(broker, context, asked, DescribedKip848Group(""))))
                packed = [_start(group) + end]
            known[group_id] = packed
        groups.repeat(packed)
        yield None
    broker.leftovers.add(known)
    return reply(context, {"groups": groups})


def _described(broker: BrokerServices, context: Context, group_id: str) -> Deferred[DescribedKip848Group]:
    if not is_allowed(broker, context, Operation.DESCRIBE, Resource.GROUP, group_id):
        return Deferred.of(DescribedKip848Group(group_id, ErrorCode.group_authorization_failed))
    if GROUP not in broker.catalog.features():
        return Deferred.of(DescribedKip848Group(group_id, ErrorCode.unsupported_version))
    return broker.groups.submit(broker.groups.partition_of(group_id), DescribeKip848Group(group_id))


def _with_topics_allowed(
    broker: BrokerServices, context: Context, group: DescribedKip848Group
) -> Steps[DescribedKip848Group]:
    """Returns the group, or a refusal if one of its members has a topic that the client may not describe."""
    allowed: dict[bytes, bool] = {}
    for member, target in group.members:
        for topic_id in {*member.assigned, *member.to_revoke, *target}:
            if topic_id not in allowed:
                topic = broker.catalog.topic_by_id(UUID(bytes=topic_id))
                allowed[topic_id] = topic is None or is_allowed(
                    broker, context, Operation.DESCRIBE, Resource.TOPIC, topic.name
                )
            if not allowed[topic_id]:
                return DescribedKip848Group(group.group_id, ErrorCode.topic_authorization_failed, _HIDDEN)
            yield None
    return group


def _start(group: DescribedKip848Group) -> bytes:
    """Packs the first fields of a refused group: error, error message, group id. The others are equal in all groups.

    A request may have 250,000 groups that do not exist, and most of the time is that of packing."""
    text = (group.error_message or "").encode()
    group_id = group.group_id.encode()
    start = int(group.error.value).to_bytes(2, "big")
    start += b"\0" if group.error_message is None else uvarint(len(text) + 1) + text
    return start + uvarint(len(group_id) + 1) + group_id


def _end(groups: Elements, nameless: Fields) -> bytes:
    """Packs the fields after those of ``_start``. ``nameless`` has no error message and an empty group id."""
    return b"".join(groups.packed(nameless | {"authorized_operations": OPERATIONS_NOT_ASKED}))[4:]


def _pack(
    broker: BrokerServices, context: Context, operations_asked: bool, group: DescribedKip848Group
) -> Steps[Fields]:
    members = elements(context, "groups", "members")
    for member, target in group.members:
        members.add(_member(broker, member, target))
        yield None
    exists = group.error is ErrorCode.none
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": members,
        "authorized_operations": group_operations(broker, context, group.group_id)
        if operations_asked and exists
        else OPERATIONS_NOT_ASKED,
    }


def _member(broker: BrokerServices, member: Kip848Member, target: Partitions) -> Fields:
    owned: dict[bytes, list[int]] = {}
    for source in (member.assigned, member.to_revoke):
        for topic_id, partitions in source.items():
            owned.setdefault(topic_id, []).extend(partitions)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.pattern,
        "assignment": _assignment(broker, owned),
        "target_assignment": _assignment(broker, target),
        "member_type": CONSUMER if member.classic is None else CLASSIC,
    }


def _assignment(broker: BrokerServices, partitions: Mapping[bytes, Iterable[int]]) -> Fields:
    """Returns the row of an assignment. Topics that do not exist any more are left out."""
    rows = []
    for topic_id, numbers in partitions.items():
        topic = broker.catalog.topic_by_id(UUID(bytes=topic_id))
        if topic is not None:
            rows.append({"topic_id": topic.id, "topic_name": topic.name, "partitions": sorted(numbers)})
    return {"topic_partitions": rows}
