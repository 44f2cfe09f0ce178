"""Directories that the catalogue does not know: deleted for a record of their removal, or set aside and restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.catalogs import changed, lone_quorum, written
from support.memory_files import Crash, MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.lone_broker import BeginEpochs
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.check import METADATA_PARTITION
from odradek.broker.metadata_log.diagnosis import Diagnosis
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.replay import DamagedMetadata
from odradek.broker.metadata_log.stray_logs import STRAY_DIRECTORY, renamed
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.publishers.logs import PartitionLogs
from odradek.broker.repair import strays as stray_restore
from odradek.broker.repair.catalog_repair import RepairPlan
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CatalogRequest, CreateTopic, DeleteTopic
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import TopicPartition
from odradek.storage.disk import checkpoints

HOME = Path("/data")
T0 = 1_700_000_000_000
FLIGHTS, GONE = UUID(int=1), UUID(int=2)


class Life:
    """A broker's directory from a start to a stop or a kill."""

    def __init__(self, files: MemoryFiles, quorum: Any = None) -> None:
        self.directory = LogDirectory(HOME, lambda: T0, files)
        self.directory.acquire(BrokerConfig())
        self.catalog: StoredCatalog = self.directory.open_catalog()
        begin_epochs = partial(self.catalog.apply, BeginEpochs())
        logs = PartitionLogs(self.directory, BrokerConfig(), begin_epochs, quorum or lone_quorum(self.catalog))
        self.loader = MetadataLoader(self.catalog.catalog, [logs, self.catalog.catalog])
        self.loader.load()

    def create(self, name: str, topic_id: UUID, partitions: int = 1) -> None:
        change = Change(self.catalog.catalog.state)
        finish(change.add(CreateTopic(name, topic_id, partitions, 1)))
        finish(self.loader.commit(written(self.catalog, change), change.records))

    def append(self, name: str, count: int) -> None:
        for number in range(count):
            batch = encode_batch([SimpleRecord(b"", b"v%d" % number)], now_ms=T0)
            self.directory.partitions[name, 0].log.append(batch, now_ms=T0, leader_epoch=0)

    def end(self, name: str) -> int:
        return self.directory.partitions[name, 0].log.log_end_offset

    def start_offset(self, name: str) -> int:
        return self.directory.partitions[name, 0].log.log_start_offset

    def kill(self) -> None:
        self.directory.abandon()

    def stop(self) -> None:
        self.catalog.close()
        self.directory.close()


def names(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(HOME) if "." not in name[:1] and name != DIRECTORY and "-0" in name]


def older_metadata(files: MemoryFiles) -> dict[Path, bytes]:
    paths = [path for path in files.data if DIRECTORY in path.parts or path.name == "metadata-recovery-point"]
    return {path: bytes(files.data[path]) for path in paths}


def put_back(files: MemoryFiles, kept: dict[Path, bytes]) -> None:
    for path in older_metadata(files):
        files.remove(path)
    for path, data in kept.items():
        files.data[path] = bytearray(data)
        files.modified[path] = T0


def forget_end(files: MemoryFiles) -> None:
    """Removes the end of the metadata log from the checkpoint, as an older copy of all files has not this end."""
    points = checkpoints.read_offsets(HOME / checkpoints.RECOVERY_POINT, files)
    points.pop(METADATA_PARTITION, None)
    checkpoints.write_offsets(HOME / checkpoints.RECOVERY_POINT, points, files)


