"""A classic group: who is in it, and which state it is in.

Rules
* Members join; the first becomes leader. When all known members have joined (or the rebalance timeout ran out, which
  drops those that have not), a generation starts: members vote for a protocol all of them support, the leader alone
  learns who is in and what they said, computes the assignment and hands it in with SyncGroup.
* Only then is the generation written to the log; a coordinator that restarts knows the last *synced* generation.
  What a record tells changes in ``replay`` alone: assignments and the state Stable, the generation of an Empty group,
  the new id of a static member of a Stable group.
* A member that does not heartbeat for its session timeout is removed, unless it waits for us to answer.
* A static member (one with a group instance id) keeps its place over a restart: it comes back under a new member id,
  takes over assignment and, in a Stable group, causes no rebalance; its old id is fenced from then on.

==================== ========================================= ===============================================
State                means                                     goes to
==================== ========================================= ===============================================
Empty                no members; maybe committed offsets       PreparingRebalance (a join), Dead (deleted)
PreparingRebalance   joins are gathered                        CompletingRebalance (generation starts),
                                                               Empty (all left), Dead
CompletingRebalance  the leader's SyncGroup is awaited         Stable (it came), PreparingRebalance, Dead
Stable               members work on their assignment          PreparingRebalance (join, leave, death), Dead
Dead                 removed                                   –
==================== ========================================= ===============================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode
from odradek.core.ids import java_string_hash
from odradek.core.pace import Pace
from odradek.core.records import GroupMetadata
from odradek.groups.consumer_embedded import MalformedProtocol, topics_in_steps
from odradek.groups.messages import JoinedMember, JoinGroup, MemberProtocol

CONSUMER = "consumer"
_NAMES_LIKE_ONE = 8
"""To look through so many names, or to forget them, takes no longer than one element of a step."""


class State(Enum):
    """Values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


FROM: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}
"""The states each state may be entered from."""


class IllegalTransition(RuntimeError):
    """A bug in here: the state table forbids this step."""


