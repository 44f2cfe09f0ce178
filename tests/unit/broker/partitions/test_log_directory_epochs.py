"""A partition begins a new leader epoch at a broker start if records may have been lost.

This shows behaviour 52 for the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from support.catalogs import lone_quorum, written

from odradek.batches.encode import encode_batch
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.lone_broker import BeginEpochs, RaiseEpochs
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.diagnosis import Diagnosis
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.replay import DamagedMetadata
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.partition import Partition
from odradek.broker.publishers.logs import PartitionLogs
from odradek.broker.repair.catalog_repair import RepairPlan
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CatalogRequest, CreateTopic
from odradek.core.effects import SimpleRecord
from odradek.storage.disk.files import OsFiles

NOW_MS = 1_700_000_000_000
EPOCHS = "leader-epoch-checkpoint"


class Broker:
    """The steps of a broker with its directory at the start and at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.catalog: StoredCatalog

    @contextmanager
    def run(self, *, clean: bool = False) -> Iterator[list[Partition]]:
        """Yields the partitions of topic ``t``. At the end the broker stops cleanly or is killed."""
        directory = LogDirectory(self.path, lambda: NOW_MS)
        directory.acquire(BrokerConfig())
        try:
            catalog = self.catalog = directory.open_catalog()
        except DamagedMetadata:
            directory.abandon()
            raise
        logs = PartitionLogs(directory, BrokerConfig(), lambda: catalog.apply(BeginEpochs()), lone_quorum(catalog))
        loader = MetadataLoader(catalog.catalog, [logs, catalog.catalog])
        loader.load()

        def commit(request: CatalogRequest) -> None:
            change = Change(catalog.catalog.state)
            finish(change.add(request))
            finish(loader.commit(written(catalog, change), change.records))

        if lost := directory.opener.lost_epochs():
            commit(RaiseEpochs(lost))
        if catalog.catalog.topic("t") is None:
            commit(CreateTopic("t", UUID(int=1), 2, 1))
        try:
            yield [partition for _, partition in sorted(directory.partitions.items())]
        finally:
            if clean:
                self.catalog.close()
                directory.close()
            else:
                directory.abandon()

    def log_file(self, directory: str) -> Path:
        return self.path / directory / "00000000000000000000.log"

    def lose_end(self, directory: str, size: int = 1) -> None:
        path = max(self.log_file(directory).parent.glob("*.log"))
        path.write_bytes(path.read_bytes()[:-size])


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def append(partition: Partition, count: int = 1) -> None:
    for _ in range(count):
        partition.append(encode_batch([SimpleRecord(b"k", b"v", NOW_MS)], now_ms=NOW_MS))


def epochs(partition: Partition) -> tuple[tuple[int, int], ...]:
    assert partition.leader_epoch == partition.log.epochs.latest
    return tuple((entry.epoch, entry.start_offset) for entry in partition.log.epochs.entries)


def test_a_new_epoch_begins_after_each_unclean_stop_only(broker: Broker) -> None:
    with broker.run() as (one, other):
        append(one, 3)
        assert (epochs(one), epochs(other)) == (((0, 0),), ((0, 0),))
    with broker.run() as (one, other):  # after a kill; the broker is killed again before a write
        assert (epochs(one), epochs(other)) == (((0, 0), (1, 3)), ((1, 0),))
    with broker.run(clean=True) as (one, other):
        append(one)
        assert (epochs(one), epochs(other)) == (((0, 0), (2, 3)), ((2, 0),))
        records = broker.catalog.log.end_offset
    for _ in range(2):
        with broker.run(clean=True) as (one, other):
            assert (epochs(one), epochs(other)) == (((0, 0), (2, 3)), ((2, 0),))
            assert broker.catalog.log.end_offset == records
            assert one.log.epoch_end_offset(0) == (0, 3)


def test_a_damaged_log_after_a_clean_stop_begins_a_new_epoch(broker: Broker) -> None:
    with broker.run(clean=True) as (one, other):
        append(one, 5)
        append(other, 5)
    broker.lose_end("t-0")
    shutil.rmtree(broker.path / "t-1")
    with broker.run(clean=True) as (one, other):
        append(one)
        assert epochs(one) == ((0, 0), (1, 4))
        assert epochs(other) == ((1, 0),)
    with broker.run(clean=True) as (one, other):
        assert (epochs(one), epochs(other)) == (((0, 0), (1, 4)), ((1, 0),))