def with_stray(*, clean: bool, is_noted: bool = False) -> MemoryFiles:
    """A directory with 7 records of ``flights``, whose catalogue is an older copy from before its creation.

    ``is_noted``: the checkpoint of recovery points is no older copy.
    """
    files = MemoryFiles()
    life = Life(files)
    life.create("other", UUID(int=8))
    kept = older_metadata(files)
    life.create("flights", FLIGHTS, 2)
    life.append("flights", 7)
    life.directory.partitions["flights", 0].log.removals.delete_before(3)
    life.directory.upkeep.checkpoint_log_starts()
    life.directory.upkeep.checkpoint_recovery_points()
    if clean:
        life.stop()
    else:
        life.kill()
    put_back(files, kept)
    if not is_noted:
        forget_end(files)
    return files


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_metadata_log_with_its_mark_stops_the_start_until_a_repair(clean: bool) -> None:
    files = with_stray(clean=clean, is_noted=True)
    before = {path: bytes(data) for path, data in files.data.items()}
    directory = LogDirectory(HOME, lambda: T0, files)
    directory.acquire(BrokerConfig())
    with pytest.raises(DamagedMetadata, match=r"as recovery-point-offset-checkpoint says.*topics flights.*repair"):
        directory.open_catalog()
    directory.abandon()
    assert {path: bytes(data) for path, data in files.data.items()} == before
    RepairPlan(Diagnosis(HOME, files), T0).carry_out()
    life = Life(files)
    assert (life.start_offset("flights"), life.end("flights")) == (3, 7)
    life.create("new", UUID(int=11))
    life.stop()
    life = Life(files)
    assert life.end("flights") == 7
    life.kill()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_id_of_a_partition_is_corrected(bit: int, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    life = Life(files)
    life.create("flights", FLIGHTS)
    life.append("flights", 7)
    life.stop()
    path = HOME / "flights-0" / checkpoints.PARTITION_METADATA
    content = bytes(files.data[path])
    wrong = UUID(int=FLIGHTS.int ^ 1 << 40 + bit)
    files.write(
        path, content.replace(checkpoints.encode_uuid(FLIGHTS).encode(), checkpoints.encode_uuid(wrong).encode())
    )
    life = Life(files)
    assert life.end("flights") == 7
    life.stop()
    assert files.read(path) == content
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"the topic id in {path} was damaged and is written again"
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_that_an_older_catalogue_lacks_is_set_aside_and_restored(
    clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = with_stray(clean=clean)
    life = Life(files)
    strays = [name for name in files.list(HOME) if STRAY_DIRECTORY.fullmatch(name)]
    assert len(strays) == 2
    assert caplog.text.count("odradek metadata strays --data-dir /data") == 1
    life.create("new", UUID(int=11))
    life.stop()
    listed = stray_restore.stray_logs(HOME, files)
    assert [(stray.topic, stray.partition, stray.topic_id, stray.start, stray.end) for stray in listed] == [
        ("flights", 0, FLIGHTS, 3, 7),
        ("flights", 1, FLIGHTS, 0, 0),
    ]
    assert listed[0].size > 0
    life = Life(files)
    life.stop()
    assert [stray.directory for stray in stray_restore.stray_logs(HOME, files)] == strays, "another start keeps them"
    lines = restored(files, "flights")
    assert "retention.ms=-1" in " ".join(lines)
    life = Life(files)
    assert (life.start_offset("flights"), life.end("flights")) == (3, 7)
    assert life.catalog.catalog.topic_configs("flights") == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert life.end("new") == 0
    life.append("flights", 1)
    life.kill()
    assert not stray_restore.stray_logs(HOME, files)


def restored(files: MemoryFiles, name: str, new_name: str = "", *, replace: bool = False) -> list[str]:
    directory = LogDirectory(HOME, lambda: T0, files)
    try:
        return stray_restore.restore(
            HOME, name, new_name=new_name, replace=replace, directory=directory, agrees=lambda: True
        )
    finally:
        directory.lock.release()


def test_a_stray_whose_name_is_in_use_needs_another_name_or_an_exchange() -> None:
    files = with_stray(clean=True)
    life = Life(files)
    life.create("flights", UUID(int=12))
    life.append("flights", 2)
    life.stop()
    with pytest.raises(StorageError, match=r"--as NAME.*--replace"):
        restored(files, "flights")
    restored(files, "flights", "flights-of-monday")
    life = Life(files)
    assert (life.end("flights-of-monday"), life.end("flights")) == (7, 2)
    life.stop()

    files = with_stray(clean=True)
    life = Life(files)
    life.create("flights", UUID(int=12))
    life.append("flights", 2)
    life.stop()
    restored(files, "flights", replace=True)
    life = Life(files)
    assert life.end("flights") == 7
    life.stop()
    (exchanged,) = stray_restore.stray_logs(HOME, files)
    assert (exchanged.topic_id, exchanged.end) == (UUID(int=12), 2)
    restored(files, exchanged.directory, "again")
    life = Life(files)
    assert life.end("again") == 2
    life.stop()


def test_the_offsets_topic_comes_back_compacted() -> None:
    files = MemoryFiles()
    life = Life(files)
    life.create("other", UUID(int=8))
    kept = older_metadata(files)
    life.create("__consumer_offsets", FLIGHTS)
    life.append("__consumer_offsets", 3)
    life.kill()
    put_back(files, kept)
    Life(files).kill()
    restored(files, "__consumer_offsets")
    life = Life(files)
    assert life.end("__consumer_offsets") == 3
    assert life.catalog.catalog.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"


def interrupted_deletion(*, snapshot: bool) -> MemoryFiles:
    """The record of the removal is synced, and a kill comes before the directories are renamed."""
    files = MemoryFiles()
    life = Life(files)
    life.create("gone", GONE, 2)
    life.append("gone", 3)
    life.create("flights", FLIGHTS)
    life.append("flights", 1)
    life.catalog.apply(DeleteTopic(GONE))
    if snapshot:
        finish(life.catalog.log.begin_snapshot(life.catalog.catalog.state, lambda job: Deferred.of(job())))
    life.kill()
    return files


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_deletion_that_a_kill_interrupts_is_completed_for_its_record(snapshot: bool) -> None:
    files = interrupted_deletion(snapshot=snapshot)
    life = Life(files)
    assert names(files) == ["flights-0"]
    assert life.end("flights") == 1
    life.kill()


def test_a_deletion_at_the_start_can_be_interrupted_as_well() -> None:
    for steps in range(60):
        files = interrupted_deletion(snapshot=False)
        files.crash_after(steps)
        try:
            life = Life(files)
        except Crash:
            files.crash()
            life = Life(files)
            assert names(files) == ["flights-0"], steps
            life.kill()
        else:
            return
    pytest.fail("a start with a deletion has more than 60 steps")


def test_a_copy_of_a_directory_under_another_name_is_not_deleted_with_its_topic() -> None:
    files = interrupted_deletion(snapshot=False)
    for path in [path for path in files.data if "gone-0" in path.parts]:
        files.write(HOME / "gone-backup-0" / path.name, bytes(files.data[path]))
    Life(files).kill()
    (stray,) = stray_restore.stray_logs(HOME, files)
    assert (stray.topic, stray.end) == ("gone-backup", 3)


def test_a_directory_without_its_partition_metadata_is_set_aside() -> None:
    """Otherwise the next topic with this name would begin with its records."""
    files = with_stray(clean=True)
    files.remove(HOME / "flights-0" / "partition.metadata")
    life = Life(files)
    life.create("flights", UUID(int=12))
    assert life.end("flights") == 0
    life.kill()
    listed = stray_restore.stray_logs(HOME, files)
    assert [(stray.topic_id, stray.end) for stray in listed if not stray.partition] == [(None, 7)]


def test_a_partition_beyond_the_count_in_the_catalogue_is_set_aside() -> None:
    files = MemoryFiles()
    life = Life(files)
    life.create("flights", FLIGHTS)
    life.append("flights", 4)
    life.kill()
    for path in [path for path in files.data if "flights-0" in path.parts]:
        files.write(HOME / "flights-1" / path.name, bytes(files.data[path]))
    Life(files).kill()
    (stray,) = stray_restore.stray_logs(HOME, files)
    assert (stray.topic, stray.partition, stray.end) == ("flights", 1, 4)


def test_a_directory_marked_for_deletion_stays_if_the_catalogue_has_its_topic() -> None:
    """The catalogue is an older copy, from before the deletion."""
    files = MemoryFiles()
    life = Life(files)
    life.create("flights", FLIGHTS)
    life.append("flights", 4)
    kept = older_metadata(files)
    change = changed(life.catalog, DeleteTopic(FLIGHTS))
    assert change.records
    life.kill()
    files.rename(HOME / "flights-0", HOME / renamed(TopicPartition("flights", 0), "-delete"))
    put_back(files, kept)
    Life(files).kill()
    (stray,) = stray_restore.stray_logs(HOME, files)
    assert (stray.topic, stray.end) == ("flights", 4)


def test_long_names_are_cut_before_the_partition_and_kept_in_the_directory() -> None:
    name = "x" * 249
    for suffix in ("-delete", "-stray"):
        assert len(renamed(TopicPartition(name, 12345), suffix)) == 255
        assert "-12345." in renamed(TopicPartition(name, 12345), suffix)
    files = MemoryFiles()
    life = Life(files)
    life.create("other", UUID(int=8))
    kept = older_metadata(files)
    life.create(name, FLIGHTS)
    life.append(name, 2)
    life.kill()
    put_back(files, kept)
    Life(files).kill()
    (stray,) = stray_restore.stray_logs(HOME, files)
    assert stray.topic == name
    restored(files, name)
    assert Life(files).end(name) == 2


def kept_ends(files: MemoryFiles, life: Life) -> dict[UUID, int]:
    """The end of partition 0 of each topic, by its id: of its log, or of its directory that was set aside."""
    ends = {topic.id: life.end(topic.name) for topic in life.catalog.catalog.topics() if isinstance(topic.id, UUID)}
    for stray in stray_restore.stray_logs(HOME, files):
        if stray.topic_id is not None and not stray.partition:
            ends[stray.topic_id] = max(stray.end, ends.get(stray.topic_id, 0))
    return ends


def exchanged_twice(files: MemoryFiles) -> None:
    """Restores ``flights`` in exchange for a topic of this name, and then that topic in exchange for ``flights``."""
    (stray,) = (one for one in stray_restore.stray_logs(HOME, files) if one.topic_id == UUID(int=12))
    restored(files, stray.directory, replace=True)


def before_the_exchange() -> MemoryFiles:
    files = with_stray(clean=True)
    life = Life(files)
    life.create("flights", UUID(int=12))
    life.append("flights", 2)
    life.stop()
    restored(files, "flights", replace=True)
    return files


def test_a_restore_that_a_crash_interrupts_loses_nothing() -> None:
    """The id of the restored directories is in a RemoveTopic record, which the earlier exchange has written."""
    for steps in range(120):
        files = before_the_exchange()
        files.crash_after(steps)
        try:
            exchanged_twice(files)
        except Crash:
            files.crash()
            life = Life(files)
            assert kept_ends(files, life) | {UUID(int=8): 0} == {FLIGHTS: 7, UUID(int=12): 2, UUID(int=8): 0}, steps
            life.kill()
        else:
            break
    else:
        pytest.fail("a restore has more than 120 steps")
    files.crash()
    life = Life(files)
    assert life.end("flights") == 2
    life.stop()
    Life(files).stop()
    assert not [path for path in files.data if path.parts[2] == "flights-0" and path.name == checkpoints.LOG_START]


def test_a_restore_without_room_for_its_records_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    files = before_the_exchange()

    def apply(self: StoredCatalog, request: CatalogRequest) -> None:
        if isinstance(request, CreateTopic):
            raise KafkaError(ErrorCode.kafka_storage_error, "no space left on device")
        whole(self, request)

    whole = StoredCatalog.apply
    with monkeypatch.context() as patch:
        patch.setattr(StoredCatalog, "apply", apply)
        with pytest.raises(StorageError, match=r"cannot be restored: no space left"):
            exchanged_twice(files)
    life = Life(files)
    assert kept_ends(files, life)[UUID(int=12)] == 2
    life.stop()
    exchanged_twice(files)
    life = Life(files)
    assert life.end("flights") == 2
    life.stop()


def test_a_copy_whose_number_is_written_in_another_way_is_left_alone() -> None:
    files = with_stray(clean=True)
    for copy in ("flights-00", "other-00"):
        for path in [path for path in files.data if "flights-0" in path.parts]:
            files.write(HOME / copy / path.name, bytes(files.data[path]))
    Life(files).stop()
    assert len(stray_restore.stray_logs(HOME, files)) == 2
    assert {"flights-00", "other-00"} <= set(files.list(HOME))
