"""The small files of a log directory, the indexes, and both implementations of files."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_files import Crash, MemoryFiles
from support.whole_steps import decode_snapshot

from odradek.batches.steps import finish
from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.states import (
    BatchMetadata,
    ProducerState,
    SnapshotCorrupt,
    encode_snapshot,
)
from odradek.storage.segments.index import IndexCorrupt, OffsetIndex, TimeIndex

KAFKAS = Path(__file__).parents[2] / "data" / "kafka-log-0"


@pytest.fixture(params=["os", "memory"])
def files(request: pytest.FixtureRequest) -> Files:
    return OsFiles() if request.param == "os" else MemoryFiles()


# file systems


def test_files_on_disk_and_in_memory_behave_the_same(files: Files, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b-0"
    files.make_dirs(directory)
    assert files.exists(directory)
    assert files.list(directory) == []
    path = directory / "one"
    with pytest.raises(FileNotFoundError):
        files.open(path)
    file = files.open(path, create=True)
    file.append([b"abc", memoryview(b"def"), bytearray(b"gh")])
    assert (file.size, file.pread(2, 3), file.pread(6, 100)) == (8, b"cde", b"gh")
    file.truncate(4)
    file.append([b"!"])
    file.sync()
    assert (file.size, files.size(path), files.read(path), bytes(files.view(path))) == (5, 5, b"abcd!", b"abcd!")
    file.close()
    files.write(path, b"new")
    assert files.read(path) == b"new"
    files.rename(path, directory / "two")
    assert files.list(directory) == ["two"]
    with pytest.raises(OSError, match="not empty"):
        files.remove(directory)
    files.remove(directory / "two")
    files.remove(directory / "two")
    files.remove(directory)
    assert not files.exists(directory)
    assert files.list(directory) == []


def test_an_empty_file_can_be_viewed(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    files.open(tmp_path / "empty", create=True).close()
    assert bytes(files.view(tmp_path / "empty")) == b""


def test_a_directory_can_be_locked_only_once(files: Files, tmp_path: Path) -> None:
    lock = files.lock(tmp_path / ".lock")
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / ".lock")
    lock.release()
    files.lock(tmp_path / ".lock").release()


def test_memory_files_fail_on_demand() -> None:
    files = MemoryFiles()
    file = files.open(Path("/x"), create=True)
    files.free_bytes = 5
    file.append([b"1234"])
    with pytest.raises(OSError, match="No space") as caught:
        file.append([b"5678"])
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(0, 10) == b"12345"
    files.free_bytes = None
    files.tear_after(2)
    with pytest.raises(Crash):
        file.append([b"abcd"])
    assert files.read(Path("/x")) == b"12345ab"
    files.fail_read = lambda path: True
    with pytest.raises(OSError, match="Input/output") as caught:
        file.pread(0, 1)
    assert caught.value.errno == errno.EIO


# checkpoints


def test_offset_checkpoints_have_kafkas_format(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    path = tmp_path / checkpoints.RECOVERY_POINT
    assert checkpoints.read_offsets(path, files) == {}
    offsets = {TopicPartition("flights", 3): 17, TopicPartition("__consumer_offsets", 49): 0}
    checkpoints.write_offsets(path, offsets, files)
    assert files.read(path) == b"0\n2\nflights 3 17\n__consumer_offsets 49 0\n"
    assert checkpoints.read_offsets(path, files) == offsets
    files.write(path, b"")  # Kafka leaves a new file empty
    assert checkpoints.read_offsets(path, files) == {}


@pytest.mark.parametrize(
    "text", [b"1\n0\n", b"0\n", b"x\ny\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na b 1\n", b"\xff\xfe"]
)
def test_errors_name_damaged_checkpoints(files: Files, tmp_path: Path, text: bytes) -> None:
    files.make_dirs(tmp_path)
    path = tmp_path / checkpoints.LOG_START
    files.write(path, text)
    with pytest.raises(StorageError, match=checkpoints.LOG_START):
        checkpoints.read_offsets(path, files)


def test_the_clean_shutdown_marker_is_written_read_and_removed(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    assert not checkpoints.read_clean_shutdown(tmp_path, files)
    checkpoints.write_clean_shutdown(tmp_path, files)
    assert files.read(tmp_path / ".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
    assert checkpoints.read_clean_shutdown(tmp_path, files)
    checkpoints.remove_clean_shutdown(tmp_path, files)
    assert not checkpoints.read_clean_shutdown(tmp_path, files)


def test_partition_metadata_has_kafkas_format(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    assert checkpoints.read_partition_metadata(tmp_path, files) is None
    topic_id = checkpoints.read_partition_metadata(KAFKAS, OsFiles())
    assert topic_id is not None
    checkpoints.write_partition_metadata(tmp_path, topic_id, files)
    assert files.read(tmp_path / "partition.metadata") == (KAFKAS / "partition.metadata").read_bytes()
    for damaged in (b"version: 1\ntopic_id: x", b"topic_id: x", b"version: 0\ntopic_id: x!", b"\xff"):
        files.write(tmp_path / "partition.metadata", damaged)
        with pytest.raises(StorageError):
            checkpoints.read_partition_metadata(tmp_path, files)


@given(st.uuids())
def test_ids_have_kafkas_format(value: uuid.UUID) -> None:
    text = checkpoints.encode_uuid(value)
    assert len(text) == 22
    assert checkpoints.decode_uuid(text) == value


def test_meta_properties_are_written_and_read(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    assert checkpoints.read_meta_properties(tmp_path, files) == {}
    properties = {"node.id": "1", "version": "1", "cluster.id": "KMg6SI6xSwOpw-M0PYi9rQ"}
    checkpoints.write_meta_properties(tmp_path, properties, files)
    assert checkpoints.read_meta_properties(tmp_path, files) == properties
    files.write(tmp_path / "meta.properties", b"#\n#Fri Nov 20 23:15:02 UTC 2026\nnode.id=1\ndirectory.id=a-b_c\n")
    assert checkpoints.read_meta_properties(tmp_path, files) == {"node.id": "1", "directory.id": "a-b_c"}


# leader epochs


def test_epochs_are_stored_and_contradicting_entries_are_removed(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    epochs = LeaderEpochs(tmp_path, files)
    for epoch, start in ((1, 10), (1, 20), (4, 30), (6, 50)):
        epochs.assign(epoch, start)
    assert epochs.entries == ((1, 10), (4, 30), (6, 50))
    assert LeaderEpochs(tmp_path, files).entries == epochs.entries
    assert [epochs.epoch_of(offset) for offset in (9, 10, 29, 30, 99)] == [-1, 1, 1, 4, 6]
    epochs.assign(5, 40)
    assert epochs.entries == ((1, 10), (4, 30), (5, 40))
    epochs.truncate_from_start(35)
    assert epochs.entries == ((4, 35), (5, 40))
    epochs.truncate_from_end(40)
    assert LeaderEpochs(tmp_path, files).entries == ((4, 35),)


# indexes


def test_index_lookups_return_the_last_entry_at_or_before_the_target(files: Files, tmp_path: Path) -> None:
    files.make_dirs(tmp_path)
    index = OffsetIndex(tmp_path / "00000000000000000100.index", 100, files)
    times = TimeIndex(tmp_path / "00000000000000000100.timeindex", 100, files)
    for one in (index, times):
        one.begin()
    for number in range(1, 300):
        index.append(100 + number * 10, number * 500)
        times.append(number * 1000, 100 + number * 10)
    times.append(5, 9999)  # ignored, because it is not larger than the last entry
    for one in (index, times):
        one.save()
        one.seal()
    assert index.path.stat().st_size == 299 * 8 if isinstance(files, OsFiles) else True
    for asked in range(100, 3200, 7):
        slot = min((asked - 100) // 10, 299)
        assert index.lookup(asked) == ((100 + slot * 10, slot * 500) if slot else (100, 0))
    for asked in range(0, 310_000, 777):
        slot = min(asked // 1000, 299)
        assert times.lookup(asked) == ((slot * 1000, 100 + slot * 10) if slot else (-1, 100))
    index.truncate_to(150)
    times.truncate_to(150)
    assert (index.last, times.last) == ((140, 2000), (4000, 140))
    index.append(150, 2500)
    index.seal()
    assert index.entries == 5


@pytest.mark.parametrize("content", [b"\0" * 7, b"\0" * 16, b"\xff" * 8])
def test_impossible_offset_indexes_are_detected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(content)
    with pytest.raises(IndexCorrupt):
        OffsetIndex(path, 0, OsFiles()).check(10_000)


@pytest.mark.parametrize("content", [b"\0" * 11, b"\0" * 24, b"\xff" * 12])
def test_impossible_time_indexes_are_detected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000000000000000000.timeindex"
    path.write_bytes(content)
    with pytest.raises(IndexCorrupt):
        TimeIndex(path, 0, OsFiles()).check()


# producer snapshots


def test_kafkas_snapshot_is_read_and_written_back_byte_for_byte() -> None:
    for path in KAFKAS.glob("*.snapshot"):
        data = path.read_bytes()
        states = decode_snapshot(data)
        assert states
        assert encode_snapshot(states) == data, path.name


def test_snapshots_keep_five_batches(tmp_path: Path) -> None:
    state = ProducerState(3)
    for number in range(7):
        state.add(2, BatchMetadata(number * 10 + 9, number * 10 + 9, 9, 1000 + number))
    other = ProducerState(4)
    other.transaction_start = 55
    again = {found.producer_id: found for found in decode_snapshot(encode_snapshot([state, other]))}
    assert again[3].batches == state.batches
    assert [batch.first_sequence for batch in again[3].batches] == [20, 30, 40, 50, 60]
    assert (again[3].epoch, again[3].last_timestamp, again[4].transaction_start) == (2, 1006, 55)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "version"])
def test_damaged_snapshots_are_detected_and_skipped(files: Files, tmp_path: Path, damage: str) -> None:
    files.make_dirs(tmp_path)
    state = ProducerState(3)
    state.add(0, BatchMetadata(9, 9, 9, 1000))
    good = encode_snapshot([state])
    bad = {"empty": b"", "cut": good[:-3], "flipped": good[:-1] + bytes([good[-1] ^ 1]), "version": b"\0\2" + good[2:]}
    with pytest.raises(SnapshotCorrupt):
        decode_snapshot(bad[damage])
    files.write(tmp_path / f"{10:020d}.snapshot", good)
    files.write(tmp_path / f"{20:020d}.snapshot", bad[damage])
    files.write(tmp_path / f"{99:020d}.snapshot", good)
    producers = Producers(tmp_path, files)
    finish(producers.load(0, 50, 1000, 10_000))
    assert (producers.end_offset, [state.producer_id for state in producers]) == (10, [3])
    assert producers.snapshots() == [10]
