"""What committed metadata records change. Publishers apply deltas (``broker/metadata/loader``) at start and later.

A delta is made from records in log order. A replay applies removals and changes to the state at once. New topics and
new partitions of topics are only in the delta until ``CatalogState.publish``, because the broker makes their logs
first.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.catalog.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Id16,
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
from odradek.catalog.state import TOPIC, CatalogState, Entity, Topic


class Delta:
    """The changed resources in the order of the records.

    Settings, quotas, users, tokens, ACLs and features are only names or ids here: the state has their values.

    ``is_initial``: this is the first delta, and it names everything in the state.
    """

    __slots__ = (
        "_replaced",
        "_state",
        "acls",
        "configs",
        "created",
        "deleted",
        "features",
        "grown",
        "is_initial",
        "nodes",
        "partitions",
        "producer_ids",
        "quotas",
        "tokens",
        "users",
    )  # fmt: skip

    def __init__(self, state: CatalogState, *, is_initial: bool = False) -> None:
        self.is_initial = is_initial
        self.created: dict[Id16, Topic] = {}
        self.grown: dict[Id16, Topic] = {}
        """Topics with all their partitions, old and new."""
        self.deleted: dict[Id16, Topic] = {}
        self.partitions: dict[tuple[str, int], PartitionRegistration] = {}
        """Changed partitions of present topics, by topic and index."""
        self.configs: dict[tuple[int, str], None] = {}
        """Resources (type and name) with a changed setting."""
        self.quotas: dict[Entity, None] = {}
        self.users: dict[str, None] = {}
        self.acls: dict[Id16, None] = {}
        self.tokens: dict[str, None] = {}
        self.features: dict[str, None] = {}
        self.nodes: list[NodeRecord] = []
        """Records about the nodes of a cluster."""
        self.producer_ids: list[ProducerIdsRecord] = []
        """Producer id blocks, each with the id of the broker that got it."""
        self._state = state
        self._replaced: set[Id16] = set()
        """Topics of which the state has a copy that this delta has made: a snapshot may still read the former one."""

    @classmethod
    def of(cls, state: CatalogState) -> Delta:
        """Returns the delta from an empty catalogue to the state.

        The delta has no producer id blocks, because a broker uses only blocks that it gets after its start.
        """
        delta = cls(state, is_initial=True)
        delta.created = dict(state.topics_by_id)
        delta.configs = dict.fromkeys(state.configs)
        delta.quotas = dict.fromkeys(state.quotas)
        delta.users = dict.fromkeys(state.users)
        delta.acls = dict.fromkeys(state.acls.by_id)
        delta.tokens = dict.fromkeys(state.tokens)
        delta.features = dict.fromkeys(state.features)
        return delta

    @property
    def new_topics(self) -> Iterator[Topic]:
        """Yields the topics that are new or have new partitions."""
        yield from self.created.values()
        yield from self.grown.values()

    def replay(self, offset: int, record: MetadataRecord) -> None:
        """Applies one record. Raises ValueError if the record contradicts the records before it."""
        match record:
            case TopicRecord(name, topic_id):
                self.created[topic_id] = Topic(name, topic_id)
                return
            case PartitionRecord():
                if self._replay_new_partition(record):
                    return
            case RemoveTopicRecord(topic_id):
                if self._replay_removal(topic_id):
                    return
            case ConfigRecord(resource_type, resource_name):
                self.configs[resource_type, resource_name] = None
            case ClientQuotaRecord(entity):
                self.quotas[entity] = None
            case UserScramCredentialRecord(user) | RemoveUserScramCredentialRecord(user):
                self.users[user] = None
            case AccessControlEntryRecord(acl_id) | RemoveAccessControlEntryRecord(acl_id):
                self.acls[acl_id] = None
            case DelegationTokenRecord(token):
                self.tokens[token.id] = None
            case RemoveDelegationTokenRecord(token_id):
                self.tokens[token_id] = None
            case FeatureLevelRecord(name):
                self.features[name] = None
            case ProducerIdsRecord():
                self.producer_ids.append(record)
            case NodeRecord():
                self.nodes.append(record)
                for change in record.partition_changes(self._state.topics):
                    self.replay(offset, change)
            case PartitionChangeRecord():
                if self._replay_change(record):
                    return
        self._state.apply(offset, record)
        match record:
            case PartitionRecord(index, topic_id) | PartitionChangeRecord(index, topic_id):
                topic = self._state.topics_by_id[topic_id]
                self.partitions[topic.name, index] = topic.partitions[index]

    def _replay_new_partition(self, record: PartitionRecord) -> bool:
        """Applies the record to a new topic, or to a topic with new partitions, in the delta.

        Returns whether the partition is only in the delta."""
        topic_id, index = record.topic_id, record.partition_id
        present = self._state.topics_by_id.get(topic_id)
        is_present = present is not None and index < present.partition_count
        topic = self.created.get(topic_id) or self.grown.get(topic_id)
        if topic is None:
            if present is None or is_present:
                self._replace(topic_id)
                return False  # the state raises for an unknown topic
            topic = self.grown[topic_id] = Topic(present.name, topic_id, list(present.partitions))
        if index < topic.partition_count:
            topic.partitions[index] = PartitionRegistration.of(record)
        else:
            topic.partitions.append(PartitionRegistration.of(record))
        return not is_present

    def _replay_change(self, record: PartitionChangeRecord) -> bool:
        """Applies the change to a partition in the delta. Returns whether the partition is only in the delta."""
        topic_id, index = record.topic_id, record.partition_id
        self._replace(topic_id)
        topic = self.created.get(topic_id) or self.grown.get(topic_id)
        if topic is None or not 0 <= index < topic.partition_count:
            return False  # the state raises for an unknown topic or partition
        topic.partitions[index] = topic.partitions[index].changed(record)
        present = self._state.topics_by_id.get(topic_id)
        return present is None or index >= present.partition_count

    def _replace(self, topic_id: Id16) -> None:
        """Replaces a topic of the state by its copy before the delta's first change of a partition."""
        present = self._state.topics_by_id.get(topic_id)
        if present is not None and topic_id not in self._replaced:
            self._replaced.add(topic_id)
            self._state.publish(Topic(present.name, topic_id, list(present.partitions)))

    def _replay_removal(self, topic_id: Id16) -> bool:
        """Applies a removal, and returns whether only the delta had the topic."""
        topic = self.created.pop(topic_id, None)
        if topic is not None:
            self._state.configs.pop((TOPIC, topic.name), None)
            return True
        self.grown.pop(topic_id, None)
        present = self._state.topics_by_id.get(topic_id)
        if present is not None:
            self.deleted[topic_id] = present
        return False
