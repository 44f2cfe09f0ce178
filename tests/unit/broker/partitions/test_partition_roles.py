"""Which partitions a node opens, which of them it leads, and when it sets unknown directories aside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from support.logs import batch
from support.memory_files import MemoryFiles
from support.replicas import replicated

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import packed
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.lone_broker import BeginEpochs
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.partition_roles import PartitionRole
from odradek.broker.publishers.logs import PartitionLogs
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.catalog.state import TOPIC
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition

HOME = Path("/data")
T0 = 1_700_000_000_000
FLIGHTS, TRAINS = UUID(int=1), UUID(int=(1 << 128) - 2)
HERE, THERE = 1, 2


def store(catalog: StoredCatalog, record: MetadataRecord) -> None:
    catalog.log.append(list(packed(record, 0)), 1)
    catalog.log.sync()
    catalog.log.note_synced()


class FollowedQuorum:
    """The quorum as a node sees it that follows the log: it knows the end of the committed records."""

    def __init__(self, end: int | None) -> None:
        self.end = end

    def is_newest(self, offset: int) -> bool:
        return self.end is not None and offset >= self.end


class Node:
    """The logs of a node that applies committed records. ``end``: the end of the metadata that it knows of."""

    def __init__(self, files: MemoryFiles, end: int | None = 0) -> None:
        self.files = files
        self.directory = LogDirectory(HOME, lambda: T0, files)
        self.directory.acquire(BrokerConfig())
        self.catalog: StoredCatalog = self.directory.open_catalog()
        self.quorum = FollowedQuorum(end)
        logs = PartitionLogs(self.directory, BrokerConfig(), partial(self.catalog.apply, BeginEpochs()), self.quorum)
        self.loader = MetadataLoader(self.catalog.catalog, [logs, self.catalog.catalog])
        self.loader.load()
        self.end = self.catalog.catalog.log_end_offset

    def apply(self, *records: MetadataRecord) -> None:
        for record in records:
            store(self.catalog, record)
        finish(self.loader.commit(self.end, records))
        self.end += len(records)

    def create(self, name: str, topic_id: UUID, *replicas: tuple[int, ...]) -> None:
        """Makes a topic. The first replica of each partition leads it."""
        self.apply(
            TopicRecord(name, topic_id),
            *(PartitionRecord(at, topic_id, each, each, each[0]) for at, each in enumerate(replicas)),
        )

    @property
    def open_logs(self) -> list[tuple[str, int]]:
        return sorted(self.directory.partitions)

    @property
    def led(self) -> list[tuple[str, int]]:
        return sorted(self.directory.led)

    def partition(self, index: int, name: str = "flights") -> Partition:
        return self.directory.partitions[name, index]

    @property
    def names(self) -> list[str]:
        return [name for name in self.files.list(HOME) if name.startswith(("flights", "trains"))]


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def node(files: MemoryFiles) -> Iterator[Node]:
    made = Node(files)
    yield made
    made.directory.abandon()


def test_a_node_opens_the_logs_that_are_assigned_to_it_and_leads_some_of_them(node: Node) -> None:
    node.create("flights", FLIGHTS, (THERE,), (HERE, THERE), (THERE, HERE), (HERE,))
    assert node.open_logs == [("flights", 1), ("flights", 2), ("flights", 3)]
    assert node.led == [("flights", 1), ("flights", 3)]
    assert node.names == ["flights-1", "flights-2", "flights-3"]


def test_a_later_start_opens_the_same_logs(files: MemoryFiles) -> None:
    first = Node(files)
    replicas = [(THERE,), (HERE, THERE), (THERE, HERE)]
    store(first.catalog, TopicRecord("flights", FLIGHTS))
    for at, each in enumerate(replicas):
        store(first.catalog, PartitionRecord(at, FLIGHTS, each, each, each[0], leader_epoch=4))
    first.directory.abandon()
    node = Node(files)
    assert (node.open_logs, node.led) == ([("flights", 1), ("flights", 2)], [("flights", 1)])
    assert node.partition(1).log.epochs.latest == 5, "the leader begins its epoch at the end of its log"
    assert node.partition(2).log.epochs.latest < 0, "the epochs of a follower come with the records"
    node.directory.abandon()


def test_a_change_of_the_leader_changes_the_role_and_ends_the_waiting_requests(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE, THERE))
    partition = node.partition(0)
    partition.move_high_watermark(0)
    partition.produce(batch(1))
    ended: list[ErrorCode] = []
    partition.wait_for(1, ended.append)
    assert ended == []
    node.apply(PartitionChangeRecord(0, FLIGHTS, leader=THERE))
    assert (ended, node.led, partition.role) == ([ErrorCode.not_leader_or_follower], [], PartitionRole.FOLLOWER)
    assert (partition.leader_epoch, partition.log.epochs.latest) == (1, 0)
    partition.wait_for(1, ended.append)
    assert ended == [ErrorCode.not_leader_or_follower] * 2, "a follower accepts no wait"
    node.apply(PartitionChangeRecord(0, FLIGHTS, leader=HERE))
    assert node.led == [("flights", 0)]
    assert (partition.leader_epoch, partition.log.epochs.latest) == (2, 2)
    assert node.partition(0) is partition, "the log stays open"


def test_an_older_epoch_is_ignored(node: Node) -> None:
    """The log keeps its entries of later epochs, and the partition its role."""
    node.create("flights", FLIGHTS, (HERE, THERE))
    partition = node.partition(0)
    node.apply(PartitionChangeRecord(0, FLIGHTS, leader=HERE))
    partition.produce(batch(1))
    node.apply(PartitionChangeRecord(0, FLIGHTS, leader=HERE))
    entries = partition.log.epochs.entries
    assert [(entry.epoch, entry.start_offset) for entry in entries] == [(1, 0), (2, 1)]
    present = node.catalog.catalog.topic("flights").partitions[0]
    for epoch in (0, 1):
        for leader in (HERE, THERE):
            older = present._replace(leader=leader, leader_epoch=epoch, partition_epoch=99)
            assert node.directory.apply(("flights", 0), older) == []
            assert (partition.leader_epoch, partition.role) == (2, PartitionRole.LEADER)
            assert partition.log.epochs.entries == entries
            assert node.led == [("flights", 0)]


def test_a_change_of_the_isr_begins_nothing_and_leaves_a_rebuild_to_its_steps(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE, THERE), (THERE, HERE))
    for index, leader, other in ((0, HERE, THERE), (1, THERE, HERE)):
        partition = node.partition(index)
        role, epoch, entries = partition.role, partition.leader_epoch, partition.log.epochs.entries
        ran: list[int] = []

        def rebuild(ran: list[int] = ran) -> Iterator[None]:
            ran.append(1)
            yield

        steps = partition.log.producers.rebuild = rebuild()
        node.apply(PartitionChangeRecord(index, FLIGHTS, isr=(leader,)))
        node.apply(PartitionChangeRecord(index, FLIGHTS, isr=(leader, other)))
        assert (ran, partition.log.producers.rebuild) == ([], steps)
        assert (partition.role, partition.leader_epoch, partition.log.epochs.entries) == (role, epoch, entries)
        node.apply(PartitionChangeRecord(index, FLIGHTS, leader=HERE))
        assert (ran, partition.log.producers.rebuild) == ([1], None), "a leader begins its epoch with known producers"
        assert partition.leader_epoch == partition.log.epochs.latest == epoch + 1


def test_a_partition_without_a_leader_is_led_by_no_node(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE,))
    node.apply(PartitionChangeRecord(0, FLIGHTS, leader=-1))
    assert (node.open_logs, node.led) == ([("flights", 0)], [])


def test_reassigned_partitions_are_opened_and_removed(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE,), (THERE,))
    partition = node.partition(0)
    partition.produce(batch(1))
    node.apply(
        PartitionChangeRecord(0, FLIGHTS, leader=THERE, replicas=(THERE,)),
        PartitionChangeRecord(1, FLIGHTS, replicas=(THERE, HERE)),
    )
    assert (node.open_logs, node.led) == ([("flights", 1)], [])
    assert node.names == ["flights-1"], "the removed log has no delay without a loop"
    with pytest.raises(KafkaError):
        partition.produce(batch(1))
    node.apply(PartitionChangeRecord(0, FLIGHTS, replicas=(THERE, HERE)))
    assert node.partition(0).log_end_offset == 0, "the replica begins without the former records"


def test_settings_reach_the_logs_behind_a_partition_that_is_elsewhere(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE,), (THERE,), (HERE,))
    node.apply(ConfigRecord(TOPIC, "flights", "retention.ms", "77"))
    assert [node.partition(at).log.config.retention_ms for at in (0, 2)] == [77, 77]


# --- registrations with several replicas ------------------------------------------------------------------------


def test_a_registration_of_several_replicas_holds_the_high_watermark(node: Node) -> None:
    node.create("flights", FLIGHTS, (HERE,), (HERE, THERE), (THERE, HERE))
    assert [(node.partition(at).is_replicated, node.partition(at).is_held) for at in range(3)] == [
        (False, False), (True, True), (True, True),
    ]  # fmt: skip
    for at in (0, 1):
        node.partition(at).produce(batch(2))
    assert [node.partition(at).high_watermark for at in (0, 1)] == [2, 0]
    node.apply(PartitionChangeRecord(1, FLIGHTS, isr=(HERE,), replicas=(HERE,)))
    assert node.partition(1).high_watermark == 2
    node.apply(PartitionChangeRecord(0, FLIGHTS, replicas=(HERE, THERE)))
    node.apply(PartitionChangeRecord(0, FLIGHTS, isr=(HERE, THERE)))
    node.partition(0).produce(batch(1))
    assert node.partition(0).high_watermark == 2


def test_the_least_isr_of_the_topic_reaches_the_partition(node: Node) -> None:
    node.directory.new_partition = lambda topic, registration: replicated(topic=topic.name)
    node.create("flights", FLIGHTS, (HERE, THERE))
    partition = node.partition(0)
    node.apply(PartitionChangeRecord(0, FLIGHTS, isr=(HERE,)))
    partition.check_in_sync()
    node.apply(ConfigRecord(TOPIC, "flights", "min.insync.replicas", "2"))
    assert partition.log.config.min_isr == 2
    with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        partition.check_in_sync()
    node.apply(ConfigRecord(TOPIC, "flights", "min.insync.replicas", None))
    partition.check_in_sync()


def test_a_clean_start_knows_the_high_watermark(files: MemoryFiles) -> None:
    first = Node(files)
    for record in (TopicRecord("flights", FLIGHTS), PartitionRecord(0, FLIGHTS, (HERE, THERE), (HERE, THERE), HERE)):
        store(first.catalog, record)
    first.directory.abandon()
    first = Node(files)
    first.partition(0).produce(batch(5))
    first.partition(0).move_high_watermark(3)
    first.catalog.close()
    first.directory.close()
    node = Node(files)
    partition = node.partition(0)
    assert (partition.is_held, partition.high_watermark, partition.log_end_offset) == (True, 3, 5)
    with pytest.raises(KafkaError, match="OFFSET_NOT_AVAILABLE"):
        partition.check_end_known()
    node.directory.abandon()
    node = Node(files)
    assert node.partition(0).high_watermark == 3, "after a crash it begins where it was noted"
    node.directory.abandon()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_truncation_is_noted_before_it_cuts_a_log(files: MemoryFiles, is_noted: bool) -> None:
    """Otherwise a crash makes the replica of an internal topic one that has lost records."""
    node = Node(files)
    for record in (TopicRecord(OFFSETS_TOPIC, FLIGHTS), PartitionRecord(0, FLIGHTS, (THERE, HERE), (THERE,), THERE)):
        store(node.catalog, record)
    node.directory.abandon()
    node = Node(files)
    partition = node.partition(0, OFFSETS_TOPIC)
    partition.log.append(batch(4), now_ms=T0, leader_epoch=0)
    partition.log.append(batch(1), now_ms=T0, leader_epoch=0)
    partition.log.flush()
    node.directory.upkeep.checkpoint_recovery_points()
    if is_noted:
        for end in (9, 4):
            node.directory.note_truncations({TopicPartition(OFFSETS_TOPIC, 0): end})
    partition.log.removals.truncate_to(4, T0)
    node.directory.abandon()
    node = Node(files)
    assert bool(node.partition(0, OFFSETS_TOPIC).failure) is not is_noted
    node.directory.abandon()


# --- unknown directories ----------------------------------------------------------------------------------------


def with_unknown(files: MemoryFiles) -> None:
    """Leaves a directory with a record, and a metadata log of one record, without the topic: an older copy."""
    node = Node(files)
    node.apply(ConfigRecord(TOPIC, "", "retention.ms", "1"))
    kept = {path: bytes(data) for path, data in files.data.items() if is_metadata(path)}
    node.create("flights", FLIGHTS, (HERE,))
    node.partition(0).produce(batch(1))
    node.directory.abandon()
    for path in [path for path in files.data if is_metadata(path)]:
        files.remove(path)
    for path, data in kept.items():
        files.data[path] = bytearray(data)
        files.modified[path] = T0


def is_metadata(path: Path) -> bool:
    return DIRECTORY in path.parts or path.name == "metadata-recovery-point"


def test_an_unknown_directory_keeps_its_name_until_the_newest_metadata_is_applied(files: MemoryFiles) -> None:
    with_unknown(files)
    node = Node(files, end=None)
    assert node.names == ["flights-0"], "the node knows no end yet"
    node.quorum.end = 3
    node.create("trains", TRAINS)
    assert node.names == ["flights-0"]
    node.apply(ConfigRecord(TOPIC, "trains", "retention.ms", "77"))
    (name,) = node.names
    assert name.startswith("flights-0.")
    assert name.endswith("-stray")
    node.directory.abandon()


def test_a_later_record_that_makes_the_topic_finds_its_records(files: MemoryFiles) -> None:
    with_unknown(files)
    node = Node(files, end=4)
    node.create("flights", FLIGHTS, (HERE,))
    assert node.partition(0).log_end_offset == 1
    node.create("trains", TRAINS)
    assert node.names == ["flights-0"]
    node.directory.abandon()


def test_a_later_topic_of_the_same_name_gets_no_foreign_records(files: MemoryFiles) -> None:
    with_unknown(files)
    node = Node(files, end=9)
    node.create("flights", TRAINS, (HERE,))
    assert node.partition(0).log_end_offset == 0
    assert len(node.names) == 2
    assert sum(name.endswith("-stray") for name in node.names) == 1
    node.directory.abandon()


def test_a_later_removal_deletes_the_directory(files: MemoryFiles) -> None:
    with_unknown(files)
    node = Node(files, end=3)
    node.apply(TopicRecord("flights", FLIGHTS))
    node.apply(RemoveTopicRecord(FLIGHTS))
    assert [name for name in node.names if not name.endswith("-stray")] == []
    node.directory.abandon()
