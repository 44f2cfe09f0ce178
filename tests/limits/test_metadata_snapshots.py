"""Snapshots of the catalogue: their contents, their time, crashes while one is written, and the disk space in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.catalogs import changed
from support.memory_files import Crash, MemoryFiles
from test_connection_shares import Client, connect, run, serving
from test_topic_bursts import (
    CREATE_TOPICS,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    TOPIC,
    CountingFiles,
    codes,
    count_turns,
    creation,
    run_with_broker,
    setting,
    topic,
)

from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.metadata.lone_broker import BeginEpochs, RaiseEpochs
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import log as metadata_log
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.log import DIRECTORY, MetadataConfig
from odradek.broker.server import BrokerServer
from odradek.catalog.credentials import SCRAM_SHA_256, AlterCredential
from odradek.catalog.features import GROUP as GROUP_FEATURE
from odradek.catalog.features import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeatures
from odradek.catalog.state import (
    BROKER,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CatalogRequest,
    CatalogState,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from odradek.core.access.credential import Credential
from odradek.core.deferred import Deferred
from odradek.core.errors import StorageError
from odradek.storage.disk.files import Files, OsFiles

T0 = 1_700_000_000_000
HOME = Path("/data")
LOG = HOME / DIRECTORY
TIGHT = MetadataConfig(segment_bytes=1500, retention_bytes=0)
"""With this configuration, a snapshot deletes the log segments before its end."""


def opened(files: Files, config: MetadataConfig | None = None, home: Path = HOME) -> StoredCatalog:
    return StoredCatalog.open(
        home, clean=False, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=files, config=config
    )


def at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    try:
        job()
    except OSError as error:
        return Deferred.of(error)
    return Deferred.of(None)


def snapshot(catalog: StoredCatalog) -> None:
    finish(catalog.log.begin_snapshot(catalog.catalog.state, at_once))


def state(catalog: StoredCatalog) -> dict[str, Any]:
    """The whole state of the catalogue, as handlers see it."""
    return {
        "topics": {found.name: found for found in catalog.catalog.topics()},
        "by id": {found.id: catalog.catalog.topic_by_id(found.id) for found in catalog.catalog.topics()},
        "configs": dict(catalog.catalog.state.configs),
        "quotas": dict(catalog.catalog.quotas()),
        "users": dict(catalog.catalog.users()),
        "features": dict(catalog.catalog.features()),
        "producer ids": catalog.catalog.state.next_producer_id,
    }


QUOTED = (("client-id", None), ("user", "u"))
SECRET = Credential(b"salt", b"stored", b"server", 4096)
REQUESTS: tuple[CatalogRequest, ...] = (
    CreateTopic("flights", UUID(int=1), 3, 1, configs={"retention.ms": "1", "segment.ms": "2"}),
    CreateTopic("gone", UUID(int=2), 2, 1, configs={"retention.ms": "3"}),
    CreateTopic("dotted.name", UUID(int=3), 1, 1),
    DeleteTopic(UUID(int=2)),
    CreatePartitions("flights", 5),
    AlterConfigs(TOPIC, "flights", {"retention.ms": None, "max.message.bytes": "7"}),
    AlterConfigs(BROKER, "", {"log.retention.ms": "8"}),
    AlterConfigs(BROKER, "1", {"log.retention.ms": "9"}),
    AlterConfigs(GROUP, "g", {"consumer.session.timeout.ms": "45000"}),
    AlterClientQuotas(QUOTED, {"producer_byte_rate": 1.5, "consumer_byte_rate": 2.0}),
    AlterClientQuotas(QUOTED, {"consumer_byte_rate": None}),
    AlterCredential("u", SCRAM_SHA_256, SECRET),
    UpdateFeatures({GROUP_FEATURE: FeatureUpdate(GROUP_FEATURE, 0, SAFE_DOWNGRADE)}),
    AllocateProducerIds(1),
    BeginEpochs(),
    RaiseEpochs({("flights", 4): 7}),
)


def filled(files: Files, config: MetadataConfig | None = None, home: Path = HOME) -> StoredCatalog:
    catalog = opened(files, config, home)
    for request in REQUESTS:
        catalog.apply(request)
    return catalog


def checkpoints(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(LOG) if ".checkpoint" in name]


def stored_bytes(files: MemoryFiles) -> int:
    return sum(len(data) for path, data in files.data.items() if path.parent == LOG)


@pytest.fixture
def rolls_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ROLL_BYTES", 1)


# contents


@pytest.mark.usefixtures("rolls_early")
def test_a_start_from_only_a_snapshot_has_the_state_of_the_log() -> None:
    files = MemoryFiles()
    catalog = filled(files, TIGHT)
    before, end = state(catalog), catalog.catalog.log_end_offset
    snapshot(catalog)
    snapshot(catalog)  # no change since the previous snapshot, so no new one
    assert checkpoints(files) == [f"{end:020d}-0000000000.checkpoint"]
    for name in files.list(LOG):
        if not name.endswith(".checkpoint"):
            files.remove(LOG / name)
    files.crash()
    again = opened(files, TIGHT)
    assert state(again) == before
    assert again.catalog.log_end_offset == end, "the log continues at the snapshot's end"
    changed(again, CreateTopic("later", UUID(int=50), 1, 1))
    files.crash()
    assert state(opened(files, TIGHT)) == state(again)
    assert again.catalog.topic("later") is not None


def test_records_after_a_snapshot_are_read_after_it() -> None:
    files = MemoryFiles()
    catalog = filled(files)
    snapshot(catalog)
    changed(catalog, CreateTopic("gone", UUID(int=60), 4, 1), AlterConfigs(BROKER, "", {"log.retention.ms": None}))
    catalog.apply(DeleteTopic(UUID(int=1)))
    catalog.apply(AllocateProducerIds(1))
    files.crash()
    assert state(opened(files)) == state(catalog)


def test_changes_during_a_snapshot_are_not_lost() -> None:
    files = MemoryFiles()
    catalog = filled(files)
    for number in range(1000):
        catalog.apply(AlterConfigs(GROUP, f"g{number}", {"consumer.session.timeout.ms": "45000"}))
    steps = catalog.log.begin_snapshot(catalog.catalog.state, at_once)
    for number, _ in enumerate(steps):
        catalog.apply(AllocateProducerIds(1))
        changed(catalog, CreateTopic(f"t{number}", UUID(int=1000 + number), 2, 1))
        catalog.apply(AlterConfigs(GROUP, f"g{number}", {"consumer.session.timeout.ms": None}))
    assert number >= 5
    files.crash()
    again = opened(files)
    assert len(again.log.snapshots) == 1
    assert state(again) == state(catalog)


# crashes


@pytest.mark.usefixtures("rolls_early")
def test_a_crash_at_any_point_of_a_snapshot_loses_nothing() -> None:
    """Each round crashes before the next change of the disk: the writes and syncs of the snapshot, its rename, and the
    deletion of older files."""
    survived = made = 0
    for changes in range(200):
        files = MemoryFiles()
        catalog = filled(files, TIGHT)
        snapshot(catalog)
        for number in range(40):
            catalog.apply(AlterConfigs(GROUP, f"g{number % 3}", {"consumer.session.timeout.ms": str(number)}))
        before = state(catalog)
        files.crash_after(changes)
        try:
            snapshot(catalog)
        except Crash:
            survived += 1
        else:
            break
        files.crash()
        again = opened(files, TIGHT)
        assert state(again) == before, changes
        assert not [name for name in checkpoints(files) if not name.endswith(".checkpoint")]
        made += again.log.snapshots[-1].end_offset == again.catalog.log_end_offset
        changed(again, CreateTopic("after", UUID(int=99), 2, 1))
        snapshot(again)
        files.crash()
        assert state(opened(files, TIGHT)) == state(again), changes
    assert survived >= 20, "the test has too few points at which to crash"
    assert 0 < made < survived, "some crashes are before the snapshot is complete, some after"


def damaged(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[:40]
    yield data[: len(data) // 2]
    yield data[:-70]  # whole batches, without the footer
    yield data + b"\0"
    yield data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    yield data[:200] + bytes([data[200] ^ 1]) + data[201:]


def test_a_damaged_snapshot_is_skipped() -> None:
    files = MemoryFiles()
    catalog = filled(files)
    snapshot(catalog)
    catalog.apply(AllocateProducerIds(1))
    snapshot(catalog)
    catalog.apply(AllocateProducerIds(1))
    expected = state(catalog)
    path = catalog.log.snapshots[-1].path
    whole = bytes(files.data[path])
    for number, data in enumerate(damaged(whole)):
        files.data[path] = bytearray(data)
        files.crash()
        again = opened(files)
        assert state(again) == expected, number
        assert [found.path for found in again.log.snapshots] == [catalog.log.snapshots[0].path]


@pytest.mark.usefixtures("rolls_early")
def test_a_log_without_its_beginning_prevents_the_start() -> None:
    files = MemoryFiles()
    catalog = filled(files, TIGHT)
    snapshot(catalog)
    catalog.apply(AllocateProducerIds(1))
    snapshot(catalog)
    assert len(catalog.log.snapshots) == 1
    files.remove(catalog.log.snapshots[0].path)
    files.crash()
    with pytest.raises(StorageError, match="no snapshot has the records before it"):
        opened(files, TIGHT)


def test_a_snapshot_of_kafkas_storage_tool_is_skipped() -> None:
    files = MemoryFiles()
    catalog = filled(files)
    files.write(LOG / f"{0:020d}-{0:010d}.checkpoint", b"what kafka-storage format has written")
    files.crash()
    assert state(opened(files)) == state(catalog)


# disk space


@pytest.mark.usefixtures("rolls_early")
def test_the_log_stays_small_after_many_changes_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that changes all the time makes neither the log nor the next start longer (row "Records since
    the last snapshot of the metadata log" in docs/limits.md)."""
    files = MemoryFiles()
    config = MetadataConfig(bytes_between_snapshots=20_000, segment_bytes=10_000, retention_bytes=60_000)
    catalog = opened(files, config)
    due = 0

    def make() -> None:
        nonlocal due
        due += 1
        snapshot(catalog)

    catalog.log.on_snapshot_due = make
    most = 0
    for number in range(4000):
        catalog.apply(AlterConfigs(GROUP, f"g{number % 20}", {"consumer.session.timeout.ms": str(number)}))
        most = max(most, stored_bytes(files))
    assert due >= 10
    assert most <= 60_000 + 2 * 20_000
    replayed: list[int] = []
    replay = CatalogState.replay

    def counted(self: CatalogState, offset: int, value: bytes) -> None:
        replayed.append(offset)
        replay(self, offset, value)

    monkeypatch.setattr(CatalogState, "replay", counted)
    files.crash()
    again = opened(files, config)
    assert state(again) == state(catalog)
    assert len(replayed) < 400


