"""The record of a classic group in ``__consumer_offsets``: packed in steps, and replayed without decoding."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from odradek.codecs.offsets_topic import (
    GroupKey,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    group_key,
    group_value,
    packed_member,
)
from odradek.core.effects import SimpleRecord
from odradek.core.pace import Pace
from odradek.groups.classic.group import ClassicGroup, Member


class ClassicChange(SimpleRecord):
    """A record with its decoded form, so that a replay does not read its bytes.

    The object also has state that is not in the log: ``returned`` is a static member under its new id. ``converted`` is
    the whole group if it was a KIP-848 group before this record.
    """

    __slots__ = ("converted", "decoded", "returned")
    __setattr__ = object.__setattr__

    def __init__(self, key: bytes, value: bytes, decoded: GroupRecord) -> None:
        super().__init__(key, value)
        self.decoded = decoded
        self.returned: Member | None = None
        self.converted: ClassicGroup | None = None


def group_record(group: ClassicGroup, pace: Pace) -> Generator[None, None, ClassicChange]:
    """Returns the record of the group's current state."""
    rows = ((member, member.assignment) for member in group.members.values())
    return (yield from _record(group, rows, group.leader, pace))


def assignment_record(
    group: ClassicGroup, assignment: Mapping[str, bytes], pace: Pace
) -> Generator[None, None, ClassicChange]:
    """Returns the group's record with the leader's assignment. A member without an entry gets an empty assignment."""
    rows = ((member, assignment.get(member.member_id, b"")) for member in group.members.values())
    return (yield from _record(group, rows, group.leader, pace))


def return_record(group: ClassicGroup, returned: Member, pace: Pace) -> Generator[None, None, ClassicChange]:
    """Returns the record of the group after a static member has rejoined under a new id."""
    before = group.static_members[returned.group_instance_id or ""]
    rows = ((member, member.assignment) for member in group.members_with(returned).values())
    leader = returned.member_id if group.leader == before else group.leader
    change = yield from _record(group, rows, leader, pace)
    change.returned = returned
    return change


def empty_record(group: ClassicGroup, now_ms: int) -> ClassicChange:
    """Returns the record of the group's next generation, which has no members."""
    value = GroupMetadata(group.protocol_type or "", group.generation + 1, None, None, now_ms)
    return ClassicChange(group_key(group.group_id), group_value(value), GroupRecord(GroupKey(group.group_id), value))


def _record(
    group: ClassicGroup, rows: Iterable[tuple[Member, bytes]], leader: str | None, pace: Pace
) -> Generator[None, None, ClassicChange]:
    members: list[GroupMember] = []
    packed: list[bytes] = []
    for member, assignment in rows:
        row = GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            assignment,
        )
        members.append(row)
        packed += packed_member(row)
        if pace.spend(_MEMBER_WORK + member.scan_work):
            yield
    value = GroupMetadata(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        leader,
        group.state_since_ms,
        tuple(members),
    )
    decoded = GroupRecord(GroupKey(group.group_id), value)
    return ClassicChange(group_key(group.group_id), group_value(value, packed), decoded)


_MEMBER_WORK = 2
