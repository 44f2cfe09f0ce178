"""Records of the metadata log that this release does not read, and the control records that it reads."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import pytest
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.catalog_repair import RepairPlan
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog import control_records
from odradek.catalog.control_records import KRaftVersion, KRaftVoters, LeaderChange, SnapshotFooter, SnapshotHeader
from odradek.catalog.records import NEWEST_VERSIONS, PARTITION, TOPIC, UnsupportedRecord, decode
from odradek.catalog.state import CreateTopic
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import StorageError

HOME = Path("/data")
LOG = HOME / DIRECTORY / "00000000000000000000.log"
T0 = 1_700_000_000_000
REGISTER_CONTROLLER = b"\x01\x1b\x00" + bytes(20)


def key(kind: int) -> bytes:
    return struct.pack(">hh", 0, kind)


def leader_change(leader: int, *voters: int) -> bytes:
    """Version 1: the voters with their directory ids, and those that have voted."""
    rows = b"".join(struct.pack(">i", voter) + bytes(16) + b"\0" for voter in voters)
    array = bytes([len(voters) + 1]) + rows
    return struct.pack(">hi", 1, leader) + array + array + b"\0"


class Directory:
    """A data directory whose metadata log gets records that a broker did not make."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        catalog = self.start()
        catalog.apply(CreateTopic("flights", UUID(int=1), 1, 1))
        self.stop()

    def start(self) -> StoredCatalog:
        self.directory = LogDirectory(HOME, lambda: T0, self.files)
        self.directory.acquire(BrokerConfig())
        try:
            self.catalog = self.directory.open_catalog()
        except BaseException:
            self.directory.lock.release()
            raise
        return self.catalog

    def stop(self) -> None:
        self.catalog.close()
        self.directory.lock.release()

    def append(self, record: SimpleRecord, *, control: bool = False, epoch: int = 0) -> int:
        """Returns the offset of the record."""
        log = self.start().log
        data = encode_batch([record], now_ms=T0, control=control)
        offset = log.records.append(data, now_ms=T0, leader_epoch=epoch, origin="coordinator").base_offset
        log.sync()
        log.note_synced()
        self.stop()
        return offset

    def refusal(self) -> str:
        """The line that ends a start, which has changed no file."""
        before = {path: bytes(data) for path, data in self.files.data.items() if path.name != ".lock"}
        with pytest.raises(StorageError) as refused:
            self.start()
        assert {path: bytes(data) for path, data in self.files.data.items() if path.name != ".lock"} == before
        assert "\n" not in str(refused.value)
        return str(refused.value)


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (REGISTER_CONTROLLER, "a record of type 27 (RegisterController, version 0)"),
        (b"\x01\x63\x02abc", "a record of type 99 (unknown, version 2)"),
        (bytes((1, TOPIC, 1)) + b"\x02t" + bytes(17), "a record of type 2 (Topic, version 1)"),
        (bytes((1, PARTITION, 3)) + bytes(40), "a record of type 3 (Partition, version 3)"),
    ],
)
def test_a_record_of_a_later_release_ends_the_start(directory: Directory, value: bytes, described: str) -> None:
    offset = directory.append(SimpleRecord(b"", value, T0))
    line = directory.refusal()
    assert f"{LOG}, offset {offset}: {described}, which this release does not read" in line
    assert "Apache Kafka" in line
    assert "odradek metadata repair --data-dir /data" in line


