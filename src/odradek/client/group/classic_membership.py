"""One member of a classic group as a state machine: its requests, and the handling of replies. No socket, no clock.

state      meaning                                                       transitions
UNJOINED   not a member, or a rebalance is due                           ``join_request`` → JOINING
JOINING    JoinGroup is in flight; the coordinator waits for all members ``on_join`` → SYNCING, or UNJOINED (retry)
SYNCING    SyncGroup is in flight                                        ``on_sync`` → STABLE, or UNJOINED
STABLE     heartbeats; the member reads its partitions                   ``on_heartbeat``, ``request_rejoin`` → UNJOINED
FENCED     another consumer uses the instance id                         final

An eager member gives up all partitions before it joins. A cooperative member keeps them. After the join it gives up the
partitions that it did not get again, and then it joins once more. A member that the coordinator has removed has lost
its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from odradek.client.errors import error_for
from odradek.client.group.assignors import Assignor, checked_assignments
from odradek.client.group.errors import FencedInstance
from odradek.client.group.sticky_assignor import NO_RACKS, PartitionRacks
from odradek.codecs.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.core.state_machines.tables import checked

if TYPE_CHECKING:
    from kio.schema.join_group.v9.response import JoinGroupResponse
    from kio.schema.sync_group.v5.response import SyncGroupResponse

PROTOCOL_TYPE = "consumer"


class ClassicState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    FENCED = "fenced"


_STATE = ClassicState
NEXT: dict[ClassicState, frozenset[ClassicState]] = {
    _STATE.UNJOINED: frozenset({_STATE.UNJOINED, _STATE.JOINING, _STATE.SYNCING, _STATE.FENCED}),
    _STATE.JOINING: frozenset({_STATE.UNJOINED, _STATE.SYNCING, _STATE.FENCED}),
    _STATE.SYNCING: frozenset({_STATE.UNJOINED, _STATE.STABLE, _STATE.FENCED}),
    _STATE.STABLE: frozenset({_STATE.UNJOINED, _STATE.FENCED}),
    _STATE.FENCED: frozenset(),
}
"""The valid next states of each state. UNJOINED → SYNCING: a rebalance was due before the reply to JoinGroup came.
FENCED is the end: a reply that comes later changes nothing."""


class NextStep(Enum):
    """The step after a reply."""

    CONTINUE = "go on"
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
        """The coordinator has removed this member, or the member has left because of late polls, and it still has its
        partitions: other members may own them."""
        self.rejoin_reason = ""
        self._members: dict[str, Subscription] = {}
        self._skip_assignment = False
        self._is_outdated = False

    @property
    def joined(self) -> bool:
        return self.state is ClassicState.STABLE

    @property
    def known(self) -> bool:
        """Whether the coordinator may know this member: if not, heartbeats and LeaveGroup are useless."""
        return bool(self.member_id) and self.generation != NO_GENERATION and self.state is not ClassicState.FENCED

    @property
    def leader_topics(self) -> set[str]:
        """The subscribed topics of all members; empty unless this member is the leader."""
        return {topic for one in self._members.values() for topic in one.topics} if self.is_leader else set()

    # --- joining ----------------------------------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        if self.state is not ClassicState.FENCED:
            self._enter(ClassicState.UNJOINED)
            self.rejoin_reason = reason

    def join_request(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> dict[str, object]:
        """Returns the JoinGroup request. ``owned``: the partitions that a cooperative member keeps during the
        rebalance."""
        self._enter(ClassicState.JOINING)
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

    def on_join(self, reply: JoinGroupResponse) -> NextStep:
        """Handles the reply to JoinGroup. Raises errors that another join cannot solve (INCONSISTENT_GROUP_PROTOCOL,
        FencedInstance, …)."""
        code = reply.error_code
        if code is ErrorCode.member_id_required:
            self.member_id = reply.member_id
            return self._again(NextStep.JOIN_AGAIN)
        if code is not ErrorCode.none:
            return self._on_refusal(code, "joining")
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
        self._is_outdated = self.state is not ClassicState.JOINING  # the subscription has changed since the request
        self._enter(ClassicState.SYNCING)
        return NextStep.CONTINUE

    def sync_request(
        self,
        partition_counts: Callable[[str], int | None] | Mapping[str, int],
        partition_racks: PartitionRacks = NO_RACKS,
    ) -> dict[str, object]:
        """Returns the SyncGroup request. The leader's request has the assignment.

        ``partition_counts`` leaves out topics that do not exist, or returns None for them."""
        count_of = partition_counts.get if isinstance(partition_counts, Mapping) else partition_counts
        rows: list[dict[str, object]] = []
        if self.is_leader and not self._skip_assignment and self.protocol is not None:
            counts = {topic: n for topic in sorted(self.leader_topics) if (n := count_of(topic)) is not None}
            assignor = self._assignors[self.protocol]
            assignor.partition_racks = partition_racks
            planned = assignor.assign(self._members, counts)
            assignments = checked_assignments(self.protocol, planned, self._members)
            rows = [
                {"member_id": member_id, "assignment": encode_assignment(tuple(partitions))}
                for member_id, partitions in assignments.items()
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

    def on_sync(self, reply: SyncGroupResponse) -> tuple[NextStep, tuple[TopicPartition, ...]]:
        """Returns the next step and this member's partitions. Calls ``on_assigned`` of the assignor."""
        if reply.error_code is not ErrorCode.none:
            return self._on_refusal(reply.error_code, "syncing"), ()
        try:
            assigned = decode_assignment(bytes(reply.assignment))
        except ValueError as error:
            what = f"group {self.group_id}: the assignment cannot be read: {error}"
            raise error_for(ErrorCode.inconsistent_group_protocol, what) from error
        if self.state is ClassicState.SYNCING:  # a heartbeat may have reported the next rebalance
            self._enter(ClassicState.UNJOINED if self._is_outdated else ClassicState.STABLE)
            self.rejoin_reason = self.rejoin_reason if self._is_outdated else ""
        if self.protocol is not None:
            self._assignors[self.protocol].on_assigned(assigned, self.generation)
        return NextStep.CONTINUE, assigned

    # --- heartbeats, commits, leaving -------------------------------------------------------------------------

    def heartbeat_request(self) -> dict[str, object]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    def on_heartbeat(self, code: ErrorCode, generation: int) -> NextStep:
        """Handles the reply to a heartbeat of ``generation``; a reply to a heartbeat of an older generation is
        ignored."""
        if code is ErrorCode.none or generation != self.generation:
            return NextStep.CONTINUE
        if code is ErrorCode.rebalance_in_progress:
            if self.state is ClassicState.STABLE:
                self.request_rejoin("the group is rebalancing")
            return NextStep.CONTINUE
        return self._on_refusal(code, "heartbeat")

    def on_commit_refused(self, code: ErrorCode) -> None:
        """Handles the error of a refused commit. After some codes the member joins again or is FENCED; the other codes
        change nothing."""
        if code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._on_refusal(code, "commit")
        elif code is ErrorCode.rebalance_in_progress and self.state is ClassicState.STABLE:
            self.request_rejoin("the group is rebalancing")
        elif code is ErrorCode.fenced_instance_id:
            self._enter(ClassicState.FENCED)

    def leave_request(self, reason: str) -> dict[str, object] | None:
        """Returns the LeaveGroup request. None: the member is not in the group, or it is static and may return.

        A member that waits for its first generation is in the group: without the request, the others wait for it until
        its session ends."""
        if not self.member_id or self.state is ClassicState.FENCED or self.instance_id is not None:
            return None
        member = {"member_id": self.member_id, "group_instance_id": None, "reason": reason[:255]}
        return {"group_id": self.group_id, "member_id": self.member_id, "members": [member]}

    def on_left(self, *, lost: bool) -> None:
        """Notes that the member has left. ``lost``: it had not given up its partitions before."""
        self.member_id = ""
        self._forget_generation("left the group", lost=lost)

    # --- error codes ------------------------------------------------------------------------------------------

    def _enter(self, state: ClassicState) -> None:
        if self.state is not ClassicState.FENCED:
            self.state = checked(NEXT, f"group {self.group_id}", self.state, state)

    def _again(self, how: NextStep) -> NextStep:
        self._enter(ClassicState.UNJOINED)
        return how

    def _forget_generation(self, reason: str, *, lost: bool) -> None:
        self.lost = self.lost or lost
        self.generation = NO_GENERATION
        self.is_leader = False
        self._members = {}
        self.request_rejoin(reason)

    def _on_refusal(self, code: ErrorCode, during: str) -> NextStep:
        if code is ErrorCode.fenced_instance_id:
            self._enter(ClassicState.FENCED)
            raise FencedInstance(self.instance_id or "")
        if code is ErrorCode.unknown_member_id:
            had_place = self.generation != NO_GENERATION
            self.member_id = ""
            self._forget_generation(f"{during}: the coordinator does not know this member", lost=had_place)
            return NextStep.JOIN_AGAIN
        if code is ErrorCode.illegal_generation:
            self._forget_generation(f"{during}: the generation has ended", lost=self.generation != NO_GENERATION)
            return NextStep.JOIN_AGAIN
        if code is ErrorCode.rebalance_in_progress:
            return self._again(NextStep.JOIN_AGAIN)
        if code in _MOVED:
            return self._again(NextStep.FIND_COORDINATOR) if during != "heartbeat" else NextStep.FIND_COORDINATOR
        if code is ErrorCode.coordinator_load_in_progress:
            return self._again(NextStep.BACK_OFF) if during != "heartbeat" else NextStep.BACK_OFF
        self._enter(ClassicState.UNJOINED)
        raise error_for(code, f"group {self.group_id}: {self._reason(code) or during}")

    def _reason(self, code: ErrorCode) -> str:
        """Returns the cause of an error that is not retried; empty if the code is clear by itself."""
        if code is ErrorCode.invalid_session_timeout:
            return (
                f"session_timeout_ms={self._timeouts_ms[0]} is not between the broker's group.min.session.timeout.ms "
                "and group.max.session.timeout.ms (6000 and 1800000 by default)"
            )
        if code is ErrorCode.inconsistent_group_protocol:
            names = ", ".join(self._assignors)
            return f"its members have no assignor in common with partition_assignment_strategy={names}"
        if code is ErrorCode.group_max_size_reached:
            return "it has as many members as the broker's group.max.size allows"
        return ""
