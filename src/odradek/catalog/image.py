"""The whole catalogue at one moment, as records. A snapshot of the metadata log has these records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from odradek.catalog import features, records
from odradek.catalog.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Id16,
    MetadataRecord,
    NodeRecord,
    ProducerIdsRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from odradek.catalog.state import CatalogState, Entity, Topic
from odradek.core.access.acl import Acl
from odradek.core.access.credential import Credential
from odradek.core.access.delegation_token import DelegationToken


@dataclass(slots=True, frozen=True)
class CatalogImage:
    """An immutable copy of the catalogue. A ``Delta`` replaces topics and values, and does not modify them."""

    topics: tuple[Topic, ...]
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(repr=False)
    quotas: Mapping[Entity, Mapping[str, float]]
    acls: Mapping[Id16, Acl]
    users: Mapping[str, Mapping[int, Credential]]
    tokens: Mapping[str, DelegationToken]
    features: Mapping[str, int]
    next_producer_id: int
    broker_id: int
    directory: Id16
    nodes: tuple[NodeRecord, ...] = ()
    """The registered nodes of a cluster. A lone broker has none."""

    @classmethod
    def of(cls, state: CatalogState) -> CatalogImage:
        """Returns the copy of a state.

        The state must have no unpublished delta: its topics would be missing in the snapshot and in the log after the
        snapshot.
        """
        return cls(
            tuple(state.topics.values()),
            dict(state.configs),
            dict(state.quotas),
            dict(state.acls.by_id),
            dict(state.users),
            dict(state.tokens),
            dict(state.features),
            state.next_producer_id,
            state.producer_ids_owner,
            state.directory,
            state.node_records(),
        )

    def values(self) -> Iterator[bytes]:
        """Yields the values of the records in the order of Kafka's snapshots."""
        for record in self.records():
            yield records.encode(record)

    def records(self) -> Iterator[MetadataRecord]:
        """Yields the records whose replay gives this state, in the order of Kafka's snapshots."""
        for name in sorted(self.features.keys() | features.AT_FIRST):
            yield FeatureLevelRecord(name, self.features.get(name, 0))
        yield from self.nodes
        for topic in self.topics:
            yield TopicRecord(topic.name, topic.id)
            for partition in topic.partitions:
                record = partition.record(topic.id)
                if not record.directories:  # written by an earlier release
                    record = record._replace(directories=(self.directory,) * len(record.replicas))
                yield record
        for (kind, name), settings in self.configs.items():
            for key, value in settings.items():
                yield ConfigRecord(kind, name, key, value)
        for entity, quotas in self.quotas.items():
            for key, limit in quotas.items():
                yield ClientQuotaRecord(entity, key, limit)
        yield ProducerIdsRecord(self.broker_id, -1, self.next_producer_id)
        for acl_id, acl in self.acls.items():
            yield AccessControlEntryRecord(acl_id, acl)
        for user, credentials in self.users.items():
            for mechanism, credential in credentials.items():
                yield UserScramCredentialRecord(user, mechanism, credential)
        for token in self.tokens.values():
            yield DelegationTokenRecord(token)
