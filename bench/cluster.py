"""``python -m bench.cluster``: a cluster of three brokers beside three nodes of Apache Kafka, in turn in one run.

Ours is ``odradek serve --brokers 3``: three brokers, one controller, and the command that watches them. Apache Kafka
has three nodes, each broker and controller, with the heap of its own scripts (1 GB); its directories are formatted
before the time begins, and ours within it. For each cluster and round: the seconds from nothing to the first
acknowledged topic, the memory and the CPU seconds of all processes while nothing is asked, and the seconds from kill -9
of the active controller to the next acknowledged topic. The topics are created by plain requests to a broker that is
not killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bench import report
from bench.apache import ApacheBroker, class_path, new_cluster_id
from bench.pages import CLUSTER, option_help
from bench.raw import Connection
from bench.sides import cpu_seconds, resident_bytes, with_descendants
from odradek import __version__
from odradek.core.errors import ErrorCode
from odradek.testing.ports import reserve_ports
from odradek.wire import frames
from odradek.wire.api_keys import CREATE_TOPICS, DESCRIBE_QUORUM

NAME = "cluster"
BROKERS = 3
SETTLE_S, IDLE_S, PATIENCE_S = 15.0, 30.0, 120.0
"""An idle cluster is measured for ``IDLE_S``, after ``SETTLE_S`` in which the work of the start ends."""
ATTEMPT_MS, PAUSE_S = 2_000, 0.01
_DONE = (ErrorCode.none, ErrorCode.topic_already_exists)


class MeasuredCluster(Protocol):
    """A cluster with its own directory. ``addresses``: of its brokers, in the order of their ids."""

    name: str
    addresses: list[str]

    def install(self) -> None:
        """Prepares empty directories, where that is not a part of the start."""

    def spawn(self) -> None: ...
    def kill_controller(self) -> None:
        """kill -9 of the active controller. Afterwards, ``addresses`` begins with a broker that lives."""

    def end(self) -> None: ...
    @property
    def pids(self) -> list[int]: ...


class OdradekCluster:
    """``odradek serve --brokers 3``: three brokers, a controller, and the command itself."""

    name = f"odradek {__version__}"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.addresses: list[str] = []

    def install(self) -> None:
        pass

    def spawn(self) -> None:
        words = ["serve", "--brokers", str(BROKERS), "--data-dir", str(self._directory), "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen([sys.executable, "-m", "odradek", *words], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise RuntimeError("odradek's cluster did not start")
        self.addresses = line.removeprefix("ready ").strip().split(",")

    def kill_controller(self) -> None:
        for pid in self.pids:
            with suppress(OSError):
                if f"{self._directory}/controller".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
                    return
        raise RuntimeError("no process of the controller was found")

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()

    @property
    def pids(self) -> list[int]:
        return with_descendants([self._process.pid]) if self._process is not None else []


class ApacheNodes:
    """Three nodes of Apache Kafka, each broker and controller."""

    name = ApacheBroker.name

    def __init__(self, directory: Path, cp: str) -> None:
        self._reservations = reserve_ports(BROKERS)
        ports = dict(enumerate((one.port for one in self._reservations), 1))
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
        self._nodes: dict[int, ApacheBroker] = {}
        for node, port in ports.items():
            made = self._nodes[node] = ApacheBroker(directory / str(node), {}, cp=cp)
            with (made.directory / "server.properties").open("a") as settings:
                settings.write(f"node.id={node}\ncontroller.quorum.voters={voters}\n")
                settings.write(f"listeners=PLAINTEXT://127.0.0.1:{made.port},CONTROLLER://127.0.0.1:{port}\n")
        self.addresses = [node.bootstrap for node in self._nodes.values()]

    def install(self) -> None:
        cluster = new_cluster_id()
        for node in self._nodes.values():
            node.format(cluster)

    def spawn(self) -> None:
        for node in self._nodes.values():
            node.spawn()

    def kill_controller(self) -> None:
        leader = active_controller(self.addresses[0])
        self._nodes[leader].kill()
        self.addresses = [one.bootstrap for node, one in self._nodes.items() if node != leader]

    def end(self) -> None:
        for node in self._nodes.values():
            node.kill()

    @property
    def pids(self) -> list[int]:
        return with_descendants([pid for node in self._nodes.values() for pid in node.pids])


def active_controller(address: str) -> int:
    """The node that leads the metadata log."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    reply = Connection(address).call(frames.encode_request(DESCRIBE_QUORUM, 0, 0, "bench", {"topics": topics}))
    return int(frames.decode_reply(DESCRIBE_QUORUM, 0, reply)[1].topics[0].partitions[0].leader_id)


