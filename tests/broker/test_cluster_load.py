"""Under the full load of 8 producers and 100 consumers, with a quarter of the default session, no broker is fenced."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest

import odradek
from odradek.batches.rows import iter_records
from odradek.client import NewTopic
from odradek.cluster import records
from odradek.cluster.records import BrokerRegistrationChangeRecord

SESSION_MS, BEAT_MS = 2_250, 500
"""A quarter of Kafka's defaults."""
SESSIONS = 10
TOPICS, PARTITIONS = 5, 20
PRODUCER = """
import os, sys, time
from confluent_kafka import Producer
servers, seconds, number = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
settings = {"bootstrap.servers": servers, "queue.buffering.max.messages": 20_000, "message.send.max.retries": 100}
producers = [Producer(settings) for _ in range(2)]
failures, sent, values = [], 0, [os.urandom(1024) for _ in range(64)]
def on_delivery(error, message):
    if error is not None:
        failures.append(str(error))
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for producer in producers:
        for _ in range(200):
            sent += 1
            try:
                producer.produce(f"load{sent % 5}", values[sent % 64], partition=sent % 20, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
left = sum(producer.flush(60) for producer in producers)
print(sent, len(failures), left, failures[:1], flush=True)
"""
CONSUMER = """
import sys, time
from confluent_kafka import Consumer, TopicPartition
servers, seconds, number = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
settings = {"bootstrap.servers": servers, "queued.max.messages.kbytes": 512}
consumers = []
for index in range(number * 25, number * 25 + 25):
    consumer = Consumer({**settings, "group.id": f"g{index}", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(f"load{index % 5}", index // 5)])
    consumers.append(consumer)
print("ready", flush=True)
read, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    for consumer in consumers:
        read += len(consumer.consume(500, 0.001))
print(read, flush=True)
"""


def fences(log: Path) -> list[int]:
    """The brokers that the controller has fenced, in the order of its metadata log."""
    found: list[int] = []
    for segment in sorted(log.glob("*.log")):
        for row in iter_records(segment.read_bytes()):
            if not row.is_control and row.value:
                record = records.decode(row.value, lambda data: UUID(bytes=data))
                if isinstance(record, BrokerRegistrationChangeRecord) and record.is_fenced:
                    found.append(record.broker_id)
    return found


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_no_broker_is_fenced_under_full_load(tmp_path: Path) -> None:
    settings = {"broker.session.timeout.ms": SESSION_MS, "broker.heartbeat.interval.ms": BEAT_MS,
                "log.retention.bytes": 64 << 20, "log.segment.bytes": 16 << 20}  # fmt: skip
    seconds = SESSIONS * SESSION_MS / 1000 + 5
    with odradek.Cluster(brokers=3, data_dir=tmp_path / "c", config=settings) as cluster:
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(f"load{number}", PARTITIONS) for number in range(TOPICS)])
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", program, cluster.bootstrap_servers, str(seconds), str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for program in (PRODUCER, CONSUMER)
            for number in range(4)
        ]
        try:
            assert [said(worker) for worker in workers] == ["ready"] * 8
            began = time.monotonic()
            results = [said(worker) for worker in workers]
            took = time.monotonic() - began
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()
        found = fences(tmp_path / "c" / "controller" / "__cluster_metadata-0")
        assert cluster.running()
    print(f"{took:.0f} s, producers (sent, failed, left): {results[:4]}, read: {results[4:]}, fences: {found}")
    sent = [int(result.split()[0]) for result in results[:4]]
    assert [result.split()[1:3] for result in results[:4]] == [["0", "0"]] * 4
    assert min(sent) > 1_000
    assert min(int(result) for result in results[4:]) > 0
    assert took >= SESSIONS * SESSION_MS / 1000
    assert found == []
