"""Classic members of a KIP-848 group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup on the group's state.

A JoinGroup is handled like a heartbeat with a subscription. The reply is immediate and has the epoch that the member
reaches. It has no list of members, because the group has no leader. SyncGroup returns the assignment, or
REBALANCE_IN_PROGRESS if there is a newer target assignment and no partition to revoke. Heartbeat returns
REBALANCE_IN_PROGRESS if there is a newer target assignment, a partition to revoke, or a new partition to take.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from odradek.core.effects import Result, ResultParts, ResultSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import Pace
from odradek.groups.classic.group import CONSUMER
from odradek.groups.kip848 import migration
from odradek.groups.kip848.checks import check_size, find_member
from odradek.groups.kip848.embedded import EmbeddedSubscription, MalformedProtocol, read_subscription
from odradek.groups.kip848.group import Kip848Group, MemberChange
from odradek.groups.kip848.member import (
    ClassicMemberMetadata,
    Kip848Member,
    Kip848MemberState,
    without_epochs,
)
from odradek.groups.kip848.protocol import Kip848Protocol
from odradek.groups.messages import (
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    SyncGroup,
    SyncGroupReply,
)


class ClassicMembers:
    """Handles requests of the classic protocol to KIP-848 groups with members."""

    def __init__(self, membership: Kip848Protocol) -> None:
        self._membership = membership
        self._catalog = membership.catalog
        self._timers = membership.timers

    # --- JoinGroup ------------------------------------------------------------------------------------------------

    def handle_join(self, now_ms: int, group: Kip848Group, request: JoinGroup) -> ResultSteps[JoinGroupReply]:
        out: Result[JoinGroupReply] = Result()
        self._membership.pace = Pace()
        try:
            yield from self._join(now_ms, group, request, out)
        except KafkaError as error:
            self._membership.patterns.on_refusal(now_ms, request.group_id, out)
            return Result(JoinGroupReply(error.code))
        return out

    def _join(self, now_ms: int, group: Kip848Group, request: JoinGroup, out: Result[JoinGroupReply]) -> Iterator[None]:
        member_id = request.member_id or request.new_short_id or request.new_member_id
        self._membership.check_room(group, member_id)
        if not _shares_protocol(group, request):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if not request.member_id and request.group_instance_id is None and request.requires_known_member_id:
            out.reply = JoinGroupReply(ErrorCode.member_id_required, member_id=member_id)
            return
        holder = group.static_member(request.group_instance_id)
        member = self._member(group, member_id, request, holder, out)
        existing = holder or group.members.get(member_id)
        subscription = _subscription(request)
        updated = member._replace(
            instance_id=request.group_instance_id or member.instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if request.rebalance_timeout_ms != -1
            else member.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            pattern="",
            client_id=request.client_id,
            client_host=request.client_host,
            classic=ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
        )
        change = MemberChange(now_ms, group, member, updated, existing)
        downgrades = holder is not None and self._downgrades(group, holder)
        names_changed = yield from self._membership.note_member(change, out)
        pattern_changed, _ = self._membership.patterns.note(change, out)
        reached = yield from self._reach(change, subscription, names_changed or pattern_changed, downgrades, out)
        key = (group.group_id, member_id)
        self._timers.cancel_join(key, out)
        if not downgrades:
            self._membership.forget_replaced(change, out)
            self._timers.renew(now_ms, key, request.session_timeout_ms, out)
            self._timers.await_sync(now_ms, key, request.rebalance_timeout_ms, out)
        out.reply = JoinGroupReply(
            generation_id=reached.epoch,
            protocol_type=CONSUMER,
            protocol_name=request.protocols[0].name,
            member_id=member_id,
        )

    def _member(
        self, group: Kip848Group, member_id: str, request: JoinGroup, holder: Kip848Member | None, out: ResultParts
    ) -> Kip848Member:
        instance_id = request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or Kip848Member(member_id)
        if request.member_id:  # the client is a member already
            return find_member(group, member_id, instance_id)
        if holder is None:
            return Kip848Member(member_id)
        return self._membership.give_new_id(group, holder, member_id, out)

    def _downgrades(self, group: Kip848Group, replaced: Kip848Member) -> bool:
        """Returns whether the join of a classic member converts the group to a classic group.

        ``replaced``, the static member with the same instance id, must be the group's last KIP-848 member."""
        if replaced.classic is not None:
            return False
        return migration.may_downgrade(group, [replaced], self._membership.config, len(group.members))

    def _reach(
        self,
        change: MemberChange,
        subscription: EmbeddedSubscription,
        changed: bool,
        downgrades: bool,
        out: ResultParts,
    ) -> Generator[None, None, Kip848Member]:
        """Returns the member after the reconciliation of this request."""
        membership, group = self._membership, change.group
        owned = {
            topic_id: sorted(partitions)
            for topic_id, partitions in migration.partitions_by_id(subscription.owned, self._catalog).items()
        }
        if not downgrades:
            target = yield from membership.next_target(change, changed, out)
            reached = yield from membership.reconcile(change, target, owned, changed, out)
            check_size(out.records, membership.batch_bytes())
            return reached
        epoch = group.epoch
        if changed or group.refresh_due(change.now_ms):
            epoch = yield from membership.next_epoch(change, changed, out)
        rebalances = group.assignment_epoch < epoch
        reached = change.updated
        if not rebalances:
            target = membership.last_target(change)
            reached = yield from membership.reconcile(change, target, owned, changed, out)
        classic = yield from membership.downgraded(change.now_ms, group, (), reached, out)
        check_size(out.records, membership.batch_bytes())
        yield from membership.downgrade(change.now_ms, group, classic, out, rebalances=rebalances)
        return reached

    # --- SyncGroup and Heartbeat ----------------------------------------------------------------------------------

    def handle_sync(self, now_ms: int, group: Kip848Group, request: SyncGroup) -> Result[SyncGroupReply]:
        out: Result[SyncGroupReply] = Result()
        try:
            member, classic = _classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
            protocol_type, protocol_name = request.protocol_type, request.protocol_name
            if protocol_type not in (None, CONSUMER) or protocol_name not in (None, classic.protocols[0].name):
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
            key = (group.group_id, member.member_id)
            if group.assignment_epoch > member.epoch and member.state is not Kip848MemberState.UNREVOKED_PARTITIONS:
                self._timers.await_join(now_ms, key, member.rebalance_timeout_ms, out)
                out.reply = SyncGroupReply(ErrorCode.rebalance_in_progress)
                return out
            partitions = without_epochs(member.assigned)
            assignment = migration.packed_assignment(classic, partitions, self._catalog)
        except KafkaError as error:
            return Result(SyncGroupReply(error.code))
        except MalformedProtocol:
            return Result(SyncGroupReply(ErrorCode.unknown_server_error))
        self._timers.cancel_sync(key, out)
        self._timers.renew(now_ms, key, classic.session_timeout_ms, out)
        out.reply = SyncGroupReply(protocol_type=protocol_type, protocol_name=protocol_name, assignment=assignment)
        return out

    def handle_heartbeat(self, now_ms: int, group: Kip848Group, request: Heartbeat) -> Result[ErrorCode]:
        out: Result[ErrorCode] = Result(ErrorCode.none)
        try:
            member, classic = _classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except KafkaError as error:
            return Result(error.code)
        key = (group.group_id, member.member_id)
        self._timers.renew(now_ms, key, classic.session_timeout_ms, out)
        if (
            member.epoch < group.assignment_epoch
            or member.state is Kip848MemberState.UNREVOKED_PARTITIONS
            or (member.state is Kip848MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
        ):
            self._timers.await_join(now_ms, key, member.rebalance_timeout_ms, out)
            out.reply = ErrorCode.rebalance_in_progress
        return out

    # --- LeaveGroup -----------------------------------------------------------------------------------------------

    def handle_leave(self, now_ms: int, group: Kip848Group, request: LeaveGroup) -> ResultSteps[LeaveGroupReply]:
        """Removes classic and KIP-848 members. An administrator may remove both."""
        out: Result[LeaveGroupReply] = Result()
        self._membership.pace = Pace()
        rows: list[tuple[LeavingMember, ErrorCode]] = []
        to_remove: dict[str, Kip848Member] = {}
        for leaving in request.members:
            try:
                holder = group.static_member(leaving.group_instance_id)
                if holder is not None and not leaving.member_id:
                    member = holder
                else:
                    member = find_member(group, leaving.member_id, leaving.group_instance_id)
                to_remove[member.member_id] = member
                rows.append((leaving, ErrorCode.none))
            except KafkaError as error:
                rows.append((leaving, error.code))
            if self._membership.pace.spend(_LEAVING_WORK):
                yield None
        try:
            yield from self._membership.fence(
                now_ms, group, list(to_remove.values()), out, self._membership.batch_bytes()
            )
        except KafkaError as error:
            return Result(request.error_reply(error.code))
        out.reply = LeaveGroupReply(members=rows)
        return out


_LEAVING_WORK = 3
"""The work for one member of a LeaveGroup, in elements of a step (``core/pace``)."""


def _shares_protocol(group: Kip848Group, request: JoinGroup) -> bool:
    """Returns whether the request has a protocol that all classic members support."""
    names = (name for name, _ in request.protocols)
    return request.protocol_type == CONSUMER and group.classic_protocols.all_support_one_of(names)


def _subscription(request: JoinGroup) -> EmbeddedSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except MalformedProtocol as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error


def _classic_member(
    group: Kip848Group, member_id: str, instance_id: str | None
) -> tuple[Kip848Member, ClassicMemberMetadata]:
    """Returns a classic member. Raises KafkaError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID)."""
    member = find_member(group, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
    return member, member.classic


def _check_generation(member: Kip848Member, generation_id: int) -> None:
    if generation_id != member.epoch:
        raise KafkaError(ErrorCode.illegal_generation)


def _waits_for_others(group: Kip848Group, member: Kip848Member) -> bool:
    """Returns whether another member still owns a partition of this member's target."""
    return any(
        partition not in member.assigned.get(topic_id, {}) and group.is_taken(topic_id, partition)
        for topic_id, partitions in group.targets.get(member.member_id, {}).items()
        for partition in partitions
    )
