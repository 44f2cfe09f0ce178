"""ConsumerGroupDescribe 0–1: returns the state, members and assignments of KIP-848 groups.

* 1: the protocol of each member (``member_type``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.broker.handlers.k15_describe_groups import ALL_GROUP_OPERATIONS, OPERATIONS_NOT_ASKED
from odradek.broker.long_replies import Known, each_once, elements, reply
from odradek.catalog.features import GROUP
from odradek.core.errors import ErrorCode
from odradek.groups.consumer_member import ConsumerMember, Partitions
from odradek.groups.consumer_messages import DescribeConsumerGroup, DescribedConsumerGroup

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 1)
CLASSIC, CONSUMER = 0, 1
Fields = dict[str, Any]


def handle(broker: BrokerServices, context: Context, message: ConsumerGroupDescribeRequest) -> Steps[list[Chunk]]:
    asked = message.include_authorized_operations
    groups = elements(context, "groups")

    def describe(group_id: str) -> Steps[Fields]:
        if GROUP not in broker.catalog.features():
            refused = DescribedConsumerGroup(group_id, ErrorCode.unsupported_version)
            return (yield from _pack(broker, context, asked, refused))
        group = yield broker.groups.submit(broker.groups.partition_of(group_id), DescribeConsumerGroup(group_id))
        return (yield from _pack(broker, context, asked, group))

    known: Known = {}
    yield from each_once(groups, message.group_ids, str, describe, known)
    broker.leftovers.add(known)
    return reply(context, {"groups": groups})


def _pack(
    broker: BrokerServices, context: Context, operations_asked: bool, group: DescribedConsumerGroup
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
        "authorized_operations": ALL_GROUP_OPERATIONS if operations_asked and exists else OPERATIONS_NOT_ASKED,
    }


def _member(broker: BrokerServices, member: ConsumerMember, target: Partitions) -> Fields:
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
