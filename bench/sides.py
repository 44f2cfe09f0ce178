"""The measured brokers with one interface: start, inspect, stop."""

from __future__ import annotations

import os
import socket
import struct
import time
from compileall import compile_dir
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import odradek
from bench.apache import ApacheBroker, free_port
from odradek import __version__
from odradek.testing.process import BrokerProcess
from odradek.wire import frames
from odradek.wire.api_keys import METADATA

CONFIG = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "1000"}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(Protocol):
    """A broker's process that ``start`` can start."""

    name: str
    bootstrap: str

    def spawn(self) -> None:
        """Starts the process, and may return before the broker serves requests."""


class Side(Process, Protocol):
    """A measured broker with its own directory."""

    data: Path

    def install(self) -> None:
        """Prepares an empty data directory before the broker's first start."""

    def stop(self) -> None: ...
    def kill(self) -> None:
        """kill -9."""

    @property
    def pids(self) -> list[int]: ...


@cache
def compile_modules() -> None:
    """Compiles the package to bytecode, as pip does. A checkout may have none: a start then takes twice as long."""
    compile_dir(Path(odradek.__file__).parent, quiet=2)


class Odradek:
    """``python -m odradek.broker``, as ``BrokerProcess`` starts it."""

    name = f"odradek {__version__}"

    def __init__(self, directory: Path, process: type[BrokerProcess] = BrokerProcess) -> None:
        compile_modules()
        self._process = process(directory, config=CONFIG, port=free_port())
        self.bootstrap = self._process.bootstrap_servers
        self.data = self._process.data_dir

    def install(self) -> None:
        pass

    def spawn(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    @property
    def pids(self) -> list[int]:
        return with_descendants([self._process.pid] if self._process.pid else [])


class CopyingProcess(BrokerProcess):
    """Odradek's broker without ``sendfile``: it reads all records into Python's memory and writes them from there."""

    def command_line(self) -> list[str]:
        command = super().command_line()
        command[command.index("odradek.broker")] = "bench.copying"
        return command


class Apache:
    """Apache Kafka with the heap size of its own scripts (1 GB)."""

    name = ApacheBroker.name

    def __init__(self, directory: Path, cp: str) -> None:
        self._process = ApacheBroker(directory, CONFIG, cp=cp, heap="1g")
        self.bootstrap = self._process.bootstrap
        self.data = directory / "data"

    def install(self) -> None:
        self._process.format()

    def spawn(self) -> None:
        self._process.spawn()

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    @property
    def pids(self) -> list[int]:
        return with_descendants(self._process.pids)


def with_descendants(pids: list[int]) -> list[int]:
    """The processes and all their descendants (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, waiting = [], list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def parent_of(pid: int) -> int:
    """The id of the parent process; 0 if the process has ended."""
    return int((_stat(pid) or ["", "0"])[1])


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the field "state" on; an empty list if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def resident_bytes(pids: list[int]) -> int:
    """The total resident memory of the processes."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pids: list[int]) -> float:
    """Seconds of user and system time of the processes, and of the ended children that they have waited for."""
    ticks = 0
    for pid in pids:
        ticks += sum(map(int, _stat(pid)[11:15]))
    return ticks / _TICKS_PER_S


def ask_metadata(bootstrap: str) -> Any:
    """Sends a Metadata request on a new connection and returns the reply. Raises OSError without a reply."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        message = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        connection.sendall(frames.encode_request(METADATA, 12, 1, "bench", message))
        with connection.makefile("rb") as stream:
            head = stream.read(4)
            if len(head) < 4:
                raise ConnectionError("closed")
            _, reply = frames.decode_reply(METADATA, 12, stream.read(struct.unpack(">i", head)[0]))
    return reply


def start(side: Process, timeout_s: float = 60) -> float:
    """Starts a broker. Returns the seconds until its Metadata reply lists a broker. Raises TimeoutError."""
    began = time.perf_counter()
    side.spawn()
    while time.perf_counter() - began < timeout_s:
        try:
            if ask_metadata(side.bootstrap).brokers:
                return time.perf_counter() - began
        except OSError:
            pass
        time.sleep(0.005)
    raise TimeoutError(f"{side.name} did not answer within {timeout_s} s")