def test_old_snapshots_are_deleted_by_age_but_never_the_newest() -> None:
    now_ms = T0
    files = MemoryFiles()
    config = MetadataConfig(retention_ms=1000, retention_bytes=-1)
    catalog = StoredCatalog.open(
        HOME, clean=True, node_id=1, directory_id=UUID(int=9), now_ms=lambda: now_ms, files=files, config=config
    )
    for _ in range(5):
        now_ms += 400
        catalog.apply(AllocateProducerIds(1))
        snapshot(catalog)
    assert [found.timestamp_ms for found in catalog.log.snapshots] == [T0 + 400 * number for number in (3, 4, 5)]
    now_ms += 100_000
    catalog.log.retain()
    assert len(catalog.log.snapshots) == 1
    assert len(checkpoints(files)) == 1
    files.crash()
    assert opened(files, config).log.snapshots == catalog.log.snapshots


# in a broker


def made_in(directory: Path) -> list[Path]:
    return sorted((directory / DIRECTORY).glob("*.checkpoint"))


async def until_complete(broker: BrokerServer, count: int) -> None:
    """Waits until the snapshots are complete. Their files exist before the directory is synced. If another snapshot
    becomes due before that sync, it waits for the next check."""
    async with asyncio.timeout(20):
        while len(broker.metadata_log.snapshots) < count:
            await asyncio.sleep(0.01)


