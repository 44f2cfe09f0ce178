"""Batches of few bytes that hold millions of records or unpack to gigabytes.

Such a batch gets only a limited share of the event loop, of memory and of a reply. The batches of these tests are
smaller, so that the tests are quick. The tests measure which fraction of a batch is processed at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import cramjam
import pytest
import uvloop
from crc32c import crc32c
from support.brokers import create_offsets_topic
from support.cleaning import T0, job_of, keyed, open_log
from support.logs import set_base_offset
from support.peers import Client, until
from support.whole_steps import check_batch

from odradek.batches import compression, record_validation
from odradek.batches.compression import CODES, compress, decompress
from odradek.batches.header import HEADER_BYTES, read_header
from odradek.batches.rows import iter_records
from odradek.broker.loop.scheduler import SHARE_S
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import DeleteTopic
from odradek.core.ids import OFFSETS_TOPIC
from odradek.core.varints import varint
from odradek.storage.cleaning.cleaner import TooLargeForSteps, clean
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS, CREATE_TOPICS, LIST_OFFSETS, PRODUCE

MIB = 1 << 20
MANY = 60_000
"""The number of records in a dense batch of half a megabyte."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INVALID_RECORD = 87


def sealed(payload: bytes, count: int, codec: str, newest: int = T0, base_sequence: int = -1) -> bytes:
    """One batch of packed records, with a correct checksum. The time of its first record is T0."""
    producer = (7, 0) if base_sequence >= 0 else (-1, -1)
    attributes = CODES[codec]
    checked = struct.pack(">hiqqqhii", attributes, count - 1, T0, newest, *producer, base_sequence, count)
    head = struct.pack(">qiib", 0, HEADER_BYTES - 12 + len(payload), -1, 2)
    return head + struct.pack(">I", crc32c(checked + payload)) + checked + payload


def records(count: int = MANY, *, last_is_newer: bool = True, keyed: bool = False) -> bytes:
    """The smallest records. Their sizes change, so that the broker checks them one at a time."""
    parts = []
    tails = [b"\1\1\0", b"\1\0\0", b"\1\2a\0"] if not keyed else [b"\2k\1\0", b"\2k\0\0", b"\2k\2a\0"]
    for number in range(count):
        delta = b"\2" if last_is_newer and number == count - 1 else b"\0"
        body = b"\0" + delta + varint(number) + tails[number % 3]
        parts.append(varint(len(body)) + body)
    return b"".join(parts)


DENSE = records()


def dense(codec: str = "zstd", base_sequence: int = -1) -> bytes:
    return sealed(compress(CODES[codec], DENSE), MANY, codec, T0 + 1, base_sequence)


def zeros(size: int) -> bytes:
    """A batch of one record whose value is this number of zeros, compressed to a few kilobytes."""
    body = b"\0\0\0\1" + varint(size) + bytes(size) + b"\0"
    return sealed(compress(CODES["zstd"], varint(len(body)) + body), 1, "zstd")


class Producer(Client):
    """A raw connection that produces records."""

    async def produce(self, *batches: bytes, topic: str = "t", acks: int = -1) -> list[Any]:
        """Sends one batch to each partition. Returns the results of the partitions."""
        self.send(*batches, topic=topic, acks=acks)
        answer = frames.decode_reply(PRODUCE, 9, await self.reply())[1]
        return list(answer.responses[0].partition_responses)

    def send(self, *batches: bytes, topic: str = "t", acks: int = -1) -> None:
        parts = [{"index": index, "records": data} for index, data in enumerate(batches)]
        message = {
            "transactional_id": None, "acks": acks, "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": parts}],
        }  # fmt: skip
        self.writer.write(frames.encode_request(PRODUCE, 9, 1, "c", message))

    async def offset_at(self, timestamp: int, topic: str = "t") -> tuple[int, int]:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        message = {
            "replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]
        }  # fmt: skip
        answer = (await self.ask(LIST_OFFSETS, 7, message)).topics[0].partitions[0]
        return int(answer.error_code), answer.offset


@asynccontextmanager
async def serving(directory: Path, **topic: str) -> AsyncIterator[BrokerServer]:
    """A broker with topic ``t`` of two partitions. The scheduler's clock moves by a millisecond at every third call,
    so that a share has at most 15 steps on any machine."""
    broker = BrokerServer(BrokerConfig.parse([]), directory, ("127.0.0.1", 0))
    await broker.start()
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return looks // 3 * SHARE_S

    broker.scheduler.clock = clock
    configs = {name.replace("_", "."): value for name, value in topic.items()}
    if broker.catalog.topic("t") is None:
        broker.create_topic("t", partition_count=2, configs=configs)
    try:
        yield broker
    finally:
        await broker.abandon()


