"""A KIP-848 group: its members, its epochs and its target assignment.

Rules
* The group's epoch rises when a member joins, leaves or changes its subscription, or when the subscribed topics change.
  A new epoch needs a new target assignment. Each member reaches its target separately (``kip848_member``).
* Everything here except ``refresh`` is durable: it changes only in replay.

=========== ============================================================
State       meaning
=========== ============================================================
Empty       no members; maybe committed offsets
Assigning   the target is older than the group's epoch
Reconciling some members have not reached the target yet
Stable      all members have reached the target
=========== ============================================================
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from odradek.codecs.schemas import Fields
from odradek.core.effects import SimpleRecord, result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import LEAVE_EPOCH, hash_order, java_string_hash
from odradek.core.pace import Pace
from odradek.groups.kip848 import records
from odradek.groups.kip848.assignors import ASSIGNORS
from odradek.groups.kip848.member import ClassicMemberMetadata, Kip848Member, Owned, Partitions, ResolvedPattern
from odradek.groups.kip848.metadata_hash import TopicFacts, group_hash_in_steps

NOTHING: Partitions = {}
_NEVER_MS = (1 << 31) - 1


class GroupCatalog(Protocol):
    """The broker's topics and the settings of single groups, read-only."""

    @property
    def version(self) -> int:
        """A number that rises with every change of the topics."""

    def topic(self, name: str) -> TopicFacts | None: ...
    def topic_by_id(self, topic_id: bytes) -> TopicFacts | None: ...
    def topic_names(self) -> Iterable[str]: ...
    def group_setting(self, group_id: str, name: str) -> str | None:
        """Returns a setting of this group, or None if the broker's setting applies to it."""


class EmptyGroupCatalog:
    """A catalogue without topics and settings."""

    version = 0

    def topic(self, name: str) -> TopicFacts | None:
        return None

    def topic_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return None

    def topic_names(self) -> Iterable[str]:
        return ()

    def group_setting(self, group_id: str, name: str) -> str | None:
        return None


