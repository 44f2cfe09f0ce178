"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timeouts, for the groups of one shard.

Rules (state table: groups/classic/group)
* A JoinGroup that starts or joins a rebalance is parked until the rebalance completes. A SyncGroup is parked until
  the leader's SyncGroup has arrived and its record is in the log.
* Timers: ``join`` for a group (the initial delay or the rebalance timeout), ``sync`` for a group (a joined member must
  sync within the rebalance timeout) and ``session`` for each member.
* A heartbeat moves the deadline of a session. A timer that fires before the deadline is set again.
* A member that misses the rebalance timeout is removed and must join again. A static member stays until its session
  or the sync timeout ends.
* Work on all members of a group is done in steps. The shard handles nothing else until the last step.
* Some of the state in a group's record changes only in ``ClassicGroup.replay`` (``groups/classic/group``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from odradek.codecs.offsets_topic import GroupMetadata, group_key, group_value
from odradek.core.effects import (
    CancelTimer,
    Complete,
    Park,
    ParkKey,
    Result,
    ResultParts,
    ResultSteps,
    SetTimer,
    SimpleRecord,
    most_bytes,
)
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace
from odradek.groups.classic.group import ClassicGroup, Member, State
from odradek.groups.classic.records import assignment_record, empty_record, return_record
from odradek.groups.config import GroupConfig
from odradek.groups.early_checks import join_error
from odradek.groups.messages import (
    Heartbeat,
    JoinedMember,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    SyncGroup,
    SyncGroupReply,
)

R = TypeVar("R")
JOIN, SYNC, SESSION = "join", "sync", "session"


