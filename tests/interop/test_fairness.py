"""The waits of a client with few requests beside one or four busy producers, compared with Apache Kafka.

The test judges times, so it runs only by hand, with no other work on the computer.
``tests/limits/test_connection_shares.py`` counts instead, so it does not depend on times."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from odradek.testing.process import BrokerProcess
from odradek.wire import frames

ROUNDS = 3
SECONDS = 6.0
PRODUCERS = 4
LONGEST_MS = 50.0
# batch.num.messages=1 makes each record a request of its own, so librdkafka pipelines thousands of small requests.
PRODUCER = """
import os, sys, time
from confluent_kafka import Producer
bootstrap, seconds = sys.argv[1], float(sys.argv[2])
delivered = 0
def count(error, message):
    global delivered
    delivered += error is None
producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "linger.ms": 0})
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        producer.produce("busy", b"x" * 100, on_delivery=count)
        producer.poll(0)
    except BufferError:
        producer.poll(0.01)
print(delivered)
sys.stdout.flush()
os._exit(0)  # records in the queue do not count
"""


class Waits(NamedTuple):
    """Round trips of ApiVersions on a separate connection; ``records``: the records that the producers delivered."""

    trips: int
    median_ms: float
    longest_ms: float
    records: int


def wait_beside_producers(bootstrap: str, producers: int) -> Waits:
    command = [sys.executable, "-c", PRODUCER, bootstrap, str(SECONDS)]
    busy = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(producers)]
    try:
        time.sleep(1.5)
        waits = list(round_trips(bootstrap, SECONDS - 2))
        records = sum(int(one.communicate(timeout=60)[0]) for one in busy)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    return Waits(len(waits), statistics.median(waits), max(waits), records)


def round_trips(bootstrap: str, seconds: float) -> Iterator[float]:
    host, _, port = bootstrap.rpartition(":")
    request = frames.encode_request(18, 0, 1, "other", {})
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = time.perf_counter()
            client.sendall(request)
            received = b""
            while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
                received += client.recv(65_536)
            yield (time.perf_counter() - asked) * 1000
            time.sleep(0.002)


def apache(directory: Path) -> Any:
    from bench.apache import ApacheBroker, Unavailable

    try:
        return ApacheBroker(directory, {"num.partitions": "4"})
    except Unavailable as why:
        print(f"without Apache Kafka: {why}")
        return None


@pytest.mark.slow
@pytest.mark.parametrize("producers", [1, PRODUCERS])
def test_a_client_with_few_requests_gets_replies_beside_busy_producers(tmp_path: Path, producers: int) -> None:
    ours = BrokerProcess(tmp_path / "odradek", config={"num.partitions": "4"})
    theirs = apache(tmp_path / "apache")
    brokers = {"odradek": ours} | ({"Apache Kafka 4.3.0": theirs} if theirs is not None else {})
    found: dict[str, list[Waits]] = {name: [] for name in brokers}
    try:
        for broker in brokers.values():
            broker.start()
        for _ in range(ROUNDS):
            for name, broker in brokers.items():
                found[name].append(wait_beside_producers(broker.bootstrap, producers))
    finally:
        for broker in brokers.values():
            broker.stop()
    for name, rounds in found.items():
        for waits in rounds:
            print(
                f"{producers} producers, {name}: {waits.trips} round trips, median {waits.median_ms:.1f} ms, "
                f"longest {waits.longest_ms:.1f} ms, {waits.records / SECONDS:,.0f} records/s"
            )
    assert all(waits.trips > 100 and waits.records > 0 for rounds in found.values() for waits in rounds)
    longest = {name: max(waits.longest_ms for waits in rounds) for name, rounds in found.items()}
    print(f"{producers} producers, longest of all: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in longest.items()))
    assert longest["odradek"] <= LONGEST_MS
    assert longest["odradek"] <= min(longest.values()), "no longer than with Apache Kafka"
