"""``python -m bench.failover``: coordinators that move, beside three nodes of Apache Kafka 4.3, in turn in one run.

Ours are three brokers and a controller, as ``odradek serve --brokers 3`` starts them; both have ``SETTINGS``.
A round starts each cluster with empty directories and measures:

* the start, until each broker knows all brokers; ``odradek.Cluster`` has a start of its own
* commits a second of 8 connections, and transactions a second of 8 producers: one broker coordinates and leads all
* the memory of all nodes, idle and after these loads
* the longest time without an acknowledgement of a partition, for one producer with acks=all during a rolling restart
* kill -9 of the coordinator of 100 groups with 100,000 commits, until the next commit of one is acknowledged
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

import odradek
from bench import report, transaction_workload, workload
from bench.cluster_comparison import add_options, compare
from bench.pages import FAILOVER
from bench.raw import Connection
from bench.replicated_clusters import (
    BROKERS,
    PATIENCE_S,
    Make,
    OdradekBrokers,
    ReplicatedCluster,
    create_topic,
    partitions_of,
    wait_until_in_sync,
)
from bench.sides import ask_metadata, resident_bytes
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC, java_string_hash
from odradek.wire import frames
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH

NAME = "failover"
SETTINGS = {
    "offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2", "min.insync.replicas": "2", "default.replication.factor": "3",
}  # fmt: skip
GROUPS, OFFSETS, WIDTH = 100, 100_000, 100
"""The groups of a coordinator, their commits, and the partitions of one request."""
CONNECTIONS, PRODUCERS = 8, 8
SETTLE_S, PAUSE_S, ATTEMPT_S, SEND_S = 5.0, 0.01, 2.0, 0.005
PARTS = ("cluster", "start", "commits", "transactions", "restart", "coordinator")
EPILOG = """\
The page has the medians of twenty rounds:

    python -m bench.failover --output all.json

A round starts both sides once, one after the other, and prints how long each took (round_s). On 2 cores, at a load
average of 13, a round took 79 s for ours and 115 s for Apache Kafka: twenty take about an hour.

The parts can be measured in several runs, and the last one joins them. --rounds 0 measures nothing:

    python -m bench.failover --only cluster commits transactions --output loads.json
    python -m bench.failover --only restart coordinator --output moves.json
    python -m bench.failover --rounds 0 --join loads.json moves.json

A run that is stopped has its whole rounds in the file of --output, which --join takes. The table counts the rounds of
each figure. Nothing else should run meanwhile: beside other work of the same priority transactions missed their aim.
"""


class Sizes(NamedTuple):
    """How much a round does."""

    seconds: float
    kills: int


# --- coordinators ---------------------------------------------------------------------------------------------------


def names_of(index: int, count: int, prefix: str) -> list[str]:
    """Groups or transactional ids whose coordinator leads this partition of their topic, which has three."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"{prefix}-{number}"
        if abs(java_string_hash(name)) % len(BROKERS) == index:
            found.append(name)
        number += 1
    return found


def coordinator_of(address: str, key: str, key_type: int = 0) -> int:
    """The broker that this broker names as the coordinator; -1 if it names none."""
    connection = Connection(address)
    try:
        connection.socket.settimeout(ATTEMPT_S)
        message = {"key": key, "key_type": key_type}
        reply = connection.call(frames.encode_request(FIND_COORDINATOR, 3, 0, "bench", message))
    finally:
        connection.socket.close()
    found = frames.decode_reply(FIND_COORDINATOR, 3, reply)[1]
    return int(found.node_id) if found.error_code == ErrorCode.none else -1


def await_coordinator(cluster: ReplicatedCluster, key: str, key_type: int = 0) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (found := coordinator_of(cluster.address(1), key, key_type)) > 0:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{key} has no coordinator")


def commit_once(address: str, group: str, offset: int) -> bool:
    """Sends one commit. Whether it was acknowledged."""
    connection = Connection(address)
    try:
        connection.socket.settimeout(PATIENCE_S)
        reply = connection.call(workload.commit_request(group, "committed", range(1), offset))
    finally:
        connection.socket.close()
    message = frames.decode_reply(OFFSET_COMMIT, workload.COMMIT_VERSION, reply)[1]
    return all(row.error_code == ErrorCode.none for row in message.topics[0].partitions)


# --- the parts ------------------------------------------------------------------------------------------------------


def commits(cluster: ReplicatedCluster, seconds: float) -> dict[str, float]:
    """Pipelined commits over eight connections to one coordinator."""
    groups = names_of(0, CONNECTIONS, "rate")
    address = cluster.address(await_coordinator(cluster, groups[0]))
    clients = [workload.CommitConnection(address, "committed", group) for group in groups]
    workload.together(clients, seconds / 3)
    began = time.perf_counter()
    answered = workload.together(clients, seconds)
    return {"commits_per_s": answered / (time.perf_counter() - began)}


