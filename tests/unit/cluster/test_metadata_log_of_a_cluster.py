"""The metadata log of a cluster: what a start reads beside the records of nodes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from support.controlled_cluster import new_catalog
from support.memory_files import MemoryFiles
from support.voters import make_voter

from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.mark import MetadataMark, encode_id
from odradek.catalog.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.catalog.state import RecordSteps
from odradek.cluster.cluster_catalog import SteppedRecords
from odradek.cluster.records import NoOpRecord, RegisterBrokerRecord

HOME = Path("/data")
ONE, TWO = UUID(int=(1 << 64) + 1), UUID(int=(1 << 64) + 2)
DIRECTORY = UUID(int=3 << 64)
BROKER = RegisterBrokerRecord(1, UUID(int=4), 0, directories=(DIRECTORY,))


def new_topic(name: str, topic_id: UUID) -> list[MetadataRecord]:
    return [TopicRecord(name, topic_id), PartitionRecord(0, topic_id, (1,), (1,), 1, directories=(DIRECTORY,))]


def opened(*batches: list[MetadataRecord]) -> StoredCatalog:
    files = MemoryFiles()
    make_voter(HOME, 1, files=files)
    owner = MetadataMark(0, "1", "cluster", encode_id(UUID(int=9)))
    stored = StoredCatalog.read_into(new_catalog(), HOME, owner, clean=False, now_ms=lambda: 0, files=files)
    for batch in batches:

        def steps(batch: list[MetadataRecord] = batch) -> RecordSteps:
            yield from ()
            return batch

        stored.apply(SteppedRecords(steps))
    return stored


def test_the_names_of_removed_topics_are_read_beside_records_of_nodes() -> None:
    stored = opened([BROKER, *new_topic("one", ONE)], [NoOpRecord()], [RemoveTopicRecord(ONE)])
    assert stored.log.read_removed() == {ONE: "one"}


def test_records_of_nodes_are_no_change_of_topics() -> None:
    stored = opened([BROKER], new_topic("one", ONE), [PartitionChangeRecord(0, ONE, 1)], [NoOpRecord()])
    assert stored.log.newest_topics() == {ONE}


def test_a_change_of_settings_follows_a_topic_whose_logs_were_made() -> None:
    stored = opened([BROKER], new_topic("one", ONE), [ConfigRecord(2, "one", "retention.ms", "5")], [NoOpRecord()])
    assert stored.log.newest_topics() == set()


def test_a_change_with_a_topic_and_a_node_has_its_topic() -> None:
    assert opened([*new_topic("two", TWO), BROKER]).log.newest_topics() == {TWO}
