"""``odradek monitor`` beside a broker and its load on the same cores: ``python -m bench.monitor``.

The broker has ``--groups`` groups of 100 partitions, each with a few commits. The figures are:

* the time from the start of the monitor's process to its complete view;
* a refresh: the time of a poll, and the CPU time of the monitor for each poll while nothing is committed;
* the 95th percentile of lists of groups, by each sort, while the monitor refreshes every second;
* ``/metrics`` by topic;
* with commits of ``--rate`` partitions a second: how far the view is behind a marker group that commits every half
  second, and the share of a core that the monitor takes.

``--only`` selects some of them; the complete view is always measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from bench.groups import PER_REQUEST, many_offsets
from bench.sides import cpu_seconds, resident_bytes
from bench.workload import CommitConnection, create_topic
from odradek.client import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.monitor.choices import SORTS
from odradek.testing.process import BrokerProcess

FIGURES = ("refresh", "sorts", "metrics", "follow")
TOPICS, MARKER = 100, "marker"
_CONFIG = {"log.cleaner.enable": "false"}


class Monitored:
    """A process of ``odradek monitor`` on a free port."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "odradek", "monitor", "-b", bootstrap, "--listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[1]
        self.pids = [self.process.pid]

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=120) as reply:
            return bytes(reply.read())

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/api/v1/status")))

    def wait_until_complete(self) -> float:
        """Returns the seconds since the start of the process."""
        while not self.status()["ready"]:
            time.sleep(0.1)  # questions without a pause would cost the monitor CPU time
        return time.perf_counter() - self.began

    def gauge(self, name: str) -> float:
        for line in self.get("/metrics").decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        raise LookupError(name)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)


def topic_of(number: int) -> str:
    return f"load-{number % TOPICS}"


def fill(bootstrap: str, groups: int, times: int) -> None:
    """Creates the topics, and lets each group commit the partitions of one of them, ``times`` times."""
    for number in range(min(TOPICS, groups)):
        # The groups of a topic have its name and a number; many_offsets creates it.
        many_offsets(bootstrap, topic_of(number), len(range(number, groups, TOPICS)), PER_REQUEST, times)
    create_topic(bootstrap, MARKER, 1)


# --- figures ----------------------------------------------------------------------------------------------------------


def refresh(monitor: Monitored, interval_s: float) -> dict[str, float]:
    """Nothing is committed, and nothing is asked of the service while its CPU time counts."""
    time.sleep(interval_s + 1)  # the first poll after the view is complete does not count
    cpu_s, begun, times = cpu_seconds(monitor.pids), time.perf_counter(), []
    time.sleep(5 * interval_s)  # five polls
    cpu_s = cpu_seconds(monitor.pids) - cpu_s
    polls = (time.perf_counter() - begun) / interval_s
    for _ in range(3):
        times.append(monitor.gauge("kafka_consumergroup_poll_time_ms") / 1e3)
        time.sleep(interval_s)  # until the next poll
    return {"refresh_s": median(times), "refresh_cpu_s": cpu_s / polls}


def sorts(bootstrap: str) -> dict[str, float]:
    """A page of each order of the groups, again and again, while the monitor refreshes every second."""
    monitor = Monitored(bootstrap, "--interval", "1s")
    monitor.wait_until_complete()
    took: dict[str, list[float]] = {}
    begun = time.perf_counter()
    while time.perf_counter() < begun + 30:
        for name in SORTS:
            at = time.perf_counter()
            monitor.get(f"/api/v1/groups?sort=-{name}&limit=100")
            took.setdefault(name, []).append(time.perf_counter() - at)
    monitor.end()
    every = {name: sorted(values)[int(len(values) * 0.95)] * 1e3 for name, values in took.items()}
    worst = max(every, key=lambda name: every[name])
    print(f"sorts, p95 in ms: { {name: round(value) for name, value in every.items()} }", flush=True)
    return {"sort_p95_ms": every[worst], "sort_requests": sum(map(len, took.values()))}


def metrics(bootstrap: str) -> dict[str, float]:
    monitor = Monitored(bootstrap, "--metrics-granularity", "topic")
    monitor.wait_until_complete()
    took = []
    for _ in range(5):
        at = time.perf_counter()
        size = len(monitor.get("/metrics"))
        took.append(time.perf_counter() - at)
        time.sleep(1)  # as between two scrapes
    monitor.end()
    return {"metrics_s": median(took), "metrics_mb": size / 1e6}


