"""Shared code for the tests of exactly-once pipelines: reads the committed records of a topic, and runs a command while
processes are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ingest_runs import ends
from support.brokers import RunningBroker
from support.processes import command_of, descendants, kill_tree

from odradek import Consumer
from odradek.client.admin import Admin

READ_S = 120
RUN_S = 600.0


def committed_records(bootstrap: str, topic: str) -> list[Any]:
    """All committed records. Waits until no transaction is open."""
    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    found: list[Any] = []
    with Admin(bootstrap) as admin, Consumer(bootstrap, columns=columns, **settings) as reader:
        log_ends = ends(admin, topic)
        reader.assign(list(log_ends))
        deadline = time.monotonic() + READ_S
        while any(reader.position(tp) < end for tp, end in log_ends.items()):
            assert time.monotonic() < deadline, f"{len(found)} records within {READ_S} s; the log ends are {log_ends}"
            found += reader.poll(5).records()
    return found


class Run(NamedTuple):
    """A command's exit code and output, and the name of what was killed; '' if nothing was."""

    code: int
    output: str
    killed: str


def run_command(arguments: list[str], log_file: Path, disturb: Callable[[int], str | None] = lambda pid: "") -> Run:
    """Runs a command. Calls ``disturb`` with its process id until ``disturb`` returns a text or the command ends."""
    # A file, not a pipe: children that outlive a killed run would hold a pipe open.
    with log_file.open("w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "odradek.cli.main", *arguments], stdout=out, stderr=out)
        killed: str | None = None
        while killed is None and process.poll() is None:
            killed = disturb(process.pid)
            time.sleep(0.005)
        code = process.wait(RUN_S)
        out.seek(0)
        return Run(code, out.read(), killed or "")


def a_driver(broker: RunningBroker, chance: random.Random, pid: int) -> str:
    """Kills Python, Java and workers at once, or only Python. In the second case, Java ends by itself."""
    whole = chance.random() < 0.6
    if whole:
        kill_tree(pid)
    os.kill(pid, signal.SIGKILL)
    return "driver with all its children" if whole else "driver"


def a_worker(broker: RunningBroker, chance: random.Random, pid: int) -> str | None:
    workers = []
    for child in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "pyspark" in command_of(child) and "java" not in command_of(child).split()[0]:
                workers.append(child)
    if not workers:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(workers), signal.SIGKILL)
        return "worker"
    return None


def the_broker(broker: RunningBroker, chance: random.Random, pid: int) -> str:
    broker.kill()
    broker.start()
    return "broker"