def test_such_a_record_in_a_snapshot_ends_the_start(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.catalog.image import CatalogImage

    values = CatalogImage.values
    monkeypatch.setattr(CatalogImage, "values", lambda image: iter([*values(image), REGISTER_CONTROLLER]))
    catalog = directory.start()
    finish(catalog.log.begin_snapshot(catalog.catalog.state, lambda job: Deferred.of(job())))
    (snapshot,) = catalog.log.snapshots
    directory.stop()
    monkeypatch.undo()
    line = directory.refusal()
    assert f"{snapshot.path}, record " in line
    assert "a record of type 27 (RegisterController, version 0)" in line


def test_a_repair_leaves_such_records_out(directory: Directory) -> None:
    from odradek.broker.metadata_log.diagnosis import Diagnosis, findings

    directory.append(SimpleRecord(b"", REGISTER_CONTROLLER, T0))
    diagnosis = Diagnosis(HOME, directory.files)
    assert any("type 27 (RegisterController, version 0)" in line for line in findings(diagnosis))
    plan = RepairPlan(diagnosis, T0)
    assert any("retention.ms=-1" in step for step in plan.steps), "the record may have been a setting"
    plan.carry_out()
    assert directory.start().catalog.topic("flights") is not None
    directory.stop()


# --- control records --------------------------------------------------------------------------------------------


def test_a_later_epoch_without_a_change_of_the_leader_is_a_fault(directory: Directory) -> None:
    """No checksum covers the epoch: a flipped bit is found because no control record has begun the epoch."""
    directory.files.data[LOG][15] ^= 4
    assert "the batch has the leader epoch 4 after 0" in directory.refusal()


@pytest.mark.parametrize("voters", [(1, 2, 3), (2,)])
def test_the_log_of_a_quorum_of_other_nodes_is_refused(directory: Directory, voters: tuple[int, ...]) -> None:
    offset = directory.append(SimpleRecord(key(2), leader_change(voters[-1], *voters)), control=True, epoch=1)
    line = directory.refusal()
    assert f"{LOG}, offset {offset}: the log belongs to a quorum of the nodes {', '.join(map(str, voters))}" in line
    assert "Apache Kafka" in line


KRAFT_1 = struct.pack(">hh", 0, 1) + b"\0"
VOTERS = struct.pack(">h", 0) + b"\x02" + struct.pack(">i", 1) + bytes(16) + b"\1" + struct.pack(">hh", 0, 1) + b"\0\0"


@pytest.mark.parametrize(
    ("kind", "value", "described"),
    [
        (5, KRAFT_1, "kraft.version 1"),
        (6, VOTERS, "kraft.version 1"),
        (7, b"\0\0", "a control record of type 7 (unknown, version 0)"),
        (2, b"\0\2" + bytes(9), "a control record of type 2 (LeaderChange, version 2)"),
    ],
)
def test_other_control_records_are_read_or_named(directory: Directory, kind: int, value: bytes, described: str) -> None:
    offset = directory.append(SimpleRecord(key(kind), value), control=True)
    line = directory.refusal()
    assert f"{LOG}, offset {offset}: " in line
    assert described in line


def test_the_level_0_of_kraft_version_changes_nothing(directory: Directory) -> None:
    directory.append(SimpleRecord(key(5), struct.pack(">hh", 0, 0) + b"\0"), control=True)
    assert directory.start().catalog.topic("flights") is not None
    directory.stop()


def test_control_records_have_kafkas_bytes() -> None:
    read = control_records.read
    assert read(key(2), leader_change(3, 1, 2, 3)) == LeaderChange(3, (1, 2, 3), (1, 2, 3))
    version_0 = struct.pack(">hi", 0, 7) + b"\x02" + struct.pack(">i", 7) + b"\0" + b"\x01" + b"\0"
    assert read(key(2), version_0) == LeaderChange(7, (7,))
    assert control_records.pack_leader_change(LeaderChange(7, (7,))) == (key(2), version_0)
    of_kafka = bytes.fromhex("00000000000102000000010002000000010000")
    assert control_records.pack_leader_change(LeaderChange(1, (1,), (1,))) == (key(2), of_kafka)
    assert read(key(3), struct.pack(">hqB", 0, T0, 0)) == SnapshotHeader(T0)
    assert read(key(4), b"\0\0\0") == SnapshotFooter()
    assert read(key(5), KRAFT_1) == KRaftVersion(1)
    assert read(key(6), VOTERS) == KRaftVoters((1,))
    for cut in range(len(version_0) - 2):
        with pytest.raises(ValueError, match=r"truncated|unknown"):
            read(key(2), version_0[:cut])


def test_each_type_that_is_read_has_a_newest_version() -> None:
    for kind, newest in NEWEST_VERSIONS.items():
        with pytest.raises(UnsupportedRecord, match=rf"type {kind} \(\w+, version {newest + 1}\)"):
            decode(bytes((1, kind, newest + 1)) + bytes(60), lambda data: UUID(bytes=data))