def test_a_snapshot_is_due_after_enough_bytes_and_a_start_reads_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        wanted = "metadata.log.max.record.bytes.between.snapshots=20000"
        async with serving(tmp_path, wanted) as broker:
            start = broker.catalog.log_end_offset  # a voter has begun an epoch
            client = await connect(broker)
            assert codes((await client.ask(CREATE_TOPICS, 5, creation(topic("wide", 100)))).topics) == {"none": 1}
            assert not made_in(tmp_path)
            assert codes((await client.ask(CREATE_TOPICS, 5, creation(topic("wider", 300)))).topics) == {"none": 1}
            await until_complete(broker, 1)
            assert not broker.controller.waiting
        async with serving(tmp_path, wanted) as broker:
            assert [found.end_offset for found in broker.metadata_log.snapshots] == [start + 2 + 400]
            assert {found.name: found.partition_count for found in broker.catalog.topics()} == {
                "wide": 100, "wider": 300,
            }  # fmt: skip

    run(scenario())


def test_a_snapshot_is_due_by_age_after_a_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, "metadata.log.max.snapshot.interval.ms=7200000") as broker:
            for _ in range(3):
                broker.clock.advance(3_600_000)
                await broker.run_due_alarms()
            made = broker.catalog.log_end_offset  # 0, or 1 with the record of a voter's epoch
            await until_complete(broker, made)
            assert len(made_in(tmp_path)) == made
            broker.create_topic("t", partition_count=1)
            await broker.run_due_alarms()
            broker.clock.advance(7_200_000 if made else 60_000)
            await until_complete(broker, made + 1)
            for _ in range(3):
                broker.clock.advance(7_200_000)
                await broker.run_due_alarms()
            assert len(made_in(tmp_path)) == made + 1, "no change since the previous snapshot"
            broker.create_topic("u", partition_count=1)
            broker.clock.advance(7_000_000)
            await broker.run_due_alarms()
            broker.clock.advance(260_000)
            await until_complete(broker, made + 2)

    run(scenario())


