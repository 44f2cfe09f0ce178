"""File descriptors: idle logs use none, more logs than descriptors are served, a shortage causes refusals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from measurement import pid_of
from support.brokers import RunningBroker, Wire, eventually
from support.logs import batch, find_timestamp, open_log, put, rows_from
from test_connection_shares import Client, connect, run, serving
from test_topic_bursts import CREATE_TOPICS, METADATA, codes, creation, metadata_request, topic

from odradek.broker.front_end.transport import takes_spare
from odradek.broker.server import BrokerServer
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.disk.descriptors import SHARED, Descriptors
from odradek.storage.disk.files import OsFiles
from odradek.wire.api_keys import FETCH, PRODUCE

LIMIT = 600


def produce_request(*names: str) -> dict[str, Any]:
    """One record for partition 0 of each topic."""
    rows = [{"name": name, "partition_data": [{"index": 0, "records": batch(1)}]} for name in names]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}


def count_open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_thousand_idle_partitions_use_no_descriptors(own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    pid = pid_of(running)
    with Wire(running.bootstrap) as wire:
        before = count_open(pid)
        made = wire.call(CREATE_TOPICS, 5, creation(*(topic(f"t{n}", 50) for n in range(20))))
        assert codes(made.topics) == {"none": 20}
        assert count_open(pid) <= before + 2
        asked = produce_request(*(f"t{n}" for n in range(20)))
        assert {
            part.error_code for row in wire.call(PRODUCE, 9, asked).responses for part in row.partition_responses
        } == {0}
        assert count_open(pid) >= before + 20, "a log is open while it is written"
    running.stop()
    running.start()
    with Wire(running.bootstrap):
        assert count_open(pid_of(running)) <= before + 4, "a start leaves no log open"


def test_log_files_that_are_not_used_are_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=30)
            for index in range(30):
                partition = broker.partition("t", index)
                assert partition is not None
                partition.append(batch(1))
            before = len(SHARED)
            assert before >= 30
            for _ in range(2):  # a file used since the previous check stays open until the next check
                broker.clock.advance(60_000)
                await broker.run_due_alarms()
            assert len(SHARED) <= before - 30
            partition = broker.partition("t", 7)
            assert partition is not None
            assert partition.append(batch(1)).base_offset == 1
            assert len(rows_from(partition.log, 0)) == 2

    run(scenario())


@contextlib.contextmanager
def limited_process(data: Path, limit: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker with this limit of descriptors, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "odradek.broker", str(data), "127.0.0.1:0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),  # noqa: PLW1509
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", line)
        if found is None:
            process.wait(20)
            assert process.stderr is not None
            pytest.fail(f"the broker did not start: {process.stderr.read()}")
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def read_all(wire: Wire, names: list[str]) -> set[tuple[int, int]]:
    """(error code, high watermark) of partition 0 of each topic."""
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 16}]
    asked = {
        "max_wait": 0, "min_bytes": 0, "max_bytes": 50 << 20, "isolation_level": 0,
        "topics": [{"topic": name, "partitions": parts} for name in names],
    }  # fmt: skip
    replied = wire.call(FETCH, 4, asked).responses
    assert all(part.records for row in replied for part in row.partitions)
    return {(int(part.error_code), part.high_watermark) for row in replied for part in row.partitions}


def test_more_topics_than_descriptors_are_served_also_after_a_restart(tmp_path: Path) -> None:
    """No log goes offline, and the next start needs no more descriptors than this one (row 2b of docs/limits.md)."""
    limit, count = 300, 320
    names = [f"auto{n}" for n in range(count)]
    with limited_process(tmp_path / "data", limit) as (process, address):
        with Wire(address) as wire:
            made = wire.call(METADATA, 9, metadata_request(*names))
            assert codes(made.topics) == {"none": count}
            for _ in range(2):
                written = wire.call(PRODUCE, 9, produce_request(*names)).responses
                assert {part.error_code for row in written for part in row.partition_responses} == {0}
            assert read_all(wire, names) == {(0, 2)}
            assert count_open(process.pid) <= limit // 2 + 50
        process.kill()
        process.wait()
    for end in ("kill", "terminate"):
        with limited_process(tmp_path / "data", limit) as (process, address):
            with Wire(address) as wire:
                assert read_all(wire, names) == {(0, 2)}
            getattr(process, end)()
            process.wait()
            assert process.stderr is not None
            assert "offline" not in process.stderr.read()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_connections_and_logs_share_the_descriptors(tmp_path: Path) -> None:
    """Open logs are closed for new connections, and connections leave enough descriptors for logs."""
    names = [f"t{n}" for n in range(400)]
    with limited_process(tmp_path / "data", LIMIT) as (process, address), Wire(address) as wire:
        wire.call(METADATA, 9, metadata_request(*names))
        wire.call(PRODUCE, 9, produce_request(*names))
        assert count_open(process.pid) >= LIMIT // 2 - 50, "logs may use half of the descriptors"
        with contextlib.ExitStack() as others:
            admitted = 0
            for _ in range(LIMIT):
                other = others.enter_context(Wire(address))
                with contextlib.suppress(ConnectionError):
                    other.call(18, 0, {})
                    admitted += 1
            assert admitted >= LIMIT // 3
            assert count_open(process.pid) <= LIMIT - 20, "spare descriptors remain for files that are open briefly"
            written = wire.call(PRODUCE, 9, produce_request(*names)).responses
            assert {part.error_code for row in written for part in row.partition_responses} == {0}
            made = wire.call(CREATE_TOPICS, 5, creation(topic("one-more", 20)))
            assert codes(made.topics) == {"none": 1}
        eventually(lambda: count_open(process.pid) < LIMIT // 2 + 50, what="the connections' end")
        assert read_all(wire, names) == {(0, 2)}


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit needs Linux")
def test_without_descriptors_a_broker_refuses_connections_with_one_line_and_goes_on(tmp_path: Path) -> None:
    with limited_process(tmp_path / "data", 400) as (process, address), Wire(address) as wire:
        wire.call(METADATA, 9, metadata_request("t"))
        for spare in (4, 1):  # the broker closes accepted connections, or the system refuses to accept them
            highest = max(int(name) for name in os.listdir(f"/proc/{process.pid}/fd"))
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (highest + spare, 400))
            for _ in range(30):
                with Wire(address) as other, pytest.raises(ConnectionError):
                    other.call(18, 0, {})
            assert wire.call(METADATA, 9, metadata_request("t")).topics[0].error_code == 0
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (400, 400))
            with Wire(address) as other:
                other.call(18, 0, {})
        written = wire.call(PRODUCE, 9, produce_request("t")).responses
        assert written[0].partition_responses[0].error_code == 0
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert "no file descriptor is left for connections: 1 refused" in line


def test_new_topics_are_refused_when_no_descriptors_are_left(tmp_path: Path) -> None:
    limit = -1
    files = OsFiles()
    files.descriptors = Descriptors(lambda: limit)

    async def scenario() -> None:
        nonlocal limit
        async with serving(tmp_path, files=files) as broker:
            client = await connect(broker)
            end = broker.catalog.log_end_offset
            # No number is below this limit: a descriptor that another test left behind cannot become a free one.
            limit = 0
            await refused(broker, client, end)
            limit = -1
            made = await client.ask(METADATA, 9, metadata_request("a", "b"))
            assert codes(made.topics) == {"none": 2}

    async def refused(broker: BrokerServer, client: Client, end: int) -> None:
        reply = await client.ask(CREATE_TOPICS, 5, creation(topic("a", 3), topic("b")))
        errors = {(row.error_code, row.error_message) for row in reply.topics}
        assert errors == {(ErrorCode.kafka_storage_error, "Too few file descriptors are left for more partitions.")}
        asked = await client.ask(METADATA, 9, metadata_request("a", "b"))
        assert codes(asked.topics) == {"kafka_storage_error": 2}
        assert broker.catalog.log_end_offset == end, "nothing was written"
        assert not [name for name in os.listdir(tmp_path) if name.startswith(("a-", "b-"))]

    run(scenario())


# --- the files of logs -------------------------------------------------------------------------------------------


class FewDescriptors(Descriptors):
    """A limit below the numbers that the test's process has already."""

    def is_spare(self, descriptor: int) -> bool:
        return False