def follow(bootstrap: str, monitor: Monitored, groups: int, rate: float, seconds: float) -> dict[str, float]:
    """``behind_s``: the longest time from the reply to a commit of the marker group to the view that has it."""
    names = [(f"{topic_of(number)}-{number // TOPICS}", topic_of(number)) for number in range(groups)]
    given = {"bootstrap": bootstrap, "groups": names, "partitions": PER_REQUEST, "rate": rate, "seconds": seconds}
    loading = subprocess.Popen(
        [sys.executable, "-m", "bench.monitor_load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert loading.stdin is not None
    loading.stdin.write(json.dumps(given | {"first": 1_000}))
    loading.stdin.close()
    with Admin(bootstrap) as admin:
        place, behind, number = TopicPartition(MARKER, 0), [], 0
        admin.alter_group_offsets(MARKER, {place: OffsetAndMetadata(0)})
        time.sleep(3)  # the load begins, and the monitor knows the group
        cpu_s, begun = cpu_seconds(monitor.pids), time.perf_counter()
        broker_lag: list[float] = []
        while loading.poll() is None and time.perf_counter() < begun + seconds - 5:
            number += 1
            at = time.perf_counter()
            admin.alter_group_offsets(MARKER, {place: OffsetAndMetadata(number)})
            committed = time.perf_counter()
            broker_lag.append(committed - at)
            while json.loads(monitor.get(f"/api/v1/groups/{MARKER}"))["partitions"][0]["committed_offset"] < number:
                time.sleep(0.2)  # the error of the time; each question costs the monitor some milliseconds
            behind.append(time.perf_counter() - committed)
            time.sleep(0.5)  # the marker commits cost little beside the load
        share = (cpu_seconds(monitor.pids) - cpu_s) / (time.perf_counter() - begun)
    assert loading.stdout is not None
    loaded = json.loads(loading.stdout.read())
    loading.wait()
    return {
        "behind_s": max(behind), "behind_median_s": median(behind), "core_share": share,
        "commit_s": max(broker_lag), "loaded_per_s": loaded["per_s"], "load_cpu_share": loaded["cpu_share"],
    }  # fmt: skip


def run(args: argparse.Namespace, work: Path) -> dict[str, float]:
    broker = BrokerProcess(work / "broker", config=_CONFIG)
    broker.start()
    bootstrap = broker.bootstrap_servers
    found: dict[str, float] = {}
    try:
        at = time.perf_counter()
        fill(bootstrap, args.groups, args.times)
        print(f"filled in {time.perf_counter() - at:.0f} s; load average {os.getloadavg()}", flush=True)
        CommitConnection(bootstrap, MARKER, MARKER)  # waits for the coordinator
        monitor = Monitored(bootstrap, "--interval", f"{args.interval}s")
        found["complete_s"] = monitor.wait_until_complete()
        found["complete_cpu_s"] = cpu_seconds(monitor.pids)
        found["entries"] = monitor.status()["entries"]
        found["rss_mb"] = resident_bytes(monitor.pids) / 1e6
        print(found, flush=True)
        if "refresh" in args.only:
            found |= refresh(monitor, args.interval)
        if "follow" in args.only:
            found |= follow(bootstrap, monitor, args.groups, args.rate, args.seconds)
        found["rss_end_mb"] = resident_bytes(monitor.pids) / 1e6
        monitor.end()
        print(found, flush=True)
        if "sorts" in args.only:
            found |= sorts(bootstrap)
        if "metrics" in args.only:
            found |= metrics(bootstrap)
    finally:
        broker.kill()
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.monitor", description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000, help="groups of 100 partitions (default 10,000)")
    parser.add_argument("--times", type=int, default=5, help="commits of each partition (default 5)")
    parser.add_argument("--rate", type=float, default=200_000, help="partitions committed a second (default 200,000)")
    parser.add_argument("--seconds", type=float, default=40, help="how long they are committed (default 40)")
    parser.add_argument("--interval", type=float, default=10, help="seconds between two polls (default 10)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), help="only these figures")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    print(f"load average at the start: {os.getloadavg()}", flush=True)
    work = Path(tempfile.mkdtemp(prefix="odradek-monitor-"))
    try:
        found = run(args, work)
    finally:
        shutil.rmtree(work)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))
    print(f"load average at the end: {os.getloadavg()}")


if __name__ == "__main__":
    main()
