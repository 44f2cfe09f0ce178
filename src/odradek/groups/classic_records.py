"""The record of a classic group in ``__consumer_offsets``: made some members at a time, replayed without being read."""

from __future__ import annotations

from collections.abc import Generator

from odradek.core.effects import Record
from odradek.core.pace import Pace
from odradek.core.records import (
    GroupKey,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    group_key,
    group_value,
    packed_member,
)
from odradek.groups.classic import ClassicGroup


class ClassicChange(Record):
    """A record that is known decoded, as it was made here: replaying it need not read its bytes."""

    __slots__ = ("decoded",)
    __setattr__ = object.__setattr__

    def __init__(self, key: bytes, value: bytes, decoded: GroupRecord) -> None:
        super().__init__(key, value)
        self.decoded = decoded


def group_record(group: ClassicGroup, pace: Pace) -> Generator[None, None, ClassicChange]:
    """The group as it is."""
    members: list[GroupMember] = []
    packed: list[bytes] = []
    for member in group.members.values():
        row = GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            member.assignment,
        )
        members.append(row)
        packed += packed_member(row)
        if pace.spend(_MEMBER_WORK + member.scan_work):
            yield
    value = GroupMetadata(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        group.leader,
        group.state_since_ms,
        tuple(members),
    )
    decoded = GroupRecord(GroupKey(group.group_id), value)
    return ClassicChange(group_key(group.group_id), group_value(value, packed), decoded)


_MEMBER_WORK = 2
