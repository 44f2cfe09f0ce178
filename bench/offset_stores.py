"""``python -m bench.offset_stores``: commits of offsets to ZooKeeper, odradek and Apache Kafka, in turn in one run.

A store of offsets is a single broker, or ZooKeeper with one node or three. Kafka and ZooKeeper have the heap of
their own scripts. Each store is measured without and with a sync of every write (``forceSync=yes`` in ZooKeeper,
``log.flush.interval.messages=1`` in brokers).

One store runs at a time. A load is a process with a workload of commits: with Java's asynchronous client to ZooKeeper,
with hand-made requests to brokers. It checks every reply, and at the end it reads the committed offsets back. ZooKeeper
has two kinds of commits: one write a partition, as consumers up to Kafka 1.1 send them, and one transaction with the
expected versions, as odradek sends them. CPU and bytes are those of all nodes of a store.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bench import claims, offset_stores_plot, overview, report
from bench.__main__ import kafka_jars
from bench.apache import ApacheBroker, free_port, java
from bench.measures import Values
from bench.pages import OFFSET_STORES, option_help
from bench.sides import CONFIG, cpu_seconds, start, with_descendants
from bench.workload import create_topic
from odradek.core.counts import counted
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from odradek.testing.zookeeper import MAIN_CLASS, class_path, server_mode

NAME = "offset stores"
PARTITIONS = (1, 10, 50)
IN_FLIGHT = {"single": (1, 1), "pipelined": (8, 4)}
"""By mode: the number of connections (ZooKeeper: sessions), and the commits in flight on each."""
WARM_UP_S, MEASURED_S = 0.8, 2.0
_TOPIC = "offsets-of"
_JAVA = Path(__file__).with_name("java") / "ZooKeeperCommits.java"
_READY_S = 60.0
_SETTLE_S = 0.2
_HEAP = "1000m"  # of ZooKeeper's own scripts
_QUIET = "-Dslf4j.internal.verbosity=ERROR"  # no warning that there is no logger
_ZOO = {
    "tickTime": "2000",
    "initLimit": "10",
    "syncLimit": "5",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
"""The first three values are those of ZooKeeper's example file. Connections have no limit, and no admin server runs.

ZooKeeper preallocates its log in steps of 64 MiB, its default.
"""
_SYNC = {"log.flush.interval.messages": "1"}
_NO_ROLL = {"offsets.topic.segment.bytes": str(1 << 30)}
"""The bytes of a commit are measured by the growth of the log, so it must not be compacted during a run."""


class Store(Protocol):
    """A store of offsets in processes of its own."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def load(self, kind: str, partitions: int, mode: str) -> list[str]:
        """The command that starts a load. ``mode``: a key of ``IN_FLIGHT``.

        ``kind``: a key of ``ZOOKEEPER_KINDS``; "" for a broker, which has only one kind of commits.
        """
        ...

    def stored_bytes(self) -> int:
        """The bytes of the logs with the commits, on all nodes."""
        ...

    @property
    def pids(self) -> list[int]: ...


class ZooKeeperStore:
    """ZooKeeper with one node or more, each with the heap of ZooKeeper's own scripts."""

    def __init__(self, directory: Path, nodes: int, *, synced: bool) -> None:
        self._reservations = reserve_ports(3 * nodes)
        ports = [reservation.port for reservation in self._reservations]
        lines = [f"{name}={value}" for name, value in _ZOO.items()] + [f"forceSync={'yes' if synced else 'no'}"]
        self._ports = ports[2::3]
        if nodes > 1:
            lines += [
                f"server.{n + 1}=127.0.0.1:{ports[3 * n]}:{ports[3 * n + 1]};127.0.0.1:{ports[3 * n + 2]}"
                for n in range(nodes)
            ]
        self._folders = [directory / str(n + 1) for n in range(nodes)]
        for folder, port in zip(self._folders, self._ports, strict=True):
            own = [f"dataDir={folder / 'data'}"]
            if nodes == 1:
                own += [f"clientPort={port}", "clientPortAddress=127.0.0.1"]
            (folder / "data").mkdir(parents=True)
            (folder / "data" / "myid").write_text(f"{folder.name}\n")
            (folder / "zoo.cfg").write_text("\n".join(lines + own) + "\n")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._jobs = 0
        self._classes = directory / "classes"
        compiler = str(Path(java()).resolve().with_name("javac"))
        subprocess.run([compiler, "-cp", class_path(), "-d", str(self._classes), str(_JAVA)], check=True)

    def start(self) -> None:
        for folder in self._folders:
            command = [java(), f"-Xmx{_HEAP}", _QUIET, "-cp", class_path(), MAIN_CLASS, str(folder / "zoo.cfg")]
            with (folder / "zookeeper.log").open("ab") as log:
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        deadline = time.monotonic() + _READY_S
        while not all(server_mode(port) for port in self._ports):
            if time.monotonic() > deadline:
                raise TimeoutError(f"ZooKeeper did not serve within {_READY_S} s")
            time.sleep(0.05)  # nodes start for seconds; requests without a pause would delay them

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def load(self, kind: str, partitions: int, mode: str) -> list[str]:
        self._jobs += 1
        connect = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        sessions, window = IN_FLIGHT[mode]
        times = [str(int(seconds * 1000)) for seconds in (WARM_UP_S, MEASURED_S)]
        root = f"/bench/{self._jobs}"
        command = [java(), "-Xmx512m", _QUIET, "-cp", f"{self._classes}{os.pathsep}{class_path()}", "ZooKeeperCommits"]
        return [*command, connect, root, kind, str(partitions), str(sessions), str(window), *times]

    def stored_bytes(self) -> int:
        return sum(_used_bytes(path) for folder in self._folders for path in folder.glob("data/version-2/log.*"))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]


