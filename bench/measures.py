"""The measures of ``python -m bench``, and one round of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import raw
from bench.apache import class_path, java
from bench.groups import all_groups_answer
from bench.sides import Side, cpu_seconds, resident_bytes, start
from bench.workload import create_topic, set_topic_config

Values = dict[str, float]

_BATCH_RECORDS = {100: 500, 1000: 100}
"""The number of records in a batch that consumers read, by the bytes of a record."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the workloads. ``scale`` 1 is the full size; smaller ones are for trial runs."""

    scale: float
    restart_gb: float = 1.0

    @property
    def rows(self) -> int:
        return max(1000, int(1_000_000 * self.scale))

    @property
    def consumed_mb(self) -> float:
        """MB of the topic that confluent-kafka reads: at full size, about two million records of 100 bytes."""
        return max(1, 220 * self.scale)

    @property
    def commit_seconds(self) -> float:
        return max(0.5, 8 * self.scale)

    @property
    def warm_up_s(self) -> float:
        return max(0.2, 4 * self.scale)

    @property
    def perf_rows(self) -> int:
        return max(1000, int(1_000_000 * self.scale))

    @property
    def singles(self) -> int:
        return max(200, int(10_000 * self.scale))

    @property
    def commits(self) -> int:
        return max(1000, int(2_000_000 * self.scale))

    @property
    def log_mb(self) -> float:
        """MB of the topic that raw consumers read, and of the compacted topic."""
        return max(20, (1 << 30) / 1e6 * self.scale)

    @property
    def idle_s(self) -> float:
        return max(0.5, 5 * self.scale)


@dataclass(frozen=True)
class Column:
    """One figure of the report."""

    title: str
    unit: str
    higher_is_better: bool = True
    aim: float = 0
    """The figure should be so many times better than Apache Kafka's; 0: no aim."""
    most: float = 0
    """The maximum of the figure, independent of Apache Kafka; 0: none."""


COLUMNS: dict[str, Column] = {
    "start": Column("start to first metadata answer", "s", higher_is_better=False, aim=8),
    "idle_rss": Column("idle memory, all processes (RSS)", "MB", higher_is_better=False, aim=4),
    "loaded_rss": Column("memory after the commits and a compaction (RSS)", "MB", higher_is_better=False, aim=4),
    "peak_rss": Column("… maximum during the compaction, cleaner's process included", "MB", higher_is_better=False),
    "commits_1": Column("OffsetCommit, pipelined, 1 connection", "requests/s"),
    "commits_8": Column("OffsetCommit, pipelined, 8 connections", "requests/s", aim=8),
    "commits_8_cpu": Column("… broker CPU per million requests", "s", higher_is_better=False),
    "wide_commits": Column("OffsetCommit of 100 partitions, 8 connections", "partitions/s", aim=2),
    "wide_commits_cpu": Column("… broker CPU per million partitions", "s", higher_is_better=False),
    "commit_sync_p50": Column("commit and wait, confluent-kafka, p50", "ms", higher_is_better=False, aim=3),
    "commit_sync_p99": Column("… p99", "ms", higher_is_better=False),
    "fetch_offsets": Column("OffsetFetch of 10,000 partitions, no commits in between", "partitions/s", aim=2),
    "fetch_changed": Column("… all partitions committed before each fetch", "partitions/s"),
    "rebalance": Column("100 members join at once, to the last assignment", "ms", higher_is_better=False, aim=1),
    "offset_bytes": Column("memory per committed offset, a million of them", "bytes", higher_is_better=False, most=300),
    "produce": Column("produce, confluent-kafka, 100 B, acks=all", "rows/s", aim=1.5),
    "produce_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "producer_perf": Column("produce, Java ProducerPerformance, 1 KB", "rows/s", aim=1),
    "producer_perf_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "latency_p50": Column("single produce of 100 B, one in flight, p50", "ms", higher_is_better=False, aim=2),
    "latency_p99": Column("… p99", "ms", higher_is_better=False, aim=2),
    "consume": Column("consume, confluent-kafka, 100 B", "rows/s", aim=1.3),
    "consume_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "consumer_perf_100": Column("consume, Java ConsumerPerformance, 100 B", "rows/s", aim=1.3),
    "consumer_perf_1000": Column("consume, Java ConsumerPerformance, 1 KB", "rows/s", aim=1.3),
    "fan_out_cpu": Column("8 raw consumers, one cached topic: broker CPU per GB", "s", higher_is_better=False, aim=2),
    "fan_out": Column("… to all consumers together", "GB/s"),
    "restart": Column("restart after kill -9 to all end offsets", "s", higher_is_better=False, aim=2),
    "groups_restart": Column(
        "restart after kill -9, 2 million commits, to the last group", "s", higher_is_better=False, aim=3
    ),
    "compact": Column("compaction of a log, start to end", "s", higher_is_better=False),
    "compact_p99": Column("p99 of single produces during the compaction", "ms", higher_is_better=False),
    "compact_share": Column("… as a multiple of p99 before", "×", higher_is_better=False, most=2),
}