def test_a_snapshot_is_written_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        settings = [setting(GROUP, f"g{n}", "consumer.session.timeout.ms", "45000") for n in range(5000)]
        message = {"resources": settings, "validate_only": False}
        await client.ask(INCREMENTAL_ALTER_CONFIGS, 1, message)
        count_turns(broker, files)
        batches: dict[int, int] = {}
        pack = metadata_snapshot.seal_batch

        def counted(*args: Any, **options: Any) -> bytes:
            batches[files.turn] = batches.get(files.turn, 0) + 1
            return pack(*args, **options)

        monkeypatch.setattr(metadata_snapshot, "seal_batch", counted)
        broker.controller.begin_snapshot()
        broker.controller.begin_snapshot()
        await until_complete(broker, 1)
        assert sum(batches.values()) >= 5000 // metadata_snapshot.RECORDS_A_BATCH
        assert max(batches.values()) <= 20

    run_with_broker(tmp_path, scenario)


def test_a_snapshot_waits_for_the_change_in_progress(tmp_path: Path) -> None:
    """The snapshot begins after the change, so it contains the topic with all its partitions."""

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        count_turns(broker, files)
        files.changes.clear()
        creating = asyncio.ensure_future(client.ask(CREATE_TOPICS, 5, creation(topic("wide", 300))))
        while not files.changes.total():
            await asyncio.sleep(0)
        broker.controller.begin_snapshot()
        assert codes((await creating).topics) == {"none": 1}
        await until_complete(broker, 1)
        (path,) = made_in(tmp_path / "data")
        read = metadata_snapshot.read(path, OsFiles())
        assert read is not None
        shard = CatalogState(lambda data: UUID(bytes=data), (1,), UUID(int=9))
        for value in read[1]:
            shard.replay(-1, value)
        assert shard.topics == {"wide": broker.catalog.topic("wide")}

    run_with_broker(tmp_path, scenario)


def test_a_snapshot_that_fails_is_logged_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        def fails() -> Steps[None]:
            raise OSError(5, "Input/output error")
            yield None

        snapshots = broker.metadata_log.begin_snapshot
        broker.metadata_log.begin_snapshot = lambda *_: fails()
        await client.ask(CREATE_TOPICS, 5, creation(topic("t")))
        broker.controller.begin_snapshot()
        while broker.scheduler.busy:
            await asyncio.sleep(0)
        assert "no snapshot of the catalogue was made: [Errno 5]" in caplog.text
        broker.metadata_log.begin_snapshot = snapshots
        broker.controller.begin_snapshot()
        await until_complete(broker, 1)

    run_with_broker(tmp_path, scenario)
