"""Topics, their settings, producer ids: the state machine behind the metadata log.

Rules
-----
* ``handle`` checks a request and generates records; only ``replay`` changes the catalogue.
* A request that is refused raises KafkaError with Kafka's code and wording; nothing has changed then.
* Ids, defaults and the check of config values come with the request: this room draws no random numbers and
  knows no config table.
* A topic's id outlives nothing: a topic deleted and created again is another topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from odradek.catalog import records
from odradek.catalog.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    IdFactory,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicId,
    TopicRecord,
)
from odradek.core.effects import Record, Result
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS, METADATA_TOPIC

TOPIC = 2
BROKER = 4
CLIENT_METRICS = 16
GROUP = 32
PRODUCER_ID_BLOCK = 1000
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka's limit of records in one operation
MAX_NAME_LENGTH = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True)
class Partition:
    """Who keeps one partition of a topic."""

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int


@dataclass(slots=True)
class Topic:
    """A topic as the log describes it."""

    name: str
    id: TopicId
    partitions: list[Partition] = field(default_factory=list)

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(slots=True, frozen=True)
class CreateTopic:
    """``assignments`` (partition → replicas) wins over ``partition_count`` and ``replication_factor``."""

    name: str
    topic_id: TopicId
    partition_count: int
    replication_factor: int
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class DeleteTopic:
    topic_id: TopicId


@dataclass(slots=True, frozen=True)
class CreatePartitions:
    """Raises a topic's count to ``count``; ``assignments`` has the replicas of each new partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(slots=True, frozen=True)
class AlterConfigs:
    """Sets (a text) or takes back (``None``) settings of one resource: a topic, a broker ("" means all brokers),
    a subscription to clients' metrics or a group.
    """

    resource_type: int
    resource_name: str
    changes: Mapping[str, str | None]


Entity = tuple[tuple[str, str | None], ...]
"""Whom a quota binds: (type, name) pairs in the order of their types."""


@dataclass(slots=True, frozen=True)
class AlterClientQuotas:
    """Sets or, with ``None``, takes back quotas of one entity."""

    entity: Entity
    changes: Mapping[str, float | None]


@dataclass(slots=True, frozen=True)
class AllocateProducerIds:
    """Asks for a block of ids; the reply is the block's first id, ``PRODUCER_ID_BLOCK`` its length."""

    broker_id: int


@dataclass(slots=True, frozen=True)
class BeginEpochs:
    """A new leader epoch for every partition, under the leader it has: what its log held may have been lost."""


@dataclass(slots=True, frozen=True)
class RaiseEpochs:
    """The leader epochs of some partitions, by topic and index, become these."""

    epochs: Mapping[tuple[str, int], int]


CatalogRequest = (
    CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | AlterClientQuotas
    | AllocateProducerIds
    | BeginEpochs
    | RaiseEpochs
)


def check_topic_name(name: str) -> None:
    """Raises KafkaError (INVALID_TOPIC_EXCEPTION) unless Kafka would take the name."""
    if not name:
        fault = "the empty string is not allowed"
    elif name in (".", ".."):
        fault = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        fault = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL_NAME.fullmatch(name):
        fault = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {fault}")


def _unified(name: str) -> str:
    """Names equal under this collide: metrics cannot tell them apart."""
    return name.replace(".", "_")


