"""The leaders of partitions that another broker leads, for one reply of Produce or Fetch (KIP-951).

A client that gets them asks the leader at once. Without them it would have to wait for its next metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.metadata.brokers import BrokerAddress
    from odradek.catalog.state import Topic


class CurrentLeaders:
    """``nodes`` has the addresses of the leaders that the client can reach, by id."""

    def __init__(self, broker: BrokerServices, context: Context) -> None:
        self._broker = broker
        self._context = context
        self.nodes: dict[int, BrokerAddress] = {}

    def of(self, topic: str | UUID, index: int) -> tuple[int, int] | None:
        """Returns the leader of a partition and its leader epoch; None if the partition does not exist."""
        known = self._topic(topic)
        if known is None or not 0 <= index < known.partition_count:
            return None
        partition = known.partitions[index]
        if partition.leader != NO_NODE and partition.leader not in self.nodes:
            address = self._broker.brokers.reachable_one(partition.leader, self._context)
            if address is not None:
                self.nodes[partition.leader] = address
        return partition.leader, partition.leader_epoch

    def _topic(self, topic: str | UUID) -> Topic | None:
        catalog = self._broker.catalog
        return catalog.topic_by_id(topic) if isinstance(topic, UUID) else catalog.topic(topic)
