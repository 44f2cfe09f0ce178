"""The state machine of the metadata log: topics, settings, quotas, users, tokens, ACLs, features, producer ids.

It is no tenant of ``coordinator_runtime/``: ``broker/metadata_log/log`` appends its records, and
``broker/controller/write_events`` runs one request after another.

Rules
-----
* ``generate`` checks a request and generates its records. It works in steps, because a request can have thousands of
partitions.
* Only records that are in the log change the catalogue, by ``replay`` and ``apply``. New topics and partitions of a
  running broker are in a ``Delta`` (``catalog/delta``) and not visible before ``publish``.
* A refused request raises KafkaError with Kafka's code and text, and changes nothing.
* The caller puts ids and defaults into the request and checks its settings, because this package makes no random
numbers and has no table of settings.
* A topic that is deleted and created again is another topic with another id.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from copy import copy as shallow_copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Self

from odradek.catalog import credentials, features, records
from odradek.catalog.acls import AclTable, CreateAcl, DeleteAcl, check_new
from odradek.catalog.credentials import AlterCredential, FormCounts, Users
from odradek.catalog.features import UpdateFeatures
from odradek.catalog.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Id16,
    IdFactory,
    MetadataRecord,
    NodeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.tokens import PutToken, RemoveToken
from odradek.core.access.delegation_token import DelegationToken
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS, METADATA_TOPIC
from odradek.core.pace import Pace

TOPIC = 2
BROKER = 4
CLIENT_METRICS = 16
GROUP = 32
PRODUCER_ID_BLOCK = 1000
MAX_PARTITIONS_PER_REQUEST = 10_000
MAX_NAME_LENGTH = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True)
class Topic:
    """A topic and its partitions."""

    name: str
    id: Id16
    partitions: list[PartitionRegistration] = field(default_factory=list)

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class CreateTopic(NamedTuple):
    """Creates a topic.

    ``assignments`` (partition → replicas) overrides ``partition_count`` and ``replication_factor``."""

    name: str
    topic_id: Id16
    partition_count: int
    replication_factor: int
    assignments: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    configs: Mapping[str, str] = MappingProxyType({})


class DeleteTopic(NamedTuple):
    topic_id: Id16


class CreatePartitions(NamedTuple):
    """Raises the number of a topic's partitions. ``assignments`` has the replicas of each new partition."""

    name: str
    partition_count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class AlterConfigs(NamedTuple):
    """Sets (a text) or removes (``None``) settings of one resource.

    Resources are topics, brokers ("" means all brokers), subscriptions to clients' metrics, and groups.
    """

    resource_type: int
    resource_name: str
    changes: Mapping[str, str | None]

    def __repr__(self) -> str:
        """A setting of a broker may be a password."""
        shown = sorted(self.changes) if self.resource_type == BROKER else dict(self.changes)
        return f"AlterConfigs({self.resource_type}, {self.resource_name!r}, {shown})"


Entity = tuple[tuple[str, str | None], ...]
"""The clients with a quota: (type, name) pairs in the order of their types."""


class AlterClientQuotas(NamedTuple):
    """Sets or, with ``None``, removes quotas of one entity."""

    entity: Entity
    changes: Mapping[str, float | None]


class AllocateProducerIds(NamedTuple):
    """Allocates a producer id block, ``PRODUCER_ID_BLOCK`` ids. The record has the first id after the block."""

    broker_id: int


class OwnRecords(ABC):
    """A request that makes its records itself: those of ``broker/metadata/lone_broker``."""

    @abstractmethod
    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        """Returns the records, from the present state. Raises KafkaError."""


CatalogRequest = (
    CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | AlterClientQuotas
    | AlterCredential
    | CreateAcl
    | DeleteAcl
    | PutToken
    | RemoveToken
    | UpdateFeatures
    | AllocateProducerIds
    | OwnRecords
)


RecordSteps = Generator[None, None, list[MetadataRecord]]
"""Generates records. Other code may run where it yields."""


def check_partition_count(count: int) -> None:
    """Raises KafkaError (POLICY_VIOLATION) for more partitions than one request may create."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")


def check_topic_name(name: str) -> None:
    """Raises KafkaError (INVALID_TOPIC_EXCEPTION) if Kafka would refuse the name."""
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
    """Returns the form in which names collide: Kafka's metrics names do not distinguish '.' and '_'."""
    return name.replace(".", "_")


