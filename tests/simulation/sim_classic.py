"""A classic consumer: the client membership and assignors of this project, on simulated connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sim_members import OK, RETRY_MS, Process

from odradek.client.group.assignors import make_assignors
from odradek.client.group.classic_membership import ClassicMembership, ClassicState, NextStep
from odradek.client.group.errors import FencedInstance
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.groups.messages import (
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    SyncGroup,
)


class ClassicProcess(Process):
    """``strategy`` names assignors, the preferred one first. ``patience_ms``: the longest wait before a new join."""

    def __init__(
        self,
        *where: Any,
        strategy: tuple[str, ...],
        session_ms: int,
        rebalance_ms: int,
        patience_ms: int,
        number: int,
    ) -> None:
        super().__init__(*where)
        self.patience_ms = patience_ms
        self.membership = ClassicMembership(
            self.group_id,
            make_assignors(strategy),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            instance_id=self.instance_id,
        )
        self._rebalance_ms = rebalance_ms
        self._new_ids = (f"m{number}-{n}" for n in range(1_000_000))
        self._is_modern = self.world.chance(0.8)  # supports MEMBER_ID_REQUIRED
        # In older versions of JoinGroup, a static member that returns as the leader does not learn that it is the
        # leader. So it would not notice topic changes.
        self._skips_assignment = self.instance_id is not None or self.world.chance(0.5)
        self._busy = False
        self._counts: dict[str, int] = {}
        self._beat_ms = session_ms // 3
        self.later(self._beat_ms, self._beat)

    def start(self) -> None:
        self.note("starts: {} of {}{}", "/".join(self.membership._assignors), self.group_id, self.topics)
        self.step()

    def identity(self) -> tuple[str, int]:
        return self.membership.member_id, self.membership.generation

    @property
    def may_commit(self) -> bool:
        return self.membership.known

    @property
    def at_rest(self) -> bool:
        return self.membership.state is ClassicState.STABLE

    def on_commit_refused(self, error: ErrorCode) -> None:
        self.membership.on_commit_refused(error)
        self.step()

    # --- joining ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Joins, if a join is due and none is in progress."""
        member = self.membership
        if member.state is ClassicState.FENCED:
            self.note("is fenced")
            self.die()
            return
        if member.lost:
            member.lost = False
            self.note("has lost {}", sorted(self.owned))
            self.give_up(set(self.owned))
        if member.state is not ClassicState.UNJOINED or self._busy or self.leaving:
            return
        self._busy = True
        self.later(self.world.between(0, self.patience_ms), self._prepare)

    def _prepare(self) -> None:
        if self.owned and self.world.chance(0.7):
            self.commit(then=self._revoke_and_join)
        else:
            self._revoke_and_join()

    def _revoke_and_join(self) -> None:
        member = self.membership
        if member.lost or not member.cooperative:
            member.lost = False
            self.give_up(set(self.owned))
        else:
            self.give_up([tp for tp in self.owned if tp.topic not in self.topics])
        self._join()

    def _join(self) -> None:
        member = self.membership
        if not self.alive or self.leaving:
            return
        said = member.join_request(sorted(self.topics), sorted(self.owned) if member.cooperative else [])
        request = JoinGroup(
            self.group_id,
            said["member_id"],
            next(self._new_ids),
            self.name,
            "/sim",
            said["session_timeout"],
            said["rebalance_timeout"],
            said["protocol_type"],
            tuple(MemberProtocol(row["name"], row["metadata"]) for row in said["protocols"]),
            self.instance_id,
            self._is_modern,
            self._skips_assignment,
        )
        self.note("joins as {!r}: {}", said["member_id"], member.rejoin_reason)
        self.net.call(self.group_id, request, self._joined, timeout_ms=self._rebalance_ms + 15_000)

    def _joined(self, reply: JoinGroupReply | None) -> None:
        if reply is None:
            self.membership.request_rejoin("the connection was lost")
            self.later(RETRY_MS, self._join)
            return
        members = [
            SimpleNamespace(member_id=row.member_id, group_instance_id=row.group_instance_id, metadata=row.metadata)
            for row in reply.members
        ]
        seen = SimpleNamespace(
            error_code=reply.error,
            member_id=reply.member_id,
            generation_id=reply.generation_id,
            protocol_name=reply.protocol_name,
            leader=reply.leader,
            skip_assignment=reply.skip_assignment,
            members=members,
        )
        self.note("joined: {} generation {} as {}", reply.error.name, reply.generation_id, reply.member_id)
        try:
            following = self.membership.on_join(seen)
        except FencedInstance:
            self.step()
            return
        except (OdradekError, KafkaError) as error:
            self._refused(error)
            return
        if following is NextStep.CONTINUE:
            self._sync()
        else:
            self._again(following)

    def _refused(self, error: Exception) -> None:
        """Ends the process, because joining again would not remove the error. A later process may be able to join."""
        self.note("gives up: {}", error)
        self.die()

    def _sync(self) -> None:
        member, topics = self.membership, self.coordinator.topics
        self._counts = {name: n for name in member.leader_topics if (n := topics.count_of(name)) is not None}
        said = member.sync_request(self._counts)
        request = SyncGroup(
            self.group_id,
            said["member_id"],
            said["generation_id"],
            {row["member_id"]: row["assignment"] for row in said["assignments"]},
            self.instance_id,
            said["protocol_type"],
            said["protocol_name"],
        )
        self.net.call(self.group_id, request, self._synced, timeout_ms=self._rebalance_ms + 15_000)

    def _synced(self, reply: Any | None) -> None:
        member = self.membership
        if reply is None:
            member.request_rejoin("the connection was lost")
            self.later(RETRY_MS, self._join)
            return
        try:
            following, assigned = member.on_sync(SimpleNamespace(error_code=reply.error, assignment=reply.assignment))
        except FencedInstance:
            self.step()
            return
        except (OdradekError, KafkaError) as error:
            self._refused(error)
            return
        self.note("synced: {} {}", reply.error.name, [str(tp) for tp in assigned])
        if following is not NextStep.CONTINUE:
            self._again(following)
            return
        self._busy = False
        self._assigned(set(assigned))
        self.step()

    def _assigned(self, assigned: set[TopicPartition]) -> None:
        if self.membership.lost:
            self.membership.lost = False
            self.give_up(set(self.owned))
        revoked = self.owned - assigned
        if revoked:
            self.give_up(revoked)
            self.membership.request_rejoin("gave partitions up")
        self.take(assigned)

    def _again(self, following: NextStep) -> None:
        if self.membership.lost:
            self.membership.lost = False
            self.give_up(set(self.owned))
        self.later(0 if following is NextStep.JOIN_AGAIN else RETRY_MS, self._join)

    # --- heartbeats and the end -------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.later(self._beat_ms, self._beat)
        member = self.membership
        if member.state is not ClassicState.STABLE or self.leaving:
            return
        generation = member.generation
        if member.is_leader:
            topics = self.coordinator.topics
            seen = {name: n for name in member.leader_topics if (n := topics.count_of(name)) is not None}
            if seen != self._counts:
                member.request_rejoin("topics changed")
                self.step()
                return

        def beaten(error: ErrorCode | None) -> None:
            if error is None:
                return
            if error is not OK:
                self.note("heartbeat: {}", error.name)
            try:
                member.on_heartbeat(error, generation)
            except FencedInstance:
                pass  # step() handles it
            self.step()

        request = Heartbeat(self.group_id, member.member_id, generation, self.instance_id)
        self.net.call(self.group_id, request, beaten)

    def change_topics(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.membership.request_rejoin("reads other topics")
        self.note("reads {} now", topics)
        self.step()

    def nudge(self) -> None:
        self.membership.request_rejoin("nudged")
        self.step()

    def leave(self) -> None:
        """Closes like a client: commits, gives up its partitions, and leaves. A static member sends no LeaveGroup."""
        if self.leaving:
            return
        self.leaving = True
        self.note("leaves")
        self.commit(then=self._leave_group)

    def _leave_group(self) -> None:
        self.give_up(set(self.owned))
        said = self.membership.leave_request("done")
        if said is None:
            self.die()
            return
        request = LeaveGroup(self.group_id, [LeavingMember(said["member_id"], None)])
        self.net.call(self.group_id, request, lambda _: self.die(), timeout_ms=5_000)
