"""The assignors of classic groups: the group's leader decides by one of these who reads what. Pure functions.

range               Each topic by itself: consecutive partitions, the members in order.
roundrobin          All partitions of all topics in turn.
sticky              Everybody the same number, give or take one, and whoever has something keeps it where that allows.
cooperative-sticky  The same plan, in two steps: what moves is first given up by its owner, and only that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from odradek.client.arguments import as_partitions
from odradek.client.membership_wire import (
    NO_GENERATION,
    Subscription,
    decode_sticky_memory,
    encode_sticky_memory,
)
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition

Plan = dict[str, list[TopicPartition]]
"""Member id to partitions."""


class Assignor:
    """Subclass it for an assignor of your own: give it a ``name`` and ``assign``.

    All members of a group must support one assignor in common. ``cooperative`` members go on reading what they keep
    while a rebalance runs; ``assign`` must then leave out, for one round, what another member still holds.

    What a method raises is raised by the poll that it was called for, and so is a plan that cannot be: one that gives
    a partition to two members, or to somebody who is no member.
    """

    name: str = ""
    cooperative: bool = False

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Plan:
        """Who gets what. ``partition_counts`` lacks topics that do not exist."""
        raise TypeError(f"{type(self).__name__} must define assign()")

    def user_data(self, topics: Sequence[str]) -> bytes:
        """What goes along with this member's subscription, for the leader's ``assign`` to see."""
        return b""

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """What this member was given; called before the consumer's own callback."""


