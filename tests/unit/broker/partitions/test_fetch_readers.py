"""How far consumers and followers read, what ends their waits, and which fetches of followers are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.logs import T0, batch, open_log
from support.partitions import NODE, registered
from support.replicas import NodeOfPartitions, registered_broker, replicated

from odradek.broker.partitions.fetch_readers import COMMITTED, CONSUMER, FollowerReader
from odradek.broker.partitions.fetch_sessions import RequestedPartition
from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.purgatory import Wake
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import FetchingReplica
from odradek.replication.follower_states import FollowerState
from odradek.storage.log import Log

if TYPE_CHECKING:
    from odradek.broker.partitions.fetch_readers import Reader

FOLLOWER, STRANGER = 2, 9
EPOCH = 4
MANY = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def node() -> NodeOfPartitions:
    made = NodeOfPartitions()
    made.brokers[FOLLOWER] = registered_broker(FOLLOWER, epoch=30)
    return made


@pytest.fixture
def partition(log: Log, node: NodeOfPartitions) -> ReplicatedPartition:
    """A led partition of three records whose high watermark is 1. Broker 2 follows it, and is in sync."""
    one = replicated(node)
    one.adopt(log)
    one.apply(registered((NODE, FOLLOWER), leader_epoch=EPOCH), NODE, 0)
    for _ in range(3):
        one.produce(batch(1))
    one.move_high_watermark(1)
    return one


def follower(broker_id: int = FOLLOWER, epoch: int = 30, now_ms: int = 100) -> FollowerReader:
    return FollowerReader(FetchingReplica(broker_id, epoch), now_ms)


def state_of(partition: ReplicatedPartition) -> FollowerState:
    assert partition.leader is not None
    return partition.leader.followers.states[FOLLOWER]


def asked(offset: int, epoch: int = EPOCH, last_epoch: int = -1) -> RequestedPartition:
    return RequestedPartition("t", 0, offset, MANY, epoch, last_epoch, 0)


def code_of(reader: Reader, partition: Partition, wanted: RequestedPartition) -> ErrorCode:
    try:
        reader.read(partition, wanted, MANY, min_one=True, is_first=True)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def size_of(reader: Reader, partition: Partition, offset: int) -> int:
    return reader.read(partition, asked(offset), MANY, min_one=True, is_first=True)[0].size


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(partition: Partition) -> None:
    one = len(batch(1))
    assert [size_of(reader, partition, 0) for reader in (CONSUMER, COMMITTED, follower())] == [one, one, 3 * one]
    row, *_ = follower().read(partition, asked(0), MANY, min_one=True, is_first=True)
    assert (row.high_watermark, row.aborted) == (1, None), "a follower gets the high watermark, and no transactions"


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (EPOCH, ErrorCode.unknown_leader_epoch), (-1, ErrorCode.not_leader_or_follower),
        (EPOCH - 1, ErrorCode.fenced_leader_epoch), (EPOCH + 1, ErrorCode.unknown_leader_epoch),
    ],
)  # fmt: skip
def test_a_broker_without_a_replica_gets_kafkas_codes(partition: Partition, epoch: int, code: ErrorCode) -> None:
    """With the leader's epoch, the broker may have learned of its replica first: it tries again. Without an epoch, as
    in old versions, it is not known which of the two is behind."""
    assert code_of(follower(STRANGER), partition, asked(0, epoch)) is code
    alone = Partition("t", 0, partition.log, lambda: T0)
    alone.apply(registered(leader_epoch=EPOCH), NODE, 0)
    assert code_of(follower(), alone, asked(0, epoch)) is code, "a partition with one replica"


@pytest.mark.parametrize(
    ("own", "present", "is_fenced", "is_refused"),
    [
        (29, 30, False, True), (30, 30, False, False), (31, 30, False, False), (-1, 30, False, False),
        (29, 30, True, False), (29, None, False, False),
    ],
)  # fmt: skip
def test_an_earlier_incarnation_of_a_follower_is_refused(
    partition: ReplicatedPartition, node: NodeOfPartitions, own: int, present: int | None, is_fenced: bool,
    is_refused: bool,
) -> None:  # fmt: skip
    """A broker epoch of −1 says none, as before version 15. A fenced or unknown broker has no present epoch."""
    node.brokers[FOLLOWER] = present and registered_broker(FOLLOWER, epoch=present, is_fenced=is_fenced)
    code = code_of(follower(epoch=own), partition, asked(2))
    assert code is (ErrorCode.not_leader_or_follower if is_refused else ErrorCode.none)
    assert state_of(partition).end_offset == (-1 if is_refused else 2)


def test_a_fetch_notes_how_far_the_follower_is(partition: ReplicatedPartition) -> None:
    follower().read(partition, asked(2), MANY, min_one=True, is_first=True)
    state = state_of(partition)
    assert (state.end_offset, state.log_start, state.leader_end, state.fetched_ms) == (2, 0, 3, 100)
    follower(now_ms=500).read(partition, asked(3), MANY, min_one=True, is_first=False)
    assert state_of(partition) == state, "the second read of a fetch that has waited notes nothing"


@pytest.mark.parametrize("wanted", [asked(9), asked(-5), asked(2, last_epoch=EPOCH - 1), asked(2, EPOCH - 1)])
def test_a_fetch_of_what_the_leader_does_not_have_notes_nothing(
    partition: ReplicatedPartition, wanted: RequestedPartition
) -> None:
    """Outside of the log, in a log that diverges, and in an old leader epoch."""
    code_of(follower(), partition, wanted)
    assert state_of(partition).end_offset == -1


def test_the_log_of_a_follower_with_records_of_another_leader_diverges(partition: Partition) -> None:
    partition.apply(registered((NODE, FOLLOWER), leader_epoch=EPOCH + 3), NODE, 0)
    partition.produce(batch(1))
    read, *_ = follower().read(partition, asked(4, EPOCH + 3, EPOCH + 1), MANY, min_one=True, is_first=True)
    assert (read.diverging, read.size) == ((EPOCH, 3), 0)
    beyond, *_ = follower().read(partition, asked(4, EPOCH + 3, EPOCH), MANY, min_one=True, is_first=True)
    assert beyond.diverging == (EPOCH, 3)
    agrees, *_ = follower().read(partition, asked(3, EPOCH + 3, EPOCH), MANY, min_one=True, is_first=True)
    assert (agrees.diverging, agrees.size) == (None, len(batch(1)))


@pytest.mark.parametrize("reader", [CONSUMER, follower()])
def test_an_offset_before_the_log_start_is_out_of_range_whatever_the_epochs(
    partition: Partition, reader: Reader
) -> None:
    """As in Kafka: a reader that diverges there has nothing to cut off, but has to begin again."""
    partition.apply(registered((NODE, FOLLOWER), leader_epoch=EPOCH + 3), NODE, 0)
    partition.produce(batch(1))
    partition.move_high_watermark(4)
    partition.log.removals.delete_before(3)
    wanted = asked(2, EPOCH + 3, EPOCH + 1)
    assert code_of(reader, partition, wanted) is ErrorCode.offset_out_of_range


class Waiter:
    def __init__(self, awaits: Wake) -> None:
        self.awaits = awaits
        self.sizes: list[int] = []
        self.wakes: list[Wake] = []

    def count_readable(self, size: int) -> None:
        self.sizes.append(size)

    def wake(self, kind: Wake) -> None:
        self.wakes.append(kind)


def test_each_kind_of_wait_counts_its_own_bytes(log: Log) -> None:
    """An append is news for followers. The high watermark is news for consumers."""
    partition = Partition("t", 0, log, lambda: T0)
    partition.apply(registered((NODE, FOLLOWER), leader_epoch=EPOCH), NODE, 0)
    for _ in range(3):
        partition.produce(batch(1))
    partition.move_high_watermark(1)
    waiters = {kind: Waiter(kind) for kind in (Wake.HIGH_WATERMARK, Wake.STABLE_OFFSET, Wake.LOG_END)}
    partition.waiters.update(dict.fromkeys(waiters.values()))  # type: ignore[arg-type]  # the methods that a partition calls
    one = len(batch(1))
    partition.produce(batch(1))
    partition.append(batch(1))
    assert [each.sizes for each in waiters.values()] == [[], [], [one, one]]
    partition.move_high_watermark(3)
    assert [each.sizes for each in waiters.values()] == [[2 * one], [2 * one], [one, one]]
    partition.move_high_watermark(None)
    partition.produce(batch(1))
    assert [each.sizes[-1] for each in waiters.values()] == [one, one, one], "with one replica all bounds are the end"
    partition.apply(registered((NODE, FOLLOWER), FOLLOWER, leader_epoch=EPOCH + 1), NODE, 0)
    assert [each.wakes for each in waiters.values()] == [[Wake.ROLE_CHANGE]] * 3
