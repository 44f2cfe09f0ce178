"""What the state machines of a replicated partition want to be done. Small frozen values, which their runtime carries
out.

A leader (``replication/leader``) moves the high watermark and changes the ISR. A follower (``replication/follower``)
also changes its log. A state machine returns a tuple of effects. The runtime carries them out in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from odradek.core.ids import FetchingReplica

if TYPE_CHECKING:
    from odradek.core.errors import ErrorCode


class RegisteredPartition(Protocol):
    """What a state machine reads of a partition's registration (``catalog/registrations.PartitionRegistration``)."""

    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...

    def least_isr(self, min_isr: int) -> int:
        """Returns ``min.insync.replicas`` as it acts here."""


class ReplicaBroker(Protocol):
    """What a state machine reads of a broker's registration (``cluster/nodes/registrations.BrokerRegistration``)."""

    @property
    def epoch(self) -> int: ...
    @property
    def is_fenced(self) -> bool: ...
    @property
    def is_shutting_down(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MoveWatermark:
    """The high watermark rises to this offset, which is not above the log's end."""

    offset: int


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """The controller is asked for another ISR (AlterPartition). The leader recovery state in it is RECOVERED.

    ``isr``: its brokers, each with the broker epoch of its last fetch; −1 for one that has not fetched. The runtime
    sends it until it has an answer for this partition, and passes the answer to ``PartitionLeader.on_alter_reply``. A
    later AlterIsr of the partition, or a new registration, does not end an earlier one that is on its way.
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[FetchingReplica, ...]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The new ISR."""
        return tuple(member.broker_id for member in self.isr)


@dataclass(frozen=True, slots=True)
class AlteredIsr:
    """The answer to an AlterIsr that succeeded: the partition after it, as the controller has it."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """The records of the reply are appended as they came. After that: ``on_done``, or ``on_failed``."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """The log ends at this offset; also its leader epochs from there on are gone. After that: ``on_done``."""

    offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """The log loses all records and begins at this offset. After that: ``on_done``, or ``on_failed``."""

    offset: int


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """The log start rises to this offset, which is not above the high watermark."""

    offset: int


@dataclass(frozen=True, slots=True)
class FindOffset:
    """The leader is asked for its log end or its log start (ListOffsets with LATEST or EARLIEST of ``core/ids``), in
    this leader epoch. After that: ``PartitionFollower.on_offset``."""

    which: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Retry:
    """The follower asks again, at the earliest after ``delay_ms``. ``code``: what was wrong; NONE for no answer."""

    delay_ms: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Stop:
    """The follower fetches no more in this leader epoch: a new leader is known soon, or its log is offline."""

    code: ErrorCode


LeaderEffect: TypeAlias = MoveWatermark | AlterIsr
FollowerEffect: TypeAlias = Append | Truncate | RestartAt | MoveWatermark | DeleteBefore | FindOffset | Retry | Stop
