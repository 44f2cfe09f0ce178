"""A member of a KIP-848 group, and its reconciliation with its target.

The member epoch is the group epoch that the member has reached. A member with partitions to revoke is in
UNREVOKED_PARTITIONS until its heartbeat confirms the revocation. Then the member gets the target's epoch. A member is
in UNRELEASED_PARTITIONS while other members still own partitions of its target. So no partition has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import Pace
from odradek.groups.messages import MemberProtocol

Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Topic id (16 bytes) to partitions, each with the epoch of its assignment to the member."""

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]


class Kip848MemberState(IntEnum):
    """The states of a member. The values are those of the records in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicMemberMetadata(NamedTuple):
    """The additional fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched at the ``version`` of the metadata catalog."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class Kip848Member(NamedTuple):
    """The durable state of a member. It never changes in place: each change makes a new object."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: Kip848MemberState = Kip848MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""  # '' without a pattern
    assignor: str | None = None
    assigned: Owned = {}  # noqa: RUF012 (never changed in place)
    to_revoke: Owned = {}  # noqa: RUF012
    classic: ClassicMemberMetadata | None = None

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is Kip848MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Returns the epoch in which the member got a partition.

        Returns None if the partition is neither assigned to the member nor one that it has to revoke.
        """
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.to_revoke.get(topic_id, {}).get(partition) if epoch is None else epoch

    def owns_the_same(self, other: Kip848Member) -> bool:
        """Returns whether both members have the same epoch, assigned partitions and partitions to revoke."""
        return (
            self.epoch == other.epoch
            and (self.assigned is other.assigned or self.assigned == other.assigned)
            and (self.to_revoke is other.to_revoke or self.to_revoke == other.to_revoke)
        )

    def owns_only(self, owned: Mapping[bytes, Collection[int]] | None) -> bool:
        """Returns whether all partitions in the member's report are assigned to it; False without a report (None)."""
        if owned is None:
            return False
        return all(
            topic_id in self.assigned and self.assigned[topic_id].keys() >= set(partitions)
            for topic_id, partitions in owned.items()
        )


def without_epochs(owned: Owned) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def with_epoch(partitions: Partitions, epoch: int) -> Owned:
    return {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in partitions.items()}


class TargetAssignment(NamedTuple):
    """A member's target assignment, with the epoch of the target."""

    epoch: int
    partitions: Partitions


class Reconciliation(NamedTuple):
    """All inputs of ``advance`` except the member.

    ``subscribed``: ids of the existing topics that the member reads. ``owned``: the partitions that the member reports,
    or None if the request has no report. ``is_taken``: returns whether any member of the group has a partition,
    assigned or still to revoke.
    """

    target: TargetAssignment
    subscribed: frozenset[bytes]
    owned: Mapping[bytes, Collection[int]] | None
    is_taken: Callable[[bytes, int], bool]
    subscription_changed: bool
    pace: Pace

    def advance(self, member: Kip848Member) -> Generator[None, None, Kip848Member]:
        """Returns the member in its next state on the way to the target.

        Raises KafkaError (FENCED_MEMBER_EPOCH) if the state is UNKNOWN and the member may still own partitions.
        """
        if member.is_reconciled(self.target.epoch) and not self.subscription_changed:
            return member
        if member.state is Kip848MemberState.STABLE and member.epoch == self.target.epoch:
            return self._drop_unsubscribed(member)
        if member.state is Kip848MemberState.UNREVOKED_PARTITIONS and self._owns_any(member.to_revoke):
            return self._drop_unsubscribed(member) if self.subscription_changed else member
        if member.state is Kip848MemberState.UNKNOWN:
            if self.owned is None or self.owned:
                raise KafkaError(
                    ErrorCode.fenced_member_epoch,
                    "The member's state is unknown. The member must abandon all its partitions and rejoin.",
                )
            return (yield from self._advance(member, self.target.epoch))
        return (yield from self._advance(member, member.epoch))

    def _owns_any(self, partitions: Owned) -> bool:
        """Returns whether the member may still own any of these partitions. Without a report it may own all of them."""
        if self.owned is None:
            return True
        owned = self.owned
        return any(not numbers.keys().isdisjoint(owned.get(topic_id, ())) for topic_id, numbers in partitions.items())

    def _drop_unsubscribed(self, member: Kip848Member) -> Kip848Member:
        """Takes from the member the partitions of topics that it no longer reads. Does not wait for a new target.

        The partitions become partitions to revoke if the member may still own one of them, or an earlier partition to
        revoke. Else the member loses them at once.
        """
        gone = {topic_id: owned for topic_id, owned in member.assigned.items() if topic_id not in self.subscribed}
        if not gone:
            return member
        assigned = {topic_id: owned for topic_id, owned in member.assigned.items() if topic_id in self.subscribed}
        to_revoke = dict(member.to_revoke)
        for topic_id, owned in gone.items():
            to_revoke[topic_id] = {**to_revoke.get(topic_id, {}), **owned}
        if self._owns_any(to_revoke):
            return member._replace(
                state=Kip848MemberState.UNREVOKED_PARTITIONS,
                previous_epoch=member.epoch,
                assigned=assigned,
                to_revoke=to_revoke,
            )
        return member._replace(previous_epoch=member.epoch, assigned=assigned)

    def _advance(self, member: Kip848Member, epoch: int) -> Generator[None, None, Kip848Member]:
        kept: dict[bytes, dict[int, int]] = {}
        to_revoke: dict[bytes, dict[int, int]] = {}
        coming: dict[bytes, list[int]] = {}
        waits = False
        for topic_id in {**self.target.partitions, **member.assigned}:
            wanted = self.target.partitions.get(topic_id, frozenset()) if topic_id in self.subscribed else frozenset()
            owned = member.assigned.get(topic_id, {})
            own_to_revoke = member.to_revoke.get(topic_id, {})
            stay = {partition: since for partition, since in owned.items() if partition in wanted}
            leave = {partition: since for partition, since in owned.items() if partition not in wanted}
            free = [
                partition
                for partition in sorted(wanted)
                if partition not in owned and (not self.is_taken(topic_id, partition) or partition in own_to_revoke)
            ]
            waits = waits or len(stay) + len(free) < len(wanted)
            if stay:
                kept[topic_id] = stay
            if leave:
                to_revoke[topic_id] = leave
            if free:
                coming[topic_id] = free
            if self.pace.spend(1 + (len(wanted) + len(owned)) // 4):
                yield
        if to_revoke and self._owns_any(to_revoke):
            return member._replace(
                state=Kip848MemberState.UNREVOKED_PARTITIONS,
                epoch=epoch,
                previous_epoch=member.epoch,
                assigned=kept,
                to_revoke=to_revoke,
            )
        for topic_id, partitions in coming.items():
            kept[topic_id] = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, self.target.epoch)}
        return member._replace(
            state=Kip848MemberState.UNRELEASED_PARTITIONS if waits else Kip848MemberState.STABLE,
            epoch=self.target.epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            to_revoke={},
        )


def reported_partitions(topics: Iterable[tuple[bytes, Iterable[int]]]) -> dict[bytes, set[int]]:
    """Returns the partitions that a member reports in a request, by topic. Entries of the same topic are merged."""
    owned: dict[bytes, set[int]] = {}
    for topic_id, partitions in topics:
        owned.setdefault(topic_id, set()).update(partitions)
    return owned