def run_workload(name: str, side: Side, **arguments: Any) -> tuple[Values, float]:
    """Runs a workload in a process of its own. Returns its result and the CPU seconds of the broker meanwhile."""
    parameters = json.dumps({"bootstrap": side.bootstrap, **arguments})
    before = cpu_seconds(side.pids)
    command = [sys.executable, "-m", "bench.workload", name, parameters]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{name} against {side.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout), cpu_seconds(side.pids) - before


@dataclass
class Running:
    """A process with a workload that runs until ``finish``."""

    process: subprocess.Popen[str]

    def finish(self) -> Values:
        out, err = self.process.communicate(timeout=600)  # this closes its stdin, which ends the workload
        if self.process.returncode != 0:
            raise RuntimeError(f"a workload failed:\n{err[-2000:]}")
        return dict(json.loads(out))


def begin_workload(name: str, side: Side, **arguments: Any) -> Running:
    """Starts a workload. Returns when it has printed that it is ready."""
    parameters = json.dumps({"bootstrap": side.bootstrap, **arguments})
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.workload", name, parameters]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None
    if process.stderr.readline() != "ready\n":
        raise RuntimeError(f"{name} against {side.name} did not begin: {process.communicate()[1][-2000:]}")
    return Running(process)


def measure_start(side: Side, sizes: Sizes, started_s: float) -> Values:
    return {"start": started_s}


def measure_idle(side: Side, sizes: Sizes, started_s: float) -> Values:
    time.sleep(sizes.idle_s)
    return {"idle_rss": resident_bytes(side.pids) / 1e6}


def measure_commits(side: Side, sizes: Sizes, started_s: float) -> Values:
    found: Values = {}
    for connections in (1, 8):
        timing = {"seconds": sizes.commit_seconds, "warm_up_s": sizes.warm_up_s}
        answer, cpu_s = run_workload("commits", side, connections=connections, topic=f"commits-{connections}", **timing)
        found[f"commits_{connections}"] = answer["per_s"]
        if connections == 8:
            # The broker's CPU time includes the warm-up. The measured part gets its share by duration.
            share = sizes.commit_seconds / (sizes.commit_seconds + sizes.warm_up_s)
            found["commits_8_cpu"] = cpu_s * share / answer["count"] * 1e6
    return found


def measure_groups(side: Side, sizes: Sizes, started_s: float) -> Values:
    timing = {"seconds": sizes.commit_seconds / 2, "warm_up_s": sizes.warm_up_s}
    wide, cpu_s = run_workload("commits", side, connections=8, topic="wide-commits", partitions=100, **timing)
    share = timing["seconds"] / (timing["seconds"] + timing["warm_up_s"])
    sync, _ = run_workload("commit_sync", side, topic="commit-sync", count=sizes.singles)
    found = {
        "wide_commits": wide["per_s"],
        "wide_commits_cpu": cpu_s * share / wide["count"] * 1e6,
        "commit_sync_p50": sync["p50"],
        "commit_sync_p99": sync["p99"],
    }
    fetched, _ = run_workload("fetch_offsets", side, topic="fetch-offsets", partitions=10_000, **timing)
    found |= {"fetch_offsets": fetched["per_s"], "fetch_changed": fetched["changed_per_s"]}
    joined, _ = run_workload("rebalance", side, group="rebalance", members=100, rounds=max(3, int(20 * sizes.scale)))
    return {**found, "rebalance": joined["ms"]}


def measure_offsets_memory(side: Side, sizes: Sizes, started_s: float) -> Values:
    """Measures on a new broker: a broker with earlier workloads could reuse the memory that they have freed."""
    _start_empty(side)
    run_workload("many_offsets", side, topic="warm-memory", groups=10, partitions=10, times=2)
    time.sleep(sizes.idle_s)
    before = resident_bytes(side.pids)
    groups = max(100, int(10_000 * sizes.scale))
    run_workload("many_offsets", side, topic="offsets-memory", groups=groups, partitions=100, times=1)
    return {"offset_bytes": (resident_bytes(side.pids) - before) / (groups * 100)}


def measure_groups_restart(side: Side, sizes: Sizes, started_s: float) -> Values:
    _start_empty(side)
    topic, groups, times = "groups-restart", max(100, int(2000 * sizes.scale)), 10
    run_workload("many_offsets", side, topic=topic, groups=groups, partitions=100, times=times)
    side.kill()
    began = time.perf_counter()
    side.spawn()
    while time.perf_counter() - began < 600:
        try:
            if all_groups_answer(side.bootstrap, topic, groups, times):
                return {"groups_restart": time.perf_counter() - began}
        except OSError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"{side.name} did not return all groups within 600 s")