def limited_files(most_open: int) -> OsFiles:
    """Files with a limit of open descriptors."""
    files = OsFiles()
    files.descriptors = FewDescriptors(lambda: 2 * most_open)
    return files


def test_the_least_recently_used_file_is_closed_first(tmp_path: Path) -> None:
    files = limited_files(10)
    many = [files.open(tmp_path / str(number), create=True) for number in range(10)]
    for file in many:
        file.append([b"x"])
    files.descriptors.close_unused()  # the order of use counts from here on
    for file in many[:5]:
        file.pread(0, 1)
    later = [files.open(tmp_path / f"later{number}", create=True) for number in range(5)]
    assert len(files.descriptors) == 10
    assert [file.is_open for file in many] == [True] * 5 + [False] * 5
    for file in many:
        file.append([b"y"])
        assert file.pread(0, 9) == b"xy"
    assert len(files.descriptors) <= 10
    del many, later, file
    assert len(files.descriptors) == 0


def test_logs_work_with_fewer_descriptors_than_segments(tmp_path: Path) -> None:
    files = limited_files(3)
    logs = [open_log(tmp_path / f"t-{n}", files=files, segment_bytes=500, index_interval_bytes=100) for n in range(5)]
    for number in range(40):
        for log in logs:
            put(log, batch(1, number, at_ms=1_700_000_000_000 + number))
    for log in logs:
        assert len(log.segments) > 5
        assert [row.offset for row in rows_from(log, 0, max_bytes=200)] == list(range(40))
        found = find_timestamp(log, 1_700_000_000_000 + 17)
        assert found is not None
        assert found.offset == 17
        assert len(files.descriptors) <= 3
    for number, log in enumerate(logs):
        log.close()
        again = open_log(tmp_path / f"t-{number}", files=files, clean=True, recovery_point=40)
        assert again.log_end_offset == 40


