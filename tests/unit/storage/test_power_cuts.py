"""After a power cut the disk has what was synced, bytes and names: logs, checkpoints, the catalogue."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from uuid import UUID

import pytest
from support.logs import aborted_in
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.broker.metadata.change import packed
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CreateTopic
from odradek.core.effects import SimpleRecord, result_of
from odradek.core.errors import StorageError
from odradek.core.ids import EndTransactionMarker, TopicPartition
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.log import Log

HOME = Path("/home/data")
PATH = HOME / "flights-0"
T0 = 1_700_000_000_000


def batch(*values: bytes) -> bytes:
    return encode_batch([SimpleRecord(None, value) for value in values], now_ms=T0)


# files


def test_a_power_cut_keeps_synced_bytes_and_synced_names() -> None:
    files = MemoryFiles()
    files.make_dirs(HOME)
    files.sync_dir(HOME.parent.parent)
    files.sync_dir(HOME.parent)
    for name in ("whole", "unsynced", "nameless"):
        files.open(HOME / name, create=True).append([b"old"])
    files.open(HOME / "whole").sync()
    files.sync_dir(HOME)
    files.open(HOME / "whole").append([b"new"])
    files.open(HOME / "other", create=True).sync()
    files.power_cut()
    assert files.list(HOME) == ["nameless", "unsynced", "whole"], "a synced file has no name without a sync of names"
    assert [files.read(HOME / name) for name in files.list(HOME)] == [b"", b"", b"old"]


def test_a_power_cut_undoes_names_that_were_not_synced() -> None:
    files = MemoryFiles()
    files.write(HOME / "a-0" / "log", b"1")
    files.write(HOME / "b", b"2")
    files.write(HOME / "c", b"3")
    files.rename(HOME / "a-0", HOME / "a-0.x-delete")
    files.write(HOME / "a-0.x-delete" / "late", b"4")
    files.remove(HOME / "b")
    files.write(HOME / "c", b"5", sync=False)
    files.power_cut()
    assert files.list(HOME) == ["a-0", "b", "c"]
    assert files.list(HOME / "a-0") == ["late", "log"], "a directory's own names do not depend on its name"
    assert (files.read(HOME / "b"), files.read(HOME / "c")) == (b"2", b"3")
    files.rename(HOME / "a-0", HOME / "a-1")
    files.remove(HOME / "b")
    files.sync_dir(HOME)
    files.power_cut()
    assert (files.list(HOME), files.list(HOME / "a-1")) == (["a-1", "c"], ["late", "log"])


def test_a_truncation_and_overwritten_bytes_are_not_synced_either() -> None:
    files = MemoryFiles()
    files.write(HOME / "a", b"0123456789")
    file = files.open(HOME / "a")
    file.truncate(4)
    file.append([b"x"])
    files.power_cut()
    assert files.read(HOME / "a") == b"0123456789"
    files.overwrite(HOME / "a", b"abc")
    files.power_cut()
    assert files.read(HOME / "a") == b"0123456789"
    file = files.open(HOME / "a")
    file.truncate(4)
    file.append([b"xy"])
    file.sync()
    file.append([b"z"])
    files.power_cut(lambda: 1.0)
    assert files.read(HOME / "a") == b"0123xyz", "a disk may have written more than it had to"


def test_the_locks_of_a_process_end_with_it() -> None:
    files = MemoryFiles()
    files.lock(HOME / ".lock")
    files.power_cut()
    files.lock(HOME / ".lock")


# a log


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.write(HOME / "there", b"")
    return made


def open_log(files: MemoryFiles, point: int = 0, **settings: int) -> Log:
    return Log.open(PATH, LogConfig(**settings), T0, clean=False, recovery_point=point, leader_epoch=3, files=files)


def append(log: Log, *values: bytes) -> int:
    return log.append(batch(*values), now_ms=T0, leader_epoch=3).base_offset


@pytest.mark.parametrize("kept", [lambda: 0.0, lambda: 1.0])
def test_a_log_keeps_the_records_that_it_has_synced(files: MemoryFiles, kept: Callable[[], float]) -> None:
    log = open_log(files)
    append(log, b"0", b"1")
    log.flush()
    append(log, b"2")
    files.power_cut(kept)
    again = open_log(files, log.recovery_point)
    assert again.log_end_offset == (3 if kept() else 2)
    assert append(again, b"new") == again.log_end_offset - 1


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_with_flush_messages_few_acknowledged_records_are_lost(files: MemoryFiles, most: int) -> None:
    """The name of a segment's file is synced, too. The file is made with its first record, after the sync of a roll."""
    log = open_log(files, flush_messages=most, segment_bytes=200)
    for number in range(24):
        append(log, b"%d" % number * 20)
        copy = deepcopy(files)
        copy.power_cut()
        again = open_log(copy, log.recovery_point, segment_bytes=200)
        assert number + 1 - most < again.log_end_offset <= number + 1
        assert log.recovery_point <= again.log_end_offset
        assert again.epochs.latest == 3


