"""Conversion of a classic group to a KIP-848 group and back while its members stay. Pure functions.

Upgrade: the first KIP-848 member that joins a classic group of consumers converts the group. The generation becomes the
epoch, and the last assignment becomes the target. Downgrade: when the last KIP-848 member has left, or a classic member
with the same instance id has replaced it, the group becomes a classic group. The epoch becomes the generation. The
setting ``group.consumer.migration.policy`` can forbid either conversion. The records of a conversion delete the old
group and write the new one, so a replay repeats the conversion.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator

from odradek.codecs.offsets_topic import group_key
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import Pace
from odradek.groups.classic.group import CONSUMER, ClassicGroup, Member, State
from odradek.groups.config import GroupConfig
from odradek.groups.kip848 import records
from odradek.groups.kip848.embedded import (
    MalformedProtocol,
    PartitionsByTopic,
    pack_assignment,
    read_assignment,
    read_subscription,
)
from odradek.groups.kip848.group import GroupCatalog, Kip848Group
from odradek.groups.kip848.member import ClassicMemberMetadata, Kip848Member, Partitions, with_epoch

RECORD_WORK = 4
"""The work of a small record, in elements of a step (``core/pace``)."""


def classic_tombstone(group_id: str) -> SimpleRecord:
    return SimpleRecord(group_key(group_id), None)


def partitions_by_id(listed: PartitionsByTopic, catalog: GroupCatalog) -> Partitions:
    """Returns the listed partitions that exist, by topic id.

    A listed topic may have been deleted, or created again with fewer partitions.
    """
    topics = ((catalog.topic(name), numbers) for name, numbers in listed)
    return {
        topic.topic_id: frozenset(number for number in numbers if number < topic.partition_count)
        for topic, numbers in topics
        if topic is not None
    }


def packed_assignment(side: ClassicMemberMetadata, partitions: Partitions, catalog: GroupCatalog) -> bytes:
    """Returns an assignment in the format of a classic member. Raises MalformedProtocol."""
    version = read_subscription(side.protocols[0].metadata).version
    topics = ((catalog.topic_by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return pack_assignment(version, [(topic.name, numbers) for topic, numbers in topics if topic is not None])


# --- upgrade -----------------------------------------------------------------------------------------------------


def upgraded(
    group: ClassicGroup, config: GroupConfig, catalog: GroupCatalog, pace: Pace
) -> Generator[None, None, Kip848Group]:
    """Returns the group as a KIP-848 group.

    Raises KafkaError: GROUP_ID_NOT_FOUND, as in Kafka, if the group cannot be converted; UNKNOWN_SERVER_ERROR if it has
    chosen no protocol yet.
    """
    reason = ""
    if config.consumer_migration_policy not in ("upgrade", "bidirectional"):
        reason = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > config.consumer_max_size:
        reason = "the group size exceeds the consumer group maximum size"
    elif group.protocol is None:
        raise KafkaError(ErrorCode.unknown_server_error, "The group has no protocol yet.")
    if not reason:
        try:
            return (yield from _upgraded(group, catalog, pace))
        except MalformedProtocol:
            reason = "the embedded consumer protocol is malformed"
        except _CustomData:
            reason = (
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade"
            )
    text = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    raise KafkaError(ErrorCode.group_id_not_found, text)


class _CustomData(Exception):
    """An assignment contains user data of the client's assignor. A conversion would lose this data."""


