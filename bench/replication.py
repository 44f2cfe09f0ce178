"""``python -m bench.replication``: three replicas with min.insync.replicas=2 and acks=all, beside Apache Kafka.

Each round has new clusters with empty directories, ours and three nodes of Apache Kafka, in turn. In each cluster:

* produce: rows of 100 bytes by confluent-kafka to three partitions, whose leaders are spread, after a warm-up with a
  third of the rows. The CPU is that of all processes of the cluster;
* latency: one record in flight to one leader, by plain requests;
* fill: a broker is killed, a topic with one partition gets 1 GiB, and the broker starts again with nothing of it. The
  time is from the first byte in its folder to the last;
* failover: kill -9 of a leader, which is not the active controller, until the next record of its partition is
  acknowledged. The client asks the live brokers every 10 ms who leads. The short sessions have clusters of their own.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import raw, report
from bench.cluster_comparison import add_options, compare
from bench.pages import REPLICATION
from bench.replicated_clusters import (
    BROKERS,
    PATIENCE_S,
    Make,
    ReplicatedCluster,
    create_topic,
    delete_topic,
    partitions_of,
    wait_until_in_sync,
)
from bench.sides import cpu_seconds
from bench.workload import RECORD, confluent_producer, flush
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord

NAME = "replication"
SHORT_SESSIONS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
PARTITIONS, FILL_MB, FILL_RECORD, FILL_BATCH = 3, 1073.741824, 1000, 60
PAUSE_S, ATTEMPT_S = 0.01, 0.5
PARTS = ("produce", "latency", "fill", "failover", "short")


class Sizes(NamedTuple):
    """How much a round does."""

    rows: int
    requests: int
    kills: int


# --- the parts --------------------------------------------------------------------------------------------------


def produce(cluster: ReplicatedCluster, rows: int) -> dict[str, float]:
    create_topic(cluster, "rows", PARTITIONS)
    send_rows(cluster, rows // 3)
    cpu = cpu_seconds(cluster.pids)
    took = send_rows(cluster, rows)
    spent = cpu_seconds(cluster.pids) - cpu
    delete_topic(cluster, "rows")
    return {"rows_per_s": rows / took, "cpu_us_per_row": spent / rows * 1e6}


def send_rows(cluster: ReplicatedCluster, rows: int) -> float:
    """Sends rows with acks=all. Returns the seconds until all are acknowledged."""
    producer, errors = confluent_producer(",".join(map(cluster.address, BROKERS)))
    send, poll = producer.produce, producer.poll
    began = time.perf_counter()
    for number in range(rows):
        while True:
            try:
                send("rows", RECORD, partition=number % PARTITIONS)
                break
            except BufferError:
                poll(0.01)
    flush(producer, errors)
    return time.perf_counter() - began


def latency(cluster: ReplicatedCluster, requests: int) -> dict[str, float]:
    create_topic(cluster, "single", 1)
    cpu = cpu_seconds(cluster.pids)
    found = raw.latency(cluster.address(leader_of(cluster, "single", 0)), "single", requests)
    spent = cpu_seconds(cluster.pids) - cpu
    delete_topic(cluster, "single")
    return {"p50_ms": found["p50"], "p99_ms": found["p99"], "cpu_ms_per_request": spent / (requests * 1.2) * 1e3}


def fill(cluster: ReplicatedCluster) -> dict[str, float]:
    create_topic(cluster, "filled", 1)
    leader = leader_of(cluster, "filled", 0)
    empty = next(one for one in BROKERS if one not in (leader, cluster.controller()))
    cluster.kill(empty)
    wait_until_led(cluster, "filled", 0, down=empty)
    wanted = raw.fill(cluster.address(leader), "filled", FILL_MB, 1, FILL_RECORD, FILL_BATCH)["bytes"]
    folder = cluster.folder(empty) / "filled-0"
    seen = size_of(folder)
    if seen:
        raise RuntimeError(f"{folder} has {seen} bytes already")
    before = cpu_seconds(cluster.pids)
    cluster.restart(empty)
    began = wait_for_size(folder, 1)
    cpu = cpu_seconds(cluster.pids)
    ended = wait_for_size(folder, int(wanted))
    spent = cpu_seconds(cluster.pids) - (cpu if cpu > before else before)
    wait_until_in_sync(cluster, "filled")
    delete_topic(cluster, "filled")
    return {"fill_mb_per_s": wanted / (ended - began) / 1e6, "fill_cpu_s_per_gb": spent / wanted * 1e9}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def wait_for_size(folder: Path, size: int) -> float:
    """Returns the time at which the segments of a folder have so many bytes."""
    deadline = time.perf_counter() + PATIENCE_S
    while size_of(folder) < size:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{folder} has {size_of(folder)} bytes of {size}")
        time.sleep(0.005)
    return time.perf_counter()


def failover(cluster: ReplicatedCluster, kills: int) -> list[float]:
    """The seconds of each kill of a leader until the next record is acknowledged."""
    create_topic(cluster, "led", PARTITIONS)
    took: list[float] = []
    for _ in range(kills):
        wait_until_in_sync(cluster, "led")
        controller = cluster.controller()
        index, leader = next(
            (one.partition_index, one.leader_id)
            for one in partitions_of(cluster.address(controller or 1), "led")
            if one.leader_id != controller
        )
        produce_one(cluster.address(leader), index)
        cluster.kill(leader)
        killed = time.perf_counter()
        acknowledge_elsewhere(cluster, index, leader)
        took.append(time.perf_counter() - killed)
        cluster.restart(leader)
    return took


def acknowledge_elsewhere(cluster: ReplicatedCluster, index: int, dead: int) -> None:
    """Sends a record to a partition until it is acknowledged, while broker ``dead`` is down."""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        for broker in BROKERS:
            if broker == dead:
                continue
            with suppress(OSError, RuntimeError):
                leader = partitions_of(cluster.address(broker), "led", ATTEMPT_S)[index].leader_id
                if leader not in (dead, -1):
                    produce_one(cluster.address(leader), index)
                    return
        time.sleep(PAUSE_S)
    raise TimeoutError("no record was acknowledged")


def produce_one(address: str, index: int) -> None:
    """Sends a record with acks=all. Raises RuntimeError if it is refused, OSError without a reply."""
    connection = raw.Connection(address)
    try:
        connection.socket.settimeout(PATIENCE_S)
        data = encode_batch([SimpleRecord(b"", RECORD)], now_ms=int(time.time() * 1000))
        raw.check_produced("led", connection.call(raw.produce_request("led", index, data)))
    finally:
        connection.socket.close()


def leader_of(cluster: ReplicatedCluster, topic: str, index: int) -> int:
    return int(partitions_of(cluster.address(1), topic)[index].leader_id)


def wait_until_led(cluster: ReplicatedCluster, topic: str, index: int, *, down: int) -> None:
    """Waits until a partition has left a dead broker out of its ISR."""
    alive = next(one for one in BROKERS if one != down)
    deadline = time.perf_counter() + PATIENCE_S
    while down in partitions_of(cluster.address(alive), topic)[index].isr_nodes:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"broker {down} stays in sync")
        time.sleep(0.05)


# --- rounds -----------------------------------------------------------------------------------------------------


def one_round(make: Make, parts: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """The figures of one cluster in one round."""
    figures: dict[str, Any] = {}
    if set(parts) - {"short"}:
        with_cluster(make, {}, lambda cluster: figures.update(of_defaults(cluster, parts, sizes)))
    if "short" in parts:
        with_cluster(make, SHORT_SESSIONS, lambda cluster: figures.update(short_s=failover(cluster, sizes.kills)))
    return figures


def of_defaults(cluster: ReplicatedCluster, parts: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if "produce" in parts:
        figures |= produce(cluster, sizes.rows)
    if "latency" in parts:
        figures |= latency(cluster, sizes.requests)
    if "fill" in parts:
        figures |= fill(cluster)
    if "failover" in parts:
        figures["failover_s"] = failover(cluster, sizes.kills)
    return figures


def with_cluster(make: Make, settings: Mapping[str, str], work: Callable[[ReplicatedCluster], object]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    cluster = make(directory, settings)
    try:
        cluster.start()
        create_topic(cluster, "first", 1)
        work(cluster)
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run(["sync", "-f", tempfile.gettempdir()], check=False)  # the next cluster begins with a free disk


class Figure(NamedTuple):
    """A row of the table. ``aim``: how many times better ours has to be; 0 without an aim."""

    title: str
    aim: float
    higher_is_better: bool = False


FIGURES = {
    "rows_per_s": Figure("produce 100 B, confluent-kafka, rows/s", 1.0, higher_is_better=True),
    "cpu_us_per_row": Figure("… CPU of all nodes, µs a row", 2.0),
    "p50_ms": Figure("one record in flight, p50, ms", 1.0),
    "p99_ms": Figure("one record in flight, p99, ms", 1.0),
    "cpu_ms_per_request": Figure("… CPU of all nodes, ms a record", 0),
    "fill_mb_per_s": Figure("an empty replica gets 1 GiB, MB/s", 1.0, higher_is_better=True),
    "fill_cpu_s_per_gb": Figure("… CPU of all nodes, s a GB", 0),
}
FAILOVERS = {
    "failover_s": "kill -9 of a leader until the next record is acknowledged, s",
    "short_s": "… with broker.session.timeout.ms=1500, s",
}


def section(results: dict[str, list[dict[str, Any]]]) -> str:
    """The table of the page. The kills are pairs in the order in which they came."""
    mine, theirs = results.values()
    lines = ["| figure | " + " | ".join(results) + " | times better | aim |", "|---|---|---|---|---|"]
    for key, figure in FIGURES.items():
        if key in mine[0]:
            ours, other = [one[key] for one in mine], [one[key] for one in theirs]
            times = report.ratios(ours, other, higher_is_better=figure.higher_is_better)
            lines.append(_row(figure.title, ours, other, times, figure.aim))
    for key, title in FAILOVERS.items():
        if key in mine[0]:
            ours, other = ([took for one in side for took in one[key]] for side in (mine, theirs))
            times = report.ratios(ours, other, higher_is_better=False)
            lines.append(_row(f"{title} ({len(ours)} kills each)", ours, other, times, 1.0))
    return "\n".join(lines)


def _row(title: str, ours: Sequence[float], other: Sequence[float], times: Sequence[float], aim: float) -> str:
    verdict = f"≥ {aim:g} × ({'met' if median(times) >= aim else 'missed'})" if aim else ""
    return f"| {title} | {report.spread(ours)} | {report.spread(other)} | {report.spread(times)} × | {verdict} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replication", description="Replicated partitions beside three nodes of Apache Kafka."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts of a round")
    parser.add_argument("--rows", type=int, default=1_500_000, help="rows of 100 bytes in a round")
    parser.add_argument("--requests", type=int, default=6_000, help="records of the latencies in a round")
    parser.add_argument("--kills", type=int, default=4, help="kills of a leader in a round, for each session timeout")
    add_options(parser, REPLICATION)
    options = parser.parse_args(arguments)
    sizes = Sizes(options.rows, options.requests, options.kills)
    compare(options, NAME, lambda make: one_round(make, options.only, sizes), section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