def transactions(cluster: ReplicatedCluster, seconds: float) -> dict[str, float]:
    """Transactions of one record, back to back; the leader of the records is the coordinator, too."""
    ids = names_of(0, PRODUCERS, "single")
    coordinator = await_coordinator(cluster, ids[0], 1)
    address = cluster.address(coordinator)
    led = [one.partition_index for one in partitions_of(address, "records") if one.leader_id == coordinator]
    made = [transaction_workload.RawProducer(address, "records", led[n], name) for n, name in enumerate(ids)]
    transaction_workload.run_together(made, seconds / 3)
    before = sum(one.ended for one in made)
    took = transaction_workload.run_together(made, seconds)
    return {"transactions_per_s": (sum(one.ended for one in made) - before) / took}


class Acknowledgements:
    """A producer that sends a record every few milliseconds, and the longest time without an acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        self.longest = 0.0
        self.last = dict.fromkeys(range(len(BROKERS)), 0.0)
        self.errors: list[object] = []
        self._ended = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Acknowledgements:
        self._thread.start()
        while not all(self.last.values()):
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._ended.is_set():
            with suppress(BufferError):
                index = number % len(BROKERS)
                self._producer.produce("silent", b"x" * 100, partition=index, on_delivery=self._delivered)
                number += 1
            self._producer.poll(SEND_S)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
            return
        now, index = time.perf_counter(), message.partition()
        if self.last[index]:
            self.longest = max(self.longest, now - self.last[index])
        self.last[index] = now


def rolling_restart(cluster: ReplicatedCluster) -> dict[str, float]:
    create_topic(cluster, "silent", len(BROKERS))
    with Acknowledgements(",".join(map(cluster.address, BROKERS))) as seen:
        for broker in BROKERS:
            cluster.stop(broker)
            cluster.restart(broker)
            wait_until_in_sync(cluster, "silent")
            wait_until_in_sync(cluster, OFFSETS_TOPIC)
    if seen.errors:
        raise RuntimeError(f"{len(seen.errors)} records failed: {seen.errors[0]}")
    return {"silence_s": seen.longest}


def load_offsets(cluster: ReplicatedCluster, index: int) -> list[str]:
    """Commits ``OFFSETS`` offsets of ``GROUPS`` groups, which all have one coordinator. Returns the groups."""
    groups = names_of(index, GROUPS, f"moved-{index}")
    connection = Connection(cluster.address(await_coordinator(cluster, groups[0])))
    workload.first_commit_reply(
        connection.call, groups[0], workload.commit_request(groups[0], "committed", range(1), 0)
    )
    for group in groups:
        count = OFFSETS // GROUPS // WIDTH
        sent = [workload.commit_request(group, "committed", range(WIDTH), offset) for offset in range(count)]
        connection.socket.sendall(b"".join(sent))
        for _ in sent:
            reply = frames.decode_reply(OFFSET_COMMIT, workload.COMMIT_VERSION, connection.reply())[1]
            if any(row.error_code != ErrorCode.none for row in reply.topics[0].partitions):
                raise RuntimeError(f"a commit of {group} was refused")
    connection.socket.close()
    return groups


def kill_coordinator(cluster: ReplicatedCluster, groups: dict[int, list[str]], offset: int) -> float:
    """The seconds from kill -9 of a coordinator, not the active controller, to the next acknowledged commit.

    ``groups``: those that have their offsets, by the partition of the offsets topic; more are added if needed."""
    wait_until_in_sync(cluster, OFFSETS_TOPIC)
    controller = cluster.controller()
    led = {one.partition_index: one.leader_id for one in partitions_of(cluster.address(1), OFFSETS_TOPIC)}
    index = next(one for one in [*groups, *led] if led[one] != controller)
    if index not in groups:
        groups[index] = load_offsets(cluster, index)
    group, dead = groups[index][0], led[index]
    cluster.kill(dead)
    killed = time.perf_counter()
    while time.perf_counter() < killed + PATIENCE_S:
        for broker in BROKERS:
            if broker == dead:
                continue
            with suppress(OSError):
                found = coordinator_of(cluster.address(broker), group)
                if found not in (dead, -1) and commit_once(cluster.address(found), group, offset):
                    took = time.perf_counter() - killed
                    check_offsets(cluster.address(found), groups[index][-1])
                    cluster.restart(dead)
                    return took
        time.sleep(PAUSE_S)
    raise TimeoutError("no commit was acknowledged")


def check_offsets(address: str, group: str) -> None:
    """Raises RuntimeError unless the next coordinator has the last commits of a group."""
    asked = {"group_id": group, "topics": [{"name": "committed", "partition_indexes": list(range(WIDTH))}]}
    connection = Connection(address)
    request = frames.encode_request(OFFSET_FETCH, 7, 0, "bench", asked | {"require_stable": True})
    message = frames.decode_reply(OFFSET_FETCH, 7, connection.call(request))[1]
    connection.socket.close()
    last = OFFSETS // GROUPS // WIDTH - 1
    found = {row.partition_index: row.committed_offset for row in message.topics[0].partitions}
    if found != {index: last + index for index in range(WIDTH)}:
        raise RuntimeError(f"{group} has {found} at the next coordinator")


# --- rounds ---------------------------------------------------------------------------------------------------------


def await_brokers(addresses: Sequence[str]) -> None:
    """Waits until each broker knows all brokers."""
    deadline = time.monotonic() + PATIENCE_S
    for address in addresses:
        while True:
            with suppress(OSError):
                if len(ask_metadata(address).brokers) == len(BROKERS):
                    break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{address} does not know all brokers")
            time.sleep(0.01)


def one_round(make: Make, parts: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """The figures of one cluster in one round."""
    figures: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    cluster = make(directory, SETTINGS)
    began_round = time.perf_counter()
    try:
        began = time.perf_counter()
        cluster.start()
        await_brokers([cluster.address(one) for one in BROKERS])
        figures["start_s"] = time.perf_counter() - began
        time.sleep(SETTLE_S)
        figures["idle_mb"] = resident_bytes(cluster.pids) / 1e6
        measure(cluster, parts, sizes, figures)
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run(["sync", "-f", tempfile.gettempdir()], check=False)  # the next cluster begins with a free disk
    if "cluster" in parts:
        figures["ready_s"] = ready() if make is OdradekBrokers else figures["start_s"]
    figures["round_s"] = round(time.perf_counter() - began_round, 1)
    return figures


def measure(cluster: ReplicatedCluster, parts: Sequence[str], sizes: Sizes, figures: dict[str, Any]) -> None:
    create_topic(cluster, "committed", WIDTH)
    create_topic(cluster, "records", len(BROKERS) * PRODUCERS)
    await_coordinator(cluster, "first")
    wait_until_in_sync(cluster, OFFSETS_TOPIC)
    if "commits" in parts:
        figures |= commits(cluster, sizes.seconds)
    if "transactions" in parts:
        await_coordinator(cluster, "first", 1)
        wait_until_in_sync(cluster, TRANSACTION_TOPIC)
        figures |= transactions(cluster, sizes.seconds)
    if {"commits", "transactions"} <= set(parts):
        figures["loaded_mb"] = resident_bytes(cluster.pids) / 1e6
    if "restart" in parts:
        figures |= rolling_restart(cluster)
    if "coordinator" in parts:
        groups: dict[int, list[str]] = {}
        figures["kills_s"] = [kill_coordinator(cluster, groups, number) for number in range(sizes.kills)]


def ready() -> float:
    """The seconds until ``odradek.Cluster`` is ready, and each broker knows all brokers."""
    began = time.perf_counter()
    with odradek.Cluster(len(BROKERS)) as cluster:
        await_brokers([cluster.address(one) for one in cluster.brokers])
        return time.perf_counter() - began


class Figure(NamedTuple):
    """A row of the table. ``aim``: how many times better ours has to be."""

    title: str
    aim: float
    higher_is_better: bool = False


FIGURES = {
    "kills_s": Figure("kill -9 of the coordinator until the next commit is acknowledged, s", 1.0),
    "silence_s": Figure("longest silence of a producer in a rolling restart, s", 1.0),
    "commits_per_s": Figure("commits a second, 8 connections", 3.0, higher_is_better=True),
    "transactions_per_s": Figure("transactions a second, 8 producers", 2.0, higher_is_better=True),
    "idle_mb": Figure("memory of all nodes, idle, MB", 6.0),
    "loaded_mb": Figure("memory of all nodes after the loads, MB", 6.0),
    "ready_s": Figure("`odradek.Cluster` ready, beside three nodes of Kafka, s", 4.0),
    "start_s": Figure("processes of the nodes until each broker knows all, s", 0),
}


def section(results: dict[str, list[dict[str, Any]]]) -> str:
    """The table of the page: medians, and the least and greatest of all rounds or kills."""
    mine, theirs = results.values()
    lines = ["| figure | values | " + " | ".join(results) + " | times better | aim |", "|---|---|---|---|---|---|"]
    for key, figure in FIGURES.items():
        ours, other = (flat([one[key] for one in side if key in one]) for side in (mine, theirs))
        if not ours:
            continue
        times = report.ratios(ours, other, higher_is_better=figure.higher_is_better)
        verdict = "met" if sorted(times)[len(times) // 2] >= figure.aim else "missed"
        aim = f"≥ {figure.aim:g} × ({verdict})" if figure.aim else ""
        spreads = " | ".join(map(report.spread, (ours, other, times)))
        lines.append(f"| {figure.title} | {len(ours)} | {spreads} × | {aim} |")
    return "\n".join(lines)


def flat(values: Sequence[Any]) -> list[float]:
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover",
        description="Coordinators that move, beside three nodes of Apache Kafka.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each side (default 20)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts of a round")
    parser.add_argument("--seconds", type=float, default=3.0, help="the measured time of a load")
    parser.add_argument("--kills", type=int, default=1, help="kills of a coordinator in a round")
    add_options(parser, FAILOVER)
    options = parser.parse_args(arguments)
    sizes = Sizes(options.seconds, options.kills)
    compare(options, NAME, lambda make: one_round(make, options.only, sizes), section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
