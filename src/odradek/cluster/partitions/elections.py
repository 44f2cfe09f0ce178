"""The change of a partition's ISR and leader when brokers come and go: Kafka's PartitionChangeBuilder.

With the feature ``eligible.leader.replicas.version`` (KIP-966), an ISR may become empty. The replicas that leave an ISR
below ``min.insync.replicas`` stay eligible (ELR) until they stop uncleanly. If no eligible replica is left, the last
known leader is elected, without any setting. Its records may not be all that were acknowledged, so the partition is
marked as recovering.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from odradek.catalog.records import Id16, PartitionChangeRecord
from odradek.catalog.registrations import PartitionRegistration
from odradek.core.ids import NO_NODE

RECOVERED, RECOVERING = 0, 1


class Election(Enum):
    """How a leader is elected.

    ONLINE keeps the leader while it can. PREFERRED elects the first replica if it can. UNCLEAN also elects a replica
    that may not have all records, if there is no other.
    """

    PREFERRED = 0
    UNCLEAN = 1
    ONLINE = 2


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What decides an election besides the partition.

    ``is_acceptable``: whether a broker may lead now. ``min_isr``: ``min.insync.replicas`` of the topic, at most the
    number of replicas. ``has_eligible``: whether the feature of eligible leader replicas has a level above 0.
    ``unclean``: brokers that have stopped uncleanly.
    """

    is_acceptable: Callable[[int], bool]
    min_isr: int
    has_eligible: bool
    election: Election = Election.ONLINE
    unclean: Collection[int] = ()


def partition_change(
    topic_id: Id16,
    partition: PartitionRegistration,
    isr: tuple[int, ...],
    rules: ElectionRules,
    recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """Returns the change of a partition whose ISR becomes ``isr``, with its new leader; None without a change.

    ``recovery_state``: the one that the leader reports, None if it is not the leader that asks."""
    eligible = _eligible(partition, isr, rules)
    leader, is_unclean = _elect(partition, isr, eligible, rules)
    elects = leader != partition.leader
    recovery = None
    is_forced = elects and is_unclean
    if is_forced:
        isr, eligible = (leader,), ()
        recovery = None if partition.recovery_state == RECOVERING else RECOVERING
    elif elects and leader in eligible:
        isr, eligible = (leader,), tuple(replica for replica in eligible if replica != leader)
    if recovery_state is not None and recovery_state != partition.recovery_state:
        recovery = recovery_state
    if not rules.has_eligible:
        eligible = ()
    last_known: tuple[int, ...] | None = None
    if rules.has_eligible:
        if elects and leader == NO_NODE and not partition.last_known_elr:
            last_known = (partition.leader,)
        elif elects and leader != NO_NODE and partition.last_known_elr:
            last_known = ()
    record = PartitionChangeRecord(
        partition.partition_id,
        topic_id,
        leader=leader if elects else None,
        isr=isr if is_forced or (isr != partition.isr and (isr or rules.has_eligible)) else None,
        recovery_state=recovery,
        elr=eligible if eligible != partition.elr else None,
        last_known_elr=last_known,
    )
    return record if any(value is not None for value in record[2:]) else None


def _eligible(partition: PartitionRegistration, isr: tuple[int, ...], rules: ElectionRules) -> tuple[int, ...]:
    """Returns the replicas outside of the new ISR that have all committed records."""
    if not rules.has_eligible:  # those from the time when the feature had a level can be elected, once
        return partition.elr
    if len(isr) >= rules.min_isr:
        return ()
    candidates = set(partition.elr) | set(partition.isr)
    return tuple(sorted(candidates - set(isr) - set(rules.unclean)))


def _elect(
    partition: PartitionRegistration, isr: tuple[int, ...], eligible: tuple[int, ...], rules: ElectionRules
) -> tuple[int, bool]:
    """Returns the leader, −1 for none, and whether it may miss committed records."""
    may_lead = set(isr or eligible)
    first = (partition.replicas[0],) if rules.election is Election.PREFERRED else ()
    for replica in (*first, partition.leader, *partition.replicas):
        if replica in may_lead and rules.is_acceptable(replica):
            return replica, False
    if rules.has_eligible and not isr and not eligible and len(partition.last_known_elr) == 1:
        (last,) = partition.last_known_elr
        if rules.is_acceptable(last):
            return last, True
    if rules.election is Election.UNCLEAN:
        for replica in partition.replicas:
            if rules.is_acceptable(replica):
                return replica, True
    return NO_NODE, False
