"""The broker's assignors for KIP-848 groups: uniform and range. Pure functions: equal input gives an equal assignment.

uniform  Members get equal numbers of partitions, as far as their topics allow, and keep as many of their partitions as
         this allows. If all members read the same topics, one pass makes the assignment. Otherwise each unassigned
         partition goes to the least loaded member that reads its topic. Then partitions move from the most to the
         least loaded member, topic by topic.
range    The members of each topic get consecutive partitions: first the static members, in order of their instance ids,
         then the other members, in order of their ids.

Where these rules allow several plans, the result is that of Apache Kafka 4.3, which iterates over Java hash maps.
``hash_order`` returns their order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from odradek.core.effects import result_of
from odradek.core.ids import hash_order, java_string_hash
from odradek.core.pace import Pace

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)

Partitions = Mapping[bytes, frozenset[int]]
"""Topic id (16 bytes) to partitions."""

_MAX_ROUNDS = 16


class MemberSpec(NamedTuple):
    """An assignor's input for a member: the ids of its topics and its last target assignment."""

    topics: frozenset[bytes]
    assigned: Partitions
    instance_id: str | None = None


GroupAssignment = Mapping[str, Mapping[bytes, set[int]]]
AssignmentSteps = Generator[None, None, dict[str, Partitions]]


def assign(
    assignor: str, members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int], *, homogeneous: bool
) -> dict[str, Partitions]:
    """Returns the assignment by member id. ``partition_counts`` has every topic that a member reads.

    ``homogeneous``: all members read the same topics.
    """
    return result_of(assign_in_steps(assignor, members, partition_counts, Pace(), homogeneous=homogeneous))


def assign_in_steps(
    assignor: str,
    members: Mapping[str, MemberSpec],
    partition_counts: Mapping[bytes, int],
    pace: Pace,
    *,
    homogeneous: bool,
) -> AssignmentSteps:
    """Does the same as ``assign`` in steps of a few partitions."""
    if not members:
        return {}
    if assignor == RANGE:
        return (yield from _range(members, partition_counts, pace))
    ordered = {member_id: members[member_id] for member_id in (yield from members_order(members, pace))}
    if homogeneous:
        return (yield from _uniform_same(ordered, partition_counts, pace))
    return (yield from _uniform_different(ordered, partition_counts, pace))


def members_order(member_ids: Iterable[str], pace: Pace) -> Generator[None, None, list[str]]:
    """Returns the member ids in the order of Java's hash maps."""
    hashes: dict[str, int] = {}
    for member_id in member_ids:
        hashes[member_id] = java_string_hash(member_id)
        if pace.spend(2):
            yield
    return hash_order(hashes, hashes.__getitem__)


@lru_cache(maxsize=10_000)
def uuid_hash(topic_id: bytes) -> int:
    """Returns the ``hashCode`` of Kafka's Uuid."""
    mixed = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    return (mixed >> 32 ^ mixed) & 0xFFFFFFFF


def _signed_halves(topic_id: bytes) -> tuple[int, int]:
    """Returns the sort key that orders topic ids like Kafka's Uuid."""
    return int.from_bytes(topic_id[:8], "big", signed=True), int.from_bytes(topic_id[8:], "big", signed=True)


def _in_order(partitions: Iterable[int]) -> list[int]:
    return hash_order(sorted(partitions), lambda partition: partition)


def _copied_set_capacity(size: int) -> int:
    """Returns the table size of a HashSet that is made from a collection of this size."""
    wanted = max(int(size / 0.75) + 1, 16)
    return 1 << (wanted - 1).bit_length()


# --- range -------------------------------------------------------------------------------------------------------


def _range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int], pace: Pace) -> AssignmentSteps:
    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (True, member_id) if instance_id is None else (False, instance_id)

    assignment: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    readers: dict[bytes, list[str]] = {}
    for member_id in sorted(members, key=rank):
        for topic_id in members[member_id].topics:
            readers.setdefault(topic_id, []).append(member_id)
            if pace.spend():
                yield
    for topic_id, member_ids in readers.items():
        share, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + share + (position < extra)
            if start < end:
                assignment[member_id][topic_id] = frozenset(range(start, end))
            start = end
            if pace.spend():
                yield
    return {member_id: assignment[member_id] for member_id in members}


# --- uniform, all members read the same ----------------------------------------------------------------------------