def _start_empty(side: Side) -> None:
    """Starts the broker with an empty data directory, so that it does not load the commits of earlier measures."""
    side.stop()
    shutil.rmtree(side.data)
    side.install()
    start(side)


def measure_produce(side: Side, sizes: Sizes, started_s: float) -> Values:
    run_workload("produce", side, rows=max(1000, sizes.rows // 5), topic="produce-warm-up")
    answer, cpu_s = run_workload("produce", side, rows=sizes.rows, topic="produce")
    return {"produce": answer["per_s"], "produce_cpu": cpu_s / sizes.rows * 1e6}


def _filled_topic(side: Side, topic: str, megabytes: float, record_bytes: int, batch_records: int) -> int:
    """Creates a topic of 4 partitions and fills it with batches of equal size. Returns the number of records."""
    create_topic(side.bootstrap, topic, 4)
    shape = {"partitions": 4, "record_bytes": record_bytes, "batch_records": batch_records}
    filled, _ = run_workload("fill", side, topic=topic, megabytes=megabytes, **shape)
    return int(filled["count"])


def measure_consume(side: Side, sizes: Sizes, started_s: float) -> Values:
    """Reads the same batches from both sides. A producer makes larger batches for a slower broker."""
    rows = _filled_topic(side, "consume", sizes.consumed_mb, 100, _BATCH_RECORDS[100])
    run_workload("consume", side, rows=rows, topic="consume")
    answer, cpu_s = run_workload("consume", side, rows=rows, topic="consume")
    return {"consume": answer["per_s"], "consume_cpu": cpu_s / rows * 1e6}


def _java_tool(side: Side, tool: str, *arguments: str) -> tuple[str, float]:
    """The output of a tool of Apache Kafka, and the broker's CPU seconds.

    Raises Unavailable without Java, and RuntimeError if the tool fails.
    """
    command = [java(), "-Xmx512m", "-cp", class_path(), f"org.apache.kafka.tools.{tool}"]
    before = cpu_seconds(side.pids)
    command += ["--bootstrap-server", side.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} against {side.name} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout, cpu_seconds(side.pids) - before


def measure_producer_perf(side: Side, sizes: Sizes, started_s: float) -> Values:
    create_topic(side.bootstrap, "producer-perf", 4)
    rows = sizes.perf_rows
    opts = ("--topic", "producer-perf", "--record-size", "1000", "--throughput", "-1", "--command-property", "acks=all")
    _java_tool(side, "ProducerPerformance", *opts, "--num-records", str(max(1000, rows // 10)))
    out, cpu_s = _java_tool(side, "ProducerPerformance", *opts, "--num-records", str(rows))
    last = out.strip().splitlines()[-1]
    found = re.match(r"(\d+) records sent, ([\d.]+) records/sec", last)
    if found is None or int(found[1]) != rows:
        raise RuntimeError(f"ProducerPerformance printed: {last}")
    return {"producer_perf": float(found[2]), "producer_perf_cpu": cpu_s / rows * 1e6}


def measure_consumer_perf(side: Side, sizes: Sizes, started_s: float) -> Values:
    found: Values = {}
    for size, records in _BATCH_RECORDS.items():
        topic = f"consumer-perf-{size}"
        # Enough records for three seconds and more: shorter runs measure Java's start.
        megabytes = max(20, (300 if size == 100 else 1000) * sizes.scale)
        rows = _filled_topic(side, topic, megabytes, size, records)
        arguments = ("--topic", topic, "--num-records", str(rows), "--timeout", "20000", "--hide-header")
        out, _ = _java_tool(side, "ConsumerPerformance", *arguments)
        row = out.strip().splitlines()[-1].split(", ")
        if int(row[4]) != rows:
            raise RuntimeError(f"ConsumerPerformance printed: {row}, not {rows} records")
        found[f"consumer_perf_{size}"] = float(row[9])  # without the wait for the group
    return found


def measure_latency(side: Side, sizes: Sizes, started_s: float) -> Values:
    create_topic(side.bootstrap, "latency", 1)
    answer, _ = run_workload("latency", side, topic="latency", count=sizes.singles)
    return {"latency_p50": answer["p50"], "latency_p99": answer["p99"]}


def measure_fan_out(side: Side, sizes: Sizes, started_s: float) -> Values:
    create_topic(side.bootstrap, "fan-out", 1)
    filled, _ = run_workload(
        "fill", side, topic="fan-out", megabytes=sizes.log_mb, partitions=1, record_bytes=1000, batch_records=60
    )
    shape = {"batch_bytes": int(filled["batch_bytes"]), "batch_records": 60, "records": int(filled["count"])}
    answer, cpu_s = run_workload("fan_out", side, topic="fan-out", consumers=8, **shape)
    return {"fan_out_cpu": cpu_s / answer["bytes"] * 1e9, "fan_out": answer["per_s"]}


def measure_loaded(side: Side, sizes: Sizes, started_s: float) -> Values:
    """Sends commits, two million at full size. Then the broker compacts a topic while single records are produced."""
    processes = len(side.pids)
    run_workload("commits_by_count", side, topic="loaded", count=sizes.commits)
    create_topic(side.bootstrap, "beside", 1)
    segment_bytes = max(2 << 20, int(sizes.log_mb * 1e6 / 16))
    create_topic(
        side.bootstrap, "compacted", 1, {"segment.bytes": str(segment_bytes), "min.cleanable.dirty.ratio": "0.01"}
    )
    run_workload(
        "fill", side, topic="compacted", megabytes=sizes.log_mb, partitions=1, record_bytes=1000, batch_records=100
    )
    before, _ = run_workload("latency", side, topic="beside", count=sizes.singles)
    kept = 64 * 100 * 1100 + segment_bytes  # one record for each key, and the active segment
    peak = 0
    beside = begin_workload("latency", side, topic="beside", count=0)
    set_topic_config(side.bootstrap, "compacted", "cleanup.policy", "compact")
    began = time.perf_counter()
    while log_bytes(side, "compacted-0") > kept * 1.1:
        peak = max(peak, resident_bytes(side.pids))
        if time.perf_counter() - began > 300:
            raise TimeoutError(f"{side.name} has not compacted {sizes.log_mb:.0f} MB in 300 s")
        time.sleep(0.05)
    took = time.perf_counter() - began
    meanwhile = beside.finish()
    until = time.monotonic() + 60
    while len(side.pids) > processes and time.monotonic() < until:  # the cleaner's process ends by itself
        time.sleep(0.1)
    time.sleep(sizes.idle_s)
    return {
        "loaded_rss": resident_bytes(side.pids) / 1e6,
        "peak_rss": peak / 1e6,
        "compact": took,
        "compact_p99": meanwhile["p99"],
        "compact_share": meanwhile["p99"] / before["p99"],
    }


def log_bytes(side: Side, partition: str) -> int:
    """The bytes of a partition's files ``*.log``. Files of a cleaning (.cleaned) and deleted files do not count."""
    total = 0
    for path in (side.data / partition).glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def measure_restart(side: Side, sizes: Sizes, started_s: float) -> Values:
    _filled_topic(side, "restart", max(20, sizes.restart_gb * 1000 * min(sizes.scale, 1)), 1000, 60)
    ends = raw.end_offsets(side.bootstrap, "restart", 4)
    side.kill()
    began = time.perf_counter()
    side.spawn()
    while True:
        try:
            if raw.end_offsets(side.bootstrap, "restart", 4) == ends:
                return {"restart": time.perf_counter() - began}
        except OSError:
            pass
        if time.perf_counter() - began > 600:
            raise TimeoutError(f"{side.name} did not return the end offsets {ends} within 600 s")
        time.sleep(0.01)


MEASURES: dict[str, Callable[[Side, Sizes, float], Values]] = {
    "start": measure_start,
    "idle": measure_idle,
    "commits": measure_commits,
    "groups": measure_groups,
    "produce": measure_produce,
    "consume": measure_consume,
    "producer-perf": measure_producer_perf,
    "latency": measure_latency,
    "consumer-perf": measure_consumer_perf,
    "fan-out": measure_fan_out,
    "loaded": measure_loaded,
    "offsets-memory": measure_offsets_memory,
    "restart": measure_restart,
    "groups-restart": measure_groups_restart,
}
"""The measures by name, in the order of a round. Those that restart the broker are last."""

TABLES: tuple[tuple[str, ...], ...] = (
    ("start", "idle"),
    ("produce", "consume", "latency"),
    ("producer-perf", "consumer-perf", "fan-out"),
    ("commits", "offsets-memory", "groups-restart"),
    ("groups",),
    ("loaded", "restart"),
)
"""The measures of each table of the page."""


def tables_of(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The tables that a run of these measures writes. Measures whose table is incomplete are one table together."""
    complete = [table for table in TABLES if set(table) <= set(names)]
    rest = tuple(name for name in names if not any(name in table for table in complete))
    return [*complete, rest] if rest else complete


def one_round(build: Callable[[Path], Side], directory: Path, names: list[str], sizes: Sizes) -> dict[str, Values]:
    """Runs the named measures on a new broker with new data. Returns the values of each measure by its name."""
    side = build(directory)
    side.install()
    found: dict[str, Values] = {}
    try:
        started_s = start(side)
        for name in names:
            found[name] = MEASURES[name](side, sizes, started_s)
    finally:
        side.stop()
    return found
