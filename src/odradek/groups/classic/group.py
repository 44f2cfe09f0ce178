"""A classic group: its members and its state.

Rules
* The first member that joins becomes the leader. A generation starts when all known members have joined. It also
  starts when the rebalance timeout ends; dynamic members that have not joined by then are removed.
* In a new generation the members vote for a protocol that all of them support. Only the leader gets the list of
  members and their metadata. It computes the assignment and sends it with SyncGroup.
* The generation is written to the log after the leader's SyncGroup. After a restart the coordinator has the last
  *synced* generation.
* The following parts change only in ``replay``: the assignments and the state Stable, the generation of an Empty
  group, and the new id of a static member of a Stable group. (A rebalance that starts in CompletingRebalance clears the
  assignments at once.)
* A member that sends no heartbeat within its session timeout is removed, unless its join or sync is parked (the parked
  join of a new member times out, too).
* A static member (a member with a group instance id) rejoins after a restart under a new member id and takes over
  its assignment. In a Stable group this causes no rebalance, unless the vote selects another protocol now. Its old id
  is fenced.

==================== ========================================= ===============================================
State                meaning                                   next states
==================== ========================================= ===============================================
Empty                no members; maybe committed offsets       PreparingRebalance (a join), Dead (deleted)
PreparingRebalance   the group waits for JoinGroup requests    CompletingRebalance (generation starts),
                                                               Empty (all left), Dead
CompletingRebalance  the group waits for the leader's          Stable (SyncGroup received),
                     SyncGroup                                 PreparingRebalance, Dead
Stable               every member has its assignment           PreparingRebalance (join, leave, timeout), Dead
Dead                 removed                                   –
==================== ========================================= ===============================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, field
from enum import Enum

from odradek.codecs.offsets_topic import GroupMetadata
from odradek.core.effects import ParkKey, result_of
from odradek.core.errors import ErrorCode
from odradek.core.ids import java_string_hash
from odradek.core.pace import Pace
from odradek.core.state_machines.tables import checked
from odradek.groups.kip848.embedded import MalformedProtocol, topics_in_steps
from odradek.groups.messages import JoinedMember, JoinGroup, JoinGroupReply, MemberProtocol, SyncGroupReply

CONSUMER = "consumer"
_NAMES_LIKE_ONE = 8
"""The number of protocol names whose scan or removal takes as long as one element of a step (``core/pace``)."""


class State(Enum):
    """The values are the names in Kafka's responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset({State.DEAD}),
}
"""The valid next states of each state."""


@dataclass(slots=True)
class Member:
    """One member. The fields after ``assignment`` are not in the log and are lost in a restart."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    parked_join: ParkKey[JoinGroupReply] | None = None
    parked_sync: ParkKey[SyncGroupReply] | None = None
    is_new: bool = False  # has never finished a join
    session_deadline_ms: int = 0
    session_timer_ms: int | None = None  # when the timer fires; a renewal of the session only moves the deadline

    def metadata(self, protocol: str | None) -> bytes:
        """Returns the member's metadata for a protocol, or no bytes."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    @property
    def scan_work(self) -> int:
        """The work of a scan of the member's protocols, in elements of a step (``core/pace``)."""
        return 1 + len(self.protocols) // _NAMES_LIKE_ONE

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def vote(self, candidates: Collection[str]) -> str:
        """Returns the first of the member's protocols that is a candidate."""
        return next(name for name, _ in self.protocols if name in candidates)

    def with_new_id(self, member_id: str, request: JoinGroup) -> Member:
        """Returns the static member under its new id."""
        return Member(
            member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            self.assignment,
        )

    @property
    def needs_no_heartbeat(self) -> bool:
        """Whether the member need not send heartbeats, because its join or sync is parked. False for a new member: its
        client may have disconnected, so its join has to time out.
        """
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)


