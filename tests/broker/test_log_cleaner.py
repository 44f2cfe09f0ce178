"""The log cleaner in the broker: compaction, the offsets topic during a cleaning, settings and failures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from support.brokers import alter_configs, delete_topic
from support.cleaning import T0, keyed, marker, pairs

from odradek.batches.rows import iter_records
from odradek.broker.partitions import log_cleaner
from odradek.broker.partitions.partition import Partition
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import BROKER, TOPIC, AlterConfigs
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition
from odradek.storage.log import Log

SETTINGS = {"log.cleaner.backoff.ms": "20", "log.segment.delete.delay.ms": "0", "offsets.topic.num.partitions": "1"}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}


# The separate process of a cleaning is a fork here. A new Python takes two seconds to load the kernels, and has a low
# priority; test_cleaner_process starts one.
pytestmark = pytest.mark.usefixtures("forked_commands")


@contextlib.asynccontextmanager
async def serving(
    directory: Path, small_job_bytes: int = log_cleaner.SMALL_JOB_BYTES, **settings: str
) -> AsyncIterator[BrokerServer]:
    """``small_job_bytes``: a larger log is cleaned in a process; with 0 all are."""
    texts = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    broker = BrokerServer(BrokerConfig(texts), directory / "data", ("127.0.0.1", 0))
    await broker.start()
    broker.log_cleaner.small_job_bytes = small_job_bytes
    try:
        yield broker
    finally:
        await broker.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())


async def until(probe: Callable[[], object], within_s: float = 120) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not probe():
        assert asyncio.get_running_loop().time() < deadline, "not in time"
        await asyncio.sleep(0.01)


def create(broker: BrokerServer, name: str = "table", count: int = 1, **configs: str) -> list[Partition]:
    own = COMPACTED | {key.replace("_", "."): value for key, value in configs.items()}
    broker.create_topic(name, partition_count=count, configs=own)
    found = [broker.partition(name, index) for index in range(count)]
    return [partition for partition in found if partition is not None]


def fill(partition: Partition, count: int, keys: int = 5, size: int = 50, codec: str = "none") -> None:
    for number in range(count):
        record = (b"key-%d" % (number % keys), b"%d-" % number + b"v" * size)
        partition.produce(keyed(record, at_ms=partition.now_ms(), compression=codec))


def newest(log: Log) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in pairs(log)}


def closed_bytes(log: Log) -> int:
    return sum(segment.size for segment in log.segments[:-1])


# cleaning


@pytest.mark.claim(14, 15, part="a")
def test_claim_15_closed_segments_of_a_compacted_topic_shrink(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            (plain,) = create(broker, "plain", cleanup_policy="delete")
            for each in (partition, plain):
                fill(each, 300)
            before = newest(partition.log)
            active = partition.log.active.base_offset
            await until(lambda: broker.log_cleaner.status().cleanings)
            await until(lambda: not broker.log_cleaner.status().in_progress)
            log = partition.log
            assert newest(log) == before
            closed = [offset for offset, _, _ in pairs(log) if offset < active]
            assert closed == list(range(active - 5, active)), "the newest record of each key, at its offset"
            assert [offset for offset, _, _ in pairs(log) if offset >= active] == list(range(active, 300))
            assert len(pairs(plain.log)) == 300
            status = broker.log_cleaner.status()
            last = status.last_cleaning
            assert last is not None
            assert (last.partition, last.first_dirty_offset, last.end_offset) == (TopicPartition("table", 0), 0, active)
            assert (last.counts.keys, last.counts.records_kept, last.in_process) == (5, 5, False)
            assert status.dirty_bytes == {TopicPartition("table", 0): 0} | {
                name: 0 for name in status.dirty_bytes if name.topic == OFFSETS_TOPIC
            }

    run(test)


@pytest.mark.claim(16)
def test_claim_16_the_codec_stays(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            fill(partition, 300, codec="lz4")
            await until(lambda: broker.log_cleaner.status().cleanings)
            data = partition.read_bytes(0, 1 << 20)
            assert data[22] & 7 == 3
            assert partition.log.size < 4_000

    run(test)


@pytest.mark.claim(14, part=True)
def test_a_large_log_is_cleaned_by_a_separate_process_with_the_same_result(tmp_path: Path) -> None:
    sizes = []
    for name, small in (("here", 1 << 20), ("there", 0)):

        async def test(name: str = name, small: int = small) -> None:
            async with serving(tmp_path / name, small) as broker:
                broker.clock.now_ms = lambda: T0 + 1_000
                (partition,) = create(broker)
                fill(partition, 300)
                broker.log_cleaner.wake()
                await until(lambda: broker.log_cleaner.status().cleanings)
                last = broker.log_cleaner.status().last_cleaning
                assert last is not None
                assert last.in_process is (small == 0)
                sizes.append({
                    path.name: path.read_bytes() for path in (tmp_path / name / "data" / "table-0").glob("*.*")
                    if path.suffix in {".log", ".index", ".timeindex"} and path.stem == "0" * 20
                })  # fmt: skip

        run(test)
    assert sizes[0] == sizes[1]


def test_the_checkpoint_has_kafkas_format_and_is_kept_across_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            await until(lambda: broker.log_cleaner.status().cleanings)
            await until(lambda: not broker.log_cleaner.status().in_progress)
            offset = partition.log.removals.cleaned_offset
            text = (tmp_path / "data" / "cleaner-offset-checkpoint").read_text()
            assert text == f"0\n1\ntable 0 {offset}\n"

    async def second() -> None:
        async with serving(tmp_path) as broker:
            partition = broker.partition("table", 0)
            assert partition is not None
            text = (tmp_path / "data" / "cleaner-offset-checkpoint").read_text()
            assert text == f"0\n1\ntable 0 {partition.log.removals.cleaned_offset}\n"
            delete_topic(broker, "table")
            (again,) = create(broker)
            assert again.log.removals.cleaned_offset is None, "the new topic has a new log"

    run(first)
    run(second)


@pytest.mark.claim(89, part="a")
def test_claim_89_idle_commits_do_not_accumulate(tmp_path: Path) -> None:
    """After 43,000 commits of one key, the closed segments have one record. The active segment is unchanged."""

    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker, OFFSETS_TOPIC, internal_segment_bytes="100000")
            records = [(b"one group, one partition", b"%08d" % number * 3) for number in range(100)]
            for _ in range(430):
                partition.log.append(keyed(*records), now_ms=T0, leader_epoch=0, origin="coordinator")
            log = partition.log
            total = 43_000
            assert log.log_end_offset == total
            await until(lambda: log.removals.cleaned_offset == log.active.base_offset)
            await until(lambda: not broker.log_cleaner.status().in_progress)
            closed = [offset for offset, _, _ in pairs(log) if offset < log.active.base_offset]
            assert closed == [log.active.base_offset - 1]
            assert closed_bytes(log) < 200
            assert len(pairs(log)) == 1 + total - log.active.base_offset

    run(test)


@pytest.mark.claim(90, part="ab")
def test_claim_90_segments_accumulate_without_the_cleaner_and_are_removed_with_it(tmp_path: Path) -> None:
    async def stopped() -> None:
        async with serving(tmp_path, log_cleaner_enable="false") as broker:
            (partition,) = create(broker)
            fill(partition, 600)
            await asyncio.sleep(0.2)
            assert len(pairs(partition.log)) == 600
            status = broker.log_cleaner.status()
            assert (status.thread_count, status.cleanings) == (0, 0)
            assert status.dirty_bytes[TopicPartition("table", 0)] == closed_bytes(partition.log) > 40_000

    async def restarted() -> None:
        async with serving(tmp_path) as broker:
            partition = broker.partition("table", 0)
            assert partition is not None
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert closed_bytes(partition.log) < 1_000, "no full segment is left"
            fill(partition, 40)
            await until(lambda: broker.log_cleaner.status().cleanings == 2)
            assert len(partition.log.segments) < 6, "the next round merges empty segments"

    run(stopped)
    run(restarted)


@pytest.mark.claim(90, part="abc")
def test_claim_90_a_dead_task_is_counted_logged_and_can_be_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            with monkeypatch.context() as patch:
                patch.setattr(type(broker.log_cleaner), "_dirtiest", lambda self: 1 / 0)
                await until(lambda: broker.log_cleaner.status().dead_thread_count == 1)
            assert "a cleaner task has died" in caplog.text
            fill(partition, 300)
            await asyncio.sleep(0.1)
            assert broker.log_cleaner.status().cleanings == 0
            assert len(pairs(partition.log)) == 300
            assert closed_bytes(partition.log) > 20_000, "full segments accumulate"
            broker.log_cleaner.start()
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert closed_bytes(partition.log) < 1_000, "no full segment is left"
            assert broker.log_cleaner.status().dead_thread_count == 0

    run(test)


# requests during a cleaning


@pytest.mark.behaviour(37)
def test_behaviour_37_the_offsets_topic_is_read_while_it_is_compacted(tmp_path: Path) -> None:
    """The cleaner replaces segments between the steps of a load. Tombstones without an earlier commit are harmless."""

    def commit(log: Log, group: str, offset: int | None) -> None:
        value = None if offset is None else OffsetCommitValue(offset, 0, "m", T0)
        record = (offset_key(group, "t", 0), None if value is None else offset_value(value))
        log.append(keyed(record, at_ms=T0), now_ms=T0, leader_epoch=0, origin="coordinator")

    async def test() -> None:
        async with serving(tmp_path, log_cleaner_enable="false") as broker:
            create(broker, "t")
            (partition,) = create(broker, OFFSETS_TOPIC, internal_segment_bytes="2500")
            for number in range(600):
                commit(partition.log, f"group-{number * 7 % 40}", number)
            for number in range(0, 60, 3):  # the groups from group-40 on never had a commit
                commit(partition.log, f"group-{number}", None)
            partition.log.roll(T0)
            steps = 0
            broker.groups.load_steps = LoadSteps(seconds=0, size=600)
            broker.groups.unload(0, None)
            broker.groups.load(0, partition, 1)
            broker.log_cleaner.start()
            while broker.groups.shard(0) is None:
                steps += 1  # the test counts iterations of the loop, and not time
                await asyncio.sleep(0)
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert steps > 5, "the load ran while the cleaner worked"
            for _ in range(2):
                shard = broker.groups.shard(0)
                assert shard is not None
                for number in range(40):
                    newest_commit = max(n for n in range(600) if n * 7 % 40 == number)
                    found = shard.committed(f"group-{number}", "t", 0)
                    assert (found.offset if found else None) == (None if number % 3 == 0 else newest_commit)
                broker.groups.unload(0, None)
                broker.groups.load(0, partition, 2)  # the load is repeated from the compacted log
                await until(lambda: broker.groups.shard(0))

    run(test)


def test_running_reads_keep_their_bytes(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            held = partition.log.read(0, 1 << 20)
            expected = [row.offset for row in iter_records(held.bytes())]
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert [row.offset for row in iter_records(held.bytes())] == expected
            await until(lambda: not list((tmp_path / "data" / "table-0").glob("*.deleted")))
            assert [row.offset for row in iter_records(held.bytes())] == expected
            # A consumer in the middle of the log continues after the gap.
            got = [row.offset for row in iter_records(partition.read_bytes(17, 1 << 20))]
            assert got[0] > 17

    run(test)


def test_other_requests_are_served_between_steps_of_a_cleaning(tmp_path: Path) -> None:
    """While the broker cleans a log of nearly 1 MiB, 99 % of the iterations of its loop take less than 50 ms."""

    async def test() -> None:
        async with serving(tmp_path, log_cleaner_enable="false") as broker:
            (partition,) = create(broker, internal_segment_bytes="400000")
            for number in range(9_000):
                record = (b"key-%d" % (number % 900), b"v" * 20)
                partition.log.append(keyed(record), now_ms=T0, leader_epoch=0)
            broker.log_cleaner.start()
            loop = asyncio.get_running_loop()
            waits = []
            while not broker.log_cleaner.status().cleanings:
                before = loop.time()
                await asyncio.sleep(0)
                waits.append(loop.time() - before)
            waits.sort()
            assert len(waits) > 100
            assert waits[int(len(waits) * 0.99)] < 0.05
            assert len([offset for offset, _, _ in pairs(partition.log)]) < 3_000

    run(test)


def test_deleted_records_stay_deleted_and_their_segments_are_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            await until(lambda: broker.log_cleaner.status().cleanings)
            partition.log.removals.delete_before(200)
            fill(partition, 100)
            await until(
                lambda: broker.log_cleaner.status().cleanings > 1 and not broker.log_cleaner.status().in_progress
            )
            log = partition.log
            await until(
                lambda: log.segments[0].base_offset >= 0 and log.removals.cleaned_offset == log.active.base_offset
            )
            assert log.log_start_offset == 200
            with pytest.raises(KafkaError):
                log.read(199, 100)
            assert newest(log) == {b"key-%d" % n: b"%d-" % (95 + n) + b"v" * 50 for n in range(5)}

    run(test)


def test_retention_and_compaction_apply_to_one_topic(tmp_path: Path) -> None:
    """Retention deletes old segments of a log that is also compacted; the cleaner does both, one after the other."""

    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker, cleanup_policy="compact,delete", retention_ms="3600000")
            fill(partition, 300)
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert len(newest(partition.log)) == 5
            partition.log.roll(broker.now_ms())
            broker.clock.advance(7_200_000)
            broker.log_cleaner.wake()
            await until(lambda: partition.log.log_start_offset == 300)
            assert partition.log.size == 0

    run(test)


def test_a_topic_may_be_deleted_while_it_is_cleaned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(tmp_path, 0) as broker:
            (partition,) = create(broker)
            (other,) = create(broker, "other")
            fill(partition, 300)
            broker.log_cleaner.wake()
            await until(lambda: broker.log_cleaner.status().in_progress)
            delete_topic(broker, "table")
            fill(other, 300)
            await until(lambda: broker.log_cleaner.status().cleanings)
            status = broker.log_cleaner.status()
            assert status.last_cleaning is not None
            assert status.last_cleaning.partition.topic == "other"
            assert status.uncleanable == {}
            assert not [name for name in os.listdir(tmp_path / "data") if name.startswith("table")]

    run(test)
    assert "cannot be cleaned" not in caplog.text


def test_a_broker_that_stops_ends_its_cleaner_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processes = []

    async def test() -> None:
        async with serving(tmp_path, 0, log_cleaner_io_max_bytes_per_second="1") as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            run_worker = log_cleaner.CleanerProcess.run

            def recorded(self: log_cleaner.CleanerProcess, on_segment: object) -> object:
                processes.append(self)
                return run_worker(self, on_segment)

            monkeypatch.setattr(log_cleaner.CleanerProcess, "run", recorded)
            broker.log_cleaner.wake()
            await until(lambda: processes and processes[0].process is not None)

    run(test)
    assert processes[0].process.poll() is not None
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], "a stop logs no warning"
    assert not list((tmp_path / "data" / "table-0").glob("*.cleaned"))

    async def again() -> None:
        async with serving(tmp_path, 0) as broker:
            await until(lambda: broker.log_cleaner.status().cleanings)

    run(again)


# failures


@pytest.mark.parametrize("small", [1 << 20, 0], ids=["here", "there"])
def test_a_partition_that_cannot_be_cleaned_is_skipped_and_the_others_are_cleaned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, small: int
) -> None:
    async def test() -> None:
        async with serving(tmp_path, small, log_cleaner_enable="false") as broker:
            sick, well = create(broker, count=2)
            for each in (sick, well):
                fill(each, 300)
            path = tmp_path / "data" / "table-0" / "00000000000000000000.log"
            data = bytearray(path.read_bytes())
            data[-10] ^= 0xFF
            path.write_bytes(data)
            broker.log_cleaner.start()
            await until(lambda: broker.log_cleaner.status().cleanings and broker.log_cleaner.status().uncleanable)
            await asyncio.sleep(0.1)
            status = broker.log_cleaner.status()
            assert list(status.uncleanable) == [TopicPartition("table", 0)]
            assert "CRC" in status.uncleanable[TopicPartition("table", 0)]
            assert status.uncleanable_bytes == sick.log.size
            assert status.dead_thread_count == 0
            assert status.cleanings == 1
            assert closed_bytes(well.log) < 1_000
            assert sick.produce(keyed((b"k", b"v"))).base_offset == 300, "the partition is still served"
            assert not list(path.parent.glob("*.cleaned"))
            path.write_bytes(data[:-10] + bytes([data[-10] ^ 0xFF]) + data[-9:])
            broker.clock.advance(log_cleaner.RETRY_MS)
            await until(lambda: broker.log_cleaner.status().cleanings == 2)
            assert broker.log_cleaner.status().uncleanable == {}

    with caplog.at_level(logging.ERROR):
        run(test)
    messages = [record.getMessage() for record in caplog.records if "cannot be cleaned" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith("table-0 cannot be cleaned; the next attempt is in 10 minutes: ")


def test_a_killed_cleaner_process_is_reported_and_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner.CleanerProcess, "run", _kill_at_once)

    async def test() -> None:
        async with serving(tmp_path, 0) as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            await until(lambda: broker.log_cleaner.status().uncleanable)
            assert "ended with code -9" in broker.log_cleaner.status().uncleanable[TopicPartition("table", 0)]
            assert len(pairs(partition.log)) == 300

    run(test)


_RUN = log_cleaner.CleanerProcess.run


def _kill_at_once(self: log_cleaner.CleanerProcess, on_segment: object) -> object:
    class Deadly(type(self)):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "process" and value is not None:
                value.kill()

    self.__class__ = Deadly
    return _RUN(self, on_segment)


def test_an_offline_log_is_skipped(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as broker:
            sick, well = create(broker, count=2)
            sick.log.disk.offline = "is offline for this test"
            fill(well, 300)
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert broker.log_cleaner.status().uncleanable == {}
            sick.log.disk.offline = None

    run(test)


# settings


def test_cleaner_settings_have_an_effect(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, log_cleaner_delete_retention_ms="77", log_cleaner_threads="2") as broker:
            (partition,) = create(broker, min_cleanable_dirty_ratio="1.0", min_compaction_lag_ms="5")
            assert broker.log_cleaner.status().thread_count == 2
            config = partition.log.config
            assert (config.delete_retention_ms, config.min_compaction_lag_ms) == (77, 5)
            fill(partition, 300)
            await asyncio.sleep(0.2)
            assert broker.log_cleaner.status().cleanings == 0, "no ratio is above 1"
            request = AlterConfigs(TOPIC, "table", {"max.compaction.lag.ms": "50"})
            alter_configs(broker, request)
            await until(lambda: broker.log_cleaner.status().cleanings)
            for threads in (3, 1):
                request = AlterConfigs(BROKER, "", {"log.cleaner.threads": str(threads)})
                alter_configs(broker, request)
                await until(lambda: broker.log_cleaner.status().thread_count == threads)  # noqa: B023
                assert broker.log_cleaner.status().dead_thread_count == 0

    run(test)


@pytest.mark.behaviour(39, part=True)
def test_the_broker_cleans_aborted_records_before_their_marker(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, transaction_partition_verification_enable="false") as broker:
            (partition,) = create(broker)
            log = partition.log
            partition.produce(keyed((b"k", b"old")))
            data = keyed((b"k", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
            log.append(data, now_ms=broker.now_ms(), leader_epoch=0)
            marker(log, 5, 0, now_ms=broker.now_ms())
            log.roll(broker.now_ms())
            await until(lambda: broker.log_cleaner.status().cleanings)
            assert pairs(log) == [(0, b"k", b"old")]
            assert partition.read_bytes(2, 1000), "the marker is still there"

    run(test)


def test_storage_errors_of_clients_are_no_errors_of_the_cleaner(tmp_path: Path) -> None:
    """A produce to a closed log fails with KAFKA_STORAGE_ERROR. The cleaner reports no error."""

    async def test() -> None:
        async with serving(tmp_path) as broker:
            (partition,) = create(broker)
            fill(partition, 300)
            partition.log.close()
            await asyncio.sleep(0.1)
            assert broker.log_cleaner.status().uncleanable == {}
            with pytest.raises(KafkaError) as caught:
                partition.produce(keyed((b"k", b"v")))
            assert caught.value.code is ErrorCode.kafka_storage_error

    run(test)