def test_data_that_is_being_sent_stays_readable_after_its_file_is_closed_or_removed(tmp_path: Path) -> None:
    files = limited_files(2)
    log = open_log(tmp_path / "t-0", files=files, segment_bytes=500)
    for number in range(30):
        put(log, batch(1, number))
    slices = [log.read(segment.base_offset, 300) for segment in log.segments]
    expected = [found.bytes() for found in slices]
    log.removals.delete_before(25)
    assert log.removals.retain(0) >= 4
    assert [found.bytes() for found in slices] == expected
    log.retire()
    rmtree(tmp_path / "t-0")
    assert [found.bytes() for found in slices] == expected


def test_a_file_that_cannot_be_opened_makes_no_log_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = OsFiles()
    files.descriptors = Descriptors()
    log = open_log(tmp_path / "t-0", files=files, segment_bytes=2000, index_interval_bytes=1)
    put(log, batch(5))
    opened = os.open
    exhausted = True

    def fails(path: Any, *args: Any, **options: Any) -> int:
        if exhausted and "t-0" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", fails)
    end = 5
    for number in range(100):
        exhausted = bool(number % 3)
        if exhausted:
            files.descriptors.close_unused()
            files.descriptors.close_unused()
            with pytest.raises(KafkaError, match=r"(append|roll) failed: .* Too many open files") as refused:
                put(log, batch(5, end))
            assert refused.value.code is ErrorCode.kafka_storage_error
            with pytest.raises(KafkaError, match=r"read failed: .* Too many open files"):
                log.read(0, 1000)
        else:
            assert put(log, batch(5, end)).base_offset == end
            end += 5
        assert log.disk.offline is None
    exhausted = False
    assert len(log.segments) >= 3
    assert [row.offset for row in rows_from(log, 0)] == list(range(end))
    (line,) = caplog.messages  # until ``retry`` of the broker finds that writes succeed again
    assert "append failed: Too many open files (errno 24, " in line
    assert line.endswith("raise the limit of open files (ulimit -n, fs.file-max)")


def test_a_log_file_is_closed_for_a_new_connection(tmp_path: Path) -> None:
    class Transport(asyncio.BaseTransport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return held

    limit = -1
    files = OsFiles()
    files.descriptors = Descriptors(lambda: limit, kept=2)
    many = [files.open(tmp_path / str(number), create=True) for number in range(14)]
    with (tmp_path / "socket").open("w") as held:
        limit = held.fileno() + 1
        assert not takes_spare(Transport(), files.descriptors)
        assert sum(file.is_open for file in many) < 14
        while not takes_spare(Transport(), files.descriptors):
            pass
        assert len(files.descriptors) == 2, "two logs stay open"
