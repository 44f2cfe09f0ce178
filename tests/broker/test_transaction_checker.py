"""Random transactions append to lists in several partitions, while the broker and the producers get ``kill -9``.

The broker delays or drops EndTxn and other requests, or their replies. In half of the long trials the markers are late.
The checker checks:

* No aborted record is read, and no record is lost or duplicated.
* No transaction is committed in only some of its partitions.
* No offset is committed without the records of its transaction, or is visible before its marker.
* The reply to EndTxn comes after all markers, and every transaction ends.

Slow tests plant six faults in the broker, and the checker must find each of them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.faulty_broker import EARLY_REPLY, LATE_MARKERS
from support.transaction_checker import (
    Ledger,
    LogAudit,
    Planned,
    Reader,
    check,
    check_answered,
    check_marker,
    committed_offsets,
    end_offset,
)
from support.transaction_worker import PARTITIONS, TOPIC, TRANSACTION_TIMEOUT_MS
from support.transactions import listed

from odradek.core.ids import OFFSETS_TOPIC
from odradek.testing.process import BrokerProcess

ROUNDS = 10
NAMES = ("a", "b")
CLEANUP_INTERVAL_MS = 1_000
CONFIG = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(CLEANUP_INTERVAL_MS),
    "log.cleaner.enable": "false",  # the log audit reads every batch of __consumer_offsets
}
END_WITHIN_S = 60.0
SEGMENT_BYTES = (None, 2_048, 5_000, 20_000)
"""The segment sizes of trials; the seed selects one. Small segments spread the transactions over many files."""
FOUND = {
    "a marker is lost": "before the marker of epoch|holds readers|open transactions",
    "a marker has a wrong epoch": "ends the transaction of epoch",
    "the last stable offset is too high": "got aborted records",
    "a sequence is taken twice": "has sequence",
    "offsets are applied at Prepare": "before the marker of their transaction",
    EARLY_REPLY: "after the answer to EndTxn",
}
NEED_LATE_MARKERS = ("offsets are applied at Prepare", EARLY_REPLY)
"""Faults that show only between a decision and its markers: less than a millisecond if the markers are not late."""


class PlantedBroker(BrokerProcess):
    """A broker with planted faults, by the names of support/faulty_broker."""

    faults: tuple[str, ...] = ()

    def command_line(self) -> list[str]:
        command = super().command_line()
        return [command[0], "-m", "support.faulty_broker", ",".join(self.faults), *command[3:]]


def late_broker(place: Path, *faults: str) -> PlantedBroker:
    """Returns a broker whose markers are late, with these faults."""
    broker = PlantedBroker(place, config=CONFIG)
    broker.faults = (LATE_MARKERS, *faults)
    return broker


class WorkerProcess:
    """One producer in its own process. ``note`` gets each line that it prints, except the end of its work.

    ``done`` gets True when the producer has done its transactions, and False when the process has ended.
    """

    def __init__(self, bootstrap: str, name: str, seed: int, note: Callable[[str, dict[str, Any]], None]) -> None:
        command = [sys.executable, "-m", "support.transaction_worker", bootstrap, name, str(seed)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.name = name
        self.done: queue.Queue[bool] = queue.Queue()
        self._note = note
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process may be cut off
                read = json.loads(line)
                if "done" in read:
                    self.done.put(True)
                else:
                    self._note(self.name, read)
        self.done.put(False)

    def begin(self, first: int, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{first} {count}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Ends the process with kill -9. Afterwards ``note`` has all complete lines that the process has printed."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Trial:
    """One broker, its producers and a reader over some rounds."""

    def __init__(self, broker: BrokerProcess, seed: int, *, kills: bool = True) -> None:
        self.broker = broker
        self.seed = seed
        self.chance = random.Random(seed)
        self.segment_bytes = SEGMENT_BYTES[seed % len(SEGMENT_BYTES)]
        self.kills = kills
        self.ledger = Ledger()
        self.audits = [LogAudit(TOPIC, partition) for partition in range(PARTITIONS)] + [LogAudit(OFFSETS_TOPIC, 0)]
        self.readers = [Reader(partition) for partition in range(PARTITIONS)]
        self.workers: dict[str, WorkerProcess] = {}
        self.numbers = dict.fromkeys(NAMES, 1)
        self.rounds = self.broker_kills = self.worker_kills = self.ended_by_time = 0
        self.seen_offsets: dict[str, set[int]] = {name: set() for name in NAMES}
        self.answered: set[tuple[str, int]] = set()
        """The committed transactions whose markers the reader has looked for after the reply to EndTxn."""
        self.noted = 0
        self._notes = threading.Lock()
        self._failure: BaseException | None = None

    def __enter__(self) -> Trial:
        self.broker.start()
        small = {} if self.segment_bytes is None else {"internal.segment.bytes": str(self.segment_bytes)}
        self.broker.command("create_topic", name=TOPIC, partition_count=PARTITIONS, configs=small)
        self.broker.command("create_topic", name="input", partition_count=PARTITIONS, configs={})
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.kill()
        self.broker.kill()

    def run(self, rounds: int) -> None:
        try:
            for _ in range(rounds):
                self.rounds += 1
                self.round()
        except BaseException as error:
            log = self.broker.log_tail()
            error.add_note(f"seed {self.seed}, round {self.rounds}; the broker's log ends with\n{log}")
            raise

    def note(self, name: str, line: dict[str, Any]) -> None:
        with self._notes:
            self.ledger.note(name, line)
            self.noted += 1

    def segments(self) -> int:
        """Returns the number of segments in all partitions of ``TOPIC``."""
        return sum(1 for _ in self.broker.data_dir.glob(f"{TOPIC}-*/*.log"))

    # --- one round --------------------------------------------------------------------------------------------

    def round(self) -> None:
        chance = self.chance
        self.set_faults()
        stop = threading.Event()
        reading = threading.Thread(target=self.read_on, args=(stop,))
        reading.start()
        try:
            for name in NAMES:
                if name not in self.workers:
                    seed = chance.randrange(1 << 30)
                    self.workers[name] = WorkerProcess(self.broker.bootstrap, name, seed, self.note)
                count = chance.randint(3, 12)
                self.workers[name].begin(self.numbers[name], count)
                self.numbers[name] += count
            if self.kills:
                self.kill_some()
            for name, worker in self.workers.items():
                try:
                    assert worker.done.get(timeout=60), f"producer {name} has ended by itself"
                except queue.Empty:
                    raise AssertionError(f"producer {name} cannot go on") from None
        finally:
            stop.set()
            reading.join()
        assert self._failure is None, self._failure
        self.broker.command("clear_faults")
        self.end_and_check()

    def set_faults(self) -> None:
        """Makes the broker delay or drop EndTxn and other requests, or their replies, or close the connection.

        The producer repeats a request without a reply."""
        chance = self.chance
        for _ in range(chance.randint(1, 3)):
            api = chance.choice(["EndTxn", "EndTxn", "EndTxn", "Produce", "TxnOffsetCommit", "InitProducerId"])
            kind = chance.choice(["delay", "drop", "disconnect", "disconnect"])
            how: dict[str, Any] = {"kind": kind, "api": api, "when": chance.choice(["before", "after"])}
            if kind == "delay":
                how["seconds"] = chance.choice([0.01, 0.1, 0.3])
            self.broker.command("fault", **how)

    def kill_some(self) -> None:
        """Kills the broker, a producer, both or none at a random moment."""
        chance = self.chance
        until = self.noted + chance.randint(1, 60)
        with contextlib.suppress(AssertionError):  # a producer may wait for a lost reply
            eventually(lambda: self.noted >= until or self.are_done(), within_s=3, every_s=0.002)
        if chance.random() < 0.5:
            self.broker_kills += 1
            self.broker.kill()
            self.broker.start()
        if chance.random() < 0.5:
            self.worker_kills += 1
            self.workers.pop(chance.choice(NAMES)).kill()

    def are_done(self) -> bool:
        return all(not worker.done.empty() for worker in self.workers.values())

    def read_on(self, stop: threading.Event) -> None:
        """Reads until ``stop`` is set, also while transactions are open. Keeps the first failed check."""
        while not stop.is_set():
            try:
                with Wire(self.broker.bootstrap, timeout_s=10) as wire:
                    while not stop.is_set():
                        self.read_once(wire)
                        stop.wait(0.02)
            except OSError:
                stop.wait(0.02)
            except BaseException as error:
                self._failure = error
                return

    def read_once(self, wire: Wire) -> None:
        answered = {name: self.answered_since(name) for name in NAMES}
        for reader in self.readers:
            reader.read(wire)
        for name in NAMES:
            stable = committed_offsets(wire, name, stable=True)
            found = committed_offsets(wire, name, stable=False)
            if found is None:
                continue
            self.seen_offsets[name].update(found.values(), () if stable is None else stable.values())
            for audit in self.audits:
                audit.read_on(wire)
            for offsets in (found, found if stable is None else stable):
                check_marker(name, offsets, self.audits[-1])
            for number, planned in answered[name].items():
                check_answered(name, number, planned, found, self.audits)
                self.answered.add((name, number))

    def answered_since(self, name: str) -> dict[int, Planned]:
        """Returns the committed transactions with a reply to EndTxn whose markers no reader has looked for yet."""
        with self._notes:
            found = dict(self.ledger.planned.get(name, {}))
        return {
            number: planned
            for number, planned in found.items()
            if planned.stage == "committed" and (name, number) not in self.answered
        }

    # --- the end of a round -----------------------------------------------------------------------------------

    def end_and_check(self) -> None:
        """Waits until every transaction has ended, and checks logs, readers and committed offsets.

        The transactions of killed producers end by their timeout."""
        with Wire(self.broker.bootstrap) as wire:
            if len(self.workers) < len(NAMES):
                self.ended_by_time += bool(self.open_ones(wire))
                by_ms = TRANSACTION_TIMEOUT_MS + 2 * CLEANUP_INTERVAL_MS
                self.broker.command("advance", by_ms=by_ms)
                self.broker.clock_ahead_ms += by_ms
            self.wait_for_ends(wire)
            for partition in range(PARTITIONS):
                ends = [end_offset(wire, TOPIC, partition, committed=committed) for committed in (True, False)]
                assert ends[0] == ends[1], (
                    f"partition {partition}: a transaction without an end holds readers at {ends}"
                )
            for audit in self.audits:
                audit.read(wire)
            for reader in self.readers:
                while reader.read(wire):
                    pass
            offsets = {
                name: eventually(lambda name=name: committed_offsets(wire, name, stable=True), within_s=END_WITHIN_S)
                for name in NAMES
            }
        with self._notes:
            committed = check(self.ledger, self.audits, self.readers, offsets)
        for name, seen in self.seen_offsets.items():
            without = seen - committed.get(name, set()) - {-1}
            assert not without, f"{name}: a reader got the offsets {without} without their records"

    def wait_for_ends(self, wire: Wire) -> None:
        left: list[str] = []

        def ended() -> bool:
            left[:] = self.open_ones(wire)
            return not left

        with contextlib.suppress(AssertionError):
            eventually(ended, within_s=END_WITHIN_S)
        assert not left, f"transactions do not end within {END_WITHIN_S} s: {left}"

    @staticmethod
    def open_ones(wire: Wire) -> list[str]:
        reply = listed(wire)
        if reply.error_code != 0:
            return [reply.error_code.name]
        states = ("Ongoing", "PrepareCommit", "PrepareAbort")
        rows = [(row.transactional_id, row.transaction_state) for row in reply.transaction_states]
        return [f"{name} {state}" for name, state in rows if state in states]


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the processes of a trial import the modules of the tests."""
    tests = str(Path(__file__).resolve().parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[[int], Trial]]:
    def make(seed: int) -> Trial:
        plain = BrokerProcess(tmp_path / "broker", config=CONFIG)
        return stack.enter_context(Trial(late_broker(tmp_path / "broker") if has_late_markers(seed) else plain, seed))

    with contextlib.ExitStack() as stack:
        yield make