class Kip848GroupState(Enum):
    """The values are the names in Kafka's responses."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


def _count(counter: Counter[str], keys: Iterable[str], by: int) -> None:
    """Adds ``by`` (1 or -1) to the count of each key. Keys are unique. A key with count 0 is removed."""
    if by > 0:
        counter.update(keys)
        return
    for key in keys:
        left = counter[key] - 1
        if left:
            counter[key] = left
        else:
            del counter[key]


class Subscriptions:
    """Counts the members that subscribe to each topic name or pattern, and the patterns that match each topic."""

    __slots__ = ("names", "patterns", "resolved")

    def __init__(
        self, members: Iterable[Kip848Member] = (), resolved: Mapping[str, ResolvedPattern] | None = None
    ) -> None:
        self.names: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()
        for member in members:
            self.add(member)
        for pattern in (resolved or {}).values():
            self.resolved.update(pattern.topics)

    def add(self, member: Kip848Member, by: int = 1) -> None:
        _count(self.names, member.topics, by)
        if member.pattern:
            _count(self.patterns, (member.pattern,), by)

    def add_resolved(self, topics: Iterable[str], by: int = 1) -> None:
        _count(self.resolved, topics, by)

    def copy(self) -> Subscriptions:
        twin = Subscriptions()
        twin.names, twin.patterns, twin.resolved = self.names.copy(), self.patterns.copy(), self.resolved.copy()
        return twin

    def topics(self) -> set[str]:
        return {*self.names, *self.resolved}

    def are_equal(self, member_count: int) -> bool:
        """Returns whether all members read the same topics, by Kafka's rule.

        The rule compares names and patterns, and can return False for members that do read the same topics.
        """
        if not self.patterns:
            return all(count == member_count for count in self.names.values())
        first = hash_order(self.patterns, java_string_hash)[0]
        if self.patterns[first] != member_count or self.names:
            return False
        return all(count == 1 for count in self.resolved.values())


class ClassicProtocols:
    """The number of classic members, and how many of them support each of their protocols."""

    __slots__ = ("_member_count", "_supported")

    def __init__(self) -> None:
        self._member_count = 0
        self._supported: Counter[str] = Counter()

    def add(self, side: ClassicMemberMetadata | None, by: int = 1) -> None:
        if side is None:
            return
        self._member_count += by
        _count(self._supported, {name for name, _ in side.protocols}, by)

    def all_support_one_of(self, names: Iterable[str]) -> bool:
        return any(self._supported[name] == self._member_count for name in names)


@dataclass(slots=True)
class Kip848Group:
    """The state of a KIP-848 group.

    ``refresh`` is not durable. It is (time, epoch): the topics are read again at this time, or if the group's epoch is
    lower than this epoch.
    """

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    assignment_epoch: int = 1
    assignment_timestamp_ms: int = 0
    members: dict[str, Kip848Member] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    patterns: dict[str, ResolvedPattern] = field(default_factory=dict)
    has_partition_metadata: bool = False
    static_members: dict[str, str] = field(default_factory=dict)
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    classic_protocols: ClassicProtocols = field(default_factory=ClassicProtocols)
    owners: dict[bytes, dict[int, int]] = field(default_factory=dict)  # partitions with an owner: the owner's epoch
    refresh: tuple[int, int] = (0, 0)

    def durable_state(self) -> tuple[object, ...]:
        """Returns the state that the log determines."""
        return (
            self.epoch, self.metadata_hash, self.assignment_epoch, self.assignment_timestamp_ms, dict(self.members),
            dict(self.targets), dict(self.patterns), self.has_partition_metadata,
        )  # fmt: skip

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> Kip848GroupState:
        if not self.members:
            return Kip848GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return Kip848GroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return Kip848GroupState.STABLE
        return Kip848GroupState.RECONCILING

    def member(self, member_id: str) -> Kip848Member:
        """Returns a member. Raises KafkaError (UNKNOWN_MEMBER_ID)."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> Kip848Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str, instance_id: str | None) -> Partitions:
        """Returns a member's target. A static member with a new id takes over the target of its old id."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        return self.targets.get(member_id, NOTHING)

    def is_taken(self, topic_id: bytes, partition: int) -> bool:
        return partition in self.owners.get(topic_id, {})

    def refresh_due(self, now_ms: int) -> bool:
        at_ms, epoch = self.refresh
        return now_ms >= at_ms or self.epoch < epoch

    def note_refresh(self, now_ms: int, epoch: int) -> None:
        """Notes that the topics were read for this epoch. They are read again after a notice of a change."""
        self.refresh = (now_ms + _NEVER_MS, epoch)

    def topics_of(self, member: Kip848Member) -> frozenset[str]:
        resolved = self.patterns.get(member.pattern) if member.pattern else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def reads(self, topic: str) -> bool:
        return topic in self.subscriptions.names or topic in self.subscriptions.resolved

    def classic_members(self) -> Iterator[Kip848Member]:
        return (member for member in self.members.values() if member.classic is not None)

    def preferred_assignor(
        self, default: str, before: Kip848Member | None = None, after: Kip848Member | None = None
    ) -> str:
        """Returns the assignor with the most votes of members, with ``after`` in place of ``before``; or ``default``.

        Of assignors with equal votes, one that only ``after`` requests wins, otherwise the first in ``ASSIGNORS``.
        """
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        voted = [name for name in ASSIGNORS if votes[name]]
        if before is not None and before.member_id in self.members and before.assignor is not None:
            votes[before.assignor] -= 1
            if not votes[before.assignor]:
                voted.remove(before.assignor)
        if after is not None and after.assignor is not None:
            if not votes[after.assignor]:
                voted.insert(0, after.assignor)
            votes[after.assignor] += 1
        return max(voted, key=lambda name: votes[name], default=default)

    def subscriptions_after(self, before: Iterable[Kip848Member], after: Kip848Member | None = None) -> Subscriptions:
        """Returns the subscriptions without the members ``before`` and with ``after``.

        The topics of patterns without a member do not count.
        """
        counted = self.subscriptions.copy()
        for member in before:
            if member.member_id in self.members:
                counted.add(member, -1)
        if after is not None:
            counted.add(after)
        return self._without_patterns(counted)

    def subscriptions_without(self, gone: Iterable[Kip848Member], pace: Pace) -> Generator[None, None, Subscriptions]:
        """Returns the subscriptions without these members, in steps, because there can be many."""
        counted = self.subscriptions.copy()
        for member in gone:
            counted.add(member, -1)
            if pace.spend(1 + len(member.topics)):
                yield
        return self._without_patterns(counted)

    def _without_patterns(self, counted: Subscriptions) -> Subscriptions:
        for pattern, resolved in self.patterns.items():
            if pattern in self.subscriptions.patterns and pattern not in counted.patterns:
                counted.add_resolved(resolved.topics, -1)
        return counted

    def hash_of(self, subscriptions: Subscriptions, catalog: GroupCatalog) -> int:
        return result_of(self.hash_in_steps(subscriptions, catalog, Pace()))

    @staticmethod
    def hash_in_steps(subscriptions: Subscriptions, catalog: GroupCatalog, pace: Pace) -> Generator[None, None, int]:
        facts: list[TopicFacts] = []
        for name in subscriptions.topics():
            topic = catalog.topic(name)
            if topic is not None:
                facts.append(topic)
            if pace.spend():
                yield
        return (yield from group_hash_in_steps(facts, pace))

    # --- tombstones -----------------------------------------------------------------------------------------------

    def tombstones(self, renamed: Mapping[str, str] | None = None) -> Iterator[SimpleRecord]:
        """Yields tombstones for all records of the group. ``renamed`` maps old member ids to their new ids."""
        member_ids = [(renamed or {}).get(member_id, member_id) for member_id in self.members]
        group_id = self.group_id
        yield from (records.current_tombstone(group_id, member_id) for member_id in member_ids)
        yield from (records.target_member_tombstone(group_id, member_id) for member_id in member_ids)
        yield records.target_tombstone(group_id)
        yield from (records.member_tombstone(group_id, member_id) for member_id in member_ids)
        yield from (records.pattern_tombstone(group_id, pattern) for pattern in self.patterns)
        yield records.partition_metadata_tombstone(group_id)
        yield records.group_tombstone(group_id)

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, number: int, key: Fields, value: Fields | None) -> None:
        """Applies a record of the log. The shard handles the tombstone of type GROUP, which deletes the group."""
        if number == records.GROUP:
            assert value is not None
            self.epoch, self.metadata_hash = value["epoch"], value["metadata_hash"]
        elif number == records.PARTITION_METADATA:
            self.has_partition_metadata = value is not None
        elif number == records.MEMBER:
            self._replay_member(key["member_id"], value)
        elif number == records.TARGET:
            self.assignment_epoch = -1 if value is None else value["assignment_epoch"]
            self.assignment_timestamp_ms = 0 if value is None else value["assignment_timestamp"]
        elif number == records.TARGET_MEMBER:
            if value is None:
                self.targets.pop(key["member_id"], None)
            else:
                self.targets[key["member_id"]] = records.partitions_of(value)
        elif number == records.CURRENT:
            self._replay_current(key["member_id"], value)
        else:
            self._replay_pattern(key["regular_expression"], value)

    def replay_change(self, change: records.GroupChange) -> None:
        """Applies a record that has its decoded form."""
        if change.number == records.TARGET_MEMBER:
            self.targets[change.name] = change.content
            return
        if change.number == records.PATTERN:
            self._put_pattern(change.name, change.content)
            return
        member = self.members.get(change.name) or Kip848Member(change.name)
        is_metadata = change.number == records.MEMBER  # every field is either metadata or assignment
        metadata, assignment = (change.content, member) if is_metadata else (member, change.content)
        self.put(records.with_assignment_of(metadata, assignment))

    def put(self, member: Kip848Member) -> None:
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if before is None or before.topics != member.topics or before.pattern != member.pattern:
            if before is not None:
                self.subscriptions.add(before, -1)
            self.subscriptions.add(member)
        if before is None or before.classic is not member.classic:
            if before is not None:
                self.classic_protocols.add(before.classic, -1)
            self.classic_protocols.add(member.classic)
        if before is None or not before.owns_the_same(member):
            if before is not None:
                self._disown(before)
            self._own(member.assigned, member.epoch)
            self._own(member.to_revoke, member.epoch)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _replay_member(self, member_id: str, value: Fields | None) -> None:
        member = self.members.get(member_id)
        if value is not None:
            self.put(records.with_metadata(member or Kip848Member(member_id), value))
        elif member is not None:
            del self.members[member_id]
            self._disown(member)
            self.subscriptions.add(member, -1)
            self.classic_protocols.add(member.classic, -1)
            if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
                del self.static_members[member.instance_id]

    def _replay_current(self, member_id: str, value: Fields | None) -> None:
        member = self.members.get(member_id)
        if value is not None:
            self.put(records.with_assignment(member or Kip848Member(member_id), value))
        elif member is not None:
            self.put(member._replace(epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}, to_revoke={}))

    def _replay_pattern(self, pattern: str, value: Fields | None) -> None:
        if value is None:
            self._put_pattern(pattern, None)
        else:
            topics = frozenset(map(sys.intern, value["topics"]))  # patterns with the same topics share the strings
            self._put_pattern(pattern, ResolvedPattern(topics, value["version"], value["timestamp"]))

    def _put_pattern(self, pattern: str, resolved: ResolvedPattern | None) -> None:
        before = self.patterns.pop(pattern, None)
        if before is not None:
            self.subscriptions.add_resolved(before.topics, -1)
        if resolved is not None:
            self.patterns[pattern] = resolved
            self.subscriptions.add_resolved(resolved.topics)

    def _own(self, owned: Owned, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            taken = self.owners.setdefault(topic_id, {})
            for partition in partitions:
                taken[partition] = epoch

    def _disown(self, member: Kip848Member) -> None:
        """Removes the member as owner of its partitions.

        A partition with another owner epoch keeps its owner, which is another member. In a compacted log, the record of
        the other member can come first.
        """
        for owned in (member.assigned, member.to_revoke):
            for topic_id, partitions in owned.items():
                taken = self.owners.get(topic_id, {})
                for partition in partitions:
                    if taken.get(partition) == member.epoch:
                        del taken[partition]
                if not taken:
                    self.owners.pop(topic_id, None)


class MemberChange(NamedTuple):
    """A member before its request (``member``, perhaps new) and after it (``updated``).

    ``existing`` is the group's member before the request: the member under the same id, the static member that
    ``updated`` replaces, or None if the member is new.
    """

    now_ms: int
    group: Kip848Group
    member: Kip848Member
    updated: Kip848Member
    existing: Kip848Member | None
    may_describe: Callable[[str], bool] | None = None
    """Whether the client may describe a topic; None: all topics."""

    def subscriptions(self) -> Subscriptions:
        """Returns the group's subscriptions after the request."""
        return self.group.subscriptions_after([] if self.existing is None else [self.existing], self.updated)