connect = Producer.connect


def run(coroutine: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


async def served_during(broker: BrokerServer, request: Any) -> tuple[Any, int]:
    """Returns the result of the request, and the number of replies that another connection got before it."""
    other = await connect(broker)
    await other.ask(API_VERSIONS, 0, {})
    task = asyncio.ensure_future(request)
    count = 0
    while not task.done():
        await other.ask(API_VERSIONS, 0, {})
        count += 1
    return task.result(), count


@contextmanager
def unpacking(seen: list[tuple[bool, int]]) -> Iterator[None]:
    """Records the output of each decoder: whether it ran in the main thread, and the number of bytes."""

    def note(size: int) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), size))

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            note(result if isinstance(result, int) else len(result))
            return result

        return call

    class Inflater:
        def __init__(self, *arguments: Any) -> None:
            self.inner = zlib.decompressobj(*arguments)

        def decompress(self, *arguments: Any) -> bytes:
            part = self.inner.decompress(*arguments)
            note(len(part))
            return part

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (cramjam.zstd, cramjam.lz4):
            for name in ("decompress", "decompress_into"):
                patch.setattr(module, name, recorded(getattr(module, name)))
        patch.setattr(cramjam.snappy, "decompress_raw_into", recorded(cramjam.snappy.decompress_raw_into))
        fake = type("Zlib", (), {**vars(zlib), "decompressobj": Inflater})
        patch.setattr(compression, "zlib", fake)
        yield


# Produce