def has_late_markers(seed: int) -> bool:
    """Returns True for half of the seeds. Both halves have each segment size."""
    return seed // len(SEGMENT_BYTES) % 2 == 1


def test_transactions_keep_the_invariants_while_broker_and_producers_get_kill_9(trial: Callable[[int], Trial]) -> None:
    running = trial(1)
    running.run(ROUNDS)
    assert running.broker_kills >= 2
    assert running.worker_kills >= 2
    assert running.ledger.count("committed") >= 30
    assert running.ledger.count("aborted") >= 10
    assert len(running.answered) >= 20
    assert running.segments() >= 10 * PARTITIONS


@pytest.mark.slow
def test_transactions_with_late_markers_keep_the_invariants_while_broker_and_producers_get_kill_9(
    trial: Callable[[int], Trial],
) -> None:
    running = trial(5)
    running.run(ROUNDS // 3)
    assert running.broker_kills >= 1
    assert running.worker_kills >= 1
    assert len(running.answered) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_the_invariants_hold_for_1_000_rounds(trial: Callable[[int], Trial], seed: int) -> None:
    running = trial(seed)
    running.run(20)
    assert running.ledger.count("committed") >= 60
    assert len(running.answered) >= 40
    assert (running.segments() > PARTITIONS) is (running.segment_bytes is not None)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    broker = late_broker(tmp_path / "broker", fault)
    if fault not in NEED_LATE_MARKERS:
        broker.faults = (fault,)
    with Trial(broker, seed=3) as running, pytest.raises(AssertionError, match=FOUND[fault]):
        running.run(30)
