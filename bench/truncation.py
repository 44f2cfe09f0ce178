"""``python -m bench.truncation``: what other clients of a broker wait for while it truncates a million batches.

Broker 1 of three has batches of a former leader epoch that its leader does not have: they are written to its log while
it is down. It starts while its leader is halted. Two connections send it requests about another topic, one at a time:
records with acks=all, and fetches of the newest batch. Then the leader goes on, and broker 1 cuts the batches off. The
longest waits of that time stand beside those of all spans of the same length before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import raw, report
from bench.pages import REPLICATION, option_help
from odradek import Cluster
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.wire import frames
from odradek.wire.api_keys import FETCH

NAME = "truncation"
SESSION_S = 30.0
SETTINGS = {
    "broker.session.timeout.ms": int(SESSION_S * 1000),
    "replica.lag.time.max.ms": 120_000,
    "min.insync.replicas": 1,
}
CUT, OTHER = "cut", "other"
BEFORE_S, LEAST_S = 6.0, 0.25


class Waits(threading.Thread):
    """Sends one request after the other. ``took``: when each was sent, and the seconds until its reply."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.took: list[tuple[float, float]] = []
        self.is_over = False
        self._ask = ask
        self.start()

    def run(self) -> None:
        while not self.is_over:
            began = time.perf_counter()
            self._ask()
            self.took.append((began, time.perf_counter() - began))

    def longest(self, begin: float, end: float) -> float:
        """The longest wait of the requests that were under way in a span, in ms."""
        return max((took for at, took in self.took if at < end and at + took > begin), default=0.0) * 1e3


def write_batches(folder: Path, batches: int, record_bytes: int) -> None:
    """Appends batches of one record, in leader epoch 0, to the log of a broker that is down."""
    now_ms = int(time.time() * 1000)
    log = Log.open(folder, LogConfig(), now_ms, clean=True)
    data = encode_batch([SimpleRecord(b"", bytes(record_bytes))], now_ms=now_ms)
    for _ in range(batches):
        log.append(data, now_ms=now_ms, leader_epoch=0)
    log.close()


def produce(connection: raw.Connection) -> None:
    data = encode_batch([SimpleRecord(b"", bytes(100))], now_ms=int(time.time() * 1000))
    raw.check_produced(OTHER, connection.call(raw.produce_request(OTHER, 0, data)))


def wait_until_led(connection: raw.Connection) -> None:
    """Waits until the broker takes records of the other topic: it serves before it leads."""
    deadline = time.monotonic() + 5
    while True:
        try:
            produce(connection)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def fetch(connection: raw.Connection) -> None:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 200}
    message = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 200, "isolation_level": 0,
        "topics": [{"topic": OTHER, "partitions": [part]}],
    }  # fmt: skip
    reply = connection.call(frames.encode_request(FETCH, 4, 0, "bench", message))
    row = frames.decode_reply(FETCH, 4, reply)[1].responses[0].partitions[0]
    if row.error_code:
        raise RuntimeError(f"fetch was answered with {row.error_code}")


def one_round(batches: int, record_bytes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="odradek-bench-") as folder:
        cluster = Cluster(3, config=SETTINGS, data_dir=folder)
        try:
            return _measure(cluster.start(), Path(folder), batches, record_bytes)
        finally:
            cluster.resume(2)
            for node in cluster.nodes:
                cluster.kill(node)
            cluster.close()


def _measure(cluster: Cluster, folder: Path, batches: int, record_bytes: int) -> dict[str, float]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for name, replicas in ((CUT, [1, 2, 3]), (OTHER, [1])):
        admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas])])[name].result(30)
    cluster.wait_until_in_sync([CUT])
    cluster.stop(1)
    stopped = time.monotonic()
    path = folder / "1" / f"{CUT}-0"
    write_batches(path, batches, record_bytes)
    time.sleep(max(stopped + SESSION_S + 1 - time.monotonic(), 0))  # a broker registers after its former session
    cluster.pause(2)
    cluster.start(1)
    segment = path / f"{0:020d}.log"
    size = segment.stat().st_size
    connections = [raw.Connection(cluster.address(1)) for _ in range(2)]
    wait_until_led(connections[0])
    waits = [Waits(lambda: produce(connections[0])), Waits(lambda: fetch(connections[1]))]
    time.sleep(BEFORE_S)
    if segment.stat().st_size != size:
        raise RuntimeError("the log was cut too early")
    began = time.perf_counter()
    cluster.resume(2)
    while segment.stat().st_size > size / 1000:
        if time.perf_counter() - began > 60:
            raise TimeoutError("the log was not cut")
        time.sleep(0.0005)
    took = time.perf_counter() - began
    time.sleep(max(LEAST_S - took, 0) + 0.05)
    span = max(took, LEAST_S)
    for one in waits:
        one.is_over = True
        one.join(30)
    spans = [began - span * number for number in range(1, int((BEFORE_S - 1) / span) + 1)]
    figures = {"megabytes": size / 1e6, "seconds": took}
    for name, one in zip(("produce", "fetch"), waits, strict=True):
        before = sorted(one.longest(at, at + span) for at in spans)
        figures |= {
            f"{name}_before_ms": before[len(before) // 2], f"{name}_worst_before_ms": before[-1],
            f"{name}_ms": one.longest(began, began + span),
        }  # fmt: skip
    return figures


COLUMNS = {
    "produce": "a record with acks=all",
    "fetch": "a fetch",
}


def section(rounds: Sequence[dict[str, float]]) -> str:
    lines = [
        "| longest wait in a span, ms, for … | before: median span | before: worst span | while the log is cut |",
        "|---|---|---|---|",
    ]
    for name, title in COLUMNS.items():
        cells = [
            report.spread([one[f"{name}{end}"] for one in rounds]) for end in ("_before_ms", "_worst_before_ms", "_ms")
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    seconds, size = report.spread([one["seconds"] for one in rounds]), report.shown(rounds[0]["megabytes"])
    return "\n".join([*lines, "", f"{size} MB were cut off within {seconds} s of the leader's return."])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.truncation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, default=600)
    parser.add_argument("--output", type=Path, help="a JSON file with all rounds")
    parser.add_argument("--page", type=Path, default=REPLICATION, help=option_help(REPLICATION))
    options = parser.parse_args(arguments)
    rounds = report.measure_rounds({NAME: lambda: one_round(options.batches, options.record_bytes)}, options.rounds)
    command = " ".join(["python -m bench.truncation", *sys.argv[1:]])
    table = f"{report.head(options.rounds, command)}\n\n{section(rounds[NAME])}"
    report.publish(options.page, NAME, table, rounds, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
