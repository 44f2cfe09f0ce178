"""Fetch replies that are sent from the page cache to the socket: complete and in order on a real broker."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually
from support.counted_files import CountedFiles
from support.partitions import registered
from support.replicas import make_replicated
from test_server_frames import create, fetch, produce

from odradek.batches.encode import encode_batch
from odradek.batches.header import crc_is_valid, scan
from odradek.broker.loop.world import NodeWorld
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.core.effects import SimpleRecord
from odradek.wire import frames

VALUES = [bytes([n]) * 300_000 for n in range(12)]


def write(wire: Wire, topic: str, values: list[bytes] = VALUES) -> None:
    for value in values:
        assert produce(wire, topic, [value]).error_code == 0


def records_of(reply: object) -> bytes:
    return bytes(reply.responses[0].partitions[0].records)


def bases(data: bytes) -> list[int]:
    """Checks the CRCs of the complete batches in the data. Returns the base offsets of these batches."""
    found = list(scan(data))
    assert all(crc_is_valid(data, position, header) for position, header in found)
    return [header.base_offset for _, header in found]


def test_large_and_small_replies_keep_their_order_on_one_connection(bootstrap: str, topic: str) -> None:
    with Wire(bootstrap) as wire:
        create(wire, topic)
        write(wire, topic)
        asked = []
        for offset in (0, 11, 3, 12, 6, 9, 0):
            asked.append((offset, wire.send(1, 11, fetch(topic, offset, max_wait_ms=0))))
            asked.append((-1, wire.send(18, 0, {})))
        for offset, correlation_id in asked:
            if offset < 0:
                assert wire.receive(18, 0, correlation_id).error_code == 0
                continue
            data = records_of(wire.receive(1, 11, correlation_id))
            if offset == 12:
                assert data == b""
                continue
            assert bases(data)[0] == offset
            assert VALUES[offset] in data


def test_all_partitions_of_one_reply_are_complete(bootstrap: str, topic: str) -> None:
    """Headers and files alternate in the reply: two partitions have a part of a file, one has a few bytes, and one has
    no bytes."""
    with Wire(bootstrap) as wire:
        create(wire, topic, partitions=4)
        for value in VALUES[:3]:
            produce(wire, topic, [value])
            produce(wire, topic, [value], partition=3)
        produce(wire, topic, [b"little"], partition=1)
        asked = fetch(topic, max_wait_ms=0)
        part = asked["topics"][0]["partitions"][0]
        asked["topics"][0]["partitions"] = [{**part, "partition": n} for n in range(4)]
        for version in (4, 7, 11, 12):
            parts = wire.call(1, version, asked).responses[0].partitions
            sizes = [len(bytes(part.records or b"")) for part in parts]
            assert sizes[0] == sizes[3] > 900_000
            assert 0 < sizes[1] < 200
            assert sizes[2] == 0
            for part, value in zip(parts, (VALUES[2], b"little", b"", VALUES[2]), strict=True):
                assert value in bytes(part.records or b"")


def test_a_topic_deleted_while_it_is_sent_arrives_complete(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    """The reader requests three megabytes and reads them after the files are deleted."""
    running = own_broker(log_segment_delete_delay_ms="0")
    host, _, port = running.bootstrap.rpartition(":")
    with Wire(running.bootstrap) as wire, socket.socket() as slow:
        create(wire, topic)
        write(wire, topic)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect((host, int(port)))
        asked = fetch(topic, max_wait_ms=0)
        asked["topics"][0]["partitions"][0]["partition_max_bytes"] = 50 << 20
        slow.sendall(frames.encode_request(1, 11, 7, "slow", asked))
        begun = slow.recv(4, socket.MSG_WAITALL)
        assert wire.call(20, 5, {"topic_names": [topic], "timeout": 5000}).responses[0].error_code == 0
        data_dir: Path = running.data_dir
        eventually(lambda: not list(data_dir.glob(f"{topic}-*")), what="the end of the files")
        size = struct.unpack(">i", begun)[0]
        data = b""
        while len(data) < size:
            piece = slow.recv(1 << 20)
            assert piece
            data += piece
        _, reply = frames.decode_reply(1, 11, data)
        assert bases(records_of(reply)) == list(range(len(VALUES)))


def test_a_reader_before_the_last_segment_does_not_wait(bootstrap: str, topic: str) -> None:
    """For any min_bytes the reader gets a full reply at once, so it catches up."""
    with Wire(bootstrap) as wire:
        create(wire, topic, segment_bytes=str(1 << 20))
        write(wire, topic)
        found: list[int] = []
        while not found or found[-1] < 8:
            offset = found[-1] + 1 if found else 0
            asked = fetch(topic, offset, max_wait_ms=600_000, min_bytes=50 << 20)
            found += bases(records_of(wire.call(1, 11, asked)))
        assert found == list(range(9))
        # In the last segment the reader waits for min_bytes, as in Kafka.
        waiting = wire.send(1, 11, fetch(topic, 9, max_wait_ms=600_000, min_bytes=950_000))
        with Wire(bootstrap) as other:
            write(other, topic, VALUES[:1])
        assert bases(records_of(wire.receive(1, 11, waiting))) == [9, 10, 11]


def test_a_partition_named_twice_is_answered_once(bootstrap: str, topic: str) -> None:
    with Wire(bootstrap) as wire:
        create(wire, topic)
        write(wire, topic, [b"a", b"b"])
        asked = fetch(topic, 0, max_wait_ms=0)
        asked["topics"] = asked["topics"] + fetch(topic, 1, max_wait_ms=0)["topics"]
        answered = [part for row in wire.call(1, 11, asked).responses for part in row.partitions]
        assert [bases(bytes(part.records)) for part in answered] == [[1]]


def test_readers_that_disconnect_during_a_reply_leave_no_open_files(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    running = own_broker()
    descriptors = Path(f"/proc/{running.pid}/fd")
    host, _, port = running.bootstrap.rpartition(":")
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        write(wire, topic)
        records_of(wire.call(1, 11, fetch(topic, max_wait_ms=0)))
        before = len(os.listdir(descriptors))
        asked = fetch(topic, max_wait_ms=0)
        asked["topics"][0]["partitions"][0]["partition_max_bytes"] = 50 << 20
        for _ in range(20):
            with socket.socket() as leaving:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                leaving.connect((host, int(port)))
                leaving.sendall(frames.encode_request(1, 11, 7, "leaving", asked) * 3)
                assert leaving.recv(100)
        eventually(lambda: len(os.listdir(descriptors)) <= before, what="the descriptors are closed")
        assert bases(records_of(wire.call(1, 11, fetch(topic, max_wait_ms=0))))[0] == 0


@pytest.mark.claim(11, part="a")
def test_records_of_large_replies_never_pass_through_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # docs/benchmarks/mechanisms.md shows the gain
    check_sent_records(tmp_path, monkeypatch, lambda broker: None)


def follow(broker: BrokerServer) -> ReplicatedPartition:
    """Gives the partition another replica, which is in sync and fetches only if the test does."""
    one, node = make_replicated(broker, "topic"), broker.node_id
    one.apply(registered((node, 2), node, leader_epoch=one.leader_epoch + 1), node, 0)
    return one


def test_records_for_a_follower_never_pass_through_python_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_sent_records(tmp_path, monkeypatch, follow, replica=2)


def test_records_above_the_high_watermark_are_copied_for_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation may rewrite the file there while it is sent."""

    def follow_from_the_start(broker: BrokerServer) -> None:
        follow(broker).move_high_watermark(0)

    check_sent_records(tmp_path, monkeypatch, follow_from_the_start, replica=2, is_copied=True)