class BrokerStore:
    """A broker: odradek's or Apache Kafka's."""

    def __init__(self, process: BrokerProcess | ApacheBroker, data: Path) -> None:
        self._process, self._data = process, data
        self.name = data.parent.name
        self.bootstrap = process.bootstrap_servers if isinstance(process, BrokerProcess) else process.bootstrap

    def spawn(self) -> None:
        if isinstance(self._process, BrokerProcess):
            self._process.start()
        else:
            self._process.spawn()

    def start(self) -> None:
        start(self)
        create_topic(self.bootstrap, _TOPIC, max(PARTITIONS))

    def stop(self) -> None:
        self._process.stop()

    def load(self, kind: str, partitions: int, mode: str) -> list[str]:
        connections, window = IN_FLIGHT[mode]
        arguments = {
            "bootstrap": self.bootstrap,
            "topic": _TOPIC,
            "partitions": partitions,
            "connections": connections,
            "window": window,
            "warm_up_s": WARM_UP_S,
            "seconds": MEASURED_S,
        }
        return [sys.executable, "-m", "bench.commit_load", json.dumps(arguments)]

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._data.glob("__consumer_offsets-*/*.log"))

    @property
    def pids(self) -> list[int]:
        if isinstance(self._process, BrokerProcess):
            return with_descendants([self._process.pid] if self._process.pid else [])
        return with_descendants(self._process.pids)


def _used_bytes(path: Path) -> int:
    """The size of a ZooKeeper log without its preallocated zeros at the end, which are a hole in the file."""
    step = 1 << 20
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_HOLE)  # a scan of all zeros would take longer than a load
        while end:
            begin = max(end - step, 0)
            file.seek(begin)
            if used := file.read(end - begin).rstrip(b"\0"):
                return begin + len(used)
            end = begin
    return 0


def _settled_bytes(store: Store) -> int:
    """The store's bytes when they no longer grow. A follower may still write a transaction that is acknowledged."""
    found = store.stored_bytes()
    while True:
        time.sleep(_SETTLE_S)  # a log that is still written has grown by then
        before, found = found, store.stored_bytes()
        if found == before:
            return found