class Shard:
    """The catalogue of one broker. ``brokers``: the node ids that can keep replicas; ``directory``: where."""

    def __init__(self, make_id: IdFactory, brokers: tuple[int, ...], directory: TopicId) -> None:
        self._make_id = make_id
        self._brokers = brokers
        self._directory = directory
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[TopicId, Topic] = {}
        self._by_unified: dict[str, str] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0

    # --- requests -----------------------------------------------------------------------------------------------

    def handle(self, now_ms: int, request: CatalogRequest) -> Result:
        """Checks a request and generates its records. Raises KafkaError where it is refused."""
        generated: list[MetadataRecord]
        reply: object = None
        match request:
            case CreateTopic():
                generated = self._create_topic(request)
            case DeleteTopic(topic_id):
                if topic_id not in self.topics_by_id:
                    raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
                generated = [RemoveTopicRecord(topic_id)]
            case CreatePartitions():
                generated = self._create_partitions(request)
            case AlterConfigs(resource_type, resource_name, changes):
                generated = self._alter_configs(resource_type, resource_name, changes)
            case AlterClientQuotas(entity, quotas):
                kept = self.quotas.get(entity, {})
                generated = [
                    ClientQuotaRecord(entity, key, value) for key, value in quotas.items() if kept.get(key) != value
                ]
            case AllocateProducerIds(broker_id):
                reply = self.next_producer_id
                generated = [ProducerIdsRecord(broker_id, -1, self.next_producer_id + PRODUCER_ID_BLOCK)]
            case BeginEpochs():
                generated = [
                    PartitionChangeRecord(partition.index, topic.id, partition.leader)
                    for topic in self.topics.values()
                    for partition in topic.partitions
                ]
            case RaiseEpochs(epochs):
                generated = [self._raised(name, index, epoch) for (name, index), epoch in epochs.items()]
        return Result(reply, [Record(b"", records.encode(record), now_ms) for record in generated])

    def _create_topic(self, request: CreateTopic) -> list[MetadataRecord]:
        self._check_new_name(request.name)
        replicas = self._replicas_for(request)
        if len(replicas) > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
        settings = [ConfigRecord(TOPIC, request.name, name, value) for name, value in request.configs.items()]
        partitions = [
            self._partition_record(request.topic_id, index, assigned) for index, assigned in enumerate(replicas)
        ]
        return [TopicRecord(request.name, request.topic_id), *settings, *partitions]

    def _check_new_name(self, name: str) -> None:
        check_topic_name(name)
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
        if name in self.topics:
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if (other := self._by_unified.get(_unified(name))) is not None:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")

    def _replicas_for(self, request: CreateTopic) -> list[tuple[int, ...]]:
        if request.assignments:
            return self._manual_replicas(request.assignments)
        count, factor = request.partition_count, request.replication_factor
        if factor < 1:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count < 1:
            raise KafkaError(
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        if factor > len(self._brokers):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
                f"cannot be reached because only {len(self._brokers)} broker(s) are registered.",
            )
        if count > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
        return [self._placed(index, factor) for index in range(count)]

    def _placed(self, index: int, factor: int) -> tuple[int, ...]:
        return tuple(self._brokers[(index + step) % len(self._brokers)] for step in range(factor))

    def _manual_replicas(self, assignments: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
        factor = len(next(iter(assignments.values())))
        for replicas in assignments.values():
            self.check_replicas(replicas, factor)
        if sorted(assignments) != list(range(len(assignments))):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
            )
        return [assignments[index] for index in range(len(assignments))]

    def check_replicas(self, replicas: tuple[int, ...], factor: int) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) where brokers cannot keep a partition so."""
        fault = ""
        if not replicas:
            fault = "The manual partition assignment includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            twice = next(broker for broker in sorted(replicas) if replicas.count(broker) > 1)
            fault = f"The manual partition assignment includes the broker {twice} more than once."
        elif unknown := [broker for broker in sorted(replicas) if broker not in self._brokers]:
            fault = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
        elif len(replicas) != factor:
            fault = (
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
                f"is not consistent with previous partitions, which have {factor} replica(s)."
            )
        if fault:
            raise KafkaError(ErrorCode.invalid_replica_assignment, fault)

    def _create_partitions(self, request: CreatePartitions) -> list[MetadataRecord]:
        topic = self.topics.get(request.name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        count = topic.partition_count
        if request.count == count:
            raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {count} partition(s).")
        if request.count < count:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"The topic {request.name} currently has {count} partition(s); {request.count} would not be an "
                "increase.",
            )
        added, factor = request.count - count, len(topic.partitions[0].replicas)
        if added > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
        if request.assignments is not None:
            if len(request.assignments) != added:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"Attempted to add {added} additional partition(s), but only {len(request.assignments)} "
                    "assignment(s) were specified.",
                )
            for replicas in request.assignments:
                self.check_replicas(replicas, factor)
        assigned = request.assignments or tuple(self._placed(count + step, factor) for step in range(added))
        return [self._partition_record(topic.id, count + step, replicas) for step, replicas in enumerate(assigned)]

    def _raised(self, name: str, index: int, leader_epoch: int) -> PartitionRecord:
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < topic.partition_count:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return replace(
            self._partition_record(topic.id, index, topic.partitions[index].replicas), leader_epoch=leader_epoch
        )

    def _partition_record(self, topic_id: TopicId, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
        directories = (self._directory,) * len(replicas)
        return PartitionRecord(index, topic_id, replicas, replicas, replicas[0], directories=directories)

    def _alter_configs(
        self, resource_type: int, resource_name: str, changes: Mapping[str, str | None]
    ) -> list[MetadataRecord]:
        if resource_type == TOPIC and resource_name not in self.topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{resource_name}' does not exist.")
        present = self.configs.get((resource_type, resource_name), {})
        return [
            ConfigRecord(resource_type, resource_name, name, value)
            for name, value in changes.items()
            if present.get(name) != value
        ]

    # --- the log ------------------------------------------------------------------------------------------------

    def replay(self, offset: int, record: Record) -> MetadataRecord | None:
        """Takes in one record of the log; returns it decoded, ``None`` for a kind unknown here."""
        decoded = records.decode(record.value or b"", self._make_id)
        match decoded:
            case TopicRecord(name, topic_id):
                topic = Topic(name, topic_id)
                self.topics[name] = topic
                self.topics_by_id[topic_id] = topic
                self._by_unified[_unified(name)] = name
            case PartitionRecord(index, topic_id, replicas, isr, leader, leader_epoch):
                topic = self._known(offset, topic_id)
                partition = Partition(index, replicas, isr, leader, leader_epoch)
                if index < topic.partition_count:
                    topic.partitions[index] = partition
                else:
                    topic.partitions.append(partition)
            case PartitionChangeRecord(index, topic_id, int(leader)):
                topic = self._known(offset, topic_id)
                if not 0 <= index < topic.partition_count:
                    raise ValueError(f"metadata record {offset} speaks of a partition never created")
                topic.partitions[index].leader = leader
                topic.partitions[index].leader_epoch += 1
            case ConfigRecord(resource_type, resource_name, name, value):
                self._replay_config((resource_type, resource_name), name, value)
            case RemoveTopicRecord(topic_id):
                topic = self._known(offset, topic_id)
                del self.topics_by_id[topic_id], self.topics[topic.name], self._by_unified[_unified(topic.name)]
                self.configs.pop((TOPIC, topic.name), None)
            case ClientQuotaRecord(entity, key, limit):
                self._replay_quota(entity, key, limit)
            case FeatureLevelRecord(name, level):
                self.features[name] = level
            case ProducerIdsRecord(next_producer_id=next_id):
                self.next_producer_id = next_id
            case PartitionChangeRecord() | None:
                pass
        return decoded

    def _known(self, offset: int, topic_id: TopicId) -> Topic:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise ValueError(f"metadata record {offset} speaks of a topic id never created")
        return topic

    def _replay_config(self, resource: tuple[int, str], name: str, value: str | None) -> None:
        settings = self.configs.setdefault(resource, {})
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
        if not settings:
            del self.configs[resource]

    def _replay_quota(self, entity: Entity, key: str, limit: float | None) -> None:
        kept = self.quotas.setdefault(entity, {})
        if limit is None:
            kept.pop(key, None)
        else:
            kept[key] = limit
        if not kept:
            del self.quotas[entity]

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What was set on a topic itself."""
        return self.configs.get((TOPIC, name), {})
