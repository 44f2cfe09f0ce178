"""5,000 transactions that are open at once in one partition: memory, turns of the loop, kill -9, and their timeout."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from metered_broker import MeteredBroker
from support.brokers import Wire, eventually
from support.transactions import RawProducer, create_topic
from target import use_of

from odradek.wire.api_keys import DESCRIBE_PRODUCERS, LIST_OFFSETS, LIST_TRANSACTIONS

COUNT = 5_000
TIMEOUT_MS = 600_000
TURN_MS = 50.0
CONFIG = {
    "transaction.state.log.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "8000",
}
ONGOING = {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1}


def open_ids(wire: Wire) -> int:
    return len(wire.call(LIST_TRANSACTIONS, 1, ONGOING).transaction_states)


def end_offset(wire: Wire, *, stable: bool) -> int:
    """The end of the topic's only partition, or its last stable offset."""
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    message = {"replica_id": -1, "isolation_level": int(stable), "topics": [{"name": "t", "partitions": [row]}]}
    return int(wire.call(LIST_OFFSETS, 7, message).topics[0].partitions[0].offset)


def active_producers(wire: Wire) -> int:
    (topic,) = wire.call(DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "t", "partition_indexes": [0]}]}).topics
    return sum(one.current_txn_start_offset >= 0 for one in topic.partitions[0].active_producers)


@pytest.mark.slow
def test_thousands_of_transactions_are_open_at_once(tmp_path: Path) -> None:
    broker = MeteredBroker(tmp_path / "broker", CONFIG)
    broker.start()
    try:
        turns: list[float] = []
        base = 2
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t")
            first = RawProducer(wire, "first").started(timeout_ms=TIMEOUT_MS)  # loads modules
            assert first.send("t", "v") == "none"
            assert first.end() == "none"
            time.sleep(3)
            assert broker.pid is not None
            before = use_of(broker.pid).resident
            began = time.monotonic()
            with broker.turns(turns):
                for number in range(COUNT):
                    producer = RawProducer(wire, f"id-{number}").started(timeout_ms=TIMEOUT_MS)
                    assert producer.send("t", "v") == "none"
            opening_s = time.monotonic() - began
            grown = use_of(broker.pid).resident - before
            with broker.turns(turns):
                began = time.monotonic()
                assert open_ids(wire) == COUNT
                listing_s = time.monotonic() - began
                assert active_producers(wire) == COUNT
                assert end_offset(wire, stable=True) == base
        broker.kill()
        began = time.monotonic()
        broker.start()
        with Wire(broker.bootstrap) as wire:
            eventually(lambda: open_ids(wire) == COUNT, within_s=120, what="all transactions are open again")
            restart_s = time.monotonic() - began
            assert active_producers(wire) == COUNT
            assert end_offset(wire, stable=True) == base
        broker.kill()
        broker.clock_ahead_ms = TIMEOUT_MS + 1_000
        broker.start()
        with Wire(broker.bootstrap) as wire:
            end = base + 2 * COUNT
            time.sleep(5)  # a start loads modules until now
            with broker.turns(turns):
                eventually(lambda: end_offset(wire, stable=True) == end, within_s=300, what="the stable end")
                eventually(lambda: open_ids(wire) == 0, within_s=120, what="no open transaction")
            assert end_offset(wire, stable=False) == end
        print(
            f"{COUNT} open transactions: opened in {opening_s:.1f} s, {grown / COUNT / 1024:.2f} KiB each, listed in "
            f"{listing_s * 1000:.0f} ms, restart {restart_s:.1f} s, turns in ms {[round(one, 1) for one in turns]}"
        )
        assert max(turns) < TURN_MS
        assert grown < COUNT * 8192
    finally:
        broker.stop()
