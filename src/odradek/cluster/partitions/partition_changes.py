"""The changes of partitions that the controller's decisions make, from the present catalogue.

``cluster/partitions/elections`` decides one partition. This module gives it the brokers that may lead, and the topic's
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from odradek.catalog.records import Id16, MetadataRecord, PartitionChangeRecord
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import RecordSteps, Topic
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.partitions.elections import Election, ElectionRules, partition_change
from odradek.core.ids import NO_NODE
from odradek.core.pace import Pace


class BrokerEvent(NamedTuple):
    """What happens to a broker, as far as partitions notice it.

    ``removed``: a broker that leaves each ISR and may not lead. ``added``: one that may lead, although it is still
    fenced. ``unclean``: one that leaves each ISR and is not eligible any more.
    """

    removed: int = NO_NODE
    added: int = NO_NODE
    unclean: int = NO_NODE


class PartitionChanges:
    """Makes changes of the partitions of a catalogue."""

    def __init__(self, catalog: ClusterCatalog) -> None:
        self.catalog = catalog

    def rules(
        self,
        topic: Topic,
        partition: PartitionRegistration,
        event: BrokerEvent | None = None,
        election: Election | None = None,
    ) -> ElectionRules:
        """Returns the rules of an election. ``election``: by default ONLINE, or UNCLEAN if the topic's setting allows
        it."""
        catalog, nodes = self.catalog, self.catalog.nodes
        removed, added, unclean = event or BrokerEvent()

        def is_acceptable(replica: int) -> bool:
            if replica in (removed, unclean) or not (replica == added or nodes.is_active(replica)):
                return False
            return nodes.has_online(replica, partition.directory(replica))

        if election is None:
            election = Election.UNCLEAN if catalog.elects_unclean(topic.name) else Election.ONLINE
        stopped = () if unclean == NO_NODE else (unclean,)
        min_isr = catalog.min_isr(topic.name)
        return ElectionRules(is_acceptable, min_isr, catalog.has_eligible_leaders, election, stopped)

    def after(
        self,
        event: BrokerEvent,
        concerns: Callable[[PartitionRegistration], bool],
        only: Collection[tuple[Id16, int]] | None = None,
    ) -> RecordSteps:
        """Generates the changes of the partitions that an event concerns. ``only``: no other partitions."""
        gone = (event.removed, event.unclean)
        generated: list[MetadataRecord] = []
        pace = Pace()
        for topic in list(self.catalog.topics.values()):
            for partition in topic.partitions:
                if pace.spend():
                    yield
                if not concerns(partition) or (only is not None and (topic.id, partition.partition_id) not in only):
                    continue
                isr = tuple(replica for replica in partition.isr if replica not in gone)
                record = partition_change(topic.id, partition, isr, self.rules(topic, partition, event))
                if record is not None:
                    generated.append(record)
        return generated

    def with_directory(
        self, topic: Topic, partition: PartitionRegistration, broker_id: int, directory: Id16
    ) -> list[MetadataRecord]:
        """Returns the change of a partition whose replica on a broker gets this directory."""
        replicas = zip(partition.replicas, partition.directories, strict=True)
        directories = tuple(directory if replica == broker_id else one for replica, one in replicas)
        record = partition_change(topic.id, partition, partition.isr, self.rules(topic, partition))
        if directories != partition.directories:
            record = record or PartitionChangeRecord(partition.partition_id, topic.id)
            record = record._replace(directories=directories)
        return [] if record is None else [record]


class UncleanElection(NamedTuple):
    """A leader that was not in the ISR. ``before``: the partition until then."""

    topic: str
    before: PartitionRegistration
    leader: int

    @property
    def holders(self) -> list[int]:
        """The other brokers that may have had records which the leader lacks."""
        former = self._former
        knew = sorted({*self.before.isr, *self.before.elr} - {self.leader})
        return knew or ([] if former in (NO_NODE, self.leader) else [former])

    @property
    def may_lose(self) -> bool:
        """Whether the choice of this leader may lose records. It loses none if no other broker has led since: the last
        known leader (KIP-966), for example the only replica."""
        return bool(self.holders) or self._former != self.leader

    @property
    def _former(self) -> int:
        before = self.before
        if before.leader != NO_NODE:
            return before.leader
        return before.last_known_elr[0] if before.last_known_elr else NO_NODE

    def __str__(self) -> str:
        before = self.before
        if not self.may_lose:
            return (
                f"{self.topic}-{before.partition_id}: broker {self.leader} leads again after an unclean stop, from "
                f"leader epoch {before.leader_epoch + 1} on. No other broker has led since"
            )
        holders = ", ".join(map(str, self.holders)) or "none"
        return (
            f"{self.topic}-{before.partition_id}: broker {self.leader} leads by an unclean election, from leader epoch "
            f"{before.leader_epoch + 1} on. Acknowledged records that it does not have are lost. Brokers that may have "
            f"had them: {holders}"
        )


def unclean_elections(catalog: ClusterCatalog, records: Iterable[MetadataRecord]) -> list[UncleanElection]:
    """Returns the unclean elections in these records, before they are applied."""
    found = []
    for record in records:
        if not isinstance(record, PartitionChangeRecord) or record.leader is None or record.leader == NO_NODE:
            continue
        topic = catalog.topics_by_id.get(record.topic_id)
        if topic is None:
            continue
        before = topic.partitions[record.partition_id]
        if record.leader not in before.isr and record.leader not in before.elr:
            found.append(UncleanElection(topic.name, before, record.leader))
    return found
