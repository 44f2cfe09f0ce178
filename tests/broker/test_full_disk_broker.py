"""A broker with files in memory whose disk fills up: the catalogue, topics, commits, the end after a failed sync."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from support.catalogs import changed, commit
from support.full_disk import FullDisk
from support.logs import T0, batch, put

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.partition import Partition
from odradek.catalog.state import CreateTopic, Topic
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.config import LogConfig

DATA = Path("/data")


def _catalog(files: FullDisk) -> StoredCatalog:
    return StoredCatalog.open(DATA, clean=False, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=files)


def _write(catalog: StoredCatalog, number: int) -> None:
    change = Change(catalog.catalog.state)
    finish(change.add(CreateTopic(f"t{number}", UUID(int=number), 1, 1)))
    commit(catalog, change)


def test_a_refused_change_of_the_catalogue_leaves_no_record() -> None:
    for step in range(100):
        files = FullDisk(T0)
        catalog = _catalog(files)
        files.fill_after(step)
        known: list[str] = []
        for number in range(1, 4):
            try:
                _write(catalog, number)
            except KafkaError as error:
                assert error.code is ErrorCode.kafka_storage_error  # noqa: PT017
                assert [topic.name for topic in catalog.catalog.topics()] == known
                assert [topic.name for topic in _copy(files).catalog.topics()] == known, (
                    "a kill finds no refused change"
                )
                files.make_room()
                _write(catalog, number)
            known.append(f"t{number}")
        assert [topic.name for topic in _copy(files).catalog.topics()] == known
        if not files.refused:
            assert step > 3
            return


def _copy(files: FullDisk) -> StoredCatalog:
    """The catalogue that a start after a kill would read, if there was room."""
    copy = FullDisk(T0)
    copy.data = {path: bytearray(data) for path, data in files.data.items()}
    copy.modified, copy.directories = dict(files.modified), set(files.directories)
    return _catalog(copy)


@pytest.fixture
def topic() -> Topic:
    catalog = _catalog(FullDisk(T0))
    changed(catalog, CreateTopic("t", UUID(int=1), 3, 1))
    made = catalog.catalog.topic("t")
    assert made is not None
    return made


def test_the_logs_of_a_topic_are_made_when_there_is_room(topic: Topic) -> None:
    for step in range(100):
        files = FullDisk(T0)
        directory = LogDirectory(DATA, lambda: T0, files)
        opened_later: list[Partition] = []
        directory.opener.on_opened = opened_later.append
        files.fill_after(step)
        directory.partitions.update(finish(directory.open_topic(topic, LogConfig())))
        partitions = list(directory.partitions.values())
        failed = [partition for partition in partitions if partition.failure]
        for partition in failed:
            with pytest.raises(KafkaError) as refused:
                partition.produce(batch(1))
            assert refused.value.code is ErrorCode.kafka_storage_error
        if failed:
            assert directory.failures.retry(), "the disk is still full"
            with pytest.raises(KafkaError):
                directory.check_room()
        files.make_room()
        assert not directory.failures.retry()
        assert {id(partition) for partition in opened_later} == {id(partition) for partition in failed}
        for partition in partitions:
            assert put(partition.log, batch(2)).base_offset == 0
        if not files.refused:
            assert step >= 6
            return


def test_a_deleted_topic_leaves_nothing_on_a_full_disk(topic: Topic) -> None:
    files = FullDisk(T0)
    directory = LogDirectory(DATA, lambda: T0, files)
    directory.partitions.update(finish(directory.open_topic(topic, LogConfig())))
    for partition in directory.partitions.values():
        put(partition.log, batch(2))
    files.fill_after(0)
    directory.remove_later(finish(directory.drop_topic(topic)), 0)
    finish(directory.forget([topic]))
    files.make_room()
    assert [path for path in files.data if "t-" in str(path)] == []
    directory.partitions.update(finish(directory.open_topic(topic, LogConfig())))
    assert [partition.log.log_end_offset for partition in directory.partitions.values()] == [0, 0, 0]


def test_checkpoints_are_written_when_there_is_room(topic: Topic) -> None:
    files = FullDisk(T0)
    directory = LogDirectory(DATA, lambda: T0, files)
    directory.partitions.update(finish(directory.open_topic(topic, LogConfig())))
    log = directory.partitions["t", 0].log
    put(log, batch(9))
    log.flush()
    log.removals.delete_before(5)
    files.fill_after(0)
    directory.upkeep.checkpoint_recovery_points()
    directory.upkeep.checkpoint_log_starts()
    files.make_room()
    assert not directory.failures.retry()
    assert files.read(DATA / "recovery-point-offset-checkpoint").endswith(b"t 0 9\nt 1 0\nt 2 0\n")
    assert files.read(DATA / "log-start-offset-checkpoint").endswith(b"t 0 5\n")


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_other_failed_writes_of_small_files_and_new_logs_end_the_broker(
    topic: Topic, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = FullDisk(T0, number)
    directory = LogDirectory(DATA, lambda: T0, files)
    reasons: list[str] = []
    directory.failures.on_end = reasons.append
    directory.partitions.update(finish(directory.open_topic(topic, LogConfig())))
    log = directory.partitions["t", 0].log
    put(log, batch(9))
    log.flush()
    log.removals.delete_before(5)
    files.fill_after(0)
    directory.upkeep.checkpoint_recovery_points()
    directory.upkeep.checkpoint_log_starts()
    finish(directory.open_topic(replace(topic, name="u"), LogConfig()))
    names = ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "u-0", "u-1", "u-2"]
    assert [reason.split()[0] for reason in reasons] == [f"/data/{name}" for name in names]
    assert caplog.messages == []


@pytest.mark.parametrize("make", [_write])
def test_a_failed_sync_of_the_catalogue_is_reported_once(make: Callable[[StoredCatalog, int], None]) -> None:
    files = FullDisk(T0, errno.EIO)
    catalog = _catalog(files)
    directory = LogDirectory(DATA, lambda: T0, files)
    reasons: list[str] = []
    directory.failures.on_end = reasons.append
    catalog.log.report_failures_to(directory.failures)
    files.fail_sync = lambda path: path.suffix == ".log"
    for number in range(1, 4):
        with pytest.raises(KafkaError):
            make(catalog, number)
    assert len(reasons) == 1
    assert list(catalog.catalog.topics()) == []


def test_a_snapshot_of_the_catalogue_is_made_when_there_is_room() -> None:
    for step in range(100):
        files = FullDisk(T0)
        catalog = _catalog(files)
        directory = LogDirectory(DATA, lambda: T0, files)
        catalog.log.report_failures_to(directory.failures)
        _write(catalog, 1)
        due: list[bool] = []
        catalog.log.on_snapshot_due = lambda due=due: due.append(True)
        files.fill_after(step)
        if _snapshot(catalog) is None:
            assert step > 1
            return
        assert directory.failures.retry() or due
        files.make_room()
        assert not directory.failures.retry()
        assert due
        assert [path for path in files.data if path.suffix == ".part"] == []
        assert _snapshot(catalog) is None
        assert len(catalog.log.snapshots) == 1


def _snapshot(catalog: StoredCatalog) -> OSError | None:
    """Makes a snapshot. Returns the error of the disk."""

    def in_thread(job: Callable[[], None]) -> Deferred[BaseException | None]:
        try:
            job()
        except OSError as error:
            return Deferred.of(error)
        return Deferred.of(None)

    steps, value = catalog.log.begin_snapshot(catalog.catalog.state, in_thread), None
    try:
        while True:
            waited = steps.send(value)
            value = None if waited is None else waited.value
    except StopIteration:
        return None
    except OSError as error:
        return error