def _upgraded(classic: ClassicGroup, catalog: GroupCatalog, pace: Pace) -> Generator[None, None, Kip848Group]:
    epoch = classic.generation
    group = Kip848Group(classic.group_id, epoch, 0, epoch)
    for old in classic.members.values():
        subscription = read_subscription(old.metadata(classic.protocol))
        listed, user_data = read_assignment(old.assignment) if old.assignment else ((), b"")
        if user_data:
            raise _CustomData
        partitions = partitions_by_id(listed, catalog)
        size = 5 + len(subscription.topics) + sum([1 + len(numbers) // 4 for _, numbers in listed])
        group.targets[old.member_id] = partitions
        group.put(
            Kip848Member(
                old.member_id,
                epoch,
                epoch,
                instance_id=old.group_instance_id,
                rack_id=subscription.rack_id or None,
                rebalance_timeout_ms=old.rebalance_timeout_ms,
                client_id=old.client_id,
                client_host=old.client_host,
                topics=frozenset(map(sys.intern, subscription.topics)),  # members share the strings
                assigned=with_epoch(partitions, epoch),
                classic=ClassicMemberMetadata(old.session_timeout_ms, old.protocols),
            )
        )
        if pace.spend(size):
            yield
    group.metadata_hash = yield from group.hash_in_steps(group.subscriptions, catalog, pace)
    return group


def upgrade_records(group: Kip848Group, pace: Pace) -> Generator[None, None, list[SimpleRecord]]:
    group_id, members = group.group_id, group.members.values()
    made: list[SimpleRecord] = []
    for member in members:
        made.append((yield from records.member_in_steps(group_id, member, pace)))
        if pace.spend(RECORD_WORK):
            yield
    made.append(records.group_epoch(group_id, group.epoch, group.metadata_hash))
    for member_id, target in group.targets.items():
        made.append((yield from records.target_member_in_steps(group_id, member_id, target, pace)))
        if pace.spend(RECORD_WORK):
            yield
    made.append(records.target(group_id, group.assignment_epoch, group.assignment_timestamp_ms))
    for member in members:
        made.append((yield from records.current_in_steps(group_id, member, pace)))
        if pace.spend(RECORD_WORK):
            yield
    return made


# --- downgrade ---------------------------------------------------------------------------------------------------


def may_downgrade(group: Kip848Group, leaving: Collection[Kip848Member], config: GroupConfig, left: int) -> bool:
    """Returns whether the group may become a classic group when the members ``leaving`` have left.

    All members that remain must be classic. ``left`` is the number of members of the classic group.
    """
    classic = sum(1 for _ in group.classic_members()) - sum(member.classic is not None for member in leaving)
    return (
        classic == len(group.members) - len(leaving)
        and 0 < left <= config.group_max_size
        and config.consumer_migration_policy in ("downgrade", "bidirectional")
    )


def downgraded(
    group: Kip848Group,
    leaving: Collection[str],
    joining: Kip848Member | None,
    now_ms: int,
    catalog: GroupCatalog,
    *,
    pace: Pace,
) -> Generator[None, None, ClassicGroup]:
    """Returns the group as a Stable classic group. ``joining`` replaces the static member with the same instance id.

    Raises KafkaError (GROUP_ID_NOT_FOUND) if a member's subscription is malformed.
    """
    classic = ClassicGroup(group.group_id, State.STABLE, now_ms, generation=group.epoch)
    replaced = None if joining is None else group.static_member(joining.instance_id)
    try:
        for member in group.members.values():
            if member.member_id not in leaving and member is not replaced:
                _join(classic, member, group.targets.get(member.member_id, {}), catalog)
            if pace.spend(5 + len(member.topics)):
                yield
        if joining is not None and replaced is not None:
            _join(classic, joining, group.targets.get(replaced.member_id, {}), catalog)
    except MalformedProtocol as error:
        text = f"Cannot downgrade the classic group {group.group_id}: {error}."
        raise KafkaError(ErrorCode.group_id_not_found, text) from error
    classic.protocol = yield from classic.select_protocol(pace)
    yield from classic.read_subscriptions(pace)
    return classic


def _join(classic: ClassicGroup, consumer: Kip848Member, target: Partitions, catalog: GroupCatalog) -> None:
    assert consumer.classic is not None
    member = Member(
        consumer.member_id,
        consumer.instance_id,
        consumer.client_id,
        consumer.client_host,
        consumer.rebalance_timeout_ms,
        consumer.classic.session_timeout_ms,
        consumer.classic.protocols,
        packed_assignment(consumer.classic, target, catalog),
    )
    classic.add(member, CONSUMER)