def _uniform_same(members: dict[str, MemberSpec], partition_counts: Mapping[bytes, int], pace: Pace) -> AssignmentSteps:
    topics = next(iter(members.values())).topics
    if not topics:
        return {}
    owned: dict[bytes, set[int]] = {}
    for member in members.values():
        for topic_id, partitions in member.assigned.items():
            owned.setdefault(topic_id, set()).update(partitions)
            if pace.spend(1 + len(partitions) // 10):
                yield
    free: list[tuple[bytes, int]] = []
    for topic_id in hash_order(sorted(topics), uuid_hash, _copied_set_capacity(len(topics))):
        taken = owned.get(topic_id, ())
        count = partition_counts[topic_id]
        free += [(topic_id, partition) for partition in range(count) if partition not in taken]
        if pace.spend(1 + count // 10):
            yield
    total = sum(partition_counts[topic_id] for topic_id in topics)
    share, extra = divmod(total, len(members))
    assignment: dict[str, dict[bytes, set[int]]] = {}
    wanting: list[tuple[str, int]] = []
    for position, (member_id, member) in enumerate(members.items()):
        has_extra = extra > 0
        kept, given_up, wants = yield from _kept(member.assigned, topics, share + has_extra, pace)
        assignment[member_id] = kept
        free += given_up
        if wants > 0 and has_extra and len(members) - position > extra:
            # Enough members follow to take all extra partitions, and they may own some of these already.
            wants -= 1
            has_extra = False
        if wants > 0:
            wanting.append((member_id, wants))
        extra -= has_extra
    rest = iter(free)
    for member_id, wants in wanting:
        for _, (topic_id, partition) in zip(range(wants), rest, strict=False):
            assignment[member_id].setdefault(topic_id, set()).add(partition)
            if pace.spend():
                yield
    return (yield from _frozen(assignment, pace))


def _kept(
    assigned: Partitions, topics: frozenset[bytes], quota: int, pace: Pace
) -> Generator[None, None, tuple[dict[bytes, set[int]], list[tuple[bytes, int]], int]]:
    """Returns the partitions of the old target that a member keeps, those it gives up, and the rest of its quota."""
    kept: dict[bytes, set[int]] = {}
    given_up: list[tuple[bytes, int]] = []
    for topic_id in hash_order(assigned, uuid_hash):
        if topic_id not in topics:
            continue
        partitions = _in_order(assigned[topic_id])
        if partitions[:quota]:
            kept[topic_id] = set(partitions[:quota])
        given_up += [(topic_id, partition) for partition in partitions[quota:]]
        quota = max(quota - len(partitions), 0)
        if pace.spend(1 + len(partitions) // 4):
            yield
    return kept, given_up, quota


def _frozen(assignment: GroupAssignment, pace: Pace) -> AssignmentSteps:
    frozen: dict[str, Partitions] = {}
    for member_id, topics in assignment.items():
        frozen[member_id] = {topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions}
        if pace.spend(1 + len(topics) // 4):
            yield
    return frozen


# --- uniform, members read different topics ------------------------------------------------------------------------


def _uniform_different(
    members: dict[str, MemberSpec], partition_counts: Mapping[bytes, int], pace: Pace
) -> AssignmentSteps:
    state = _Spread(members, partition_counts, pace)
    yield from state.find_readers()
    if not state.readers:
        return {}
    yield from state.take_over()
    yield from state.give_free()
    yield from state.balance()
    return (yield from _frozen(state.assignment, pace))


class _Spread:
    """An unfinished assignment. Members have numbers; ``owners`` has the owner of each partition, -1: unassigned."""

    def __init__(self, members: dict[str, MemberSpec], partition_counts: Mapping[bytes, int], pace: Pace) -> None:
        self._members = members
        self._counts = partition_counts
        self._pace = pace
        self._ids = list(members)
        self.assignment: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
        self.sizes = [0] * len(members)
        self.readers: dict[bytes, list[int]] = {}
        self.owners: dict[bytes, list[int]] = {}

    def find_readers(self) -> Iterator[None]:
        for number, member in enumerate(self._members.values()):
            for topic_id in member.topics:
                self.readers.setdefault(topic_id, []).append(number)
                if self._pace.spend():
                    yield
        self.owners = {topic_id: [-1] * self._counts[topic_id] for topic_id in self.readers}

    def take_over(self) -> Iterator[None]:
        """Assigns each member its old partitions of the topics that it still reads."""
        for number, member in enumerate(self._members.values()):
            for topic_id, partitions in member.assigned.items():
                if topic_id in member.topics:
                    for partition in partitions:
                        self._give(topic_id, partition, number)
                if self._pace.spend(1 + len(partitions)):
                    yield

    def give_free(self) -> Iterator[None]:
        for topic_id in self._sorted(topic_id for topic_id, owners in self.owners.items() if -1 in owners):
            load = _Load(self.sizes, self.readers[topic_id])
            for partition, owner in enumerate(list(self.owners[topic_id])):
                if owner == -1:
                    self._give(topic_id, partition, load.next_least())
            if self._pace.spend(len(self.readers[topic_id]) + len(self.owners[topic_id])):
                yield

    def balance(self) -> Iterator[None]:
        """Balances topic after topic until a whole round changes nothing, in at most ``_MAX_ROUNDS`` rounds."""
        topics = self._sorted(topic_id for topic_id, readers in self.readers.items() if len(readers) > 1)
        last_changed = -1
        for _ in range(_MAX_ROUNDS):
            for position, topic_id in enumerate(topics):
                if position == last_changed:
                    return
                if self._balance_topic(topic_id) or last_changed == -1:
                    last_changed = position
                if self._pace.spend(len(self.readers[topic_id]) + len(self.owners[topic_id])):
                    yield

    def _balance_topic(self, topic_id: bytes) -> int:
        """Returns the number of partitions that moved."""
        load = _Load(self.sizes, self.readers[topic_id])
        if load.imbalance <= 1:
            return 0
        movable: dict[int, list[int]] = {}
        for partition, owner in enumerate(self.owners[topic_id]):
            movable.setdefault(owner, []).append(partition)
        moved = 0
        while not load.is_balanced():
            giver = load.next_most()
            while giver != -1 and not movable.get(giver):
                load.exclude_most()
                giver = load.next_most()
            if giver == -1:
                break
            partition = movable[giver].pop()
            taker = load.next_least()
            if load.is_balanced():
                break
            self._give(topic_id, partition, taker)
            moved += 1
        return moved

    def _give(self, topic_id: bytes, partition: int, number: int) -> None:
        before = self.owners[topic_id][partition]
        if before != -1:
            self.assignment[self._ids[before]][topic_id].discard(partition)
            self.sizes[before] -= 1
        self.assignment[self._ids[number]].setdefault(topic_id, set()).add(partition)
        self.owners[topic_id][partition] = number
        self.sizes[number] += 1

    def _sorted(self, topic_ids: Iterable[bytes]) -> list[bytes]:
        """Sorts topics by partitions per reader, the largest number first."""

        def rank(topic_id: bytes) -> tuple[float, int, tuple[int, int]]:
            readers = len(self.readers[topic_id])
            return -(self._counts[topic_id] / readers), readers, _signed_halves(topic_id)

        return sorted(topic_ids, key=rank)


class _Load:
    """Iterators over members, from the least and from the most loaded, in levels of equal size.

    Partitions move meanwhile. The iterators read the current sizes, but return a member again only after the rest of
    its level.
    """

    def __init__(self, sizes: list[int], members: list[int]) -> None:
        self._sizes = sizes
        self._order = sorted(members, key=lambda number: (sizes[number], number))
        first, last = sizes[self._order[0]], sizes[self._order[-1]]
        self.imbalance = last - first
        self._low_level, self._low_end, self._low_next = first - 1, 0, 0
        self._high_level, self._high_next = last + 1, len(self._order) - 1
        self._high_start = self._high_end = len(self._order)

    def is_balanced(self) -> bool:
        return self._high_level - self._low_level <= 1

    def next_least(self) -> int:
        order = self._order
        if self._low_next >= self._low_end:
            self._low_level += 1
            while self._low_end < len(order) and self._sizes[order[self._low_end]] == self._low_level:
                self._low_end += 1
            self._low_next = 0
        self._low_next += 1
        return order[self._low_next - 1]

    def next_most(self) -> int:
        """Returns -1 if all members are excluded."""
        order = self._order
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                self._high_level = self._sizes[order[self._high_start - 1]]
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._sizes[order[self._high_start - 1]] == self._high_level:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return -1
        self._high_next -= 1
        return order[self._high_next + 1]

    def exclude_most(self) -> None:
        """Excludes the member that ``next_most`` returned last: it has no partition of this topic to give."""
        order, at, end = self._order, self._high_next + 1, self._high_end - 1
        order[at], order[end] = order[end], order[at]
        self._high_end -= 1