def check_sent_records(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[BrokerServer], object],
    replica: int = -1,
    *,
    is_copied: bool = False,
) -> None:
    """Fetches a large reply, and checks how its bytes came to the socket."""
    sent: list[int] = []
    files = CountedFiles()
    world = NodeWorld.of_process()._replace(files=files)
    sendfile = os.sendfile

    def counting_sendfile(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        sent.append(sendfile(out_fd, in_fd, offset, count))
        return sent[-1]

    async def life() -> bytes:
        broker = BrokerServer(BrokerConfig(), tmp_path, ("127.0.0.1", 0), world)
        await broker.start()
        try:
            broker.create_topic("topic", partition_count=1)
            partition = broker.partition("topic", 0)
            assert partition is not None
            for value in VALUES:
                data = encode_batch([SimpleRecord(b"k", value, 1)], now_ms=1)
                partition.log.append(data, now_ms=1, leader_epoch=0)
            prepare(broker)
            monkeypatch.setattr(os, "sendfile", counting_sendfile)
            files.reads.clear()
            reader, writer = await asyncio.open_connection(*broker.address)
            asked = fetch("topic", max_wait_ms=0) | {"replica_id": replica}
            asked["topics"][0]["partitions"][0]["partition_max_bytes"] = 50 << 20
            writer.write(frames.encode_request(1, 11, 7, "counted", asked))
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            reply = await reader.readexactly(size)
            writer.close()
            return reply
        finally:
            monkeypatch.undo()
            await broker.stop()

    _, reply = frames.decode_reply(1, 11, asyncio.run(life()))
    records = records_of(reply)
    assert bases(records) == list(range(len(VALUES)))
    if is_copied:
        assert not sent
        return
    assert sum(sent) == len(records), "each byte of the records was sent from the file to the socket"
    assert files.read_bytes < 0.05 * len(records), "only headers were read, to find the batches"