@dataclass(slots=True)
class ClassicGroup:
    """State and members of a group. ``persisted`` is the group's last record in the log; only replay sets it."""

    group_id: str
    state: State
    state_since_ms: int  # -1: unknown, as in records before version 2
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)  # new ids with which no client has joined yet
    pending_syncs: set[str] = field(default_factory=set)
    awaiting_join: set[str] = field(default_factory=set)  # ids of members with a parked join
    supporters: Counter[str] = field(default_factory=Counter)  # protocol: number of members that support it
    subscribed_topics: frozenset[str] | None = None  # None: unknown
    previous_state: State = State.DEAD
    initial_delay_ms: int | None = None  # the current delay of an Empty group's first rebalance; None: no delay
    initial_remaining_ms: int = 0
    new_member_added: bool = False
    persisted: GroupMetadata | None = None

    @classmethod
    def from_metadata(cls, group_id: str, value: GroupMetadata) -> ClassicGroup:
        """Returns the group of a log record. ``read_subscriptions`` reads the members' topics later."""
        group = cls(
            group_id,
            State.STABLE if value.members else State.EMPTY,
            value.current_state_timestamp_ms,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol=value.protocol,
            leader=value.leader,
            persisted=value,
        )
        for loaded in value.members:
            protocols = (MemberProtocol(value.protocol or "", loaded.subscription),)
            member = Member(*loaded[:6], protocols=protocols, assignment=loaded.assignment)
            group.members[member.member_id] = member
            group.supporters.update(member.protocol_names)
            if member.group_instance_id is not None:
                group.static_members[member.group_instance_id] = member.member_id
        return group

    # --- state ------------------------------------------------------------------------------------------------

    def transition(self, state: State, now_ms: int) -> None:
        """Changes the state. Raises IllegalTransition."""
        state = checked(NEXT, f"group {self.group_id}", self.state, state)
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    @property
    def can_rebalance(self) -> bool:
        return State.PREPARING_REBALANCE in NEXT[self.state]

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER

    def start_generation(self, now_ms: int, pace: Pace) -> Generator[None, None, None]:
        """Starts the next generation with the current members."""
        self.generation += 1
        self.protocol = yield from self.select_protocol(pace)
        yield from self.read_subscriptions(pace)
        self.transition(State.COMPLETING_REBALANCE, now_ms)
        self.pending_syncs.clear()

    def replay(self, value: GroupMetadata, returned: Member | None = None) -> None:
        """Applies a record that this group has written: the members' assignments, or the state Empty.

        ``returned`` is a static member that has a new id in the record. A record without members does not change a
        group with members: it is the record of a new group, whose first members have joined already. Raises
        IllegalTransition.
        """
        self.persisted = value
        if self.members and not value.members:
            return
        if returned is not None:
            self.replace_static(returned)
        self.generation, self.protocol, self.leader = value.generation, value.protocol, value.leader
        members = self.members
        for row in value.members:
            members[row.member_id].assignment = row.assignment
        state = State.STABLE if value.members else State.EMPTY
        if state is not self.state:
            self.transition(state, value.current_state_timestamp_ms)
        if state is State.EMPTY:
            self.pending_syncs.clear()
            result_of(self.read_subscriptions(Pace()))

    # --- members ----------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self.supporters.update(member.protocol_names)
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Removes a member, pending or not. If it was the leader, the oldest remaining member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._discount_protocols(member)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.awaiting_join.discard(member_id)

    def set_protocols(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """Replaces the member's protocols."""
        if protocols != member.protocols:
            self._discount_protocols(member)
            member.protocols = protocols
            self.supporters.update(member.protocol_names)

    def _discount_protocols(self, member: Member) -> None:
        """Removes the member's protocols from the count.

        A name without members is deleted: clients can send new names without limit.
        """
        names = member.protocol_names
        self.supporters.subtract(names)
        for name in names:
            if not self.supporters[name]:
                del self.supporters[name]

    def park_join(self, member: Member, parked: ParkKey[JoinGroupReply]) -> None:
        """Notes that the member's join is parked under the key ``parked``."""
        member.parked_join = parked
        self.awaiting_join.add(member.member_id)

    def take_join(self, member: Member) -> ParkKey[JoinGroupReply] | None:
        """Removes and returns the key of the member's parked join; None if no join is parked."""
        parked, member.parked_join = member.parked_join, None
        self.awaiting_join.discard(member.member_id)
        return parked

    def replace_static(self, new: Member) -> None:
        """Replaces a static member by ``new``, the same member under a new id.

        An old id among the pending syncs stays there. So, as in Kafka, a static member that was absent at the start of
        a generation and rejoins during it causes one more rebalance when the sync timeout ends.
        """
        old = self.members.pop(self.static_members[new.group_instance_id or ""])
        self._discount_protocols(old)
        self.members[new.member_id] = new
        self.supporters.update(new.protocol_names)
        if self.leader == old.member_id:
            self.leader = new.member_id
        self.static_members[new.group_instance_id or ""] = new.member_id

    def members_with(self, new: Member) -> dict[str, Member]:
        """Returns the members after the static member with the group instance id of ``new`` has rejoined as ``new``."""
        members = dict(self.members)
        del members[self.static_members[new.group_instance_id or ""]]
        members[new.member_id] = new
        return members

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Returns NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    @property
    def all_joined(self) -> bool:
        return not self.pending_joins and len(self.awaiting_join) == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Makes the first member with a parked join the leader if the leader has not joined.

        Returns False if there is no leader or no member has joined.
        """
        if self.leader is None:
            return False
        if self.members[self.leader].parked_join is not None:
            return True
        for member in self.members.values():
            if member.parked_join is not None:
                self.leader = member.member_id
                return True
        return False

    def joined_members(self, pace: Pace) -> Generator[None, None, list[JoinedMember]]:
        """Returns the list of members for the leader's reply."""
        joined = []
        for member in self.members.values():
            joined.append(JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol)))
            if pace.spend(member.scan_work):
                yield
        return joined

    # --- protocols --------------------------------------------------------------------------------------------

    def select_protocol(self, pace: Pace) -> Generator[None, None, str]:
        """Returns the protocol with the most votes.

        Each member votes for the first of its protocols that all members support. Of names with equal votes, the
        first in the order of Java's HashMap wins.
        """
        one = next(iter(self.members.values()))  # any member has every protocol that all members support
        candidates = {name for name in one.protocol_names if self.supporters[name] == len(self.members)}
        return (yield from _count_votes(self.members.values(), candidates, pace))

    def select_protocol_with(self, new: Member, pace: Pace) -> Generator[None, None, str]:
        """Does the same as ``select_protocol``, with ``new`` in place of the static member with this instance id."""
        before = self.members[self.static_members[new.group_instance_id or ""]].protocol_names
        others = len(self.members) - 1
        candidates = {name for name in new.protocol_names if self.supporters[name] - (name in before) == others}
        return (yield from _count_votes(self.members_with(new).values(), candidates, pace))

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Returns whether a member with these protocols can join the current members."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self.supporters[name] == len(self.members) for name, _ in protocols)

    def read_subscriptions(self, pace: Pace) -> Generator[None, None, None]:
        """Sets ``subscribed_topics`` to the topics of a consumer group's members, or None if they are unknown."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            return
        topics: set[str] = set()
        last: bytes | None = None
        try:
            for member in self.members.values():
                metadata = member.metadata(self.protocol)
                if metadata != last:  # most members of a group have equal metadata
                    yield from topics_in_steps(metadata, topics, pace)
                    last = metadata
                if pace.spend(member.scan_work):
                    yield
        except MalformedProtocol:
            return
        self.subscribed_topics = frozenset(topics)

    def reads(self, topic: str) -> bool:
        """Returns whether the group subscribes to the topic. True for every topic if a consumer group's topics are
        unknown."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics


def _count_votes(members: Iterable[Member], candidates: Collection[str], pace: Pace) -> Generator[None, None, str]:
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidates)
        votes[name] = votes.get(name, 0) + 1
        if pace.spend(member.scan_work):
            yield
    return max(sorted(votes, key=_bucket), key=lambda name: votes[name])


def _bucket(name: str) -> int:
    """Returns the bucket of a string in a java.util.HashMap of 16 buckets."""
    value = java_string_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & 15
