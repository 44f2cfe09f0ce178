"""The roles of a node in a partition, and what each change of a role does. No clock, socket or file.

Every change of a registration goes through ``Partition.apply``. It finds the node's role (``role_of``), and runs the
steps of the table ``TRANSITIONS`` if a leader epoch or another role begins. Any other transition raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from odradek.catalog.registrations import PartitionRegistration
from odradek.core.effects import IllegalTransition


class PartitionRole(Enum):
    """What this node does for a partition. Only a leader serves requests of clients."""

    NEW = "new"
    """No registration is applied yet."""
    LEADER = "leader"
    FOLLOWER = "follower"
    """The node has a replica. The leader is another node, or there is none."""
    REMOVED = "removed"
    """The node has no replica any more, or the topic was deleted. The object is never used again."""


class RoleStep(Enum):
    """A part of a transition."""

    END_WAITS = "end waits"
    """Completes the requests that wait here, with an error for those that wait for the high watermark."""
    BEGIN_EPOCH = "begin epoch"
    """Notes the leader epoch at the end of the log. A follower's log gets its epochs with the leader's records."""
    BEGIN_FOLLOWING = "begin following"
    """Begins to fetch from the leader of this epoch, if there is one (``broker/replication``)."""
    END_FOLLOWING = "end following"
    """Ends the fetches from the leader of the former epoch. Replies that come later change nothing."""


_ROLE, _STEP = PartitionRole, RoleStep

TRANSITIONS: Mapping[tuple[PartitionRole, PartitionRole], tuple[RoleStep, ...]] = {
    (_ROLE.NEW, _ROLE.LEADER): (_STEP.BEGIN_EPOCH,),
    (_ROLE.NEW, _ROLE.FOLLOWER): (_STEP.BEGIN_FOLLOWING,),
    (_ROLE.NEW, _ROLE.REMOVED): (_STEP.END_WAITS,),
    (_ROLE.LEADER, _ROLE.LEADER): (_STEP.BEGIN_EPOCH,),
    (_ROLE.LEADER, _ROLE.FOLLOWER): (_STEP.END_WAITS, _STEP.BEGIN_FOLLOWING),
    (_ROLE.LEADER, _ROLE.REMOVED): (_STEP.END_WAITS,),
    (_ROLE.FOLLOWER, _ROLE.FOLLOWER): (_STEP.END_FOLLOWING, _STEP.BEGIN_FOLLOWING),
    (_ROLE.FOLLOWER, _ROLE.LEADER): (_STEP.END_FOLLOWING, _STEP.BEGIN_EPOCH),
    (_ROLE.FOLLOWER, _ROLE.REMOVED): (_STEP.END_FOLLOWING, _STEP.END_WAITS),
}
"""The steps of each transition, in their order. A role follows itself when a new leader epoch begins."""


def steps_of(name: str, before: PartitionRole, after: PartitionRole) -> tuple[RoleStep, ...]:
    """Returns the steps of a transition. Raises IllegalTransition if the table does not have it."""
    steps = TRANSITIONS.get((before, after))
    if steps is None:
        raise IllegalTransition(f"{name}: {before.value} → {after.value}")
    return steps


def role_of(registration: PartitionRegistration, node_id: int) -> PartitionRole:
    """Returns the role that a registration gives to a node."""
    if node_id not in registration.replicas:
        return PartitionRole.REMOVED
    return PartitionRole.LEADER if registration.leader == node_id else PartitionRole.FOLLOWER


def is_older(registration: PartitionRegistration, present: PartitionRegistration) -> bool:
    """Returns whether a registration is from before the present one.

    The leader epoch counts first: a lone broker whose metadata log has lost its end registers a partition once more,
    with a later leader epoch and the partition epoch 0 (``broker/metadata/lone_broker``).
    """
    epochs = registration.leader_epoch, registration.partition_epoch
    return epochs < (present.leader_epoch, present.partition_epoch)