def measure(store: Store, kind: str, partitions: int, mode: str) -> Values:
    """Runs one load. Returns the figures of the store and of the load.

    ``cpu_us``: the store's CPU per commit in the measured time. ``bytes``: the store's bytes per commit, over all
    commits after "ready". ``load``: the CPU of the load itself, in cores.
    """
    process = subprocess.Popen(store.load(kind, partitions, mode), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    cpu_s, stored = {}, {}
    result: Values = {}
    for line in process.stdout:
        mark = line.strip()
        if mark == "ready":
            stored[mark] = store.stored_bytes()
        elif mark in {"begin", "end"}:
            cpu_s[mark] = cpu_seconds(store.pids)
        else:
            result = json.loads(line)
    if process.wait():
        raise RuntimeError(f"the load failed: {mode}, {kind}, {partitions} partitions")
    written = _settled_bytes(store) - stored["ready"]
    commits = result["commits"]
    return {
        "per_s": commits / result["seconds"],
        "p50_ms": result["p50_ms"],
        "p99_ms": result["p99_ms"],
        "cpu_us": (cpu_s["end"] - cpu_s["begin"]) / commits * 1e6,
        "bytes": written / result["sent"],
        "load": result["cpu_s"] / result["seconds"],
    }


ZOOKEEPER_KINDS = {"writes": "one write a partition", "transaction": "one transaction"}


def stores(kafka: str | None) -> dict[str, tuple[Callable[[Path], Store], tuple[str, ...]]]:
    """By the store's name: a function that builds it in a directory, and its kinds of commits ("": only one)."""

    def zookeeper(nodes: int, *, synced: bool) -> Callable[[Path], Store]:
        return lambda directory: ZooKeeperStore(directory, nodes, synced=synced)

    def ours(*, synced: bool) -> Callable[[Path], Store]:
        config = {**CONFIG, **_NO_ROLL, **(_SYNC if synced else {})}

        def build(directory: Path) -> Store:
            process = BrokerProcess(directory, config=config, port=free_port())
            return BrokerStore(process, process.data_dir)

        return build

    def apache(*, synced: bool) -> Callable[[Path], Store]:
        config = {**CONFIG, **_NO_ROLL, **(_SYNC if synced else {})}
        return lambda directory: BrokerStore(ApacheBroker(directory, config, cp=kafka), directory / "data")

    found: dict[str, tuple[Callable[[Path], Store], tuple[str, ...]]] = {}
    for synced in (False, True):
        for nodes, text in ((1, "1 node"), (3, "3 nodes")):
            found[f"ZooKeeper, {text}{SYNCED * synced}"] = (zookeeper(nodes, synced=synced), tuple(ZOOKEEPER_KINDS))
        found[f"odradek{SYNCED * synced}"] = (ours(synced=synced), ("",))
        if kafka is not None:
            found[f"Apache Kafka{SYNCED * synced}"] = (apache(synced=synced), ("",))
    return found


SYNCED = ", synced"


def row_name(store: str, kind: str) -> str:
    return f"{store}, {ZOOKEEPER_KINDS[kind]}" if kind else store


def one_round(kafka: str | None, work: Path, number: int) -> Values:
    """The values of one round of all stores, by ``ROW/PARTITIONS/MODE/FIGURE``."""
    found: Values = {}
    built = list(stores(kafka).items())
    for name, (build, kinds) in built if number % 2 == 0 else built[::-1]:
        directory = work / f"{number}-{name.replace(', ', '-').replace(' ', '-')}"
        directory.mkdir(parents=True)
        store = build(directory)
        store.start()
        try:
            measure(store, kinds[0], 1, "pipelined")  # the first load makes Java compile its code
            for kind in kinds:
                for partitions in PARTITIONS:
                    for mode in IN_FLIGHT:
                        values = measure(store, kind, partitions, mode)
                        key = f"{row_name(name, kind)}/{partitions}/{mode}"
                        found |= {f"{key}/{figure}": value for figure, value in values.items()}
                        print(
                            f"round {number + 1} {key}: "
                            + "  ".join(f"{figure} {report.shown(value)}" for figure, value in values.items()),
                            flush=True,
                        )
        finally:
            store.stop()
            shutil.rmtree(directory, ignore_errors=True)  # a log of ZooKeeper has 64 MiB or more
    return found


def rows(rounds: Sequence[Values]) -> list[str]:
    """The names of the rows, in the order in which the first round measured them."""
    return list(dict.fromkeys(key.split("/", maxsplit=1)[0] for key in rounds[0]))


def table(rounds: Sequence[Values]) -> str:
    """One Markdown table for each mode, with a row for each store and kind of commits."""
    return "\n\n".join([_single(rounds), _pipelined(rounds)])


def _cell(rounds: Sequence[Values], *path: object) -> str:
    return report.spread([values["/".join(map(str, path))] for values in rounds])


def _single(rounds: Sequence[Values]) -> str:
    lines = [
        "| one commit in flight | "
        + " | ".join(f"{counted(n, 'partition')}: p50, ms | p99, ms" for n in PARTITIONS)
        + " |",
        "|---" * (1 + 2 * len(PARTITIONS)) + "|",
    ]
    for row in rows(rounds):
        cells = [_cell(rounds, row, n, "single", figure) for n in PARTITIONS for figure in ("p50_ms", "p99_ms")]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _pipelined(rounds: Sequence[Values]) -> str:
    titles = [
        " | ".join(f"{counted(n, 'partition')}: {figure}" for figure in ("commits/s", "CPU, µs", "bytes"))
        for n in PARTITIONS
    ]
    most = max(value for values in rounds for key, value in values.items() if key.endswith("pipelined/load"))
    lines = [
        f"| 32 commits in flight | {' | '.join(titles)} |",
        "|---" * (1 + 3 * len(PARTITIONS)) + "|",
    ]
    for row in rows(rounds):
        cells = [
            _cell(rounds, row, n, "pipelined", figure) for n in PARTITIONS for figure in ("per_s", "cpu_us", "bytes")
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"The load itself took at most {most:.2f} of one core."])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.offset_stores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all stores (default 3)")
    parser.add_argument("--kafka-cp", help="class path of Apache Kafka's jars (default: $KAFKA_CP, or from Maven)")
    parser.add_argument("--no-kafka", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--out", type=Path, default=OFFSET_STORES, help=option_help(OFFSET_STORES))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that stores are stopped and files removed
    cp, note = kafka_jars(args)
    work = Path(tempfile.mkdtemp(prefix="odradek-bench-stores-"))
    try:
        rounds = [one_round(cp, work, number) for number in range(args.rounds)]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    run = report.head(args.rounds, " ".join(["python -m bench.offset_stores", *sys.argv[1:]]))
    text = f"{run}\n\n{table(rounds)}" + (f"\n\n{note}" if note else "")
    overview.publish(args.out, text, NAME)
    args.out.with_name("offset-stores.svg").write_text(offset_stores_plot.plot(rounds))
    print(f"\n{text}\n")
    # The claim is about Apache Kafka too. So a run without Apache Kafka checks no claim and stores no rounds.
    return claims.judge(NAME, run, rounds, args.out) if cp else 0


if __name__ == "__main__":
    sys.exit(main())
