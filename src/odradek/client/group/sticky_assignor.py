"""The assignment of the sticky assignors: numbers of partitions as equal as possible, with few moves.

The rules are those of Apache Kafka 4.3. With racks, a member keeps only partitions with a replica on its own rack.
Free partitions go first to a member on a rack of a replica, then to any member with room. Equal numbers are more
important than racks. Java's order of members is that of a hash map; here it is the order of their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from odradek.codecs.consumer_protocol import Subscription
from odradek.core.ids import TopicPartition

Assignments = dict[str, list[TopicPartition]]
"""The partitions by member id."""
PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of all replicas of each partition, in sync or not; brokers without a rack do not count."""
NO_RACKS: PartitionRacks = MappingProxyType({})
Reported = Mapping[str, tuple[Sequence[TopicPartition], int]]
"""Member ids to the partitions that the member reports as its own, and the generation of this report."""


def sticky_assignments(
    members: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    reported: Reported,
    partition_racks: PartitionRacks,
) -> Assignments:
    topics = {topic for one in members.values() for topic in one.topics} & partition_counts.keys()
    partitions = [TopicPartition(topic, n) for topic in sorted(topics) for n in range(partition_counts[topic])]
    owners = newest_owners(members, partitions, reported)
    racks = _Racks(members, partitions, partition_racks)
    if len({frozenset(one.topics) for one in members.values()}) <= 1:
        assignment = _SameTopics(members, partitions, owners, racks).assignment if members else {}
    else:
        assignment = _DifferentTopics(members, partition_counts, owners, racks, reported).assignment
    return {member_id: sorted(rows) for member_id, rows in assignment.items()}


def newest_owners(
    members: Mapping[str, Subscription], existing: Iterable[TopicPartition], reported: Reported
) -> dict[TopicPartition, str]:
    """Returns the owners of the reported partitions: the member whose report has the newest generation.

    A partition that two members report in that generation has no owner."""
    exists = set(existing)
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id in sorted(members):
        owned, generation = reported.get(member_id, ((), -1))
        for tp in owned:
            if tp not in exists:
                continue
            known = owners.get(tp)
            if known is None or generation > known[0]:
                owners[tp] = (generation, member_id)
            elif generation == known[0]:
                owners[tp] = (generation, None)
    return {tp: member_id for tp, (_, member_id) in owners.items() if member_id is not None}


def racks_matter(member_racks: Iterable[str], racks: Iterable[frozenset[str]]) -> bool:
    """Returns whether racks affect the assignment. They do if a member's rack has a replica, and a partition lacks a
    replica on one of the racks that have replicas."""
    racks = list(racks)
    everywhere = frozenset().union(*racks)
    return not everywhere.isdisjoint(member_racks) and any(one != everywhere for one in racks)


class _Racks:
    """The racks of members and partitions. A member is near a partition that has a replica on its rack."""

    def __init__(
        self, members: Mapping[str, Subscription], partitions: Sequence[TopicPartition], partition_racks: PartitionRacks
    ) -> None:
        of_members = {member_id: one.rack for member_id, one in members.items() if one.rack}
        of_partitions = {tp: partition_racks.get(tp, frozenset()) for tp in partitions}
        self.matter = racks_matter(of_members.values(), of_partitions.values())
        self._members = of_members if self.matter else {}
        self._partitions = of_partitions
        sizes: dict[str, int] = {}
        for rack in of_members.values():
            sizes[rack] = sizes.get(rack, 0) + 1
        self._sizes = sizes

    def is_far(self, member_id: str, tp: TopicPartition) -> bool:
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._partitions[tp]

    def is_near(self, member_id: str, tp: TopicPartition) -> bool:
        """Not the opposite of ``is_far``: a member without a rack is neither near nor far."""
        return self._members.get(member_id) in self._partitions[tp]

    def members_on_racks(self, tp: TopicPartition) -> int:
        """Returns the number of members on the partition's racks."""
        return sum(self._sizes.get(rack, 0) for rack in self._partitions[tp])


# --- all members have the same topics -------------------------------------------------------------------------------


