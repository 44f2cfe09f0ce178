"""A standalone Spark cluster on this machine, whose workers may lack a folder that the driver has."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.brokers import eventually
from support.jvm import spark_java_options

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@functools.cache
def mount_command() -> tuple[str, ...]:
    """The command that starts a program with its own mounts; empty if this user may not mount."""
    for command in (("unshare", "-m"), ("unshare", "-r", "-m")):
        probe = [*command, "sh", "-c", "mount -t tmpfs none /mnt"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0:
                return command
    return ()


needs_mounts = pytest.mark.skipif(not mount_command(), reason="unshare -m and mount are not available")


class Cluster:
    """``address`` is the master's. ``show`` lets all workers see the hidden folder.

    ``options`` are options of a command: the address, the number of cores, and settings by which the first task waits
    until each worker has an executor. Without these settings the first worker could do all the work.
    """

    def __init__(self, address: str, hidden: Path | None, cores: int) -> None:
        self.address = address
        self.options = ["--master", address, "--conf", f"spark.cores.max={cores}"]
        self.options += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"]
        self.options += ["--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=300s"]
        self._hidden = hidden
        self.workers: list[subprocess.Popen[bytes]] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def show(self) -> None:
        """Unmounts the empty file system from the folder in each worker that has it."""
        for worker in self.workers:
            enter = ["nsenter", "-t", str(worker.pid), "-m"]
            if "-r" in mount_command():
                enter += ["-U", "--preserve-credentials"]
            subprocess.run([*enter, "umount", str(self._hidden)], check=True, timeout=30)
        self.workers.clear()


@contextlib.contextmanager
def standalone(
    place: Path, sees: Sequence[bool], hidden: Path | None = None, hosts: Sequence[str] = ()
) -> Iterator[Cluster]:
    """A master and, for each element of ``sees``, a worker with one core; the element says whether this worker sees
    ``hidden``. The files of master and workers are below ``place``. ``hosts``: the address of each worker."""
    import pyspark

    home = Path(pyspark.__file__).parent
    place.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(place / "scratch")}
    environment["SPARK_DAEMON_JAVA_OPTS"] = spark_java_options()
    start = [str(home / "bin" / "spark-class")]
    lines = [[*start, MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number, whole in enumerate(sees):
        host = hosts[number] if hosts else "127.0.0.1"
        line = [*start, WORKER, "--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        line += ["--work-dir", str(place / f"w{number}"), address]
        if not whole:
            mount = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(line)}"
            line = [*mount_command(), "sh", "-c", mount]
        lines.append(line)
    logs = [place / f"cluster-{number}.log" for number in range(len(lines))]
    cluster = Cluster(address, hidden, len(sees))
    try:
        for number, (line, log) in enumerate(zip(lines, logs, strict=True)):
            with log.open("wb") as file:
                own = {"SPARK_LOCAL_IP": hosts[number - 1]} if hosts and number else {}
                process = subprocess.Popen(line, stdout=file, stderr=file, env=environment | own)
            cluster.running.append(process)
            if number and not sees[number - 1]:
                cluster.workers.append(process)
        registered = "Registering worker"
        eventually(lambda: logs[0].read_text().count(registered) == len(sees), within_s=120, what="the workers")
        yield cluster
    finally:
        for process in cluster.running:
            process.kill()
            process.wait(30)
