"""The assignors of classic groups, with which the group's leader makes the assignment. Pure functions.

range               For each topic, the members in order get consecutive partitions. Rack-aware (KIP-881).
roundrobin          The members get the partitions of all topics in turn.
sticky              The members' numbers of partitions are as equal as possible. Members keep as many as this allows.
cooperative-sticky  As sticky, in two rebalances: owners first give up only the partitions that move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice

from odradek.client.arguments import as_partitions
from odradek.client.group.sticky_assignor import (
    NO_RACKS,
    Assignments,
    PartitionRacks,
    newest_owners,
    racks_matter,
    sticky_assignments,
)
from odradek.codecs.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_sticky_memory,
    encode_sticky_memory,
)
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition


class Assignor:
    """The base class of assignors. A custom assignor has a ``name`` and defines ``assign``.

    All members of a group must have one assignor in common. With a ``cooperative`` assignor, members keep reading
    their partitions during a rebalance. Its ``assign`` must leave out, for one rebalance, the partitions that a member
    has to give up to another one.

    A poll raises the errors of these methods. It also raises an error if an assignment gives a partition to two members
    or to an unknown member.
    """

    name: str = ""
    cooperative: bool = False
    partition_racks: PartitionRacks = NO_RACKS
    """The racks of each partition's replicas, set before each ``assign``; a ``Subscription`` has the member's rack."""

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        """Returns the partitions of each member. ``partition_counts`` has only topics that exist."""
        raise TypeError(f"{type(self).__name__} must define assign()")

    def user_data(self, topics: Sequence[str]) -> bytes:
        """Returns data of this member's subscription, for the leader's ``assign``."""
        return b""

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Called with this member's new assignment, before the consumer's own callback."""


def ordered(members: Mapping[str, Subscription]) -> list[str]:
    """Returns static members by instance id, then the others by member id. A static member keeps its place."""

    def key(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (False, instance_id) if instance_id is not None else (True, member_id)

    return sorted(members, key=key)


class RangeAssignor(Assignor):
    """The assignor ``range``.

    It is rack-aware (KIP-881) for a topic with a replica on a member's rack, unless every partition has a replica on
    each rack that has replicas of the topic. For such a topic each member first gets partitions with a replica on its
    rack, up to its share. A member without a rack gets any partitions. The other partitions follow in order.

    Topics with the same number of partitions and the same members are co-partitioned. The first member with room whose
    rack has a replica of partition n of each of these topics gets partition n of all of them.
    """

    name = "range"

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        assignment: Assignments = {member_id: [] for member_id in members}
        in_order = ordered(members)
        topics: list[_Topic] = []
        for topic, count in sorted(partition_counts.items()):
            readers = tuple(member_id for member_id in in_order if topic in members[member_id].topics)
            if readers and count > 0:
                racks = [self.partition_racks.get(TopicPartition(topic, n), frozenset()) for n in range(count)]
                topics.append(
                    _Topic(topic, {member_id: members[member_id].rack for member_id in readers}, racks, assignment)
                )
        if any(topic.depends_on_racks for topic in topics):
            _assign_by_rack(topics)
        for one in topics:
            one.share()
        return {member_id: sorted(rows) for member_id, rows in assignment.items()}


class _Topic:
    """A topic whose partitions are being assigned by ranges."""

    def __init__(
        self, name: str, readers: Mapping[str, str | None], racks: Sequence[frozenset[str]], assignment: Assignments
    ) -> None:
        self.readers = dict(readers)
        self.racks = racks
        self._name, self._assignment = name, assignment
        self._left = set(range(len(racks)))
        self._given = dict.fromkeys(readers, 0)
        self._each, self._extra = divmod(len(racks), len(readers))
        self.depends_on_racks = racks_matter({rack for rack in readers.values() if rack}, racks)

    def room(self, member_id: str) -> int:
        """Returns the number of partitions that this member may still get."""
        return max(0, self._each + (self._extra > 0) - self._given[member_id])

    def is_near(self, member_id: str, partition: int) -> bool:
        """Returns whether the partition has a replica on the member's rack, or the member has no rack."""
        rack = self.readers[member_id]
        return not rack or rack in self.racks[partition]

    def give(self, member_id: str, partitions: Sequence[int]) -> None:
        self._assignment[member_id] += [TopicPartition(self._name, partition) for partition in partitions]
        self._given[member_id] += len(partitions)
        self._extra -= self._given[member_id] > self._each
        for partition in partitions:
            self._left.remove(partition)

    def share(self, *, near: bool = False) -> None:
        """Gives each member, in order, the first free partitions; with ``near``, the first ones on its rack."""
        in_order: dict[str | None, Iterator[int]] = {}
        for member_id, rack in self.readers.items():
            if (room := self.room(member_id)) > 0:
                of_rack = rack if near and rack else None
                chosen = list(islice(in_order.setdefault(of_rack, self._in_order(of_rack)), room))
                if chosen:
                    self.give(member_id, chosen)

    def _in_order(self, rack: str | None) -> Iterator[int]:
        """Yields the free partitions; with ``rack``, only those with a replica there.

        The members on a rack share one iterator.
        """
        for partition, racks in enumerate(self.racks):
            if partition in self._left and (rack is None or rack in racks):
                yield partition


def _assign_by_rack(topics: Sequence[_Topic]) -> None:
    alike: dict[tuple[tuple[str, ...], int], list[_Topic]] = {}
    for topic in topics:
        alike.setdefault((tuple(topic.readers), len(topic.racks)), []).append(topic)
    for (readers, count), group in alike.items():
        if len(group) == 1:
            if group[0].depends_on_racks:
                group[0].share(near=True)
        elif any(group[0].readers.values()):
            for partition in range(count):
                for member_id in readers:
                    if all(topic.room(member_id) and topic.is_near(member_id, partition) for topic in group):
                        for topic in group:
                            topic.give(member_id, [partition])
                        break


class RoundRobinAssignor(Assignor):
    """Gives the partitions of all topics in turn to the members that subscribe to them, as Kafka's roundrobin."""

    name = "roundrobin"

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        assignment: Assignments = {member_id: [] for member_id in members}
        next_members = cycle(ordered(members))
        for tp in all_partitions(partition_counts):
            if not any(tp.topic in subscription.topics for subscription in members.values()):
                continue
            member_id = next(next_members)
            while tp.topic not in members[member_id].topics:
                member_id = next(next_members)
            assignment[member_id].append(tp)
        return assignment


class StickyAssignor(Assignor):
    """Balances the members' counts of partitions, and moves as few partitions as possible, as Kafka's sticky."""

    name = "sticky"

    def __init__(self) -> None:
        self._memory: tuple[TopicPartition, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self, topics: Sequence[str]) -> bytes:
        return encode_sticky_memory(self._memory, self._generation) if self._memory else b""

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._memory, self._generation = tuple(partitions), generation

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        reported: dict[str, tuple[tuple[TopicPartition, ...], int]] = {}
        for member_id, subscription in members.items():
            reported[member_id] = (subscription.owned, subscription.generation)
            if subscription.user_data:
                try:
                    reported[member_id] = decode_sticky_memory(subscription.user_data)
                except ValueError:
                    continue  # data of another assignor with the same name
        return sticky_assignments(members, partition_counts, reported, self.partition_racks)


class CooperativeStickyAssignor(Assignor):
    """As ``StickyAssignor``; only the partitions that move are revoked, as with Kafka's cooperative-sticky."""

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Sequence[str]) -> bytes:
        return self._generation.to_bytes(4, "big", signed=True)

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._generation = generation

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        reported = {}
        for member_id, subscription in members.items():
            generation = subscription.generation
            if generation == NO_GENERATION and len(subscription.user_data) >= 4:
                generation = int.from_bytes(subscription.user_data[:4], "big", signed=True)
            reported[member_id] = (subscription.owned, generation)
        assignment = sticky_assignments(members, partition_counts, reported, self.partition_racks)
        held = {tp for subscription in members.values() for tp in subscription.owned}
        owners = newest_owners(members, held, reported)
        return {  # if two members report a partition in the same generation, both give it up
            member_id: [tp for tp in partitions if tp not in held or owners.get(tp) == member_id]
            for member_id, partitions in assignment.items()
        }


