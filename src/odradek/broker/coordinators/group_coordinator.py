"""The coordinator of groups, as ``broker/coordinators/registry`` registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.controller.write_events import TopicSpec
from odradek.core.ids import OFFSETS_TOPIC

if TYPE_CHECKING:
    from odradek.broker.coordinators.group_runtime import GroupRuntime
    from odradek.broker.coordinators.kinds import CoordinatorBroker
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta


class GroupCoordinator:
    key_type = 0
    name = "groups"
    topic = OFFSETS_TOPIC
    is_frequent = True
    partitions_setting = "offsets.topic.num.partitions"

    def topic_spec(self, config: BrokerConfig) -> TopicSpec:
        return TopicSpec(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    def new_runtime(self, broker: CoordinatorBroker) -> GroupRuntime:
        from odradek.broker.coordinators.group_metadata import BrokerGroupCatalog
        from odradek.broker.coordinators.group_runtime import GroupRuntime
        from odradek.groups.config import GroupConfig

        catalog, config = broker.catalog, broker.config

        def topic_id(name: str) -> bytes | None:
            topic = catalog.topic(name)
            return None if topic is None or topic.id is None else topic.id.bytes

        return GroupRuntime(
            GroupConfig.of(config.value),
            broker.coordinator_environment,
            topic_id=topic_id,
            catalog=BrokerGroupCatalog(catalog, config, broker.brokers),
        )

    def on_metadata_update(self, runtime: GroupRuntime, delta: Delta) -> None:
        """Informs groups of changed topics. A deleted topic also loses its committed offsets."""
        if delta.created:
            runtime.on_topics_changed(sorted(topic.name for topic in delta.created.values()), created=True)
        if delta.grown:
            runtime.on_topics_changed([topic.name for topic in delta.grown.values()])
        if delta.deleted:
            names = [topic.name for topic in delta.deleted.values()]
            runtime.on_topics_changed(names)
            users_own = [name for name in names if name != OFFSETS_TOPIC]
            if users_own:
                runtime.on_topics_deleted(users_own)


GROUPS = GroupCoordinator()
