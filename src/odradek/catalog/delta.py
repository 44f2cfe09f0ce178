"""What committed metadata records change. Publishers follow it (``broker/metadata_loader``), at start and later.

A delta is made of records alone, in the order of the log. What they take away or alter is true in the image as soon as
they are replayed. A new topic, and one with new partitions, is in the delta only until ``Shard.publish``: its logs come
first.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.catalog.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicId,
    TopicRecord,
    UserScramCredentialRecord,
)
from odradek.catalog.shard import TOPIC, Entity, Partition, Shard, Topic


class Delta:
    """The names of what has changed, in the order of the records; the image has the values.

    ``is_initial``: nothing came before, and the delta names all that the image holds.
    """

    __slots__ = (
        "_image", "configs", "created", "deleted", "epochs", "features", "grown", "is_initial", "producer_ids",
        "quotas", "users",
    )  # fmt: skip

    def __init__(self, image: Shard, *, is_initial: bool = False) -> None:
        self.is_initial = is_initial
        self.created: dict[TopicId, Topic] = {}
        self.grown: dict[TopicId, Topic] = {}
        """Topics with new partitions, as they will be."""
        self.deleted: dict[TopicId, Topic] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        """The leader epochs that partitions have begun, by topic and index."""
        self.configs: dict[tuple[int, str], None] = {}
        """Resources, type and name, of which a setting has changed."""
        self.quotas: dict[Entity, None] = {}
        self.users: dict[str, None] = {}
        self.features: dict[str, None] = {}
        self.producer_ids: list[ProducerIdsRecord] = []
        """Blocks of producer ids, each of the broker that it was allocated to."""
        self._image = image

    @classmethod
    def of(cls, image: Shard) -> Delta:
        """The delta that leads from nothing to the whole image. No broker uses producer ids of an earlier start."""
        delta = cls(image, is_initial=True)
        delta.created = dict(image.topics_by_id)
        delta.configs = dict.fromkeys(image.configs)
        delta.quotas = dict.fromkeys(image.quotas)
        delta.users = dict.fromkeys(image.users)
        delta.features = dict.fromkeys(image.features)
        return delta

    @property
    def new_topics(self) -> Iterator[Topic]:
        """Topics that are new or have new partitions."""
        yield from self.created.values()
        yield from self.grown.values()

    def replay(self, offset: int, record: MetadataRecord) -> None:
        """Takes in one record. Raises ValueError for one that cannot follow those before it."""
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
            case FeatureLevelRecord(name):
                self.features[name] = None
            case ProducerIdsRecord():
                self.producer_ids.append(record)
        self._image.take(offset, record)
        match record:
            case PartitionRecord(index, topic_id) | PartitionChangeRecord(index, topic_id, int()):
                self._replay_epoch(topic_id, index)

    def _replay_new_partition(self, record: PartitionRecord) -> bool:
        """Whether the record is about a partition that the image does not have."""
        topic_id, index = record.topic_id, record.partition_id
        present = self._image.topics_by_id.get(topic_id)
        is_present = present is not None and index < present.partition_count
        topic = self.created.get(topic_id) or self.grown.get(topic_id)
        if topic is None:
            if present is None or is_present:
                return False  # the image refuses an unknown topic
            topic = self.grown[topic_id] = Topic(present.name, topic_id, list(present.partitions))
        if index < topic.partition_count:
            topic.partitions[index] = Partition.of(record)
        else:
            topic.partitions.append(Partition.of(record))
        return not is_present

    def _replay_removal(self, topic_id: TopicId) -> bool:
        """Whether the topic was new, so that only the delta has it."""
        topic = self.created.pop(topic_id, None)
        if topic is not None:
            self._image.configs.pop((TOPIC, topic.name), None)
            return True
        self.grown.pop(topic_id, None)
        present = self._image.topics_by_id.get(topic_id)
        if present is not None:
            self.deleted[topic_id] = present
        return False

    def _replay_epoch(self, topic_id: TopicId, index: int) -> None:
        topic = self._image.topics_by_id[topic_id]
        self.epochs[topic.name, index] = topic.partitions[index].leader_epoch
