"""A topic that is created again after its deletion is a new topic: no stored value of the old topic applies to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, create_offsets_topic, delete_topic, eventually, unique
from support.cleaning import T0, keyed
from test_server_frames import create, produce
from test_server_start_and_stop import delete, end_offset, list_offset

from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import DeleteTopic
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.groups.messages import OffsetCommit, OffsetFetch, TopicCommit
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles

OFTEN = {
    "log_flush_offset_checkpoint_interval_ms": "100",
    "log_flush_start_offset_checkpoint_interval_ms": "100",
}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture
def running(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(**OFTEN)


def stored_offsets(running: RunningBroker, file: str) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(Path(running.data_dir) / file, OsFiles())


def delete_records(wire: Wire, topic: str, offset: int) -> None:
    part = {"partition_index": 0, "offset": offset}
    reply = wire.call(21, 2, {"topics": [{"name": topic, "partitions": [part]}], "timeout": 1000})
    assert reply.topics[0].partitions[0].low_watermark == offset


@pytest.mark.claim(55, 92, part=True)
def test_the_log_start_of_a_deleted_topic_does_not_apply_to_its_successor(running: RunningBroker, topic: str) -> None:
    name = TopicPartition(topic, 0)
    with Wire(running.bootstrap) as wire:
        create(wire, topic, internal_segment_bytes="1000")
        for _ in range(100):
            produce(wire, topic, [b"v" * 100])
        delete_records(wire, topic, 80)
        # The offset is within a segment, so that only the checkpoint contains it.
        eventually(
            lambda: stored_offsets(running, checkpoints.LOG_START).get(name) == 80, what="the log start's checkpoint"
        )
        eventually(lambda: stored_offsets(running, checkpoints.RECOVERY_POINT).get(name), what="the recovery point")
        assert delete(wire, topic) == 0
        assert name not in stored_offsets(running, checkpoints.LOG_START)
        assert name not in stored_offsets(running, checkpoints.RECOVERY_POINT)
        create(wire, topic)
        for number in range(50):
            assert produce(wire, topic, [b"v"]).base_offset == number
    running.kill()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert (list_offset(wire, topic, -2), end_offset(wire, topic)) == (0, 50)


def test_stored_values_of_deleted_topics_are_removed_at_the_start(running: RunningBroker, topic: str) -> None:
    """The test writes the checkpoints that a kill directly after a deletion leaves. The start removes their values of
    the deleted topic, and another kill does not restore these values."""
    with Wire(running.bootstrap) as wire:
        create(wire, unique("other"))
    running.stop()
    gone = TopicPartition(topic, 0)
    for file in (checkpoints.LOG_START, checkpoints.RECOVERY_POINT, checkpoints.CLEANER):
        path = Path(running.data_dir) / file
        checkpoints.write_offsets(path, stored_offsets(running, file) | {gone: 80}, OsFiles())
    running.start()
    for file in (checkpoints.LOG_START, checkpoints.RECOVERY_POINT, checkpoints.CLEANER):
        assert gone not in stored_offsets(running, file)
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        produce(wire, topic, [b"v"])
    running.kill()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert (list_offset(wire, topic, -2), end_offset(wire, topic)) == (0, 1)


@pytest.mark.claim(55, part=True)
def test_a_recreated_topic_has_no_commits_of_its_predecessor(tmp_path: Path) -> None:
    """The broker is killed after it has removed the topic from the catalogue and before it has written the tombstones.
    Then the topic is created again."""
    settings = BrokerConfig({"offsets.topic.num.partitions": "1"})

    async def ask(broker: BrokerServer, request: Any) -> Any:
        promise = broker.groups.submit(0, request)
        async with asyncio.timeout(10):
            while not promise.resolved:
                await asyncio.sleep(0)
        return promise.value

    async def before() -> None:
        broker = BrokerServer(settings, tmp_path, ("127.0.0.1", 0))
        await broker.start()
        create_offsets_topic(broker)
        topic = broker.create_topic("flights", partition_count=1)
        assert topic is not None
        assert topic.id is not None
        commit = OffsetCommit("g", [TopicCommit("flights", topic.id.bytes, [(0, 42, -1, "")])])
        assert (await ask(broker, commit)).error is ErrorCode.none
        broker.role.stored.apply(DeleteTopic(topic.id))
        await broker.abandon()

    async def after() -> None:
        broker = BrokerServer(settings, tmp_path, ("127.0.0.1", 0))
        await broker.start()
        broker.create_topic("flights", partition_count=1)
        found = await ask(broker, OffsetFetch("g", [("flights", [0])]))
        assert [row.offset for _, rows in found.topics for row in rows] == [-1]
        await broker.stop()

    asyncio.run(before())
    asyncio.run(after())


def test_a_deleted_log_is_removed_from_the_cleaners_checkpoint(tmp_path: Path) -> None:
    async def test() -> None:
        settings = BrokerConfig({"log.cleaner.backoff.ms": "20"})
        broker = BrokerServer(settings, tmp_path, ("127.0.0.1", 0))
        await broker.start()
        try:
            for name in ("dropped", "kept"):
                broker.create_topic(name, partition_count=1, configs=COMPACTED)
                partition = broker.partition(name, 0)
                assert partition is not None
                for number in range(200):
                    record = (b"key-%d" % (number % 5), b"v" * 50)
                    partition.log.append(keyed(record, at_ms=T0), now_ms=T0, leader_epoch=0)
            path = tmp_path / checkpoints.CLEANER
            names = {TopicPartition("dropped", 0), TopicPartition("kept", 0)}
            async with asyncio.timeout(30):
                while checkpoints.read_offsets(path, OsFiles()).keys() != names:
                    await asyncio.sleep(0.01)
            delete_topic(broker, "dropped")
            assert checkpoints.read_offsets(path, OsFiles()).keys() == {TopicPartition("kept", 0)}
        finally:
            await broker.stop()

    asyncio.run(test())