def test_a_repeated_batch_is_synced_before_its_reply(files: MemoryFiles) -> None:
    """A killed process has written a batch, but not synced it. The producer sends it again to the next process."""
    sent = encode_batch([SimpleRecord(None, b"x")], now_ms=T0, producer_id=7, producer_epoch=0, base_sequence=0)
    log = open_log(files, flush_messages=2)
    log.append(sent, now_ms=T0, leader_epoch=3)
    files.crash()
    log = open_log(files, log.recovery_point, flush_messages=1)
    assert log.append(sent, now_ms=T0, leader_epoch=3).duplicate
    assert log.recovery_point == log.log_end_offset == 1


@pytest.mark.parametrize("is_recovered", [False, True])
def test_a_closed_segment_keeps_its_index_of_aborted_transactions(files: MemoryFiles, is_recovered: bool) -> None:
    """Its records are synced before its end, so the sync after the roll has no records to sync."""
    log = open_log(files, flush_messages=1, segment_ms=1000)
    aborted = encode_batch(
        [SimpleRecord(None, b"x")], now_ms=T0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append(aborted, now_ms=T0, leader_epoch=3)
    log.append_marker(EndTransactionMarker(7, 0, 0, commit=False, transaction_version=1), now_ms=T0, leader_epoch=3)
    if is_recovered:
        files.power_cut()
        log = open_log(files, log.recovery_point, flush_messages=1, segment_ms=1000)
    later = encode_batch([SimpleRecord(None, b"later")], now_ms=T0 + 5000)
    log.append(later, now_ms=T0 + 5000, leader_epoch=3)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    for kept in (0.0, 1.0):
        copy = deepcopy(files)
        copy.power_cut(lambda kept=kept: kept)
        again = open_log(copy, log.recovery_point)
        assert [one.first_offset for one in aborted_in(again, 0, 3)] == [0]


def test_a_torn_end_of_any_size_is_cut(files: MemoryFiles) -> None:
    chance = random.Random(7)
    end = 0
    for _ in range(60):
        log = open_log(files, end, segment_bytes=600)
        assert log.log_end_offset >= end, "synced records are there"
        for _ in range(chance.randrange(1, 6)):
            append(log, *[b"x" * chance.randrange(60)] * chance.randrange(1, 4))
            if chance.random() < 0.3:
                log.flush()
        end = log.recovery_point
        files.power_cut(chance.random)
    assert end > 60


def test_a_clean_stop_syncs_what_a_recovery_has_written(files: MemoryFiles) -> None:
    """A recovery cuts a torn batch. Without a sync the torn bytes come back, and after a clean stop they are damage."""
    log = open_log(files)
    append(log, b"0")
    log.flush()
    append(log, b"x" * 500)
    files.power_cut(lambda: 0.5)
    log = open_log(files, 1)
    assert (log.was_cut, log.log_end_offset) == (True, 1)
    log.close()
    files.power_cut()
    again = Log.open(PATH, LogConfig(), T0, clean=True, recovery_point=1, leader_epoch=3, files=files)
    assert (again.was_cut, again.log_end_offset) == (False, 1)


@pytest.mark.parametrize("has_more", [False, True])
def test_a_snapshot_of_producers_does_not_outlive_its_records(files: MemoryFiles, has_more: bool) -> None:
    """A disk may write the snapshot of a roll, and the next segment, before the records of the closed segment."""

    def sent(producer: int, *, transactional: bool) -> bytes:
        return encode_batch(
            [SimpleRecord(None, b"x")], now_ms=T0, producer_id=producer, producer_epoch=0, base_sequence=0,
            transactional=transactional,
        )  # fmt: skip

    log = open_log(files)
    append(log, b"0")
    log.flush()
    point, size = log.recovery_point, log.segments[0].size
    log.append(sent(7, transactional=True), now_ms=T0, leader_epoch=3)
    log.append(sent(8, transactional=False), now_ms=T0, leader_epoch=3)
    log.sync.defer = lambda run: None
    log.roll(T0)
    if has_more:
        append(log, b"1")
    else:  # as after a roll whose file has its name
        files.write(PATH / "00000000000000000003.log", b"")
    files.open(PATH / "00000000000000000000.log").truncate(size)
    files.crash()
    assert "00000000000000000003.snapshot" in files.list(PATH)
    for _ in range(2):
        log = open_log(files, point)
        end = log.log_end_offset
        assert end >= 3
        assert log.last_stable_offset == end, "the open transaction has no records"
        assert log.producers.get(7) is None
        log.flush()
        point = log.recovery_point
        files.crash()
    assert not log.append(sent(8, transactional=False), now_ms=T0, leader_epoch=3).duplicate, "it was lost"


# a data directory


def begin(files: MemoryFiles) -> tuple[LogDirectory, StoredCatalog]:
    directory = LogDirectory(HOME / "new" / "broker", lambda: T0, files)
    directory.acquire(BrokerConfig())
    return directory, directory.open_catalog()


def create(catalog: StoredCatalog, number: int) -> None:
    catalog.apply(CreateTopic(f"t{number}", UUID(int=number), 1, 1))


@pytest.mark.parametrize("seed", range(20))
def test_a_committed_change_of_the_catalogue_survives_every_power_cut(files: MemoryFiles, seed: int) -> None:
    """Also in the first second of a new directory, whose own name has to be on the disk, and its parent's."""
    chance = random.Random(seed)
    identity: set[str] = set()
    number = 0
    for _ in range(6):
        directory, catalog = begin(files)
        identity.add(directory.cluster_id)
        directory.begin_recovery(catalog.catalog)
        assert {topic.name for topic in catalog.catalog.topics()} == {f"t{n}" for n in range(number)}
        for _ in range(chance.randrange(1, 4)):
            create(catalog, number)
            number += 1
        if seed % 3 == 0:
            files.power_cut()
        elif seed % 3 == 1:
            files.power_cut(chance.random)
        else:
            files.power_cut(lambda: 1.0)
    assert len(identity) == 1, "the identity is on the disk before the first change"


def test_an_uncommitted_change_is_there_whole_or_not_at_all(files: MemoryFiles) -> None:
    """The mark of synced records may be older than the log, or missing. It is never later."""
    seen = set()
    number = 0
    for step in range(40):
        directory, catalog = begin(files)
        directory.begin_recovery(catalog.catalog)
        topics = {topic.name for topic in catalog.catalog.topics()}
        acknowledged = {f"t{n}" for n in range(number)}
        assert acknowledged <= topics
        assert topics - acknowledged in (set(), {f"t{number}", f"t{number + 1}"})
        seen.add(len(topics - acknowledged))
        number = len(topics)
        create(catalog, number)
        number += 1
        generated = [
            record
            for n in (number, number + 1)
            for record in result_of(catalog.catalog.state.generate(CreateTopic(f"t{n}", UUID(int=n), 1, 1)))
        ]
        packed_records = [part for n, record in enumerate(generated) for part in packed(record, n)]
        catalog.log.append(packed_records, len(generated))  # and not synced
        files.power_cut(lambda step=step: (step % 11) / 10)
    assert seen == {0, 2}


# checkpoints


def test_a_checkpoint_is_the_old_one_or_the_new_one(files: MemoryFiles) -> None:
    chance = random.Random(3)
    name = TopicPartition("flights", 0)
    path = HOME / checkpoints.RECOVERY_POINT
    written = 0
    for number in range(1, 60):
        checkpoints.write_offsets(path, {name: number}, files)
        synced = number
        checkpoints.write_lines(path, [f"flights 0 {1000 + number}"], files, sync=False)
        files.power_cut(chance.random if number % 2 else lambda: 0.0)
        try:
            found = checkpoints.read_offsets(path, files)
        except StorageError:  # a file without a sync may be cut, and a start reports it
            found = {}
        assert found in ({}, {name: synced}, {name: 1000 + number})
        assert number % 2 or found == {name: synced}
        written += found == {name: synced}
    assert written >= 30


@pytest.mark.parametrize("size", range(44))
def test_a_cut_id_of_a_topic_is_no_id(files: MemoryFiles, size: int) -> None:
    """A partition's directory may be on the disk before the bytes of partition.metadata, which is not synced."""
    topic_id = UUID(int=(1 << 127) + 7)
    checkpoints.write_partition_metadata(PATH, topic_id, files, sync=False)
    whole = files.read(PATH / checkpoints.PARTITION_METADATA)
    assert len(whole) == 43
    for cut in (whole[:size], bytes(size)):
        files.write(PATH / checkpoints.PARTITION_METADATA, cut)
        if cut == whole:
            assert checkpoints.read_partition_metadata(PATH, files) == topic_id
        else:
            assert checkpoints.read_partition_metadata(PATH, files) is None


def test_a_cut_checkpoint_is_no_checkpoint(files: MemoryFiles) -> None:
    """A leader epoch began at offset 1 in place of 12, and its replica never was in sync again."""
    path = PATH / "leader-epoch-checkpoint"
    checkpoints.write_lines(path, ("0 0", "1 9", "4 12"), files, sync=False)
    whole = files.read(path)
    for size in range(1, len(whole)):
        files.write(path, whole[:size])
        with pytest.raises(StorageError, match="leader-epoch-checkpoint"):
            checkpoints.read_lines(path, files)
    files.write(path, b"")
    assert checkpoints.read_lines(path, files) == []
    files.write(path, whole)
    assert checkpoints.read_lines(path, files) == ["0 0", "1 9", "4 12"]


def test_synced_records_have_the_id_of_their_topic_and_a_name_for_each_file(files: MemoryFiles) -> None:
    log = open_log(files)
    checkpoints.write_partition_metadata(PATH, UUID(int=9), files, sync=False)
    append(log, b"0")
    log.flush()
    copy = deepcopy(files)
    copy.power_cut()
    assert checkpoints.read_partition_metadata(PATH, copy) == UUID(int=9)
    before = files.list(PATH)
    log.close()
    names = files.list(PATH)
    assert set(names) > set(before), "a close writes the indexes"
    files.power_cut()
    files.sync_dir(PATH)
    assert files.list(PATH) == names


def test_an_old_mark_of_the_metadata_log_is_no_fault(files: MemoryFiles) -> None:
    _, catalog = begin(files)
    for number in range(4):
        create(catalog, number)
    mark = files.data[HOME / "new" / "broker" / metadata_mark.FILE]
    files.power_cut()
    directory, catalog = begin(files)
    assert len(list(catalog.catalog.topics())) == 4
    assert catalog.log.synced_end == catalog.log.end_offset
    assert directory.cluster_id.encode() in bytes(mark)
