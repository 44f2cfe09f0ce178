"""A broker that ends in any state of a transaction finishes the transaction after the next start."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually
from support.transactions import RawProducer, create_topic, find_coordinator, listed, read, state_of

import odradek
from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker, PartitionKey
from odradek.wire.api_keys import END_TXN, UPDATE_FEATURES

NAME = "tx"
LEVELS = pytest.mark.parametrize("level", [2, 0])
CONFIG = {
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[odradek.Broker]:
    """A broker in a thread of this process, whose methods a test may replace."""
    with odradek.Broker(tmp_path / "data", CONFIG, in_thread=True) as running:
        yield running


def begun(wire: Wire, level: int, *, timeout_ms: int = 60_000) -> RawProducer:
    """Makes topic ``t``, and a transaction with a record in each of its two partitions."""
    create_topic(wire, "t", 2)
    producer = RawProducer(wire, NAME, level=level).started(timeout_ms=timeout_ms)
    if level == 0:
        producer.add("t", [0, 1])
    for partition in (0, 1):
        assert producer.send("t", "a", partition=partition) == "none"
    return producer


def end_without_reply(producer: RawProducer, *, commit: bool) -> None:
    identity = {
        "transactional_id": NAME, "producer_id": producer.producer_id, "producer_epoch": producer.epoch,
        "committed": commit,
    }  # fmt: skip
    producer.wire.send(END_TXN, 5 if producer.level == 2 else 4, identity)


def never_written(writer: MarkerWriter, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
    return Deferred()


def only_first_written(
    writer: MarkerWriter, partition: PartitionKey, marker: EndTransactionMarker
) -> Deferred[ErrorCode]:
    return WRITE(writer, partition, marker) if partition == ("t", 0) else Deferred()


WRITE = MarkerWriter.write_marker
STATES = {
    "no marker": (MarkerWriter, "write_marker", never_written),
    "one of two markers": (MarkerWriter, "write_marker", only_first_written),
    "all markers": (TransactionRuntime, "_on_written", lambda *_: None),
}


@LEVELS
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_a_decision_is_carried_out_after_kill_9(
    broker: odradek.Broker, monkeypatch: pytest.MonkeyPatch, level: int, state: str, *, commit: bool
) -> None:
    with Wire(broker.bootstrap_servers) as wire, Wire(broker.bootstrap_servers) as other:
        producer = begun(wire, level)
        with monkeypatch.context() as patch:
            patch.setattr(*STATES[state])
            end_without_reply(producer, commit=commit)
            eventually(lambda: state_of(other, NAME) == ("PrepareCommit" if commit else "PrepareAbort"))
            broker.kill()
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        expected = ["a"] if commit else []
        eventually(lambda: state_of(wire, NAME) == ("CompleteCommit" if commit else "CompleteAbort"))
        assert [read(wire, "t", partition) for partition in (0, 1)] == [expected, expected]
        producer.wire = wire
        assert producer.end(commit=commit) == "none", "the repeated request whose reply was lost"
        successor = RawProducer(wire, NAME).started()
        assert successor.send("t", "b") == "none"
        assert successor.end() == "none"
        assert read(wire, "t") == [*expected, "b"]


@LEVELS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_open_transaction_times_out_after_a_restart(broker: odradek.Broker, level: int, how: str) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        begun(wire, level, timeout_ms=600_000)  # so that the time of a restart on a busy machine is a small part of it
    getattr(broker, how)()
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        eventually(lambda: state_of(wire, NAME) == "Ongoing")
        broker.clock.advance(seconds=500)
        assert state_of(wire, NAME) == "Ongoing"
        broker.clock.advance(seconds=101)
        eventually(lambda: state_of(wire, NAME) == "CompleteAbort")
        assert [read(wire, "t", partition) for partition in (0, 1)] == [[], []]


def test_a_stop_during_a_decision_loses_nothing(broker: odradek.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Wire(broker.bootstrap_servers) as wire, Wire(broker.bootstrap_servers) as other:
        producer = begun(wire, 2)
        with monkeypatch.context() as patch:
            patch.setattr(MarkerWriter, "write_marker", never_written)
            end_without_reply(producer, commit=True)
            eventually(lambda: state_of(other, NAME) == "PrepareCommit")
            broker.stop()
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        eventually(lambda: state_of(wire, NAME) == "CompleteCommit")
        assert [read(wire, "t", partition) for partition in (0, 1)] == [["a"], ["a"]]


def test_an_expired_id_is_removed_by_the_brokers_clock(broker: odradek.Broker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        RawProducer(wire, NAME).started()
        broker.clock.advance(days=6)
        assert state_of(wire, NAME) == "Empty"
        broker.clock.advance(days=1, hours=1)
        eventually(lambda: state_of(wire, NAME) == "transactional_id_not_found")


@LEVELS
def test_kill_9_at_any_moment_leaves_whole_transactions(own_broker: Callable[..., RunningBroker], level: int) -> None:
    """Every transaction writes its number to both partitions. Readers find each acknowledged commit in both partitions,
    each commit without a reply in both or in none, and no aborted transaction."""
    running = own_broker(transaction_state_log_num_partitions="1")
    chance = random.Random(7)
    with Wire(running.bootstrap) as wire:
        create_topic(wire, "t", 2)
    number, committed, aborted, unknown = 0, set[str](), set[str](), set[str]()
    for _ in range(4):
        killer = threading.Timer(chance.uniform(0.05, 0.3), running.kill)
        enough = len(committed) + 2  # so that some transactions are acknowledged on a slow machine, too
        try:
            with Wire(running.bootstrap) as wire:
                producer = RawProducer(wire, NAME, level=level).started()
                while True:
                    number += 1
                    value, commit = str(number), chance.random() < 0.7
                    if level == 0:
                        assert producer.add("t", [0, 1]) == {0: "none", 1: "none"}
                    for partition in (0, 1):
                        assert producer.send("t", value, partition=partition) == "none"
                    (unknown if commit else aborted).add(value)
                    assert producer.end(commit=commit) == "none"
                    if commit:
                        unknown.discard(value)
                        committed.add(value)
                        if len(committed) == enough:
                            killer.start()
        except OSError:
            pass
        killer.join()
        running.start()
    with Wire(running.bootstrap) as wire:
        assert find_coordinator(wire, NAME) == "none"
        RawProducer(wire, NAME, level=level).started()
        eventually(lambda: [row.transaction_state for row in listed(wire).transaction_states] == ["Empty"])
        first, second = (read(wire, "t", partition) for partition in (0, 1))
    assert first == second == sorted(first, key=int)
    assert committed <= set(first) <= committed | unknown
    assert len(committed) >= 8
    assert not aborted & set(first)


def test_the_level_of_transaction_version_is_logged_when_an_old_directory_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new directory has Kafka's initial level, which the broker does not log. A lower level is a warning, which the
    broker prints by default."""
    starts = []
    with caplog.at_level(logging.INFO, "odradek.broker"):
        for level in (None, 1, 0, None):
            with (
                odradek.Broker(tmp_path / "data", CONFIG, in_thread=True) as broker,
                Wire(broker.bootstrap_servers) as wire,
            ):
                lines = [line for line in caplog.records if "transaction.version" in line.getMessage()]
                starts.append([(line.levelname, line.getMessage().partition(":")[0]) for line in lines])
                caplog.clear()
                if level is not None:
                    row = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
                    message = {"timeout": 10_000, "feature_updates": [row], "validate_only": False}
                    assert wire.call(UPDATE_FEATURES, 2, message).error_code == 0
    text = "the level of transaction.version is"
    assert starts == [[], [("INFO", f"{text} 2")], [("WARNING", f"{text} 1")], [("WARNING", f"{text} 0")]]