def create_topic(address: str, name: str) -> None:
    """Asks one broker for a topic until it is acknowledged. Raises TimeoutError."""
    row = {"name": name, "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
    message = {"topics": [row], "timeout": ATTEMPT_MS, "validate_only": False}
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        with suppress(OSError):
            connection = Connection(address)
            try:
                connection.socket.settimeout(2 * ATTEMPT_MS / 1000)
                reply = connection.call(frames.encode_request(CREATE_TOPICS, 7, 0, "bench", message))
                if frames.decode_reply(CREATE_TOPICS, 7, reply)[1].topics[0].error_code in _DONE:
                    return
            finally:
                connection.socket.close()
        time.sleep(PAUSE_S)
    raise TimeoutError(f"{address} did not acknowledge the topic {name}")


def one_round(make: Callable[[Path], MeasuredCluster]) -> dict[str, Any]:
    """The figures of one cluster in one round, with empty directories."""
    directory = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    cluster = make(directory)
    try:
        cluster.install()
        began = time.perf_counter()
        cluster.spawn()
        create_topic(cluster.addresses[0], "first")
        figures: dict[str, Any] = {"start_s": time.perf_counter() - began}
        time.sleep(SETTLE_S)
        pids, cpu, begun = cluster.pids, cpu_seconds(cluster.pids), time.perf_counter()
        time.sleep(IDLE_S)
        figures["idle_cpu_percent"] = 100 * (cpu_seconds(pids) - cpu) / (time.perf_counter() - begun)
        figures["memory_mb"] = resident_bytes(pids) / 1e6
        cluster.kill_controller()
        killed = time.perf_counter()
        create_topic(cluster.addresses[0], "next")
        figures["controller_s"] = time.perf_counter() - killed
        return figures
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)


COLUMNS = {
    "start_s": ("start until the first topic is acknowledged, s", 3.0),
    "memory_mb": ("idle memory of all processes, MB", 6.0),
    "idle_cpu_percent": ("idle CPU of all processes, % of one core", 1.0),
    "controller_s": ("kill -9 of the controller until the next topic is acknowledged, s", 1.0),
}
"""Each figure with its title, and how many times better ours has to be."""


def section(results: dict[str, list[dict[str, Any]]]) -> str:
    """The table of the page."""
    mine, theirs = results.values()
    lines = ["| figure | " + " | ".join(results) + " | times better | aim |", "|---|---|---|---|---|"]
    for key, (title, aim) in COLUMNS.items():
        ours, other = [one[key] for one in mine], [one[key] for one in theirs]
        times = report.ratios(ours, other, higher_is_better=False)
        is_met = sorted(times)[len(times) // 2] >= aim
        lines.append(
            f"| {title} | {report.spread(ours)} | {report.spread(other)} | {report.spread(times)} × | "
            f"≥ {aim:g} × ({'met' if is_met else 'missed'}) |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster", description="A cluster of three brokers beside three nodes of Apache Kafka."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file with all rounds")
    parser.add_argument("--page", type=Path, default=CLUSTER, help=option_help(CLUSTER))
    options = parser.parse_args(arguments)
    jars = class_path()
    sides: dict[str, Callable[[Path], MeasuredCluster]] = {
        OdradekCluster.name: OdradekCluster,
        ApacheNodes.name: lambda directory: ApacheNodes(directory, jars),
    }
    measured: dict[str, Callable[[], dict[str, Any]]] = {name: partial(one_round, make) for name, make in sides.items()}
    results = report.measure_rounds(measured, options.rounds, alternating=True)
    command = " ".join(["python -m bench.cluster", *sys.argv[1:]])
    table = f"{report.head(options.rounds, command)}\n\n{section(results)}"
    report.publish(options.page, NAME, table, results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
