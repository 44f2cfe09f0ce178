"""What groups see of the broker around them: its topics, and settings of single groups."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from odradek.broker.config import BrokerConfig
from odradek.broker.metadata_log import Catalog
from odradek.catalog.shard import GROUP, Topic
from odradek.groups.config import GroupConfig
from odradek.groups.metadata_hash import TopicFacts


def group_config(config: BrokerConfig) -> GroupConfig:
    """The broker's settings as groups need them."""
    return GroupConfig(
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        consumer_max_size=config.group_consumer_max_size,
        consumer_regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        consumer_assignors=config.group_consumer_assignors,
        consumer_migration_policy=config.group_consumer_migration_policy.lower(),
    )


class CatalogSurroundings:
    """Catalogue and settings as ``groups.consumer_group.Surroundings``."""

    def __init__(self, catalog: Catalog, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._racks = () if config.broker_rack is None else (config.broker_rack,)

    @property
    def version(self) -> int:
        return self._catalog.log_end_offset

    def topic(self, name: str) -> TopicFacts | None:
        return self._facts(self._catalog.topic(name))

    def topic_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return self._facts(self._catalog.topic_by_id(UUID(bytes=topic_id)))

    def topic_names(self) -> Iterable[str]:
        return (topic.name for topic in self._catalog.topics())

    def group_setting(self, group_id: str, name: str) -> str | None:
        own = self._catalog.configs(GROUP, group_id).get(name)
        if own is None and name == "consumer.assignment.interval.ms":  # may change while we run
            return str(self._config.group_consumer_assignment_interval_ms)
        return own

    def _facts(self, topic: Topic | None) -> TopicFacts | None:
        if topic is None or topic.id is None:
            return None
        racks = (self._racks,) * topic.partition_count if self._racks else ()
        return TopicFacts(topic.name, topic.id.bytes, topic.partition_count, racks)
