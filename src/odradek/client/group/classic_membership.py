"""One member of a classic group as a state machine: what to send next, and what an answer means. No socket, no clock.

state      meaning                                                 leaves by
UNJOINED   no place in the group, or a rebalance is due            ``join_request``
JOINING    JoinGroup is out; the coordinator waits for the others  ``on_join`` → SYNCING, or UNJOINED (try again)
SYNCING    SyncGroup is out                                        ``on_sync`` → STABLE, or UNJOINED
STABLE     heartbeats; what was assigned may be read               ``on_heartbeat``, ``request_rejoin`` → UNJOINED
FENCED     another process took the instance id: nothing helps     –

An eager member gives all partitions up before it joins, a cooperative one keeps them and gives up afterwards what it
was not given again, which makes it join once more. A member that the coordinator no longer knows has lost what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from odradek.client.consumer.errors import FencedInstance
from odradek.client.errors import error_for
from odradek.client.group.assignors import Assignor, checked_plan
from odradek.client.group.sticky_assignor import NO_RACKS, PartitionRacks
from odradek.core.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition

PROTOCOL_TYPE = "consumer"


class ClassicState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    FENCED = "fenced"


class Next(Enum):
    """What to do after an answer."""

    GO_ON = "go on"
    JOIN_AGAIN = "join again at once"
    FIND_COORDINATOR = "look the coordinator up, then join again"
    BACK_OFF = "join again after a while"


_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


class ClassicMembership:
    def __init__(
        self,
        group_id: str,
        assignors: Sequence[Assignor],
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        rack: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.instance_id = instance_id
        self._assignors = {one.name: one for one in assignors}
        # One eager assignor among them makes the member eager: the group may choose it.
        self.cooperative = all(one.cooperative for one in assignors)
        self._timeouts_ms = (session_timeout_ms, rebalance_timeout_ms)
        self._rack = rack
        self.state = ClassicState.UNJOINED
        self.member_id = ""
        self.generation = NO_GENERATION
        self.protocol: str | None = None
        self.is_leader = False
        self.lost = False
        """The coordinator has thrown this member out: what it owned belongs to others by now."""
        self.rejoin_reason = ""
        self._members: dict[str, Subscription] = {}
        self._skip_assignment = False
        self._is_outdated = False

    @property
    def joined(self) -> bool:
        return self.state is ClassicState.STABLE

    @property
    def known(self) -> bool:
        """Whether the coordinator may know this member, so that heartbeats and LeaveGroup have a sense."""
        return bool(self.member_id) and self.generation != NO_GENERATION and self.state is not ClassicState.FENCED

    @property
    def leader_topics(self) -> set[str]:
        """All topics that the members read; the leader alone knows them."""
        return {topic for one in self._members.values() for topic in one.topics} if self.is_leader else set()

    # --- joining ----------------------------------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        if self.state is not ClassicState.FENCED:
            self.state = ClassicState.UNJOINED
            self.rejoin_reason = reason

    def join_request(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> dict[str, Any]:
        """``owned``: what a cooperative member keeps while the group rebalances."""
        self.state = ClassicState.JOINING
        protocols = []
        for name, assignor in self._assignors.items():
            user_data = assignor.user_data(topics)
            if not isinstance(user_data, bytes):
                raise TypeError(f"assignor {name}: user_data() must return bytes, not {user_data!r}")
            subscription = Subscription(tuple(topics), user_data, tuple(owned), self.generation, self._rack)
            protocols.append({"name": name, "metadata": encode_subscription(subscription)})
        return {
            "group_id": self.group_id,
            "session_timeout": self._timeouts_ms[0],
            "rebalance_timeout": self._timeouts_ms[1],
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": protocols,
            "reason": self.rejoin_reason[:255],
        }

    def on_join(self, reply: Any) -> Next:
        """Raises what joining again does not help against (INCONSISTENT_GROUP_PROTOCOL, FencedInstance, …)."""
        code = reply.error_code
        if code is ErrorCode.member_id_required:
            self.member_id = reply.member_id
            return self._again(Next.JOIN_AGAIN)
        if code is not ErrorCode.none:
            return self._refused(code, "joining")
        self.member_id = reply.member_id
        self.generation = reply.generation_id
        self.protocol = reply.protocol_name
        self.is_leader = reply.leader == reply.member_id
        if self.protocol is not None and self.protocol not in self._assignors:
            what = f"group {self.group_id}: the coordinator chose the assignor {self.protocol!r}, which was not offered"
            raise error_for(ErrorCode.inconsistent_group_protocol, what)
        self._skip_assignment = bool(getattr(reply, "skip_assignment", False))
        try:
            self._members = {
                m.member_id: decode_subscription(bytes(m.metadata), getattr(m, "group_instance_id", None))
                for m in reply.members
            }
        except ValueError as error:
            what = f"group {self.group_id}: a member's subscription cannot be read: {error}"
            raise error_for(ErrorCode.inconsistent_group_protocol, what) from error
        self._is_outdated = self.state is not ClassicState.JOINING  # what it joined with has changed since
        self.state = ClassicState.SYNCING
        return Next.GO_ON

    def sync_request(
        self,
        partition_counts: Callable[[str], int | None] | Mapping[str, int],
        partition_racks: PartitionRacks = NO_RACKS,
    ) -> dict[str, Any]:
        """The leader's carries the plan. ``partition_counts`` maps topics that exist."""
        count_of = partition_counts.get if isinstance(partition_counts, Mapping) else partition_counts
        rows: list[dict[str, Any]] = []
        if self.is_leader and not self._skip_assignment and self.protocol is not None:
            counts = {topic: n for topic in sorted(self.leader_topics) if (n := count_of(topic)) is not None}
            assignor = self._assignors[self.protocol]
            assignor.partition_racks = partition_racks
            planned = assignor.assign(self._members, counts)
            plan = checked_plan(self.protocol, planned, self._members)
            rows = [
                {"member_id": member_id, "assignment": encode_assignment(tuple(partitions))}
                for member_id, partitions in plan.items()
            ]
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": self.protocol,
            "assignments": rows,
        }

    def on_sync(self, reply: Any) -> tuple[Next, tuple[TopicPartition, ...]]:
        """What this member shall read. ``on_assigned`` of its assignor has been called."""
        if reply.error_code is not ErrorCode.none:
            return self._refused(reply.error_code, "syncing"), ()
        try:
            assigned = decode_assignment(bytes(reply.assignment))
        except ValueError as error:
            what = f"group {self.group_id}: the assignment cannot be read: {error}"
            raise error_for(ErrorCode.inconsistent_group_protocol, what) from error
        if self.state is ClassicState.SYNCING:  # a heartbeat may have told of the next rebalance meanwhile
            self.state = ClassicState.UNJOINED if self._is_outdated else ClassicState.STABLE
            self.rejoin_reason = self.rejoin_reason if self._is_outdated else ""
        if self.protocol is not None:
            self._assignors[self.protocol].on_assigned(assigned, self.generation)
        return Next.GO_ON, assigned

    # --- while it lasts ---------------------------------------------------------------------------------------

    def heartbeat_request(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    def on_heartbeat(self, code: ErrorCode, generation: int) -> Next:
        """``generation``: the one that the heartbeat was sent in; an answer to an older one says nothing any more."""
        if code is ErrorCode.none or generation != self.generation:
            return Next.GO_ON
        if code is ErrorCode.rebalance_in_progress:
            if self.state is ClassicState.STABLE:
                self.request_rejoin("the group is rebalancing")
            return Next.GO_ON
        return self._refused(code, "heartbeat")

    def on_commit_refused(self, code: ErrorCode) -> None:
        """A commit's answer tells the same as a heartbeat's."""
        if code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._refused(code, "commit")
        elif code is ErrorCode.rebalance_in_progress and self.state is ClassicState.STABLE:
            self.request_rejoin("the group is rebalancing")
        elif code is ErrorCode.fenced_instance_id:
            self.state = ClassicState.FENCED

    def leave_request(self, reason: str) -> dict[str, Any] | None:
        """None where there is nothing to leave: not joined, or a static member, which may come back."""
        if not self.known or self.instance_id is not None:
            return None
        member = {"member_id": self.member_id, "group_instance_id": None, "reason": reason[:255]}
        return {"group_id": self.group_id, "member_id": self.member_id, "members": [member]}

    def on_left(self, *, lost: bool) -> None:
        """``lost``: without having given the partitions up first."""
        self.member_id = ""
        self._forget_generation("left the group", lost=lost)

    # --- refusals ---------------------------------------------------------------------------------------------

    def _again(self, how: Next) -> Next:
        self.state = ClassicState.UNJOINED
        return how

    def _forget_generation(self, reason: str, *, lost: bool) -> None:
        self.lost = self.lost or lost
        self.generation = NO_GENERATION
        self.is_leader = False
        self._members = {}
        self.request_rejoin(reason)

    def _refused(self, code: ErrorCode, during: str) -> Next:
        if code is ErrorCode.fenced_instance_id:
            self.state = ClassicState.FENCED
            raise FencedInstance(self.instance_id or "")
        if code is ErrorCode.unknown_member_id:
            had_place = self.generation != NO_GENERATION
            self.member_id = ""
            self._forget_generation(f"{during}: the coordinator does not know this member", lost=had_place)
            return Next.JOIN_AGAIN
        if code is ErrorCode.illegal_generation:
            self._forget_generation(f"{during}: the generation is over", lost=self.generation != NO_GENERATION)
            return Next.JOIN_AGAIN
        if code is ErrorCode.rebalance_in_progress:
            return self._again(Next.JOIN_AGAIN)
        if code in _MOVED:
            return self._again(Next.FIND_COORDINATOR) if during != "heartbeat" else Next.FIND_COORDINATOR
        if code is ErrorCode.coordinator_load_in_progress:
            return self._again(Next.BACK_OFF) if during != "heartbeat" else Next.BACK_OFF
        self.state = ClassicState.UNJOINED
        raise error_for(code, f"group {self.group_id}: {self._reason(code) or during}")

    def _reason(self, code: ErrorCode) -> str:
        """What a refusal for good means, and what helps; empty where the code says it all."""
        if code is ErrorCode.invalid_session_timeout:
            return (
                f"session_timeout_ms={self._timeouts_ms[0]} is not between the broker's group.min.session.timeout.ms "
                "and group.max.session.timeout.ms (6000 and 1800000, unless it was told otherwise)"
            )
        if code is ErrorCode.inconsistent_group_protocol:
            names = ", ".join(self._assignors)
            return f"its members have no assignor in common with partition_assignment_strategy={names}"
        if code is ErrorCode.group_max_size_reached:
            return "it has as many members as the broker's group.max.size allows"
        return ""