BUILT_IN: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
DEFAULT_STRATEGY = ("range", "cooperative-sticky")
_JAVA = {
    f"org.apache.kafka.clients.consumer.{kind.__name__}": kind.name
    for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""The class names in the settings of Java consumers."""


def make_assignors(
    strategy: str | Assignor | type[Assignor] | Iterable[str | Assignor | type[Assignor]],
) -> list[Assignor]:
    """Makes assignors from names (also Kafka's Java class names), classes or instances. Raises ConfigError."""
    if isinstance(strategy, str):
        strategy = [part.strip() for part in strategy.split(",") if part.strip()]
    elif isinstance(strategy, Assignor | type):
        strategy = [strategy]
    if not isinstance(strategy, Iterable):
        raise ConfigError(f"partition_assignment_strategy: {strategy!r} is neither a name nor an Assignor")
    made: list[Assignor] = []
    for one in strategy:
        if isinstance(one, str):
            name = _JAVA.get(one, one)
            if name not in BUILT_IN:
                names = ", ".join(BUILT_IN)
                raise ConfigError(f"partition_assignment_strategy: unknown {one!r}: use {names}, or an Assignor")
            made.append(BUILT_IN[name]())
        elif isinstance(one, type) and issubclass(one, Assignor):
            made.append(one())
        elif isinstance(one, Assignor):
            made.append(one)
        else:
            raise ConfigError(f"partition_assignment_strategy: {one!r} is neither a name nor an Assignor")
    names_given = [one.name for one in made]
    if not made or "" in names_given or len(set(names_given)) < len(made):
        raise ConfigError("partition_assignment_strategy: expected at least one assignor, each with a unique name")
    return made


def checked_assignments(name: str, assignment: object, members: Mapping[str, Subscription]) -> Assignments:
    """Checks an assignor's result; returns it with an entry for each member. Raises TypeError, ValueError.

    Partitions without a member are allowed: a cooperative assignor leaves them out for one rebalance.
    """
    if not isinstance(assignment, Mapping):
        raise TypeError(
            f"assignor {name}: assign() must return a mapping of member ids to partitions, not {assignment!r}"
        )
    owners: dict[TopicPartition, str] = {}
    made: Assignments = {member_id: [] for member_id in members}
    for member_id, rows in assignment.items():
        if member_id not in members:
            raise ValueError(f"assignor {name}: its assignment has {member_id!r}, which is not a member of the group")
        try:
            partitions = as_partitions(rows)
        except (TypeError, ValueError) as error:
            raise type(error)(f"assignor {name}: its assignment for {member_id}: {error}") from error
        for tp in partitions:
            if tp in owners:
                raise ValueError(f"assignor {name}: its assignment gives {tp} to {owners[tp]} and to {member_id}")
            owners[tp] = member_id
        made[member_id] = partitions
    return made


def all_partitions(partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic, count in sorted(partition_counts.items()) for n in range(count)]
