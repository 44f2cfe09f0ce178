"""Brokers, commands and group members of the tests as forks of a process that has loaded their modules.

On Linux a fork takes a tenth of the CPU time that a new Python takes to start. ``tests/conftest.py``
calls ``fork_brokers``. Tests of the process itself use ``plain_brokers``, or start their commands with
``sys.executable``.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from odradek.testing.process import BrokerProcess
from support.fork_server import BROKER, COMMAND, ICEBERG, MCP, MEMBER, MONITOR, PIPELINE, Fork, ForkServer

_AVAILABLE = sys.platform == "linux"
_start_plain = BrokerProcess.start_process


def fork_brokers() -> None:
    """On Linux, brokers that this process starts from now on are forks."""
    if _AVAILABLE:
        BrokerProcess.start_process = _start_fork


@contextmanager
def plain_brokers() -> Iterator[None]:
    """Within the block, brokers are new Pythons, like those of users."""
    kept = BrokerProcess.start_process
    BrokerProcess.start_process = _start_plain
    yield
    BrokerProcess.start_process = kept


def odradek_command() -> list[str]:
    """Returns the start of an ``odradek`` command line. Tests of process starts use ``sys.executable`` instead."""
    return [_program() if _AVAILABLE else sys.executable, "-m", "odradek.cli.main"]


def monitor_python() -> str:
    """Returns a Python that has loaded the modules of the monitor. A new one takes seconds to load them."""
    return _program(MONITOR) if _AVAILABLE else sys.executable


def mcp_python() -> str:
    """Returns a Python that has loaded the modules of ``odradek mcp``."""
    return _program(MCP) if _AVAILABLE else sys.executable


def start_member(*arguments: str, kind: str = MEMBER) -> Fork | subprocess.Popen[bytes]:
    """Starts ``python -m`` with these arguments, for a module that uses a Python client."""
    if not _AVAILABLE:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, env=environment)
    with open("/dev/null", "rb") as nothing:
        return _server(kind).start([*arguments], nothing.fileno(), 2)


def start_driver(*arguments: str) -> Fork | subprocess.Popen[bytes]:
    """Starts ``python -m`` with these arguments, for a module that runs pipelines."""
    return start_member(*arguments, kind=ICEBERG)


def _start_fork(broker: BrokerProcess, stdin: int, stderr: int) -> Fork | subprocess.Popen[bytes]:
    command = broker.command_line()
    if broker.secrets or command[:2] != [sys.executable, "-m"]:
        return _start_plain(broker, stdin, stderr)
    return _server(BROKER).start(command[2:], stdin, stderr)


@functools.cache
def _server(kind: str) -> ForkServer:
    """The fork server of this kind, which serves all tests of this process."""
    return ForkServer(kind)


@functools.cache
def _program(kind: str = COMMAND) -> str:
    path = Path(tempfile.mkdtemp(prefix="odradek-forks-")) / "python"
    _server(kind).write_program(path)
    return str(path)


def run_steps(*steps: Sequence[str], timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs steps of ``support.plain_steps`` in one process, and returns its exit code and what it printed."""
    python = _program(PIPELINE) if _AVAILABLE else sys.executable
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [python, "-m", "support.plain_steps", json.dumps(steps)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