@dataclass(slots=True)
class Member:
    """Everything about one member; what follows ``assignment`` is soft and gone after a restart."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    parked_join: Hashable | None = None
    parked_sync: Hashable | None = None
    is_new: bool = False  # has never finished a join
    session_deadline_ms: int = 0
    session_timer_ms: int | None = None  # when its timer fires: a renewed session moves the deadline only

    def metadata(self, protocol: str | None) -> bytes:
        """What it said about itself for a protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    @property
    def scan_work(self) -> int:
        """What it takes to look through its protocols, in elements of a step."""
        return 1 + len(self.protocols) // _NAMES_LIKE_ONE

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def vote(self, candidates: Collection[str]) -> str:
        """The first of its protocols that is a candidate."""
        return next(name for name, _ in self.protocols if name in candidates)

    def returned(self, member_id: str, request: JoinGroup) -> Member:
        """The static member as it comes back under a new id."""
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
    def waits_for_us(self) -> bool:
        """Excused from heartbeats. A new member's join may time out, as it may have gone without a word."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)


@dataclass(slots=True)
class ClassicGroup:
    """State and membership. ``persisted`` is the last record of this group in the log; only replay sets it."""

    group_id: str
    state: State
    state_since_ms: int  # -1: not known, from records before version 2
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)  # told their id, expected to join with it
    pending_syncs: set[str] = field(default_factory=set)
    awaiting_join: set[str] = field(default_factory=set)  # ids of members whose join waits for its answer
    speakers: Counter[str] = field(default_factory=Counter)  # how many members know a protocol
    subscribed_topics: frozenset[str] | None = None  # None: not known
    previous_state: State = State.DEAD
    initial_delay_ms: int | None = None  # while the first rebalance waits for more members: the current wait
    initial_remaining_ms: int = 0
    new_member_added: bool = False
    persisted: GroupMetadata | None = None

    @classmethod
    def from_metadata(cls, group_id: str, value: GroupMetadata) -> ClassicGroup:
        """The group as a record of the log tells it. Its members' topics are left to ``read_subscriptions``."""
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
            group.speakers.update(member.protocol_names)
            if member.group_instance_id is not None:
                group.static_members[member.group_instance_id] = member.member_id
        return group

    # --- state ------------------------------------------------------------------------------------------------

    def transition(self, state: State, now_ms: int) -> None:
        """Raises IllegalTransition."""
        if self.state not in FROM[state]:
            raise IllegalTransition(f"group {self.group_id}: {self.state.value} → {state.value}")
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in FROM[State.PREPARING_REBALANCE]

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER

    def start_generation(self, now_ms: int, pace: Pace) -> Generator[None, None, None]:
        """Begins the next generation with those who are members now."""
        self.generation += 1
        self.protocol = yield from self.select_protocol(pace)
        yield from self.read_subscriptions(pace)
        self.transition(State.COMPLETING_REBALANCE, now_ms)
        self.pending_syncs.clear()

    def replay(self, value: GroupMetadata, returned: Member | None = None) -> None:
        """Takes over a record that the living group has written: its members' assignments, or that it is Empty.

        ``returned`` is a static member that the record has under a new id. Members of whom there is no record yet stay:
        they have joined the group that the record of a new group is of. Raises IllegalTransition.
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
        self.speakers.update(member.protocol_names)
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forgets a member, pending or not; if it led, the longest-standing other leads."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._unlearn(member)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.awaiting_join.discard(member_id)

    def speak(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """The member knows these protocols from now on."""
        if protocols != member.protocols:
            self._unlearn(member)
            member.protocols = protocols
            self.speakers.update(member.protocol_names)

    def _unlearn(self, member: Member) -> None:
        """Counts the member's protocols no more. Nothing is left of a name that nobody knows: the next may be new."""
        names = member.protocol_names
        self.speakers.subtract(names)
        for name in names:
            if not self.speakers[name]:
                del self.speakers[name]

    def park_join(self, member: Member, parked: Hashable) -> None:
        """The member's join waits for its answer under that name."""
        member.parked_join = parked
        self.awaiting_join.add(member.member_id)

    def take_join(self, member: Member) -> Hashable | None:
        """The name under which the member's join waited, if it did; it waits no more."""
        parked, member.parked_join = member.parked_join, None
        self.awaiting_join.discard(member.member_id)
        return parked

    def replace_static(self, new: Member) -> None:
        """Lets a static member go on under a new id.

        The old id stays among the pending syncs if it was: as in Kafka, a static member that was away when its
        generation started, and comes back in it, causes one more rebalance when the sync timeout is over.
        """
        old = self.members.pop(self.static_members[new.group_instance_id or ""])
        self._unlearn(old)
        self.members[new.member_id] = new
        self.speakers.update(new.protocol_names)
        if self.leader == old.member_id:
            self.leader = new.member_id
        self.static_members[new.group_instance_id or ""] = new.member_id

    def members_with(self, new: Member) -> dict[str, Member]:
        """The members as they are when the static member of this instance has come back as ``new``."""
        members = dict(self.members)
        del members[self.static_members[new.group_instance_id or ""]]
        members[new.member_id] = new
        return members

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """none, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
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
        """If the leader has not joined, one that has takes over; False when there is none to lead."""
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
        """What the leader is told."""
        joined = []
        for member in self.members.values():
            joined.append(JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol)))
            if pace.spend(member.scan_work):
                yield
        return joined

    # --- protocols --------------------------------------------------------------------------------------------

    def select_protocol(self, pace: Pace) -> Generator[None, None, str]:
        """The vote: of the protocols all support, each member names its first; ties as Java's HashMap has them."""
        one = next(iter(self.members.values()))  # all know what is looked for: to ask one of them is enough
        candidates = {name for name in one.protocol_names if self.speakers[name] == len(self.members)}
        return (yield from _elected(self.members.values(), candidates, pace))

    def select_protocol_with(self, new: Member, pace: Pace) -> Generator[None, None, str]:
        """The vote if the static member of this instance comes back as ``new``."""
        before = self.members[self.static_members[new.group_instance_id or ""]].protocol_names
        others = len(self.members) - 1
        candidates = {name for name in new.protocol_names if self.speakers[name] - (name in before) == others}
        return (yield from _elected(self.members_with(new).values(), candidates, pace))

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether a member that speaks these can be in the group together with those who are."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self.speakers[name] == len(self.members) for name, _ in protocols)

    def read_subscriptions(self, pace: Pace) -> Generator[None, None, None]:
        """Finds the topics that the members of a consumer group read; None where that cannot be told."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            return
        topics: set[str] = set()
        last: bytes | None = None
        try:
            for member in self.members.values():
                metadata = member.metadata(self.protocol)
                if metadata != last:  # most members of a group say the same
                    yield from topics_in_steps(metadata, topics, pace)
                    last = metadata
                if pace.spend(member.scan_work):
                    yield
        except MalformedProtocol:
            return
        self.subscribed_topics = frozenset(topics)

    def reads(self, topic: str) -> bool:
        """Whether the topic counts as subscribed; where a consumer group's topics cannot be told, all do."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics


def _elected(members: Iterable[Member], candidates: Collection[str], pace: Pace) -> Generator[None, None, str]:
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidates)
        votes[name] = votes.get(name, 0) + 1
        if pace.spend(member.scan_work):
            yield
    return max(sorted(votes, key=_bucket), key=lambda name: votes[name])


def _bucket(name: str) -> int:
    """Where a small java.util.HashMap keeps a string."""
    value = java_string_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & 15
