"""Committed offsets are in memory: OffsetFetch reads no log, and during a load the coordinator returns an error.

The clients are kafka-python and requests that the test encodes. The broker runs in a thread of this process, so that
the test can count its reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from support.brokers import Wire, eventually
from support.publish import commit_raw

import odradek
from odradek.coordinator_runtime.loader import Loader
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.storage.log import Log
from odradek.wire.api_keys import OFFSET_COMMIT, OFFSET_FETCH

COMMITS = 300
PARTITIONS = 50


class Reads:
    """Counts the reads of logs of the offsets topic."""

    count = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, real = Reads(), Log.read

    def counted(log: Log, *arguments: Any, **named: Any) -> Any:
        found.count += OFFSETS_TOPIC in str(log.path)
        return real(log, *arguments, **named)

    monkeypatch.setattr(Log, "read", counted)
    return found


@pytest.fixture
def broker(reads: Reads) -> Iterator[odradek.Broker]:
    with odradek.Broker(in_thread=True) as running:
        running.create_topic("t", 2)
        yield running


def client(broker: odradek.Broker, group: str) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=group, enable_auto_commit=False, retry_backoff_ms=50
    )


@pytest.mark.claim(91, part="a")
def test_an_offset_fetch_reads_no_log(broker: odradek.Broker, reads: Reads) -> None:
    for number in range(COMMITS):
        commit_raw(broker.bootstrap_servers, f"g{number % 3}", "t", {0: (number, 0, "")})
    assert reads.count == PARTITIONS, "each log was read once, when the topic was created"
    broker.stop()
    broker.start()
    for number in range(3):
        one = client(broker, f"g{number}")
        assert one.committed(TopicPartition("t", 0)) == COMMITS - 3 + number
        one.close()
    eventually(lambda: reads.count >= 2 * PARTITIONS, what="every log is loaded")
    with Wire(broker.bootstrap_servers) as wire:
        eventually(lambda: fetch(wire, "unknown") == (ErrorCode.none, -1))
        loaded = reads.count
        for number in range(100):  # a partition with a commit, a partition without one, and an unknown group
            assert fetch(wire, f"g{number % 3}") == (ErrorCode.none, COMMITS - 3 + number % 3)
            assert fetch(wire, f"g{number % 3}", partition=1) == (ErrorCode.none, -1)
            assert fetch(wire, "unknown") == (ErrorCode.none, -1)
        assert reads.count == loaded


def fetch(wire: Wire, group: str, partition: int = 0) -> tuple[ErrorCode, int]:
    rows = [{"name": "t", "partition_indexes": [partition]}]
    asked = {"group_id": group, "topics": rows, "member_id": None, "member_epoch": -1}
    (found,) = wire.call(OFFSET_FETCH, 8, {"groups": [asked], "require_stable": False}).groups
    if found.error_code:
        return ErrorCode(found.error_code), -1
    return ErrorCode.none, int(found.topics[0].partitions[0].committed_offset)


@pytest.mark.claim(91, part="b")
def test_during_a_load_the_coordinator_returns_its_error(
    broker: odradek.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test holds the load back. kafka-python, which fetches the committed offset meanwhile, waits for the load."""
    commit_raw(broker.bootstrap_servers, "g", "t", {0: (7, 0, "")})
    broker.stop()
    go_on, real = threading.Event(), Loader.take

    def held_back(loader: Any, *arguments: Any) -> Iterator[Any]:
        while not go_on.is_set():
            yield None
        yield from real(loader, *arguments)

    monkeypatch.setattr(Loader, "take", held_back)
    broker.start()
    found: list[int | None] = []
    try:
        with Wire(broker.bootstrap_servers) as wire:
            assert fetch(wire, "g") == (ErrorCode.coordinator_load_in_progress, -1)
            row = {"partition_index": 0, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
            message = {
                "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
                "topics": [{"name": "t", "partitions": [row]}],
            }  # fmt: skip
            refused = wire.call(OFFSET_COMMIT, 8, message).topics[0].partitions[0].error_code
            assert refused == ErrorCode.coordinator_load_in_progress
            one = client(broker, "g")
            asks = threading.Thread(target=lambda: found.append(one.committed(TopicPartition("t", 0))))
            asks.start()
            asks.join(0.5)
            assert asks.is_alive()
            assert fetch(wire, "g") == (ErrorCode.coordinator_load_in_progress, -1)
    finally:
        go_on.set()
    asks.join(30)
    assert found == [7]
    one.close()
