"""What a follower does with its log: it appends what it has fetched, and every cut is noted on the disk first."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.logs import T0, batch, code_of, sequenced, set_base_offset
from support.memory_files import MemoryFiles
from support.node_settings import BROKER
from support.partitions import NODE, registered
from support.replicas import LAG_MS, NodeOfPartitions, replicated

from odradek.batches.steps import finish
from odradek.broker.loop.scheduler import finish as scheduled
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.partition_roles import PartitionRole
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import Topic
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker, FetchingReplica, TopicPartition
from odradek.replication.effects import AlteredIsr
from odradek.storage.appends import AppendInfo
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.fetched_batches import UnexpectedOffset
from odradek.storage.log import Log

OTHER, THIRD = 2, 3
THREE = (NODE, OTHER, THIRD)
LEADER, FOLLOWER, REMOVED = PartitionRole.LEADER, PartitionRole.FOLLOWER, PartitionRole.REMOVED
HOME = Path("/data")


def giving(role: PartitionRole, epoch: int) -> PartitionRegistration:
    """A registration that gives this node a role."""
    replicas = (OTHER, THIRD) if role is REMOVED else THREE
    return registered(replicas, NODE if role is LEADER else OTHER, leader_epoch=epoch, partition_epoch=epoch)


def placed(offset: int, epoch: int = 0, count: int = 1) -> bytes:
    data = bytearray(batch(count))
    set_base_offset(data, 0, offset, epoch)
    return bytes(data)


def partition(noted: list[int] | None = None) -> ReplicatedPartition:
    node = NodeOfPartitions()
    if noted is not None:
        node.noted = noted
    one = replicated(node)
    one.adopt(Log.open(Path("/data/t-0"), LogConfig(), T0, clean=False, files=MemoryFiles()))
    return one


def follower(epoch: int = 0, noted: list[int] | None = None) -> ReplicatedPartition:
    one = partition(noted)
    one.apply(giving(FOLLOWER, epoch), NODE, 0)
    return one


def test_a_follower_takes_what_it_has_fetched() -> None:
    one = follower(4)
    info = scheduled(one.append_fetched(placed(0, 2) + placed(1, 4, 3) + placed(4, 5)))
    assert info is not None
    assert (info.base_offset, info.last_offset, one.log_end_offset, one.high_watermark) == (0, 3, 4, 0)
    assert one.log.epochs.entries == ((2, 0), (4, 1))


@pytest.mark.parametrize("change", [giving(LEADER, 5), giving(FOLLOWER, 5), giving(REMOVED, 5)])
def test_a_change_of_the_role_between_two_steps_ends_the_append(change: PartitionRegistration) -> None:
    one = follower(4)
    steps = one.append_fetched(b"".join(placed(number) for number in range(600)))
    for _ in range(3):
        next(steps)
    assert one.log_end_offset == 250
    one.apply(change, NODE, 0)
    with pytest.raises(KafkaError) as caught:
        next(steps)
    assert (caught.value.code, one.log_end_offset) == (ErrorCode.not_leader_or_follower, 250)


def test_an_empty_log_may_begin_inside_of_a_batch_of_the_leader() -> None:
    one = follower()
    scheduled(one.restart_at(7))
    scheduled(one.append_fetched(placed(5, count=4)))
    assert (one.log_start_offset, one.log_end_offset) == (5, 9)
    for data in (placed(5, count=4), placed(8, count=9)):
        with pytest.raises(UnexpectedOffset):
            scheduled(one.append_fetched(data))
    scheduled(one.restart_at(20))
    with pytest.raises(UnexpectedOffset):
        scheduled(one.append_fetched(placed(5, count=4)))
    assert one.log_start_offset == one.log_end_offset == 20


def test_a_leader_takes_no_fetched_records() -> None:
    one = partition()
    one.apply(giving(LEADER, 0), NODE, 0)
    assert code_of(lambda: scheduled(one.append_fetched(placed(0)))) is ErrorCode.not_leader_or_follower


# --- cuts -------------------------------------------------------------------------------------------------------


def test_a_truncation_is_noted_first_and_rebuilds_the_producers_in_steps() -> None:
    noted: list[int] = []
    one = follower(noted=noted)
    scheduled(one.append_fetched(placed(0, count=4) + placed(4, count=4)))
    scheduled(one.truncate_to(8))
    assert (noted, one.log_end_offset) == ([], 8), "nothing is cut"
    scheduled(one.truncate_to(6))
    assert (noted, one.log_end_offset) == ([4], 4), "the whole batch with the offset goes"
    scheduled(one.truncate_to(0))
    assert (noted, one.log_end_offset) == ([4, 0], 0)


def test_a_new_leader_goes_on_with_the_states_of_producers_while_it_serves() -> None:
    """A truncation was under way. The log has a million batches perhaps, and other clients would wait for all."""
    one = follower(4)
    work: list[Generator[None, None, None]] = []
    one.log.producer_snapshots.run_steps = work.append
    of_producer = bytearray(sequenced(0, 1))
    set_base_offset(of_producer, 0, 0, 4)
    scheduled(one.append_fetched(bytes(of_producer) + b"".join(placed(number, 4) for number in range(1, 1_000))))
    steps = one.truncate_to(990)
    while one.log_end_offset > 990:
        next(steps)
    one.apply(giving(LEADER, 5), NODE, 0)
    assert code_of(lambda: next(steps)) is ErrorCode.not_leader_or_follower
    assert one.log.producers.rebuild is not None, "the election has not waited"
    (left,) = work
    appended = one.produce(sequenced(1, 1))
    assert not isinstance(appended, AppendInfo), "a batch that needs the states waits for them"
    assert isinstance(one.produce(batch(1)), AppendInfo), "another one does not"
    assert next(appended) is None
    assert one.log_end_offset == 991
    for _ in left:
        pass
    assert one.log.producers.rebuild is None
    info = finish(appended)
    assert (info.base_offset, one.log.last_stable_offset, one.log_end_offset) == (991, one.high_watermark, 992)
    assert code_of(lambda: one.produce(sequenced(5, 1))) is ErrorCode.out_of_order_sequence_number


def test_nothing_is_cut_if_the_cut_cannot_be_noted() -> None:
    def refuse(one: Partition, offset: int) -> None:
        raise OSError("no space left")

    one = replicated(NodeOfPartitions(refuse))
    one.adopt(Log.open(Path("/data/t-0"), LogConfig(), T0, clean=False, files=MemoryFiles()))
    one.apply(giving(FOLLOWER, 0), NODE, 0)
    scheduled(one.append_fetched(placed(0, count=4)))
    for cut in (lambda: scheduled(one.truncate_to(0)), lambda: scheduled(one.restart_at(9))):
        with pytest.raises(StorageError):
            cut()
    assert one.log_end_offset == 4


@pytest.mark.parametrize("change", [giving(LEADER, 5), giving(FOLLOWER, 5), giving(REMOVED, 5)])
def test_only_a_follower_of_the_epoch_cuts_its_log(change: PartitionRegistration) -> None:
    one = follower(4)
    scheduled(one.append_fetched(placed(0, count=4)))
    steps = one.truncate_to(0)
    one.apply(change, NODE, 0)
    if change.leader == NODE or NODE not in change.replicas:
        assert code_of(lambda: next(steps)) is ErrorCode.not_leader_or_follower
        assert code_of(lambda: scheduled(one.restart_at(9))) is ErrorCode.not_leader_or_follower
    assert one.log_end_offset == 4


class Home:
    """The data directory of a broker that follows a partition of an internal topic."""

    def __init__(self, files: MemoryFiles) -> None:
        if not files.exists(HOME / checkpoints.META_PROPERTIES):
            files.make_dirs(HOME)
            names = {"version": "1", "node.id": str(NODE), "cluster.id": "c", "directory.id": "AAAAAAAAAAAAAAAAAAAABw"}
            checkpoints.write_meta_properties(HOME, names, files)
        self.directory = LogDirectory(HOME, lambda: T0, files)
        self.directory.acquire(BrokerConfig(BROKER | {"node.id": str(NODE)}))
        node = NodeOfPartitions(self.note)
        self.directory.new_partition = lambda topic, registration: replicated(node, topic.name)
        self.directory._offsets.read(clean=False)
        described = registered((OTHER, NODE), OTHER)
        topic = Topic(OFFSETS_TOPIC, UUID(int=7), [described])
        self.directory.add(scheduled(self.directory.open_topic(topic, LogConfig(), {})))
        found = self.directory.partitions[OFFSETS_TOPIC, 0]
        assert isinstance(found, ReplicatedPartition)
        self.partition = found

    def note(self, partition: Partition, offset: int) -> None:
        self.directory.note_truncations({TopicPartition(partition.topic, partition.index): offset})


CUTS: list[Callable[[ReplicatedPartition], object]] = [
    lambda one: scheduled(one.truncate_to(7)),
    lambda one: scheduled(one.truncate_to(6)),
    lambda one: scheduled(one.restart_at(3)),
    lambda one: (scheduled(one.restart_at(7)), scheduled(one.append_fetched(placed(5, count=4)))),
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_crash_after_a_cut_loses_no_more_than_the_cut(cut: Callable[[ReplicatedPartition], object]) -> None:
    """A recovery point above the end says that synced records are lost: an internal topic would go offline. Records
    that are written below it later would not be checked."""
    files = MemoryFiles()
    home = Home(files)
    scheduled(home.partition.append_fetched(b"".join(placed(at, count=5) for at in range(0, 100, 5))))
    home.partition.log.flush()
    home.directory.upkeep.checkpoint_recovery_points()
    cut(home.partition)
    end = home.partition.log_end_offset
    home.directory.abandon()
    again = Home(files)
    assert (again.partition.failure, again.partition.log_end_offset) == ("", end)
    again.directory.abandon()


def test_the_noted_high_watermark_is_where_a_restart_begins() -> None:
    files = MemoryFiles()
    home = Home(files)
    scheduled(home.partition.append_fetched(b"".join(placed(at) for at in range(9))))
    home.partition.move_high_watermark(6)
    home.directory.upkeep.checkpoint_high_watermarks()
    home.partition.move_high_watermark(8)
    home.directory.abandon()
    again = Home(files)
    assert (again.partition.high_watermark, again.partition.log_end_offset) == (6, 9)
    scheduled(again.partition.truncate_to(4))
    assert again.partition.high_watermark == 4
    again.directory.abandon()
    third = Home(files)
    assert third.partition.high_watermark == 4, "never above the end of the log"
    third.directory.upkeep.checkpoint_high_watermarks()
    third.directory.abandon()
    with_file = files.data[HOME / "replication-offset-checkpoint"]
    assert bytes(with_file).endswith(b"__consumer_offsets 0 4\n")


def test_a_new_topic_of_the_same_name_does_not_begin_at_the_former_high_watermark() -> None:
    files = MemoryFiles()
    home = Home(files)
    scheduled(home.partition.append_fetched(placed(0, count=9)))
    home.partition.move_high_watermark(6)
    home.directory.upkeep.checkpoint_high_watermarks()
    topic = Topic(OFFSETS_TOPIC, UUID(int=7), [registered((OTHER, NODE), OTHER)])
    scheduled(home.directory.drop_topic(topic))
    scheduled(home.directory.forget([topic]))
    home.directory.abandon()
    again = Home(files)
    scheduled(again.partition.append_fetched(placed(0, count=9)))
    assert again.partition.high_watermark == 0
    again.directory.abandon()


# --- a leader ---------------------------------------------------------------------------------------------------


class Leading:
    """A partition that this node leads in epoch 4, with its node."""

    def __init__(self, **settings: Any) -> None:
        self.node = NodeOfPartitions()
        self.one = replicated(self.node)
        self.one.adopt(Log.open(Path("/data/t-0"), LogConfig(**settings), T0, clean=False, files=MemoryFiles()))
        self.one.apply(giving(LEADER, 4), NODE, self.node.time_ms)

    def fetch(self, broker: int, offset: int, log_start: int = 0) -> None:
        self.one.note_fetch(FetchingReplica(broker, broker), offset, log_start, self.node.time_ms)


def test_the_watermark_follows_the_fetches_and_ends_the_waits() -> None:
    leading, ended = Leading(), []
    one = leading.one
    one.produce(batch(3))
    one.wait_for(3, ended.append)
    leading.fetch(OTHER, 3)
    leading.fetch(THIRD, 2)
    assert (one.high_watermark, ended) == (2, [])
    leading.fetch(THIRD, 3)
    assert (one.high_watermark, ended) == (3, [ErrorCode.none])
    one.append(batch(1))
    assert one.high_watermark == 3


def test_a_follower_that_is_behind_is_removed_and_the_watermark_waits_for_the_controller() -> None:
    leading = Leading()
    one, node = leading.one, leading.node
    one.produce(batch(1))
    leading.fetch(OTHER, 1)
    node.time_ms += LAG_MS + 1
    leading.fetch(OTHER, 1)
    one.tick(node.time_ms)
    (asked,) = node.asked
    assert asked.broker_ids == (NODE, OTHER)
    assert one.wants(asked)
    assert one.high_watermark == 0, "the controller has not confirmed the smaller ISR"
    one.on_alter_reply(asked, AlteredIsr(4, 5, (NODE, OTHER)))
    assert (one.high_watermark, one.wants(asked)) == (1, False)
    one.check_in_sync()


@pytest.mark.parametrize("change", [giving(FOLLOWER, 5), giving(LEADER, 5), giving(REMOVED, 5)])
def test_an_append_in_steps_ends_with_its_term(change: PartitionRegistration) -> None:
    """Otherwise a deposed leader would write behind the records of its successor, or in an older epoch."""
    leading = Leading()
    steps = leading.one.produce(batch(20_000, compression="gzip"))
    assert not isinstance(steps, AppendInfo)
    next(steps)
    leading.one.apply(change, NODE, leading.node.time_ms)
    assert code_of(lambda: finish(steps)) is ErrorCode.not_leader_or_follower
    assert leading.one.log_end_offset == 0


def test_an_append_in_steps_moves_the_watermark_of_a_leader_that_is_alone() -> None:
    leading = Leading()
    leading.one.apply(registered(THREE, isr=(NODE,), leader_epoch=4, partition_epoch=9), NODE, leading.node.time_ms)
    leading.node.time_ms += LAG_MS + 1
    steps = leading.one.produce(batch(20_000, compression="gzip"))
    assert not isinstance(steps, AppendInfo)
    finish(steps)
    assert leading.one.high_watermark == leading.one.log_end_offset == 20_000


def test_a_change_of_the_minimum_counts_at_once() -> None:
    leading = Leading(min_isr=2)
    one = leading.one
    one.apply(registered(THREE, isr=(NODE,), leader_epoch=4, partition_epoch=9), NODE, leading.node.time_ms)
    leading.node.time_ms += LAG_MS + 1
    one.produce(batch(1))
    assert code_of(one.check_in_sync) is ErrorCode.not_enough_replicas
    assert one.high_watermark == 0
    one.reconfigure(LogConfig(min_isr=1))
    one.check_in_sync()
    assert one.high_watermark == 1
    one.reconfigure(LogConfig(min_isr=2))
    one.produce(batch(1))
    assert code_of(one.check_in_sync) is ErrorCode.not_enough_replicas
    assert (one.high_watermark, one.log_end_offset) == (1, 2)


def test_a_leader_that_is_the_whole_isr_commits_alone() -> None:
    leading, ended = Leading(), []
    one = leading.one

    def shrink(partition_epoch: int, *isr: int) -> None:
        one.apply(registered(THREE, isr=isr, leader_epoch=4, partition_epoch=partition_epoch), NODE, 0)

    shrink(5, NODE)
    leading.node.time_ms += LAG_MS + 1
    one.produce(batch(1))
    assert one.high_watermark == 1
    shrink(6, NODE, OTHER)
    one.produce(batch(1))
    one.wait_for(2, ended.append)
    assert (one.high_watermark, ended) == (1, []), "what one replica has committed stays committed"
    shrink(7, NODE)
    assert (one.high_watermark, ended) == (2, [ErrorCode.none])


REPLICATED_WRITES: list[Callable[[Partition], object]] = [
    lambda one: one.append_marker(EndTransactionMarker(7, 0, 0, True, 1)),
    lambda one: one.check_in_sync(),  # as before an append with acks=-1
]


@pytest.mark.parametrize("write", REPLICATED_WRITES)
@pytest.mark.parametrize(("min_isr", "isr", "is_refused"), [(2, 1, True), (2, 2, False), (3, 2, True), (9, 3, False)])
def test_writes_that_wait_for_replicas_need_enough_of_them(
    write: Callable[[Partition], object], min_isr: int, isr: int, is_refused: bool
) -> None:
    one = Leading(min_isr=min_isr).one
    one.apply(registered(THREE, isr=THREE[:isr], leader_epoch=4, partition_epoch=5), NODE, 0)
    before = one.log_end_offset
    if is_refused:
        with pytest.raises(KafkaError, match=r"t-0 has the in-sync replicas \[1.*min.insync.replicas is") as caught:
            write(one)
        assert caught.value.code is ErrorCode.not_enough_replicas
        assert one.log_end_offset == before
    else:
        write(one)
    one.produce(batch(1))  # acks=1 needs the leader alone
    one.append(batch(1))  # and so does a coordinator's append, as in Kafka: the coordinator waits for the watermark


def test_an_isr_that_shrinks_after_the_append_is_reported() -> None:
    leading, ended = Leading(min_isr=2), []
    one = leading.one
    one.produce(batch(1))
    one.wait_for(1, ended.append)
    one.apply(registered(THREE, isr=(NODE,), leader_epoch=4, partition_epoch=5), NODE, 0)
    assert ended == [], "the high watermark does not move"
    one.move_high_watermark(1)
    one.wait_for(1, ended.append)
    assert ended == [ErrorCode.not_enough_replicas_after_append] * 2


@pytest.mark.parametrize(("replicas", "min_isr", "least"), [(1, 5, 1), (3, 5, 3), (3, 2, 2), (3, 1, 1)])
def test_no_more_replicas_are_needed_than_there_are(replicas: int, min_isr: int, least: int) -> None:
    assert registered(tuple(range(replicas))).least_isr(min_isr) == least


def test_a_deletion_is_over_when_each_live_replica_has_made_it() -> None:
    leading, ended = Leading(), []
    one, node = leading.one, leading.node
    one.produce(batch(9))
    for number in (OTHER, THIRD):
        leading.fetch(number, 9)
    one.log.removals.delete_before(5)
    one.wait_for_deletion(5, ended.append)
    leading.fetch(OTHER, 9, 5)
    assert (one.low_watermark, ended) == (0, [])
    leading.fetch(THIRD, 9, 7)
    assert (one.low_watermark, ended) == (5, [5])
    one.log.removals.delete_before(8)
    one.wait_for_deletion(8, ended.append)
    forget = one.wait_for_deletion(8, ended.append)
    forget()
    one.apply(giving(FOLLOWER, 5), NODE, node.time_ms)
    assert ended == [5, ErrorCode.not_leader_or_follower]


def test_each_term_of_a_follower_begins_and_ends_its_fetches() -> None:
    node = NodeOfPartitions()
    one = replicated(node)
    one.apply(giving(FOLLOWER, 1), NODE, 0)
    assert node.followed == [], "its log is not open"
    one.adopt(Log.open(Path("/data/t-0"), LogConfig(), T0, clean=False, files=MemoryFiles()))
    one.apply(registered(THREE, -1, leader_epoch=2, partition_epoch=2), NODE, 0)
    one.apply(registered(THREE, THIRD, leader_epoch=3, partition_epoch=3), NODE, 0)
    one.apply(registered(THREE, THIRD, isr=(THIRD,), leader_epoch=3, partition_epoch=4), NODE, 0)
    one.apply(giving(LEADER, 5), NODE, 0)
    one.apply(giving(FOLLOWER, 6), NODE, 0)
    one.remove(ErrorCode.unknown_topic_or_partition)
    assert node.followed == [OTHER, None, THIRD, None, OTHER, None]
    assert (one.leader, one.follower) == (None, None)