class _SameTopics:
    """Each member gets ``least`` partitions, and ``extra`` of the members get one more."""

    def __init__(
        self,
        members: Mapping[str, Subscription],
        partitions: Sequence[TopicPartition],
        owners: Mapping[TopicPartition, str],
        racks: _Racks,
    ) -> None:
        self._racks = racks
        self._least, self._extra = divmod(len(partitions), len(members))
        self.assignment: Assignments = {member_id: [] for member_id in sorted(members)}
        self._below_least: list[str] = []
        """The members with fewer than ``least`` partitions, which get partitions one after another."""
        self._candidates: list[str] = []
        """The members with ``least`` partitions, which may get one more."""
        self._keep(owners)
        kept = {tp for rows in self.assignment.values() for tp in rows}
        free = sorted((tp for tp in partitions if tp not in kept), key=racks.members_on_racks)
        if racks.matter:
            free = self._fill_near(free)
        self._fill(free)

    def _keep(self, owners: Mapping[TopicPartition, str]) -> None:
        owned: Assignments = {member_id: [] for member_id in self.assignment}
        for tp in sorted(owners, key=lambda tp: (tp.partition, tp.topic)):
            if not self._racks.is_far(owners[tp], tp):
                owned[owners[tp]].append(tp)
        for member_id, rows in owned.items():
            if len(rows) < self._least:
                self._below_least.append(member_id)
                self.assignment[member_id] = rows
            elif len(rows) > self._least and self._extra > 0:
                self._take_extra()
                self.assignment[member_id] = rows[: self._least + 1]
            else:
                self.assignment[member_id] = rows[: self._least]
                if self._extra > 0:
                    self._candidates.append(member_id)

    def _take_extra(self) -> None:
        self._extra -= 1
        if self._extra == 0:
            self._candidates.clear()

    def _fill_near(self, free: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Gives partitions to near members; returns those for which no near member has room."""
        rest: list[TopicPartition] = []
        index = 0
        for tp in free:
            if (at := self._next_near(tp, self._below_least, index)) is not None:
                member_id = self._below_least[at]
                self.assignment[member_id].append(tp)
                index = at + 1
                if len(self.assignment[member_id]) == self._least:
                    del self._below_least[at]
                    index = at
                    if self._extra > 0:
                        self._candidates.append(member_id)
                index = index % len(self._below_least) if self._below_least else 0
            elif (at := self._next_near(tp, self._candidates, 0)) is not None:
                self.assignment[self._candidates.pop(at)].append(tp)
                self._take_extra()
            else:
                rest.append(tp)
        return rest

    def _next_near(self, tp: TopicPartition, among: Sequence[str], index: int) -> int | None:
        for step in range(len(among)):
            at = (index + step) % len(among)
            if self._racks.is_near(among[at], tp):
                return at
        return None

    def _fill(self, free: Iterable[TopicPartition]) -> None:
        index = 0
        for tp in free:
            if not self._below_least:
                self.assignment[self._candidates.pop(0)].append(tp)
                continue
            index = index % len(self._below_least)
            member_id = self._below_least[index]
            self.assignment[member_id].append(tp)
            index += 1
            if len(self.assignment[member_id]) == self._least:
                index -= 1
                del self._below_least[index]
                self._candidates.append(member_id)
                if index == len(self._below_least):
                    index = 0


# --- members have different topics ----------------------------------------------------------------------------------


class _DifferentTopics:
    """Each free partition goes to the topic's subscriber with the fewest partitions. Topics with the fewest subscribers
    come first. Then partitions move, one by one, as long as a move makes two members' numbers more equal. A partition
    moves to its former owner if possible."""

    def __init__(
        self,
        members: Mapping[str, Subscription],
        partition_counts: Mapping[str, int],
        owners: Mapping[TopicPartition, str],
        racks: _Racks,
        reported: Reported,
    ) -> None:
        self.assignment: Assignments = {member_id: [] for member_id in sorted(members)}
        readers: dict[str, list[str]] = {}
        for member_id in self.assignment:
            for topic in members[member_id].topics:
                if topic in partition_counts:
                    readers.setdefault(topic, []).append(member_id)
        self._readers, self._counts = readers, partition_counts
        self._topics = {m: [topic for topic in one.topics if topic in readers] for m, one in members.items()}
        self._owner: dict[TopicPartition, str] = {}
        self._moves = _Moves()
        self._former = self._former_owners(reported)
        is_bound = False
        for tp, member_id in owners.items():
            if member_id in readers[tp.topic] and not racks.is_far(member_id, tp):
                self._give(tp, member_id)
            else:
                is_bound = True  # a member has to give up a partition in any case
        in_order = [
            TopicPartition(topic, n)
            for topic in sorted(readers, key=lambda topic: (len(readers[topic]), topic))
            for n in range(partition_counts[topic])
        ]
        was_empty = not self.assignment or not self.assignment[max(self.assignment, key=self._size_and_id)]
        free = [tp for tp in in_order if tp not in self._owner]
        for tp in free if racks.matter else ():
            self._give_to_first(tp, [m for m in readers[tp.topic] if not racks.is_far(m, tp)])
        for tp in free:
            if tp not in self._owner:
                self._give_to_first(tp, readers[tp.topic])
        self._balance(in_order, set(free), is_bound=is_bound, was_empty=was_empty)

    def _former_owners(self, reported: Reported) -> dict[TopicPartition, str]:
        """Returns the last owner of each partition, according to the reports of generations before the newest one."""
        known = {member_id: report for member_id, report in reported.items() if member_id in self.assignment}
        newest = max((generation for _, generation in known.values()), default=-1)
        former: dict[TopicPartition, tuple[int, str]] = {}
        for member_id in self.assignment:
            owned, generation = known.get(member_id, ((), -1))
            for tp in owned if generation < newest else ():
                if member_id in self._readers.get(tp.topic, ()) and (tp not in former or generation > former[tp][0]):
                    former[tp] = (generation, member_id)
        return {tp: member_id for tp, (_, member_id) in former.items()}

    def _size_and_id(self, member_id: str) -> tuple[int, str]:
        return len(self.assignment[member_id]), member_id

    def _give(self, tp: TopicPartition, member_id: str) -> None:
        self.assignment[member_id].append(tp)
        self._owner[tp] = member_id

    def _give_to_first(self, tp: TopicPartition, among: Sequence[str]) -> None:
        if among:
            self._give(tp, min(among, key=self._size_and_id))

    # --- balance ----------------------------------------------------------------------------------------------

    def _balance(
        self, in_order: Sequence[TopicPartition], free: set[TopicPartition], *, is_bound: bool, was_empty: bool
    ) -> None:
        movable = [tp for tp in in_order if len(self._readers[tp.topic]) > 1]
        self._balanced_members = [m for m in self.assignment if self._can_be_balanced(m)]
        before = {member_id: list(rows) for member_id, rows in self.assignment.items()}
        if not is_bound:
            self._move([tp for tp in movable if tp in free])
        moved = self._move(movable)
        if moved and not was_empty and self._imbalance(self.assignment) >= self._imbalance(before):
            self.assignment = before

    def _can_be_balanced(self, member_id: str) -> bool:
        could_have = sum(self._counts[topic] for topic in self._topics[member_id])
        rows = self.assignment[member_id]
        return len(rows) < could_have or any(len(self._readers[tp.topic]) > 1 for tp in rows)

    def _imbalance(self, assignment: Assignments) -> int:
        return sum(abs(len(assignment[a]) - len(assignment[b])) for a, b in combinations(self._balanced_members, 2))

    def _move(self, partitions: Sequence[TopicPartition]) -> bool:
        """Moves partitions until no move helps; returns whether any partition has moved."""
        moved = False
        again = True
        while again:
            again = False
            for tp in partitions:
                if (target := self._better_owner(tp)) is not None:
                    self._reassign(tp, target)
                    moved = again = True
        return moved

    def _better_owner(self, tp: TopicPartition) -> str | None:
        load = len(self.assignment[self._owner[tp]])
        former = self._former.get(tp)
        if former in self._balanced_members and load > len(self.assignment[former]) + 1:
            return former
        least = min(self._readers[tp.topic], key=self._size_and_id)
        return least if load > len(self.assignment[least]) + 1 else None

    def _reassign(self, tp: TopicPartition, target: str) -> None:
        chosen = self._moves.instead_of(tp, self._owner[tp], target)
        owner = self._owner[chosen]
        self._moves.add(chosen, owner, target)
        self.assignment[owner].remove(chosen)
        self._give(chosen, target)


class _Moves:
    """The moves between members, so that no two partitions of a topic swap their owners."""

    def __init__(self) -> None:
        self._way: dict[TopicPartition, tuple[str, str]] = {}
        self._on: dict[tuple[str, str, str], set[TopicPartition]] = {}

    def instead_of(self, tp: TopicPartition, source: str, target: str) -> TopicPartition:
        """Returns the partition to move: one of the topic that has moved the opposite way, or else ``tp``."""
        source = self._way[tp][0] if tp in self._way else source
        return min(self._on.get((tp.topic, target, source), ()), default=tp)

    def add(self, tp: TopicPartition, source: str, target: str) -> None:
        if tp in self._way:
            first, last = self._way.pop(tp)
            self._on[tp.topic, first, last].discard(tp)
            source = first
        if source != target:
            self._way[tp] = source, target
            self._on.setdefault((tp.topic, source, target), set()).add(tp)