@pytest.mark.parametrize("clean", [True, False])
def test_a_catalogue_that_lost_records_gets_the_newer_epochs(broker: Broker, clean: bool) -> None:
    """Each start after a kill begins a leader epoch, with a record in the metadata log. This log loses its end, and
    is repaired, before each of the last two starts."""
    for _ in range(2):
        with broker.run() as (one, _):
            append(one, 2)
    with broker.run(clean=clean) as (one, _):
        append(one, 2)
        assert epochs(one) == ((0, 0), (1, 2), (2, 4))
    for lost in (1, 2):
        broker.lose_end(DIRECTORY)
        with pytest.raises(DamagedMetadata), broker.run():
            pass
        RepairPlan(Diagnosis(broker.path, OsFiles()), NOW_MS).carry_out()
        with broker.run(clean=clean) as (one, _):
            append(one, 1)
            # Three leader epochs, then one for each start at which the catalogue lacked the latest epoch.
            assert epochs(one) == ((0, 0), (1, 2), (2, 4), *[(3 + n, 6 + n) for n in range(lost)])


@pytest.mark.parametrize("content", [b"", b"\0" * 12, b"0\n3\n0 0\n", b"0\n1\nx 0\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_checkpoint_is_rebuilt_from_the_batches(broker: Broker, content: bytes, clean: bool) -> None:
    for number in range(3):
        with broker.run(clean=clean and number == 2) as (one, _):
            append(one, 2)
            if number == 1:
                one.log.flush()
    (broker.path / "t-0" / EPOCHS).write_bytes(content)
    with broker.run() as (one, _):
        assert not one.failure
        assert epochs(one) == ((0, 0), (1, 2), (2, 4), *([] if clean else [(3, 6)]))
        assert one.log.log_end_offset == 6
    assert (broker.path / "t-0" / EPOCHS).read_text().startswith("0\n")


def test_the_checkpoint_is_on_disk_before_the_recovery_point_moves(broker: Broker, tmp_path: Path) -> None:
    """A killed broker left the checkpoint unsynced. The next broker must sync it, even if it stays the same."""
    with broker.run() as (one, _):
        append(one, 2)
    with broker.run(clean=True):
        pass
    with broker.run() as (one, _):
        synced: list[Path] = []
        write = one.log.epochs.files.write
        one.log.epochs.files.write = lambda path, data, *, sync=True: (
            synced.append(path) if sync else None, write(path, data, sync=sync)
        )[1]  # fmt: skip
        append(one)
        one.log.flush()
        assert synced == [tmp_path / "t-0" / EPOCHS]
        append(one)
        one.log.flush()
        assert len(synced) == 1


def logged(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == level]
    caplog.clear()
    return [line for line in found if "indexes are rebuilt" not in line]


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_directory_is_one_line(broker: Broker, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its records were never synced, so no checkpoint knows them after a kill."""
    with broker.run(clean=clean) as (first, second):
        append(first)
        append(second)
    shutil.rmtree(broker.path / "t-0")
    with broker.run() as (first, second):
        assert (first.log.log_end_offset, second.log.log_end_offset) == (0, 1)
        assert first.leader_epoch == 1
    (line,) = logged(caplog, "ERROR")
    assert line.startswith("t-0: ")
    assert "lost" in line
    assert "restore" in line


def test_a_missing_directory_after_a_clean_stop_is_a_line_although_the_recovery_points_are_lost(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with broker.run(clean=True) as (first, second):
        append(first)
    shutil.rmtree(broker.path / "t-0")
    shutil.rmtree(broker.path / "t-1")
    (broker.path / "recovery-point-offset-checkpoint").unlink()
    with broker.run() as (first, second):
        assert (first.log.log_end_offset, second.log.log_end_offset) == (0, 0)
    assert [line[:5] for line in logged(caplog, "ERROR")] == ["t-0: ", "t-1: "]


def test_an_empty_log_needs_no_directory_after_a_clean_stop(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with broker.run(clean=True) as (first, _):
        append(first)
    shutil.rmtree(broker.path / "t-1")
    with broker.run():
        pass
    assert not logged(caplog, "ERROR")


def test_a_creation_that_a_crash_interrupts_is_a_warning_until_another_change(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for kills in range(3):
        with broker.run():
            pass
        shutil.rmtree(broker.path / "t-1")
        caplog.clear()
        with broker.run():
            pass
        assert "ERROR" not in caplog.text
        assert [line[:5] for line in logged(caplog, "WARNING")] == ["t-1: "], kills
    with broker.run():
        broker.catalog.apply(CreateTopic("u", UUID(int=2), 1, 1))
    shutil.rmtree(broker.path / "t-1")
    caplog.clear()
    with broker.run():
        pass
    assert [line[:5] for line in logged(caplog, "ERROR")] == ["t-1: "]