def ordered(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by their instance ids, then the others by their member ids: an order that restarts keep."""

    def key(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (False, instance_id) if instance_id is not None else (True, member_id)

    return sorted(members, key=key)


class RangeAssignor(Assignor):
    name = "range"

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Plan:
        plan: Plan = {member_id: [] for member_id in members}
        for topic, count in sorted(partition_counts.items()):
            readers = [member_id for member_id in ordered(members) if topic in members[member_id].topics]
            if not readers:
                continue
            each, extra = divmod(count, len(readers))
            start = 0
            for number, member_id in enumerate(readers):
                end = start + each + (number < extra)
                plan[member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
                start = end
        return plan


class RoundRobinAssignor(Assignor):
    name = "roundrobin"

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Plan:
        plan: Plan = {member_id: [] for member_id in members}
        turn = cycle(ordered(members))
        for tp in all_partitions(partition_counts):
            if not any(tp.topic in subscription.topics for subscription in members.values()):
                continue
            member_id = next(turn)
            while tp.topic not in members[member_id].topics:
                member_id = next(turn)
            plan[member_id].append(tp)
        return plan


class StickyAssignor(Assignor):
    name = "sticky"

    def __init__(self) -> None:
        self._memory: tuple[TopicPartition, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self, topics: Sequence[str]) -> bytes:
        return encode_sticky_memory(self._memory, self._generation) if self._memory else b""

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._memory, self._generation = tuple(partitions), generation

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Plan:
        claims: dict[str, tuple[tuple[TopicPartition, ...], int]] = {}
        for member_id, subscription in members.items():
            claims[member_id] = (subscription.owned, subscription.generation)
            if subscription.user_data:
                try:
                    claims[member_id] = decode_sticky_memory(subscription.user_data)
                except ValueError:
                    continue  # of an assignor that shares our name only: such a member keeps nothing
        return sticky_plan(members, partition_counts, claims)


class CooperativeStickyAssignor(Assignor):
    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Sequence[str]) -> bytes:
        return self._generation.to_bytes(4, "big", signed=True)

    def on_assigned(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._generation = generation

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Plan:
        claims = {}
        for member_id, subscription in members.items():
            generation = subscription.generation
            if generation == NO_GENERATION and len(subscription.user_data) >= 4:
                generation = int.from_bytes(subscription.user_data[:4], "big", signed=True)
            claims[member_id] = (subscription.owned, generation)
        plan = sticky_plan(members, partition_counts, claims)
        owners = {tp: member_id for member_id, subscription in members.items() for tp in subscription.owned}
        return {
            member_id: [tp for tp in partitions if owners.get(tp, member_id) == member_id]
            for member_id, partitions in plan.items()
        }


BUILT_IN: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
DEFAULT_STRATEGY = ("range", "cooperative-sticky")
_JAVA = {
    f"org.apache.kafka.clients.consumer.{kind.__name__}": kind.name
    for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""The classes that a Java consumer's settings name."""


def make_assignors(
    strategy: str | Assignor | type[Assignor] | Iterable[str | Assignor | type[Assignor]],
) -> list[Assignor]:
    """Assignors from names (Kafka's own also by their Java classes), classes or instances. Raises ConfigError."""
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
                raise ConfigError(f"partition_assignment_strategy: unknown {one!r}: one of {names}, or an Assignor")
            made.append(BUILT_IN[name]())
        elif isinstance(one, type) and issubclass(one, Assignor):
            made.append(one())
        elif isinstance(one, Assignor):
            made.append(one)
        else:
            raise ConfigError(f"partition_assignment_strategy: {one!r} is neither a name nor an Assignor")
    names_given = [one.name for one in made]
    if not made or "" in names_given or len(set(names_given)) < len(made):
        raise ConfigError("partition_assignment_strategy: at least one assignor, each with a name of its own")
    return made


def checked_plan(name: str, plan: object, members: Mapping[str, Subscription]) -> Plan:
    """What a custom assignor gave back, complete and in our types. Raises TypeError, ValueError saying what is wrong.

    Partitions that nobody gets are no error: a cooperative assignor holds them back for a round.
    """
    if not isinstance(plan, Mapping):
        raise TypeError(f"assignor {name}: assign() must return a mapping of member ids to partitions, not {plan!r}")
    owners: dict[TopicPartition, str] = {}
    made: Plan = {member_id: [] for member_id in members}
    for member_id, rows in plan.items():
        if member_id not in members:
            raise ValueError(f"assignor {name}: its plan has {member_id!r}, who is no member of the group")
        try:
            partitions = as_partitions(rows)
        except (TypeError, ValueError) as error:
            raise type(error)(f"assignor {name}: its plan for {member_id}: {error}") from error
        for tp in partitions:
            if tp in owners:
                raise ValueError(f"assignor {name}: its plan gives {tp} to {owners[tp]} and to {member_id}")
            owners[tp] = member_id
        made[member_id] = partitions
    return made


def all_partitions(partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic, count in sorted(partition_counts.items()) for n in range(count)]


# --- the sticky plan ------------------------------------------------------------------------------------------------


def sticky_plan(
    members: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    claims: Mapping[str, tuple[Sequence[TopicPartition], int]],
) -> Plan:
    """The most even plan that moves as little as may be. ``claims``: what each had, and in which generation."""
    readers = {
        topic: [member_id for member_id in sorted(members) if topic in members[member_id].topics]
        for topic in partition_counts
    }
    partitions = [tp for tp in all_partitions(partition_counts) if readers[tp.topic]]
    plan: Plan = {member_id: [] for member_id in sorted(members)}
    for tp, member_id in sorted(_valid_claims(members, set(partitions), claims).items()):
        plan[member_id].append(tp)
    if len({frozenset(partition_counts.keys() & subscription.topics) for subscription in members.values()}) <= 1:
        _fill_alike(plan, partitions)
    else:
        _fill_and_level(plan, partitions, readers)
    return {member_id: sorted(rows) for member_id, rows in plan.items()}


def _valid_claims(
    members: Mapping[str, Subscription],
    existing: set[TopicPartition],
    claims: Mapping[str, tuple[Sequence[TopicPartition], int]],
) -> dict[TopicPartition, str]:
    """The newer generation has it; two of the same generation, neither."""
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id in sorted(members):
        owned, generation = claims.get(member_id, ((), NO_GENERATION))
        for tp in owned:
            if tp not in existing or tp.topic not in members[member_id].topics:
                continue
            known = owners.get(tp)
            if known is None or generation > known[0]:
                owners[tp] = (generation, member_id)
            elif generation == known[0]:
                owners[tp] = (generation, None)
    return {tp: member_id for tp, (_, member_id) in owners.items() if member_id is not None}


def _fill_alike(plan: Plan, partitions: Sequence[TopicPartition]) -> None:
    """All read the same topics: one pass."""
    if not plan:
        return
    least, extra = divmod(len(partitions), len(plan))
    for rows in plan.values():
        if len(rows) > least and extra > 0:
            extra -= 1
            del rows[least + 1 :]
        else:
            del rows[least:]
    held = {tp for rows in plan.values() for tp in rows}
    free = [tp for tp in partitions if tp not in held]
    waiting = list(plan)
    while free:
        for member_id in list(waiting):
            rows = plan[member_id]
            if len(rows) < least:
                rows.append(free.pop(0))
            elif len(rows) == least and extra > 0:
                extra -= 1
                rows.append(free.pop(0))
                waiting.remove(member_id)
            else:
                waiting.remove(member_id)
            if not free:
                break


def _fill_and_level(plan: Plan, partitions: Sequence[TopicPartition], readers: Mapping[str, list[str]]) -> None:
    """Members read different topics: what nobody has goes to the least loaded that may read it, fewest readers first;
    then single partitions move as long as a move makes two members more alike."""
    held = {tp: member_id for member_id, rows in plan.items() for tp in rows}
    for tp in sorted((tp for tp in partitions if tp not in held), key=lambda tp: (len(readers[tp.topic]), tp)):
        member_id = min(readers[tp.topic], key=lambda member_id: (len(plan[member_id]), member_id))
        plan[member_id].append(tp)
        held[tp] = member_id
    moved = True
    while moved:  # each move lowers the sum of the squares of the loads
        moved = False
        for tp in partitions:
            owner = held[tp]
            least = min(readers[tp.topic], key=lambda member_id: (len(plan[member_id]), member_id))
            if len(plan[owner]) > len(plan[least]) + 1:
                plan[owner].remove(tp)
                plan[least].append(tp)
                held[tp] = least
                moved = True
