"""What is right only for a lone broker. No module imports this one at its head, so that a cluster never loads it.

* Replies name one broker. It has no registration: its address is the one that the client has connected to.
* After an unclean stop, or when a log is cut, missing or ahead of the catalogue, partitions begin new leader epochs
  without an election. The broker leads every partition before and after. In a cluster only the controller elects, and
  a replica with the records becomes the leader.
* The marker of an overdue transaction gets the coordinator epoch that its partition knows. In Kafka, this epoch
  protects a transaction from an old coordinator after a new one has decided for the same id. A lone broker is the only
  coordinator, and the decision is in its log. So a larger epoch comes from a tool or from the cluster that had the
  directory before. In a cluster it may come from a successor, whose decision counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from odradek.broker.metadata.brokers import BrokerAddress
from odradek.catalog.records import MetadataRecord, PartitionChangeRecord
from odradek.catalog.state import CatalogState, OwnRecords
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import PartitionKey

if TYPE_CHECKING:
    from odradek.broker.metadata.brokers import ClientRequest
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.state import Topic
    from odradek.core.ids import EndTransactionMarker
    from odradek.storage.log import Log

    class PartitionWithLog(Protocol):
        """A partition of this broker."""

        @property
        def log(self) -> Log: ...

    class LoneNode(Protocol):
        """The parts of a lone broker's node that this module uses."""

        config: BrokerConfig

        @property
        def node_id(self) -> int: ...

        def advertised_address(self, context: ClientRequest) -> tuple[str, int]: ...


class LoneBroker:
    """``Brokers``: the only one of its cluster."""

    def __init__(self, node: LoneNode) -> None:
        self._node = node

    def reachable(self, request: ClientRequest) -> list[BrokerAddress]:
        node = self._node
        return [BrokerAddress(node.node_id, *node.advertised_address(request), node.config.broker_rack)]

    known = reachable

    def reachable_one(self, broker_id: int, request: ClientRequest) -> BrokerAddress | None:
        return self.reachable(request)[0] if broker_id == self._node.node_id else None

    def controller(self) -> int:
        return self._node.node_id

    def replicas_for(self, request: ClientRequest) -> None:
        return None

    def racks(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        rack = self._node.config.broker_rack
        return () if rack is None else ((rack,),) * topic.partition_count


class BeginEpochs(OwnRecords):
    """Starts a new leader epoch in every partition and keeps the leader: a log may have lost records."""

    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        return [
            PartitionChangeRecord(partition.partition_id, topic.id, partition.leader)
            for topic in catalog.topics.values()
            for partition in topic.partitions
        ]


class RaiseEpochs(OwnRecords):
    """Sets the leader epochs of some partitions, by topic and index."""

    def __init__(self, epochs: Mapping[PartitionKey, int]) -> None:
        self._epochs = epochs

    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        """Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION)."""
        made: list[MetadataRecord] = []
        for (name, index), leader_epoch in self._epochs.items():
            topic = catalog.topics.get(name)
            if topic is None or not 0 <= index < topic.partition_count:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            record = catalog.partition_record(topic.id, index, topic.partitions[index].replicas)
            made.append(record._replace(leader_epoch=leader_epoch))
        return made


class LocalOverdueMarkers:
    """The rules for overdue transactions. ``partition`` returns a partition of this broker, None if it is missing."""

    def __init__(self, partition: Callable[[str, int], PartitionWithLog | None]) -> None:
        self._partition = partition

    def needs_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> bool:
        """Returns whether the transaction may be open in the partition. True for a missing or offline partition."""
        local = self._partition(*partition)
        if local is None or local.log.disk.offline is not None:
            return True
        state = local.log.producers.get(marker.producer_id)
        return state is not None and state.transaction_start >= 0 and state.epoch <= marker.producer_epoch

    def marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> EndTransactionMarker:
        """Returns the marker with the newest coordinator epoch of the producer's markers in the partition.

        A refusal because of the producer's epoch stays: the marker would end a transaction that has no decision.
        """
        local = self._partition(*partition)
        state = None if local is None else local.log.producers.get(marker.producer_id)
        known = -1 if state is None else state.coordinator_epoch
        return marker._replace(coordinator_epoch=max(known, marker.coordinator_epoch))
