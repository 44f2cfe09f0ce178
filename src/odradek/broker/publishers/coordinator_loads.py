"""The publishers of coordinators: they load the shards that this node leads, and unload the others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from odradek.catalog.state import Topic

if TYPE_CHECKING:
    from odradek.broker.coordinators.registry import AnyCoordinator
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.catalog.delta import Delta

log = logging.getLogger("odradek.broker")


class CoordinatorResignations:
    """Publisher that unloads the shards of a coordinator that this node does not lead any more, and all of them when
    the internal topic is deleted."""

    def __init__(self, coordinator: AnyCoordinator, node_id: int) -> None:
        self._coordinator = coordinator
        self._node_id = node_id

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        runtime = self._coordinator.made_runtime
        if runtime is None:
            return
        for topic in delta.deleted.values():
            if topic.name == self._coordinator.topic:
                for index in range(topic.partition_count):
                    runtime.unload(index)
                runtime.partition_count = None
        for (name, index), registration in delta.partitions.items():
            if name == self._coordinator.topic and registration.leader != self._node_id:
                runtime.unload(index, registration.leader_epoch)


class CoordinatorElections:
    """Publisher that informs a coordinator of changed topics, and loads the partitions of its new internal topic."""

    def __init__(self, coordinator: AnyCoordinator, directory: LogDirectory) -> None:
        self._coordinator = coordinator
        self._directory = directory

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        coordinator = self._coordinator
        coordinator.on_metadata_update(delta)
        for topic in delta.created.values():
            if topic.name == coordinator.topic:
                self._elect(topic, is_start=delta.is_initial)
        runtime = coordinator.made_runtime
        if runtime is not None and runtime.partition_count is not None:
            for (name, index), described in delta.partitions.items():
                partition = self._directory.led.get((name, index))
                if name == coordinator.topic and partition is not None and not partition.failure:
                    partition.on_high_watermark = runtime.on_high_watermark
                    runtime.load(index, partition, described.leader_epoch)

    def _elect(self, topic: Topic, *, is_start: bool) -> None:
        coordinator = self._coordinator
        configured = coordinator.topic_spec.partition_count
        if not is_start and topic.partition_count != configured:
            # As in Kafka: a coordinator reads the number of partitions at the start and cannot use another number.
            log.warning(
                "%s was created with %d partitions, but %s is %d: the broker serves %s only after a restart",
                topic.name, topic.partition_count, coordinator.type.partitions_setting, configured,
                coordinator.type.name,
            )  # fmt: skip
            return
        runtime = coordinator.runtime
        runtime.partition_count = topic.partition_count
        for described in topic.partitions:
            partition = self._directory.led.get((topic.name, described.partition_id))
            if partition is not None and not partition.failure:
                partition.on_high_watermark = runtime.on_high_watermark
                runtime.load(described.partition_id, partition, partition.leader_epoch)
