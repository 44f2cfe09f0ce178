"""A broker's process ends with one line and exit code 74 after a failed write whose result on the disk is unknown."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import Wire
from support.faulty_process import FaultyProcess
from support.logs import batch

from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CREATE_TOPICS, FETCH, PRODUCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hook finds the names of files in /proc")


class _Broker(FaultyProcess):
    """``acked`` is the number of acknowledged records."""

    acked = 0

    def produce(self, wire: Wire) -> ErrorCode:
        """Sends one record. Returns NETWORK_EXCEPTION if the broker ends without a reply."""
        rows = [{"name": "t", "partition_data": [{"index": 0, "records": batch(1, size=700)}]}]
        request = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}
        try:
            reply = wire.call(PRODUCE, 9, request)
        except (ConnectionError, EOFError):
            return ErrorCode.network_exception
        code = ErrorCode(reply.responses[0].partition_responses[0].error_code)
        self.acked += code is ErrorCode.none
        return code


def _create_topic(wire: Wire) -> None:
    settings = {"flush.messages": "1", "internal.segment.bytes": "2000", "segment.bytes": "1048576"}
    topic = {
        "name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in settings.items()],
    }  # fmt: skip
    reply = wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    assert reply.topics[0].error_code == 0


def _check(process: _Broker, fail: Callable[[], object], mend: Callable[[], object], text: str) -> None:
    with process.running() as (broker, wire):
        _create_topic(wire)
        assert process.produce(wire) is ErrorCode.none
        fail()
        while (code := process.produce(wire)) is ErrorCode.none:
            pass
        assert code in (ErrorCode.kafka_storage_error, ErrorCode.network_exception)
        assert broker.wait(60) == 74
        assert broker.stderr is not None
        lines = broker.stderr.read()
    assert lines.count("\n") == 1, lines
    (line,) = lines.splitlines()
    assert re.search(rf"the broker ends: .*t-0 is offline because {text}.*; the next start checks the logs", line), line
    assert not (process.data / ".kafka_cleanshutdown").exists()
    mend()
    with process.running() as (_, wire):
        part = {"partition": 0, "fetch_offset": process.acked - 1, "partition_max_bytes": 1 << 16}
        request = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
        found = wire.call(FETCH, 4, {**request, "topics": [{"topic": "t", "partitions": [part]}]})
        assert found.responses[0].partitions[0].records, "an acknowledged record is lost"
        assert process.produce(wire) is ErrorCode.none


@pytest.mark.parametrize(
    ("command", "faults", "text"),
    [
        ("odradek.broker", [("writev", errno.EIO, "t-0")], "append failed: .*Input/output error"),
        (
            "odradek serve",
            [("fdatasync", errno.ENOSPC, ""), ("fsync", errno.ENOSPC, "")],
            "flush failed: .*No space left on device",
        ),
    ],
)
def test_a_broker_ends_after_a_failed_write_or_sync(
    tmp_path: Path, command: str, faults: list[tuple[str, int, str]], text: str
) -> None:
    process = _Broker(tmp_path, command)
    _check(process, lambda: process.fail(*faults), process.fail, text)


def test_a_broker_ends_when_its_disk_has_become_read_only(tmp_path: Path) -> None:
    """The system itself refuses the next segment: a read-only file system is mounted over the partition's directory."""
    process = _Broker(tmp_path, "odradek.broker")
    directory = process.data / "t-0"

    def mount() -> None:
        command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(directory)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a file system cannot be mounted: {error}")

    def unmount() -> None:
        subprocess.run(["umount", "-l", str(directory)], check=True)

    try:
        _check(process, mount, unmount, "(append|roll) failed: .*Read-only file system")
    finally:
        if os.path.ismount(directory):
            unmount()