class Membership:
    """Handles membership requests and timers for ``groups``, the dict of the shard."""

    def __init__(self, config: GroupConfig, groups: dict[str, ClassicGroup]) -> None:
        self._config = config
        self._groups = groups
        self._parked = 0
        self.batch_bytes: Callable[[], int] = lambda: sys.maxsize
        """Returns the largest number of bytes of records in a batch."""
        self.pace = Pace()
        """The work that the current request has done in its step."""

    # --- JoinGroup --------------------------------------------------------------------------------------------

    def handle_join(self, now_ms: int, request: JoinGroup) -> ResultSteps[JoinGroupReply]:
        out: Result[JoinGroupReply] = Result()
        self.pace = Pace()
        error = join_error(self._config, request)
        if error is not ErrorCode.none:
            out.reply = JoinGroupReply(error, member_id=request.member_id)
            return out
        group = self._groups.get(request.group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id:
                out.reply = JoinGroupReply(ErrorCode.unknown_member_id, member_id=request.member_id)
                return out
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, State.EMPTY, now_ms)
        if not self._has_room(group, request.member_id):
            group.remove(request.member_id)
            out.reply = JoinGroupReply(ErrorCode.group_max_size_reached)
        elif not group.supports(request.protocol_type, request.protocols):
            out.reply = JoinGroupReply(ErrorCode.inconsistent_group_protocol, member_id=request.member_id)
        elif request.member_id:
            yield from self._join_known(now_ms, group, request, out)
        else:
            yield from self._join_new(now_ms, group, request, out)
        if is_new_group and not out.records:
            # The log has the group from now on, and its members only when they have an assignment.
            empty = GroupMetadata("", 0, None, None, now_ms)
            out.records.append(SimpleRecord(group_key(group.group_id), group_value(empty)))
        return out

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._config.group_max_size
        if group.state is State.PREPARING_REBALANCE:
            # Members with a parked join stay. Others fill the free places in the order in which they rejoin.
            member = group.members.get(member_id)
            return (member is not None and member.parked_join is not None) or len(group.awaiting_join) < limit
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            return member_id in group.members or len(group.members) < limit
        return True

    def _join_new(
        self, now_ms: int, group: ClassicGroup, request: JoinGroup, out: Result[JoinGroupReply]
    ) -> Iterator[None]:
        member_id = request.new_member_id
        if request.group_instance_id is not None:
            if request.group_instance_id in group.static_members:
                yield from self._replace_static(now_ms, group, request, out)
            else:
                yield from self._add(now_ms, group, member_id, request, out)
        elif request.requires_known_member_id:
            # A client becomes a member when it joins with the id it received. Otherwise each retry of a first join
            # would leave a dead member.
            group.pending_joins.add(member_id)
            out.effects.append(SetTimer((SESSION, group.group_id, member_id), now_ms + request.session_timeout_ms))
            out.reply = JoinGroupReply(ErrorCode.member_id_required, member_id=member_id)
        else:
            yield from self._add(now_ms, group, member_id, request, out)

    def _join_known(
        self, now_ms: int, group: ClassicGroup, request: JoinGroup, out: Result[JoinGroupReply]
    ) -> Iterator[None]:
        member_id = request.member_id
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:  # a static member never gets MEMBER_ID_REQUIRED
                out.reply = JoinGroupReply(ErrorCode.unknown_server_error)
                return
            yield from self._add(now_ms, group, member_id, request, out)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.none or group.state is State.EMPTY:
            out.reply = JoinGroupReply(
                ErrorCode.unknown_member_id if error is ErrorCode.none else error, member_id=member_id
            )
            return
        member = group.members[member_id]
        is_leader = group.leader == member_id
        unchanged = member.protocols == request.protocols
        if unchanged and (group.state is State.COMPLETING_REBALANCE or (group.state is State.STABLE and not is_leader)):
            # The reply was lost, or nothing has changed for the member: it can sync in this generation.
            # The leader of a Stable group is an exception: its join requests a new assignment, e.g. for new partitions.
            out.reply = yield from self._joined(group, member_id)
            return
        self._update(group, member, request, out)
        yield from self._rebalance_or_complete(now_ms, group, out)

    def _add(
        self, now_ms: int, group: ClassicGroup, member_id: str, request: JoinGroup, out: Result[JoinGroupReply]
    ) -> Iterator[None]:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.new_member_added = True
        if member_id in group.pending_joins:
            out.effects.append(CancelTimer((SESSION, group.group_id, member_id)))
        group.add(member, request.protocol_type)
        group.park_join(member, self._park(JOIN, group, out))
        self._renew(group, member, now_ms + self._config.new_member_join_timeout_ms, out)
        yield from self._rebalance_or_complete(now_ms, group, out)

    def _update(self, group: ClassicGroup, member: Member, request: JoinGroup, out: Result[JoinGroupReply]) -> None:
        group.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        # The member has abandoned its earlier join and does not wait for that reply.
        again = JoinGroupReply(ErrorCode.rebalance_in_progress, member_id=member.member_id)
        self._reply_to_join(group, member, again, out)
        group.park_join(member, self._park(JOIN, group, out))

    def _replace_static(
        self, now_ms: int, group: ClassicGroup, request: JoinGroup, out: Result[JoinGroupReply]
    ) -> Iterator[None]:
        old = group.members[group.static_members[request.group_instance_id or ""]]
        member = old.with_new_id(request.new_member_id, request)
        is_stable = group.state is State.STABLE
        if is_stable and (yield from group.select_protocol_with(member, self.pace)) == group.protocol:
            yield from self._return_static(now_ms, group, member, request, out)
            return
        fenced = ErrorCode.fenced_instance_id
        self._reply_to_join(group, old, JoinGroupReply(fenced, member_id=old.member_id), out)
        self._reply_to_sync(old, SyncGroupReply(fenced), out)
        out.effects.append(CancelTimer((SESSION, group.group_id, old.member_id)))
        group.replace_static(member)
        self._renew(group, member, now_ms + old.session_timeout_ms, out)
        group.park_join(member, self._park(JOIN, group, out))
        if group.state is State.COMPLETING_REBALANCE:
            # The leader's next assignment may name the old id.
            yield from self._prepare_rebalance(now_ms, group, out)
        else:
            yield from self._rebalance_or_complete(now_ms, group, out)

    def _return_static(
        self, now_ms: int, group: ClassicGroup, member: Member, request: JoinGroup, out: Result[JoinGroupReply]
    ) -> Iterator[None]:
        """Writes the new id to the log. The group stays Stable: its assignment is still valid."""
        old = group.members[group.static_members[request.group_instance_id or ""]]
        change = yield from return_record(group, member, self.pace)
        if most_bytes(change) > self.batch_bytes():
            out.reply = JoinGroupReply(ErrorCode.unknown_server_error)
            return
        out.records.append(change)
        out.effects.append(CancelTimer((SESSION, group.group_id, old.member_id)))
        self._renew(group, member, now_ms + old.session_timeout_ms, out)
        was_leader = group.leader == old.member_id
        out.reply = reply = JoinGroupReply(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.member_id,
        )
        # A member that cannot skip the assignment gets the old leader id: it does not act as the leader and only syncs.
        if was_leader and request.can_skip_assignment:
            reply.skip_assignment, reply.leader = True, member.member_id
            reply.members = joined = []
            for row in change.decoded.value.members if change.decoded.value else ():
                joined.append(JoinedMember(row.member_id, row.group_instance_id, row.subscription))
                if self.pace.spend():
                    yield

    def _joined(self, group: ClassicGroup, member_id: str) -> Generator[None, None, JoinGroupReply]:
        return JoinGroupReply(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member_id,
            members=(yield from group.joined_members(self.pace)) if group.leader == member_id else (),
        )

    # --- the rebalance ----------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, now_ms: int, group: ClassicGroup, out: ResultParts) -> Iterator[None]:
        if group.can_rebalance:
            yield from self._prepare_rebalance(now_ms, group, out)
        else:
            yield from self._complete_if_all_joined(now_ms, group, out)

    def _complete_if_all_joined(self, now_ms: int, group: ClassicGroup, out: ResultParts) -> Iterator[None]:
        # The first rebalance of an Empty group always waits for its whole delay.
        if group.state is State.PREPARING_REBALANCE and group.previous_state is not State.EMPTY and group.all_joined:
            yield from self._complete_join(now_ms, group, out)

    def _prepare_rebalance(self, now_ms: int, group: ClassicGroup, out: ResultParts) -> Iterator[None]:
        if group.state is State.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                if self._reply_to_sync(member, SyncGroupReply(ErrorCode.rebalance_in_progress), out):
                    self._renew(group, member, now_ms + member.session_timeout_ms, out)
                if self.pace.spend():
                    yield
        group.pending_syncs.clear()
        out.effects.append(CancelTimer((SYNC, group.group_id)))
        was_empty = group.state is State.EMPTY
        group.transition(State.PREPARING_REBALANCE, now_ms)
        if was_empty:
            delay = self._config.group_initial_rebalance_delay_ms
            group.initial_delay_ms = delay
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay, 0)
            group.new_member_added = False
            out.effects.append(SetTimer((JOIN, group.group_id), now_ms + delay))
        elif group.all_joined:
            yield from self._complete_join(now_ms, group, out)
        else:
            out.effects.append(SetTimer((JOIN, group.group_id), now_ms + group.rebalance_timeout_ms))

    def _complete_join(self, now_ms: int, group: ClassicGroup, out: ResultParts) -> Iterator[None]:
        out.effects.append(CancelTimer((JOIN, group.group_id)))
        group.initial_delay_ms = None
        for member in list(group.members.values()):
            if member.parked_join is None and member.group_instance_id is None:
                self._forget(group, member, out)
            if self.pace.spend(member.scan_work):
                yield
        if not group.elect_joined_leader() and group.members:
            # All members are static and absent: wait until they rejoin or their sessions end.
            out.effects.append(SetTimer((JOIN, group.group_id), now_ms + group.rebalance_timeout_ms))
            return
        if not group.members:
            out.records.append(empty_record(group, now_ms))
            return
        yield from group.start_generation(now_ms, self.pace)
        for member in group.members.values():
            self._reply_to_join(group, member, (yield from self._joined(group, member.member_id)), out)
            self._renew(group, member, now_ms + member.session_timeout_ms, out)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
            if self.pace.spend(_REPLY_WORK):
                yield
        out.effects.append(SetTimer((SYNC, group.group_id), now_ms + group.rebalance_timeout_ms))

    def _remove(self, now_ms: int, group: ClassicGroup, member: Member, out: ResultParts) -> Iterator[None]:
        """Removes a member and starts a rebalance of the others."""
        self._forget(group, member, out)
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            yield from self._prepare_rebalance(now_ms, group, out)
        elif group.state is State.PREPARING_REBALANCE and group.all_joined:
            yield from self._complete_join(now_ms, group, out)

    def _forget(self, group: ClassicGroup, member: Member, out: ResultParts) -> None:
        # The client may still wait for a reply; with this error it joins again.
        self._reply_to_join(group, member, JoinGroupReply(ErrorCode.unknown_member_id), out)
        self._reply_to_sync(member, SyncGroupReply(ErrorCode.unknown_member_id), out)
        group.remove(member.member_id)
        out.effects.append(CancelTimer((SESSION, group.group_id, member.member_id)))

    # --- SyncGroup --------------------------------------------------------------------------------------------

    def handle_sync(self, now_ms: int, request: SyncGroup) -> ResultSteps[SyncGroupReply]:
        out: Result[SyncGroupReply] = Result()
        self.pace = Pace()
        group = self._groups.get(request.group_id)
        error = self._check_sync(group, request)
        if error is not ErrorCode.none or group is None:
            out.reply = SyncGroupReply(error)
            return out
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if group.state is State.STABLE:
            self._end_sync_phase(group, out)
            out.reply = _synced(group, member.assignment)
            return out
        self._reply_to_sync(member, SyncGroupReply(ErrorCode.rebalance_in_progress), out)
        member.parked_sync = self._park(SYNC, group, out)
        self._end_sync_phase(group, out)
        if group.leader == member.member_id:
            change = yield from assignment_record(group, request.assignments, self.pace)
            fits = most_bytes(change) <= self.batch_bytes()
            for other in group.members.values():
                if fits:
                    reply = _synced(group, request.assignments.get(other.member_id, b""))
                else:
                    reply = SyncGroupReply(ErrorCode.unknown_server_error)
                if self._reply_to_sync(other, reply, out):
                    self._renew(group, other, now_ms + other.session_timeout_ms, out)
                if self.pace.spend(_REPLY_WORK):
                    yield None
            if fits:
                out.records.append(change)  # its replay makes the group Stable
            else:
                yield from self._prepare_rebalance(now_ms, group, out)
        return out

    def _check_sync(self, group: ClassicGroup | None, request: SyncGroup) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if group is None or group.state is State.EMPTY:
            return ErrorCode.unknown_member_id
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.illegal_generation
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if group.state is State.PREPARING_REBALANCE else ErrorCode.none

    def _end_sync_phase(self, group: ClassicGroup, out: ResultParts) -> None:
        if not group.pending_syncs:
            out.effects.append(CancelTimer((SYNC, group.group_id)))

    # --- Heartbeat and LeaveGroup -----------------------------------------------------------------------------

    def handle_heartbeat(self, now_ms: int, request: Heartbeat) -> Result[ErrorCode]:
        if not request.group_id:
            return Result(ErrorCode.invalid_group_id)
        group = self._groups.get(request.group_id)
        if group is None:
            return Result(ErrorCode.unknown_member_id)
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return Result(error)
        if request.generation_id != group.generation:
            return Result(ErrorCode.illegal_generation)
        out: Result[ErrorCode] = Result(ErrorCode.none)
        if group.state is State.PREPARING_REBALANCE:
            out.reply = ErrorCode.rebalance_in_progress
        self.renew_session(now_ms, group, request.member_id, out)
        return out

    def handle_leave(self, now_ms: int, request: LeaveGroup) -> ResultSteps[LeaveGroupReply]:
        self.pace = Pace()
        if not request.group_id:
            return Result(LeaveGroupReply(ErrorCode.invalid_group_id))
        group = self._groups.get(request.group_id)
        if group is None:
            return Result(request.error_reply(ErrorCode.unknown_member_id))
        out: Result[LeaveGroupReply] = Result()
        rows: list[tuple[LeavingMember, ErrorCode]] = []
        for leaving in request.members:
            member = group.members.get(leaving.member_id)
            rows.append((leaving, self._leave(group, leaving, out)))
            if self.pace.spend(_REPLY_WORK + (0 if member is None else member.scan_work)):
                yield None
        out.reply = LeaveGroupReply(members=rows)
        if any(error is ErrorCode.none for _, error in rows):
            if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
                yield from self._prepare_rebalance(now_ms, group, out)
            else:
                yield from self._complete_if_all_joined(now_ms, group, out)
        return out

    def _leave(self, group: ClassicGroup, leaving: LeavingMember, out: ResultParts) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id:  # an administrator's request has only the instance id of a static member
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.unknown_member_id
        elif member_id in group.pending_joins:
            group.remove(member_id)
            out.effects.append(CancelTimer((SESSION, group.group_id, member_id)))
            return ErrorCode.none
        else:
            error = group.check_member(member_id, leaving.group_instance_id)
            if error is not ErrorCode.none:
                return error
        self._forget(group, group.members[member_id], out)
        return ErrorCode.none

    # --- timers -----------------------------------------------------------------------------------------------

    def on_join_timer(self, now_ms: int, group: ClassicGroup) -> ResultSteps[None]:
        out: Result[None] = Result()
        self.pace = Pace()
        if group.state is not State.PREPARING_REBALANCE:
            return out
        delay = group.initial_delay_ms
        if delay is not None and group.new_member_added and group.initial_remaining_ms:
            # A member joined during the delay that has just ended: others may follow.
            group.new_member_added = False
            next_delay = min(self._config.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_delay_ms = next_delay
            group.initial_remaining_ms = max(group.initial_remaining_ms - delay, 0)
            out.effects.append(SetTimer((JOIN, group.group_id), now_ms + next_delay))
        else:
            yield from self._complete_join(now_ms, group, out)
        return out

    def on_sync_timer(self, now_ms: int, group: ClassicGroup) -> ResultSteps[None]:
        """Removes the members that joined this generation and did not sync."""
        out: Result[None] = Result()
        self.pace = Pace()
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE) and group.pending_syncs:
            for member_id in list(group.pending_syncs):
                member = group.members.get(member_id)
                if member is not None:  # None: a static member rejoined under a new id
                    self._forget(group, member, out)
                if self.pace.spend(_REPLY_WORK + (0 if member is None else member.scan_work)):
                    yield None
            yield from self._prepare_rebalance(now_ms, group, out)
        return out

    def on_session_timer(self, now_ms: int, group: ClassicGroup, member_id: str) -> ResultSteps[None]:
        out: Result[None] = Result()
        self.pace = Pace()
        if member_id in group.pending_joins:
            group.remove(member_id)
            if group.state is State.PREPARING_REBALANCE and group.all_joined:
                yield from self._complete_join(now_ms, group, out)
            return out
        member = group.members.get(member_id)
        if member is None:
            return out
        member.session_timer_ms = None
        if now_ms < member.session_deadline_ms:
            self._renew(group, member, member.session_deadline_ms, out)
        elif not member.needs_no_heartbeat:
            yield from self._remove(now_ms, group, member, out)
        return out

    def on_loaded(self, now_ms: int, out: ResultParts) -> Iterator[None]:
        """Gives every member a full session timeout to find this coordinator. Rebalances groups that are too large."""
        self.pace = Pace()
        for group in list(self._groups.values()):
            yield from self._begin(now_ms, group, out)

    def _begin(self, now_ms: int, group: ClassicGroup, out: ResultParts) -> Iterator[None]:
        yield from group.read_subscriptions(self.pace)
        for member in group.members.values():
            self._renew(group, member, now_ms + member.session_timeout_ms, out)
            if self.pace.spend():
                yield
        if len(group.members) > self._config.group_max_size:
            yield from self._prepare_rebalance(now_ms, group, out)
        if self.pace.spend():
            yield

    def restore(
        self, now_ms: int, group: ClassicGroup, error: ErrorCode, out: ResultParts, *, has_offsets: bool
    ) -> Iterator[None]:
        """Replaces a group by the group of its last record, as a load would. Its parked requests get ``error``."""
        self.pace = Pace()
        yield from self.end_sessions(group, out, self.pace, error)
        if group.persisted is not None:
            restored = self._groups[group.group_id] = ClassicGroup.from_metadata(group.group_id, group.persisted)
            yield from self._begin(now_ms, restored, out)
        elif has_offsets:
            self._groups[group.group_id] = ClassicGroup(group.group_id, State.EMPTY, group.state_since_ms)
        else:
            del self._groups[group.group_id]

    def renew_session(self, now_ms: int, group: ClassicGroup, member_id: str, out: ResultParts) -> None:
        """Renews the session of a member, if it is in the group."""
        member = group.members.get(member_id)
        if member is not None:
            self._renew(group, member, now_ms + member.session_timeout_ms, out)

    def _renew(self, group: ClassicGroup, member: Member, deadline_ms: int, out: ResultParts) -> None:
        member.session_deadline_ms = deadline_ms
        if member.session_timer_ms is None or deadline_ms < member.session_timer_ms:
            member.session_timer_ms = deadline_ms
            out.effects.append(SetTimer((SESSION, group.group_id, member.member_id), deadline_ms))

    # --- conversion of groups ---------------------------------------------------------------------------------

    def end_sessions(
        self, group: ClassicGroup, out: ResultParts, pace: Pace, error: ErrorCode = ErrorCode.rebalance_in_progress
    ) -> Iterator[None]:
        """Replies to the parked requests with ``error`` and cancels the timers of a group that ends.

        If it becomes a KIP-848 group, the members join again and become members of the KIP-848 group.
        """
        for member in group.members.values():
            self._reply_to_join(group, member, JoinGroupReply(error, member_id=member.member_id), out)
            self._reply_to_sync(member, SyncGroupReply(error), out)
            if pace.spend(_REPLY_WORK):
                yield
        for member_id in {*group.members, *group.pending_joins}:
            out.effects.append(CancelTimer((SESSION, group.group_id, member_id)))
            if pace.spend():
                yield
        out.effects += [CancelTimer((JOIN, group.group_id)), CancelTimer((SYNC, group.group_id))]

    def begin_sessions(
        self, now_ms: int, group: ClassicGroup, rebalances: bool, out: ResultParts, pace: Pace
    ) -> Iterator[None]:
        """Starts the sessions of a Stable group that was a KIP-848 group, and a rebalance if ``rebalances``.

        The replay of the group's record adds the group to ``groups``.
        """
        self.pace = pace
        for member in group.members.values():
            self._renew(group, member, now_ms + member.session_timeout_ms, out)
            if pace.spend():
                yield
        if rebalances:
            yield from self._prepare_rebalance(now_ms, group, out)

    # --- parked requests --------------------------------------------------------------------------------------

    def _park(self, kind: str, group: ClassicGroup, out: Result[R]) -> ParkKey[R]:
        self._parked += 1
        key: ParkKey[R] = ParkKey((kind, group.group_id, self._parked))
        out.effects.append(Park(key))
        return key

    def _reply_to_join(self, group: ClassicGroup, member: Member, reply: JoinGroupReply, out: ResultParts) -> None:
        parked = group.take_join(member)
        if parked is not None:
            out.effects.append(Complete(parked, reply))

    def _reply_to_sync(self, member: Member, reply: SyncGroupReply, out: ResultParts) -> bool:
        if member.parked_sync is None:
            return False
        out.effects.append(Complete(member.parked_sync, reply))
        member.parked_sync = None
        return True


_REPLY_WORK = 3
"""The work of one reply and one timer, in elements of a step (``core/pace``)."""


def _synced(group: ClassicGroup, assignment: bytes) -> SyncGroupReply:
    return SyncGroupReply(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def _differs(value: str | None, expected: str | None) -> bool:
    return value is not None and expected is not None and value != expected
