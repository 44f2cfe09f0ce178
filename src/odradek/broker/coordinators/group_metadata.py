"""The metadata for groups: the broker's topics and the settings of single groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.catalog.state import GROUP, Topic
from odradek.groups.kip848.metadata_hash import TopicFacts

if TYPE_CHECKING:
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.settings.config import BrokerConfig


class BrokerGroupCatalog:
    """The catalogue and the broker's settings as a ``groups.kip848.group.GroupCatalog``."""

    def __init__(self, catalog: CatalogView, config: BrokerConfig, brokers: Brokers) -> None:
        self._catalog = catalog
        self._config = config
        self._brokers = brokers

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
        if own is None and name == "consumer.assignment.interval.ms":  # it may change while the broker runs
            return str(self._config.value("group.consumer.assignment.interval.ms"))
        return own

    def _facts(self, topic: Topic | None) -> TopicFacts | None:
        if topic is None or topic.id is None:
            return None
        return TopicFacts(topic.name, topic.id.bytes, topic.partition_count, self._brokers.racks(topic))
