"""Arguments and results of the admin calls: frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from odradek.client.other_names import refuse
from odradek.core.ids import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition


@dataclass(frozen=True, slots=True)
class Node:
    """A broker with its advertised address; ``node_id`` -1 is a bootstrap address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster. ``controller`` is the broker that accepts changes of the cluster, None if unknown."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node of a cluster. ``roles``: broker, controller or both. ``is_active``: whether it is the active controller.

    ``leaders``: the number of partitions that it leads. ``end_offset``: the end of its copy of the metadata log, and
    ``lag``: how many records of the log it has not fetched; None for a fenced broker that does not fetch.
    """

    node_id: int
    roles: tuple[str, ...]
    host: str = ""
    port: int = -1
    rack: str | None = None
    is_fenced: bool = False
    is_active: bool = False
    leaders: int = 0
    end_offset: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The nodes of a cluster, by id. ``leaderless``: the number of partitions without a leader.

    ``epoch`` and ``high_watermark``: of the metadata log."""

    cluster_id: str | None
    nodes: tuple[NodeDescription, ...]
    leaderless: int
    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition. ``leader`` is -1 if the partition has no leader.

    ``elr`` and ``last_known_elr`` (KIP-966): the replicas outside of the ISR that have all committed records, and, of a
    partition without a leader, the last one. None if ``describe_topics`` was not asked for them, or the cluster does
    not know them.
    """

    partition: int
    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default.

    ``replica_assignments``: the brokers of each partition, the preferred leader first, as a sequence or by the number
    of the partition. It takes the place of both numbers."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    replica_assignments: Sequence[Sequence[int]] | Mapping[int, Sequence[int]] = ()

    def assignments(self) -> dict[int, list[int]]:
        """Returns the brokers by partition; {} if the controller places the replicas. Raises ValueError."""
        given = self.replica_assignments
        found = given if isinstance(given, Mapping) else dict(enumerate(given))
        if found and (self.num_partitions != -1 or self.replication_factor != -1):
            raise ValueError(
                f"topic {self.name}: give replica_assignments, or num_partitions and replication_factor, but not both"
            )
        for brokers in found.values():
            if not all(type(one) is int for one in brokers):
                raise ValueError(
                    f"topic {self.name}: replica_assignments has the ids of brokers for each partition, for example "
                    f"[[1, 2], [2, 3]], not {given!r}"
                )
        return {partition: list(brokers) for partition, brokers in found.items()}


if not TYPE_CHECKING:  # a type checker reads the fields
    _init = NewTopic.__init__

    @wraps(_init)
    def _checked_init(self: NewTopic, *values: object, **named: object) -> None:
        if others := named.keys() - NewTopic.__match_args__:
            refuse("NewTopic", dict.fromkeys(others))
        _init(self, *values, **named)

    NewTopic.__init__ = _checked_init


class ConfigEntry(NamedTuple):
    """A setting in effect. ``source`` is the level that sets it: topic, group, client metrics, broker logger, broker,
    cluster, static broker or default.

    ``value`` is None for a secret.
    """

    name: str
    value: str | None
    source: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The result of one offset lookup. ``offset`` is -1 if all records are older than the given time."""

    offset: int = NO_OFFSET
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class EpochEnd(NamedTuple):
    """The end offset of a requested leader epoch in a leader's log; -1, -1 if the leader does not know it.

    ``leader_epoch`` is the largest epoch in that log that is not above the requested one.
    """

    leader_epoch: int
    end_offset: int

    def is_before(self, offset: int) -> bool:
        """Returns whether that log lacks records below ``offset`` that were read under the requested epoch."""
        return self.leader_epoch >= 0 and 0 <= self.end_offset < offset


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. ``state`` and ``type`` are empty if the broker is too old to report them."""

    group_id: str
    protocol_type: str
    state: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``host`` is the member's address as the broker reports it, with a leading slash."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. ``state`` is Kafka's name (Stable, Empty, …), ``protocol`` the assignor, ``type`` classic or
    consumer."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    type: str
    coordinator: Node
    members: tuple[MemberDescription, ...] = ()


class TransactionFilter(NamedTuple):
    """The filter of a list of transactions. ``duration_ms`` selects transactions open for longer than that (-1: all).
    ``pattern`` selects transactional ids that match this regular expression (RE2) as a whole."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    pattern: str = ""


class TransactionListing(NamedTuple):
    """A transactional id in a list. ``coordinator`` is the id of the broker that keeps the state; ``state`` is Kafka's
    name (Ongoing, Empty, …)."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id. ``start_ms`` is the start of the open transaction in ms since 1970, None without one."""

    transactional_id: str
    coordinator: Node
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """A producer that has written to a partition. ``transaction_start_offset`` is that of its open transaction, or
    None; ``coordinator_epoch`` is None if the partition has no marker of this producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


class HangingTransaction(NamedTuple):
    """An open transaction in a partition. No coordinator knows the transaction, so nothing ends it."""

    partition: TopicPartition
    producer: ActiveProducer
