"""A follower's append: the leader's bytes as they are, or nothing; and a log that begins again at an offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cleaning import compact, keyed
from support.cleaning import open_log as open_compacted
from support.full_disk import FullDisk
from support.logs import T0, batch, code_of, described, put, rows_from, sequenced, set_base_offset
from support.memory_files import MemoryFiles

from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.ids import EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.fetched_batches import BATCHES_AT_ONCE, UnexpectedOffset
from odradek.storage.log import Log

LEADER, FOLLOWER = Path("/logs/t-0"), Path("/logs/t-1")
FAR = 1 << 33
"""More offsets than a segment may have."""


def open_log(path: Path, files: MemoryFiles, *, clean: bool = False, point: int = 0, **options: object) -> Log:
    return Log.open(path, LogConfig(**options), T0, clean=clean, recovery_point=point, files=files)


def everything(log: Log) -> bytes:
    return log.read(log.log_start_offset, 1 << 30, max_offset=log.log_end_offset).bytes()


def stored(log: Log) -> bytes:
    return b"".join(bytes(segment.file.pread(0, segment.size)) for segment in log.segments)


def take(log: Log, data: bytes, epoch: int = 9) -> tuple[int, int] | None:
    info = log.append_fetched(data, now_ms=T0, leader_epoch=epoch)
    return None if info is None else (info.base_offset, info.last_offset)


def placed(offset: int, epoch: int = 0, **options: object) -> bytes:
    """A batch of two records as a leader stores it."""
    data = bytearray(batch(2, **options))
    set_base_offset(data, 0, offset, epoch)
    return bytes(data)


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.write(LEADER.parent / "there", b"")
    return made


@pytest.fixture
def leader(files: MemoryFiles) -> Log:
    log = open_log(LEADER, files)
    for epoch, count in ((0, 3), (0, 2), (2, 4)):
        put(log, batch(count), leader_epoch=epoch)
    return log


@pytest.fixture
def follower(files: MemoryFiles) -> Iterator[Log]:
    log = open_log(FOLLOWER, files)
    yield log
    log.abandon()


def test_offsets_and_epochs_are_those_of_the_leader(leader: Log, follower: Log) -> None:
    assert take(follower, everything(leader)) == (0, 8)
    assert everything(follower) == everything(leader)
    assert follower.epochs.entries == leader.epochs.entries == ((0, 0), (2, 5))


def test_a_batch_that_is_cut_off_is_left_out(leader: Log, follower: Log) -> None:
    data = everything(leader)
    assert take(follower, data[:70]) is None, "the first batch is longer"
    assert take(follower, b"") is None
    assert (follower.log_end_offset, stored(follower), follower.epochs.entries) == (0, b"", ())
    assert take(follower, data[:-1]) == (0, 4)
    rest = leader.read(5, 1 << 20, max_offset=9).bytes()
    assert take(follower, rest) == (5, 8)
    assert everything(follower) == data


@pytest.mark.parametrize("number", [0, 1, 2])
def test_of_damaged_data_nothing_is_appended(leader: Log, follower: Log, number: int) -> None:
    data = bytearray(everything(leader))
    at = sum(leader.read(start, 1).size for start in (0, 3, 5)[:number]) + 70
    data[at] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        take(follower, bytes(data))
    assert (follower.log_end_offset, stored(follower), follower.epochs.entries) == (0, b"", ())


def test_of_data_out_of_order_nothing_is_appended(follower: Log) -> None:
    for offsets in ((0, 0), (0, 1), (4, 2)):
        with pytest.raises(CorruptRecord, match=f"at offset {offsets[1]} follows offset {offsets[0] + 1}"):
            take(follower, placed(offsets[0]) + placed(offsets[1]))
        assert follower.log_end_offset == 0


def test_a_batch_below_the_end_is_refused(leader: Log, follower: Log) -> None:
    take(follower, everything(leader))
    before = stored(follower)
    for offset in (0, 7):
        with pytest.raises(UnexpectedOffset) as caught:
            take(follower, placed(offset) + placed(20))
        assert (caught.value.first_offset, caught.value.last_offset) == (offset, 21)
    assert (follower.log_end_offset, stored(follower)) == (9, before)


def test_batches_of_an_unknown_leader_are_left_out(leader: Log, follower: Log) -> None:
    """KAFKA-18723: a reply may have batches that the leader got after it had lost its leadership."""
    assert take(follower, everything(leader), epoch=1) == (0, 4)
    assert take(follower, placed(5, epoch=2) + placed(7, epoch=0), epoch=1) is None
    assert follower.log_end_offset == 5


def test_a_follower_of_a_compacted_leader_has_its_gaps(files: MemoryFiles) -> None:
    leader, follower = open_compacted(LEADER, files), open_compacted(FOLLOWER, files)
    for number in range(60):
        data = keyed((b"a%d" % (number % 3), b"v"), (b"b%d" % number, b"w"))
        leader.append(data, now_ms=T0, leader_epoch=number // 20)
    leader.roll(T0)
    compact(leader, files=files)
    put(leader, keyed((b"a", b"v")), leader_epoch=3)
    headers = [header for segment in leader.segments for _, header in segment.batches_from(0)]
    assert any(header.record_count < 2 for header in headers), "the cleaner has removed records"
    while follower.log_end_offset < leader.log_end_offset:
        take(follower, leader.read(follower.log_end_offset, 700).bytes())
    assert stored(follower) == stored(leader)
    assert rows_from(follower, 0) == rows_from(leader, 0)
    follower.close()
    leader.abandon()


def test_gaps_of_more_offsets_than_a_segment_may_have(files: MemoryFiles, follower: Log) -> None:
    offsets = [FAR, FAR + 2, 3 * FAR, 5 * FAR]
    take(follower, b"".join(map(placed, offsets)))
    assert [segment.base_offset for segment in follower.segments] == [FAR, 3 * FAR, 5 * FAR]
    assert follower.log_end_offset == 5 * FAR + 2
    again = open_log(FOLLOWER, files)
    for log in (follower, again):
        assert [row.offset for row in rows_from(log, log.log_start_offset)] == [
            offset + number for offset in offsets for number in (0, 1)
        ]
    again.abandon()


def test_fetched_data_may_be_longer_than_a_segment(files: MemoryFiles) -> None:
    leader, follower = (
        open_log(path, files, segment_bytes=size) for path, size in ((LEADER, 1 << 20), (FOLLOWER, 600))
    )
    for _ in range(20):
        put(leader, batch(3))
    put(leader, batch(1, size=2000))
    put(leader, batch(1))
    take(follower, everything(leader))
    assert stored(follower) == stored(leader)
    sizes = [segment.size for segment in follower.segments]
    assert len(sizes) > 3
    assert [size for size in sizes if size > 600] == [leader.read(60, 1).size], "a batch that is longer by itself"
    assert rows_from(follower, 0) == rows_from(leader, 0)
    follower.abandon()


def test_long_work_is_done_in_steps(files: MemoryFiles, follower: Log) -> None:
    leader = open_log(LEADER, files)
    count = 3 * BATCHES_AT_ONCE + 1
    for number in range(count):
        put(leader, sequenced(number, 1))
    steps = follower.begin_append_fetched(everything(leader), now_ms=lambda: T0, leader_epoch=0)
    ends = [follower.log_end_offset for _ in steps]
    assert follower.log_end_offset == count
    assert ends == [0, 0, 0, 250, 500, 750], "the check comes first, then each group"
    assert described(follower) == described(leader)


def test_a_log_that_changes_between_two_steps_takes_no_more(files: MemoryFiles, follower: Log) -> None:
    leader = open_log(LEADER, files)
    for _ in range(2 * BATCHES_AT_ONCE):
        put(leader, batch(1))
    data = everything(leader)
    steps = follower.begin_append_fetched(data, now_ms=lambda: T0, leader_epoch=0)
    for _ in range(3):
        next(steps)
    assert follower.log_end_offset == BATCHES_AT_ONCE
    put(follower, batch(1), leader_epoch=1)
    with pytest.raises(UnexpectedOffset):
        next(steps)
    assert follower.log_end_offset == BATCHES_AT_ONCE + 1


def test_transactions_and_their_index(files: MemoryFiles, follower: Log) -> None:
    leader = open_log(LEADER, files)
    put(leader, sequenced(0, 2, 7, transactional=True))
    put(leader, sequenced(0, 2, 8, transactional=True))
    for producer, commit in ((7, False), (8, True)):
        leader.append_marker(EndTransactionMarker(producer, 0, 3, commit, 1), now_ms=T0, leader_epoch=0)
    put(leader, sequenced(2, 1, 7, transactional=True))
    follower.high_watermark = 0
    take(follower, everything(leader))
    assert described(follower) == described(leader)
    assert follower.segment_list.aborted_for(0, leader.read(0, 1 << 20)) == [(7, 0)]
    assert follower.last_stable_offset == 0, "the high watermark holds it back"
    follower.high_watermark = 6
    assert follower.last_stable_offset == leader.last_stable_offset == 6


def test_after_a_full_disk_the_same_batches_are_taken(leader: Log) -> None:
    disk = FullDisk()
    follower = open_log(FOLLOWER, disk)
    take(follower, placed(0))
    disk.fill_after(0)
    data = placed(2, epoch=4) + placed(6, epoch=5)
    assert code_of(take, follower, data) is ErrorCode.kafka_storage_error
    assert (follower.log_end_offset, follower.epochs.entries) == (2, ((0, 0),))
    disk.make_room()
    follower.disk.failures.retry()
    assert take(follower, data) == (2, 7)
    assert follower.epochs.entries == ((0, 0), (4, 2), (5, 6))
    follower.abandon()


def test_a_truncation_ends_an_epoch_without_records(follower: Log) -> None:
    """A former leader has begun an epoch, and no record followed (KIP-279)."""
    take(follower, placed(0))
    follower.assign_epoch(3)
    follower.removals.truncate_to(2, T0)
    assert follower.epochs.entries == ((0, 0),)


# --- a log that begins again ------------------------------------------------------------------------------------


def test_a_log_begins_again_at_an_offset(files: MemoryFiles, follower: Log) -> None:
    for number in range(3):
        take(follower, placed(2 * number, producer_id=7, producer_epoch=0, base_sequence=2 * number))
        follower.roll(T0)
    follower.high_watermark = 6
    follower.flush()
    follower.removals.restart_at(40, T0)
    offsets = follower.log_start_offset, follower.high_watermark, follower.log_end_offset, follower.last_stable_offset
    assert offsets == (40, 40, 40, 40)
    assert (follower.recovery_point, follower.epochs.entries, described(follower)) == (6, (), [])
    assert sorted(name for name in files.list(FOLLOWER) if not name.startswith(f"{40:020d}")) == [
        "leader-epoch-checkpoint"
    ]
    take(follower, placed(40, epoch=3))
    follower.close()
    again = open_log(FOLLOWER, files, clean=True)
    assert (again.log_start_offset, again.log_end_offset, again.epochs.entries) == (40, 42, ((3, 40),))
    again.abandon()


@pytest.mark.parametrize("offset", [0, 3])
def test_a_log_may_begin_again_below_its_end(follower: Log, offset: int) -> None:
    take(follower, placed(0) + placed(2))
    follower.removals.restart_at(offset, T0)
    assert (follower.log_start_offset, follower.log_end_offset) == (offset, offset)
    assert follower.high_watermark == offset
    take(follower, placed(offset, epoch=1))
    assert [row.offset for row in rows_from(follower, offset)] == [offset, offset + 1]


def test_a_rebuild_of_producers_ends_with_the_records(follower: Log) -> None:
    for number in range(600):
        take(follower, placed(2 * number, producer_id=7, producer_epoch=0, base_sequence=2 * number))
    next(follower.removals.begin_truncation(1100, T0))
    assert follower.producers.rebuild is not None
    follower.removals.restart_at(50, T0)
    assert (follower.producers.rebuild, follower.last_stable_offset, described(follower)) == (None, 50, [])


def test_records_after_a_restart_at_the_same_offset_survive_a_power_cut(files: MemoryFiles) -> None:
    """The new file has the name of the old one, and that name has to be synced once more. Batches without an epoch
    leave the file of the epochs alone, whose sync would sync the names, too."""
    follower = open_log(FOLLOWER, files)
    take(follower, placed(0, epoch=-1))
    follower.flush()
    follower.removals.restart_at(0, T0)
    take(follower, placed(0, epoch=-1, size=99))
    follower.flush()
    files.power_cut()
    again = open_log(FOLLOWER, files, point=2)
    assert stored(again) == placed(0, epoch=-1, size=99)
    again.abandon()


def test_a_sync_from_before_a_truncation_does_not_move_the_recovery_point(follower: Log) -> None:
    """Otherwise the records that get these offsets later would count as synced."""
    later = []
    follower.sync.defer = later.append
    take(follower, placed(0) + placed(2))
    follower.roll(T0)
    follower.removals.truncate_to(2, T0)
    take(follower, placed(2, epoch=1))
    for run in later:
        run()
    assert follower.recovery_point <= 2
    follower.flush()
    assert follower.recovery_point == 4


def test_an_offline_log_takes_nothing(leader: Log, follower: Log) -> None:
    follower.disk.close("is closed")
    for call in (lambda: take(follower, everything(leader)), lambda: follower.removals.restart_at(3, T0)):
        with pytest.raises(KafkaError) as caught:
            call()
        assert caught.value.code is ErrorCode.kafka_storage_error