@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_are_served_while_a_batch_is_checked(tmp_path: Path, codec: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_message_bytes=str(4 * MIB)) as broker:
            client = await connect(broker)
            (result,), count = await served_during(broker, client.produce(dense(codec)))
            assert (int(result.error_code), result.base_offset) == (0, 0)
            assert count >= MANY / 1000 / 20, "a step has a thousand records, a share at most 15 steps"
            partition = broker.partition("t", 0)
            assert partition is not None
            direct = Log.open(tmp_path / "direct-0", LogConfig(max_message_bytes=4 * MIB), T0, clean=True)
            direct.append(dense(codec), now_ms=T0, leader_epoch=partition.leader_epoch)
            assert partition.read_bytes(0, MIB) == direct.read(0, MIB).bytes()

    run(scenario())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_event_loop_unpacks_at_most_a_megabyte_at_a_time(tmp_path: Path, codec: str) -> None:
    size = 24 * MIB
    body = b"\0\0\0\1" + varint(size) + b"0123456789abcdef" * (size // 16) + b"\0"
    body = varint(len(body)) + body
    payload = bytes(cramjam.snappy.compress_raw(body)) if codec == "snappy" else compress(CODES[codec], body)
    batch = sealed(payload, 1, codec)
    seen: list[tuple[bool, int]] = []

    async def scenario() -> None:
        async with serving(tmp_path, max_message_bytes=str(4 * MIB)) as broker:
            client = await connect(broker)
            with unpacking(seen):
                (result,) = await client.produce(batch)
                assert int(result.error_code) == 0
                assert await client.offset_at(T0) == (0, 0)

    run(scenario())
    assert sum(size for _, size in seen) >= 2 * size, "all bytes were unpacked, for each request"
    assert max((size for is_loop, size in seen if is_loop), default=0) <= MIB


def test_one_record_with_many_headers_is_checked_in_steps(tmp_path: Path) -> None:
    headers = 200_000
    body = b"\0\0\0\1\1" + varint(headers) + b"\0\1" * headers
    batch = sealed(compress(CODES["zstd"], varint(len(body)) + body), 1, "zstd")

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            client = await connect(broker)
            (result,), count = await served_during(broker, client.produce(batch))
            assert int(result.error_code) == 0
            assert count >= headers / 500 / 20

    run(scenario())


def test_many_partitions_of_small_batches_are_served_in_steps(tmp_path: Path) -> None:
    """The broker would check a single batch of this size in one step."""
    batch = sealed(compress(CODES["zstd"], records(1900, last_is_newer=False)), 1900, "zstd")

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("wide", partition_count=100)
            client = await connect(broker)
            results, count = await served_during(broker, client.produce(*[batch] * 100, topic="wide"))
            assert [result.base_offset for result in results] == [0] * 100
            assert count >= 4

    run(scenario())


def test_batches_appended_during_a_check_precede_the_checked_batch(tmp_path: Path) -> None:
    """The broker assigns offsets and checks sequences when it appends a batch, not when its check begins."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            slow, fast, twice = [await connect(broker) for _ in range(3)]
            slow.send(dense(base_sequence=0))
            await until(lambda: "workers" in vars(broker))
            slow.send(keyed((b"k", b"behind"), at_ms=T0))  # on the same connection: served after the first request
            (first,) = await fast.produce(keyed((b"k", b"v"), at_ms=T0))
            (result,) = await twice.produce(dense(base_sequence=0))
            answers = [frames.decode_reply(PRODUCE, 9, await slow.reply())[1] for _ in range(2)]
            large, behind = (answer.responses[0].partition_responses[0] for answer in answers)
            assert first.base_offset == 0
            assert large.base_offset == 1
            assert behind.base_offset >= 1 + MANY
            assert (int(result.error_code), result.base_offset) == (0, 1), (
                "the batch that was sent twice is stored once"
            )
            partition = broker.partition("t", 0)
            assert partition is not None
            assert partition.log_end_offset == MANY + 2

    run(scenario())


@pytest.mark.parametrize("acks", [0, -1])
def test_the_memory_of_a_closed_connection_is_freed(tmp_path: Path, acks: int) -> None:
    """With acks=0 the broker stores the records even if the connection closes: the client waits for no reply."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            client = await connect(broker)
            client.send(dense(), acks=acks)
            await until(lambda: "workers" in vars(broker))
            await until(lambda: broker.workers.small.used > 0)
            for connection in tuple(broker.connections):
                connection.abort()
            await until(lambda: broker.workers.small.used == 0 and not broker.scheduler.busy)
            partition = broker.partition("t", 0)
            assert partition is not None
            assert partition.log_end_offset == (MANY if acks == 0 else 0)
            assert broker.workers.outliving == 0

    run(scenario())


def test_requests_without_acks_beyond_the_limit_end_with_their_connection(tmp_path: Path) -> None:
    """Requests with acks=0 outlive their connection up to a number of bytes (``workers.outliving``)."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            client = await connect(broker)
            broker.workers.outliving = 64 * MIB
            client.send(dense(), acks=0)
            await until(lambda: broker.workers.small.used > 0)
            for connection in tuple(broker.connections):
                connection.abort()
            await until(lambda: broker.workers.small.used == 0 and not broker.scheduler.busy)
            partition = broker.partition("t", 0)
            assert partition is not None
            assert partition.log_end_offset == 0

    run(scenario())


def test_a_topic_may_be_deleted_while_its_records_are_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            client = await connect(broker)
            client.send(dense())
            await until(lambda: "workers" in vars(broker))
            topic = broker.catalog.topic("t")
            assert topic is not None
            # Within one tick: a request for it may come after the check, which is short on a quiet machine.
            broker.finish(broker.controller.steps_of(lambda change: change.add(DeleteTopic(topic.id))))
            answer = frames.decode_reply(PRODUCE, 9, await client.reply())[1]
            assert int(answer.responses[0].partition_responses[0].error_code) == 3, "unknown topic or partition"
            assert int((await client.produce(dense()))[0].error_code) == 3

    run(scenario())


def test_the_number_of_reported_record_errors_is_limited_across_partitions(tmp_path: Path) -> None:
    batch = sealed(compress(CODES["zstd"], DENSE), MANY, "zstd", T0 + 1)

    async def scenario() -> None:
        async with serving(tmp_path, cleanup_policy="compact") as broker:
            client = await connect(broker)
            (first, second), count = await served_during(broker, client.produce(batch, batch))
            assert int(first.error_code) == int(second.error_code) == INVALID_RECORD
            assert [error.batch_index for error in first.record_errors] == list(range(10_000))
            assert not second.record_errors
            assert first.error_message
            assert count >= MANY / 1000 / 20

    run(scenario())


def test_recompression_of_a_large_batch_runs_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[tuple[bool, int]] = []
    inner = cramjam.zstd.compress

    def recorded(data: Any, **options: Any) -> Any:
        threads.append((threading.current_thread() is threading.main_thread(), len(data)))
        return inner(data, **options)

    monkeypatch.setattr(cramjam.zstd, "compress", recorded)

    async def scenario() -> None:
        async with serving(tmp_path, compression_type="zstd", compression_zstd_level="19") as broker:
            client = await connect(broker)
            plain = keyed(*((b"k", os.urandom(500)) for _ in range(1000)), at_ms=T0)
            (result,) = await client.produce(plain)
            assert int(result.error_code) == 0
            (small,) = await client.produce(keyed((b"k", b"v"), at_ms=T0))
            assert small.base_offset == 1000
            partition = broker.partition("t", 0)
            assert partition is not None
            stored = partition.read_bytes(0, MIB)
            assert read_header(stored).compression == CODES["zstd"]
            assert [row.value for row in iter_records(stored)] == [
                *(row.value for row in iter_records(plain)), b"v",
            ]  # fmt: skip

    run(scenario())
    assert [is_loop for is_loop, size in threads if size > 16 << 10] == [False]
    assert len(threads) == 2


# ListOffsets


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("time", [T0 + 1, -3])
def test_other_clients_are_served_during_a_lookup_by_time(tmp_path: Path, codec: str, time: int) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_message_bytes=str(4 * MIB)) as broker:
            partition = broker.partition("t", 0)
            assert partition is not None
            partition.log.append(dense(codec), now_ms=T0, leader_epoch=0, origin="coordinator")
            client = await connect(broker)
            found, count = await served_during(broker, client.offset_at(time))
            assert found == (0, MANY - 1)
            assert count >= MANY / 1000 / 20

    run(scenario())


def test_other_clients_are_served_while_a_lookup_skips_many_batches(tmp_path: Path) -> None:
    """The time index has an entry where the largest timestamp grows. Here it does not grow for thousands of batches."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            partition = broker.partition("t", 0)
            assert partition is not None
            for at_ms in (T0 + 100, *[T0] * 8_000, T0 + 200):
                partition.log.append(keyed((b"k", b"v"), at_ms=at_ms), now_ms=T0, leader_epoch=0)
            client = await connect(broker)
            found, count = await served_during(broker, client.offset_at(T0 + 150))
            assert found == (0, 8_001)
            assert count >= 8_000 / 100 / 20

    run(scenario())


# memory


def peak_and_now_kib(process: int) -> tuple[int, int]:
    status = Path(f"/proc/{process}/status").read_text()
    peak, now = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmHWM", "VmRSS"))
    assert peak is not None
    assert now is not None
    return int(peak[1]), int(now[1])


@pytest.mark.skipif(sys.platform != "linux", reason="a process's memory is read from /proc")
def test_batches_with_large_unpacked_sizes_share_one_memory_budget(tmp_path: Path) -> None:
    """Four connections send batches of 200 MiB at the same time. Another client sends one small record meanwhile."""
    size = 200 * MIB
    command = [sys.executable, "-m", "odradek.broker", str(tmp_path), "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r":(\d+)", process.stdout.readline())
            assert found is not None
            run(_four_at_once(int(found[1]), process.pid, size))
        finally:
            process.terminate()
            assert process.wait(30) == 0


async def _four_at_once(port: int, process: int, size: int) -> None:
    clients = [Producer(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(5)]
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    await clients[0].ask(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 9000, "validate_only": False})
    await clients[0].produce(keyed((b"k", b"v")))
    before, _ = peak_and_now_kib(process)
    batch = zeros(size)
    assert len(batch) < 20_000
    *results, (small,) = await asyncio.gather(
        *(client.produce(batch) for client in clients[:4]), clients[4].produce(keyed((b"k", b"v")))
    )
    assert {int(result.error_code) for (result,) in results} == {0}
    assert sorted([small.base_offset, *(result.base_offset for (result,) in results)]) == [1, 2, 3, 4, 5]
    peak, _ = peak_and_now_kib(process)
    assert peak - before < 1.25 * size / 1024, "only one batch is unpacked at a time, and is in memory once"
    await until(lambda: peak_and_now_kib(process)[1] - before < 32 << 10)


def test_only_a_few_record_times_stay_in_memory() -> None:
    """The records have different times; after each step only the least and the greatest so far stay in memory."""
    parts = []
    for number in range(50_000):
        body = b"\0" + varint(number * 1000) + varint(number) + b"\1\1\0"
        parts.append(varint(len(body)) + body)
    batch = sealed(b"".join(parts), len(parts), "none")
    header = read_header(batch)
    with tracing() as peak:
        found = check_batch(batch, header)
    assert (found.least_delta, found.greatest_delta) == (0, 49_999_000)
    assert peak() < MIB // 2


# work


def test_short_series_of_equal_records_are_not_scanned_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two neighbours of equal size start a search for a series of equal records."""
    looked_at = 0
    inner = record_validation._run

    def counted(data: Any, start: int, size: int, count: int) -> Any:
        nonlocal looked_at
        looked_at += count
        return inner(data, start, size, count)

    monkeypatch.setattr(record_validation, "_run", counted)
    data = sealed(b"".join([b"\x0c\0\0\0\1\1\0", b"\x0c\0\0\0\1\1\0", b"\x0e\0\0\0\1\2a\0"]) * 20_000, 60_000, "none")
    check_batch(data, read_header(data))
    assert looked_at <= 60_000 * 20


def test_gzip_members_are_not_copied_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib's decoder copies all data after a gzip member, so a stream of many members must be passed in pieces."""
    members = 3000
    one = zlib.compressobj(6, zlib.DEFLATED, 31)
    member = one.compress(b"") + one.flush()
    fed = 0

    class Inflater:
        def __init__(self, *arguments: Any) -> None:
            self.inner = zlib.decompressobj(*arguments)

        def decompress(self, data: Any, *arguments: Any) -> bytes:
            nonlocal fed
            fed += len(data)
            return self.inner.decompress(data, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    fake = type("Zlib", (), {**vars(zlib), "decompressobj": Inflater})
    monkeypatch.setattr(compression, "zlib", fake)
    assert bytes(decompress(CODES["gzip"], member * members)) == b""
    assert fed <= members * 1024


# groups and the cleaner


def test_a_dense_batch_of_commits_is_loaded_in_steps_and_unpacked_in_a_thread(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            create_offsets_topic(broker)
            partition = broker.partition(OFFSETS_TOPIC, 0)
            assert partition is not None
            body = b"".join(
                varint(len(record)) + record
                for record in (b"\0\0" + varint(n) + b"\1" + varint(100) + bytes(100) + b"\0" for n in range(20_000))
            )
            batch = sealed(compress(CODES["zstd"], body), 20_000, "zstd")
            partition.log.append(batch, now_ms=T0, leader_epoch=0, origin="coordinator")
            with unpacking(seen):
                broker.groups.unload(0, None)
                broker.groups.load(0, partition, 1)
                await until(lambda: broker.groups.shard(0) is not None)
            shard = broker.groups.shard(0)
            assert shard is not None
            assert shard.skipped["no key"] == 20_000
            await until(lambda: broker.existing_workers is not None and broker.workers.small.used == 0)

    run(scenario())
    assert [size > 2 * MIB for _, size in seen] == [True]
    assert not any(is_loop for is_loop, _ in seen)


@pytest.mark.parametrize("count", [1, 30])
def test_a_log_with_dense_batches_is_not_cleaned_in_the_event_loop(tmp_path: Path, count: int) -> None:
    """The log has one large record, or many records in small batches."""
    log = open_log(tmp_path / "t-0")
    if count == 1:
        body = b"\0\0\0\2k" + varint(400_000) + bytes(400_000) + b"\0"
        batch = sealed(compress(CODES["zstd"], varint(len(body)) + body), 1, "zstd")
    else:
        batch = sealed(compress(CODES["zstd"], records(6000, keyed=True)), 6000, "zstd", T0 + 1)
    for _ in range(count):
        log.append(batch, now_ms=T0, leader_epoch=0, origin="coordinator")
    log.roll(T0)
    assert log.size < MIB
    with pytest.raises(TooLargeForSteps):
        list(clean(job_of(log)[1], RowEngine(), OsFiles(), max_packed=64 << 10))


def test_the_cleaner_process_unpacks_a_limited_number_of_bytes_at_a_time(tmp_path: Path) -> None:
    from odradek.storage.cleaning.columns import ColumnEngine
    from odradek.storage.cleaning.rules import Transactions

    size = 20 * MIB
    body = b"\0\0\0\2k" + varint(size) + bytes(size) + b"\0"
    batch = bytearray(sealed(compress(CODES["zstd"], varint(len(body)) + body), 1, "zstd"))
    chunk = b""
    for offset in range(12):
        set_base_offset(batch, 0, offset, 0)
        chunk += batch
    engine = ColumnEngine()
    engine.reserve(20, 20)
    sizes = []
    while chunk:
        with tracing() as peak:
            done = returned(engine.map(chunk, Transactions([]), 0))
        assert peak() < 160 * MIB
        sizes.append(done.size // len(batch))
        chunk = chunk[done.size :]
    assert sizes == [3, 3, 3, 3]
    assert engine.keys == 1


def returned(steps: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@contextmanager
def tracing() -> Iterator[Callable[[], int]]:
    """Measures the memory that Python and numpy allocate. After the block, the yielded function returns the peak."""
    peaks: list[int] = []
    tracemalloc.start()
    try:
        yield lambda: peaks[0]
    finally:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