class CatalogState:
    """The catalogue. ``brokers``: the node ids of the replicas that a lone broker places, and ``directory``: their log
    directory. A cluster has other ones for each partition (``cluster/cluster_catalog``)."""

    # Subclasses use _alter_configs, _check_assignment, _forget_name, _make_id and _placed.

    def __init__(self, make_id: IdFactory, brokers: tuple[int, ...], directory: Id16) -> None:
        self._make_id = make_id
        self._own_brokers = brokers
        self.directory = directory
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[Id16, Topic] = {}
        self._colliding: dict[str, tuple[str, ...]] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.users: Users = {}
        self.forms: dict[int, FormCounts] = {}
        """The counts of the forms of credentials, by mechanism."""
        self.acls = AclTable()
        self.tokens: dict[str, DelegationToken] = {}
        self.features: dict[str, int] = dict(features.AT_FIRST)
        self.next_producer_id = 0

    def copied(self) -> Self:
        """Returns a copy that later changes of this catalogue do not affect: they replace topics and values, and do not
        modify them."""
        copy = shallow_copy(self)
        copy.topics, copy.topics_by_id = dict(self.topics), dict(self.topics_by_id)
        copy.configs, copy.quotas = dict(self.configs), dict(self.quotas)
        copy.features = dict(self.features)
        return copy

    @property
    def brokers(self) -> tuple[int, ...]:
        """The node ids that replicas may have."""
        return self._own_brokers

    @property
    def registered_brokers(self) -> Mapping[int, object]:
        """The registrations of brokers by id (``cluster/nodes/registrations``). A lone broker has none."""
        return {}

    # --- requests -----------------------------------------------------------------------------------------------

    def generate(self, request: CatalogRequest) -> RecordSteps:
        """Checks a request and generates its records in steps. Raises KafkaError if the request is refused."""
        generated: list[MetadataRecord]
        match request:
            case CreateTopic():
                generated = yield from self._create_topic(request)
            case DeleteTopic(topic_id):
                if topic_id not in self.topics_by_id:
                    raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
                generated = [RemoveTopicRecord(topic_id)]
            case CreatePartitions():
                generated = yield from self._create_partitions(request)
            case AlterConfigs(resource_type, resource_name, changes):
                generated = self._alter_configs(resource_type, resource_name, changes)
            case AlterClientQuotas(entity, quotas):
                generated = yield from self._alter_quotas(entity, quotas)
            case AlterCredential():
                credentials.check(self.users, request)
                generated = [self._credential_record(request)]
            case CreateAcl(acl_id, acl):
                check_new(acl)
                generated = [] if acl in self.acls.ids else [AccessControlEntryRecord(acl_id, acl)]
            case DeleteAcl(acl_id):
                generated = [RemoveAccessControlEntryRecord(acl_id)] if acl_id in self.acls.by_id else []
            case PutToken(token):
                generated = [DelegationTokenRecord(token)]
            case RemoveToken(token_id):
                generated = [RemoveDelegationTokenRecord(token_id)] if token_id in self.tokens else []
            case UpdateFeatures(updates):
                for update in updates.values():
                    features.check(self.features, update)
                generated = [
                    FeatureLevelRecord(update.name, update.level)
                    for update in updates.values()
                    if self.features.get(update.name, 0) != update.level
                ]
            case AllocateProducerIds(broker_id):
                generated = [ProducerIdsRecord(broker_id, -1, self.next_producer_id + PRODUCER_ID_BLOCK)]
            case OwnRecords():
                generated = request.records(self)
        return generated

    def _create_topic(self, request: CreateTopic) -> RecordSteps:
        self._check_new_name(request.name)
        replicas = yield from self._replicas_for(request)
        generated: list[MetadataRecord] = [TopicRecord(request.name, request.topic_id)]
        generated += [ConfigRecord(TOPIC, request.name, name, value) for name, value in request.configs.items()]
        for index, assigned in enumerate(replicas):
            generated.append(self.partition_record(request.topic_id, index, assigned))
            yield
        return generated

    def _check_new_name(self, name: str) -> None:
        check_topic_name(name)
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited.")
        if name in self.topics:
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if others := self._colliding.get(_unified(name)):
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {others[0]}"
            )

    def _replicas_for(self, request: CreateTopic) -> Generator[None, None, Iterable[tuple[int, ...]]]:
        if request.assignments:
            check_partition_count(len(request.assignments))
            return (yield from self._manual_replicas(request.assignments))
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
        placed = self._placed(0, count, factor)
        check_partition_count(count)
        return placed

    def _placed(self, first: int, count: int, factor: int) -> Iterable[tuple[int, ...]]:
        """Returns the replicas of ``count`` new partitions, the first of which has the index ``first``.

        Raises KafkaError (INVALID_REPLICATION_FACTOR)."""
        brokers = self.brokers
        if factor > len(brokers):
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
                f"cannot be reached because only {len(brokers)} broker(s) are registered.",
            )
        return (
            tuple(brokers[(index + step) % len(brokers)] for step in range(factor))
            for index in range(first, first + count)
        )

    def _manual_replicas(
        self, assignments: Mapping[int, tuple[int, ...]]
    ) -> Generator[None, None, list[tuple[int, ...]]]:
        factor = len(next(iter(assignments.values())))
        for index, replicas in assignments.items():
            self._check_assignment(index, replicas, factor)
            yield
        if sorted(assignments) != list(range(len(assignments))):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
            )
        return [assignments[index] for index in range(len(assignments))]

    def _check_assignment(self, index: int, replicas: tuple[int, ...], factor: int) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) if a new partition cannot have these replicas."""
        self.check_replicas(replicas, factor)

    def check_replicas(self, replicas: tuple[int, ...], factor: int) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) if these brokers cannot be the replicas of a partition."""
        fault = ""
        if not replicas:
            fault = "The manual partition assignment includes an empty replica list."
        elif unknown := [broker for broker in sorted(replicas) if broker not in self.brokers]:
            fault = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
        elif len(set(replicas)) != len(replicas):
            twice = next(broker for broker in sorted(replicas) if replicas.count(broker) > 1)
            fault = f"The manual partition assignment includes the broker {twice} more than once."
        elif len(replicas) != factor:
            fault = (
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
                f"is not consistent with previous partitions, which have {factor} replica(s)."
            )
        if fault:
            raise KafkaError(ErrorCode.invalid_replica_assignment, fault)

    def _create_partitions(self, request: CreatePartitions) -> RecordSteps:
        topic = self.topics.get(request.name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        count = topic.partition_count
        if request.partition_count == count:
            raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {count} partition(s).")
        if request.partition_count < count:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"The topic {request.name} currently has {count} partition(s); {request.partition_count} would not be "
                "an increase.",
            )
        added, factor = request.partition_count - count, len(topic.partitions[0].replicas)
        check_partition_count(added)
        if request.assignments is not None:
            if len(request.assignments) != added:
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"Attempted to add {added} additional partition(s), but only {len(request.assignments)} "
                    "assignment(s) were specified.",
                )
            for step, replicas in enumerate(request.assignments):
                self._check_assignment(count + step, replicas, factor)
                yield
        assigned = request.assignments or self._placed(count, added, factor)
        generated: list[MetadataRecord] = []
        for step, replicas in enumerate(assigned):
            generated.append(self.partition_record(topic.id, count + step, replicas))
            yield
        return generated

    def partition_record(self, topic_id: Id16, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
        directories = (self.directory,) * len(replicas)
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

    def _alter_quotas(self, entity: Entity, quotas: Mapping[str, float | None]) -> RecordSteps:
        kept = self.quotas.get(entity, {})
        generated: list[MetadataRecord] = []
        pace = Pace()
        for key, value in quotas.items():
            if kept.get(key) != value:
                generated.append(ClientQuotaRecord(entity, key, value))
            if pace.spend():
                yield
        return generated

    def _credential_record(self, request: AlterCredential) -> MetadataRecord:
        if request.credential is None:
            return RemoveUserScramCredentialRecord(request.user, request.mechanism)
        return UserScramCredentialRecord(request.user, request.mechanism, request.credential)

    # --- the log ------------------------------------------------------------------------------------------------

    def replay(self, offset: int, value: bytes) -> None:
        """Applies one record of the log or of a snapshot (offset -1). Raises ValueError, and its UnsupportedRecord."""
        self.apply(offset, records.decode(value, self._make_id))

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Applies one decoded record of the log."""
        match record:
            case TopicRecord(name, topic_id):
                self._add(Topic(name, topic_id))
            case PartitionRecord(index, topic_id):
                topic = self._known(offset, topic_id)
                partition = PartitionRegistration.of(record)
                if index < topic.partition_count:
                    topic.partitions[index] = partition
                else:
                    topic.partitions.append(partition)
            case PartitionChangeRecord(index, topic_id):
                topic = self._known(offset, topic_id)
                if not 0 <= index < topic.partition_count:
                    raise ValueError(f"the metadata record at offset {offset} names a partition that does not exist")
                topic.partitions[index] = topic.partitions[index].changed(record)
            case ConfigRecord(resource_type, resource_name, name, value):
                self._replay_config((resource_type, resource_name), name, value)
            case RemoveTopicRecord(topic_id):
                topic = self._known(offset, topic_id)
                del self.topics_by_id[topic_id], self.topics[topic.name]
                self._forget_name(topic.name)
                self.configs.pop((TOPIC, topic.name), None)
            case ClientQuotaRecord(entity, key, limit):
                self._replay_quota(entity, key, limit)
            case UserScramCredentialRecord(user, mechanism, credential):
                credentials.put(self.users, self.forms, user, mechanism, credential)
            case RemoveUserScramCredentialRecord(user, mechanism):
                credentials.put(self.users, self.forms, user, mechanism, None)
            case AccessControlEntryRecord(acl_id, acl):
                self.acls.put(acl_id, acl)
            case RemoveAccessControlEntryRecord(acl_id):
                if not self.acls.remove(acl_id):
                    raise ValueError(f"the metadata record at offset {offset} removes an ACL that does not exist")
            case DelegationTokenRecord(token):
                self.tokens[token.id] = token
            case RemoveDelegationTokenRecord(token_id):
                self.tokens.pop(token_id, None)
            case FeatureLevelRecord(name, 0):
                self.features.pop(name, None)
            case FeatureLevelRecord(name, level):
                self.features[name] = level
            case ProducerIdsRecord(next_producer_id=next_id):
                self.next_producer_id = next_id

    def _add(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        unified = _unified(topic.name)
        if unified != topic.name or "_" in unified:
            others = self._colliding.get(unified, ())
            if topic.name not in others:
                self._colliding[unified] = (*others, topic.name)

    def _forget_name(self, name: str) -> None:
        unified = _unified(name)
        others = tuple(other for other in self._colliding.pop(unified, ()) if other != name)
        if others:
            self._colliding[unified] = others

    def publish(self, topic: Topic) -> None:
        """Makes a topic of a ``Delta``, with its new partitions, visible to requests."""
        self._add(topic)

    def _known(self, offset: int, topic_id: Id16) -> Topic:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise ValueError(f"the metadata record at offset {offset} names a topic id that does not exist")
        return topic

    # These methods replace the inner dicts and do not change them, because images of the catalogue share them.

    def _replay_config(self, resource: tuple[int, str], name: str, value: str | None) -> None:
        settings = {key: text for key, text in self.configs.get(resource, {}).items() if key != name}
        if value is not None:
            settings[name] = value
        if settings:
            self.configs[resource] = settings
        else:
            self.configs.pop(resource, None)

    def _replay_quota(self, entity: Entity, key: str, limit: float | None) -> None:
        kept = {name: number for name, number in self.quotas.get(entity, {}).items() if name != key}
        if limit is not None:
            kept[key] = limit
        if kept:
            self.quotas[entity] = kept
        else:
            self.quotas.pop(entity, None)

    def node_records(self) -> tuple[NodeRecord, ...]:
        """Returns the registered nodes of a cluster, as the records of a snapshot."""
        return ()

    @property
    def producer_ids_owner(self) -> int:
        """The node id of the ProducerIdsRecord of a snapshot, which gives no node any ids."""
        return self._own_brokers[0]

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Returns the topic's own settings, without defaults."""
        return self.configs.get((TOPIC, name), {})
