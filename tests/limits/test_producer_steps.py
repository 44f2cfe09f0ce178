"""A log with many producers: snapshot, expiry and the search for aborted transactions in steps of limited size."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from counters import lines_run
from support.logs import T0, batch, open_log, put, sequenced
from support.whole_steps import decode_snapshot

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.core.ids import EndTransactionMarker
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log
from odradek.storage.producers.states import ProducerState, encode_snapshot
from odradek.storage.producers.verification import Verifications
from odradek.storage.segments.aborted_index import AbortedEntry, AbortedIndex

LINES_PER_STEP = 30_000
"""The allowed lines of the broker's code in one step. They take about a millisecond."""
PRODUCERS = 3_000
Steps = Generator[None, None, Any]


class FailingFiles(OsFiles):
    """While ``fails``, no file can be renamed."""

    fails = False

    def rename(self, source: Path, target: Path) -> None:
        if self.fails:
            raise OSError(5, "no disk")
        super().rename(source, target)


class ManyProducers:
    """A log with many producers. ``work`` contains the steps that the log gave to ``run_steps``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = FailingFiles()
        self.log = open_log(path, files=self.files, retention_ms=-1, producer_id_expiration_ms=1000)
        self.work: list[Steps] = []
        self.log.producer_snapshots.run_steps = self.work.append
        for producer_id in range(PRODUCERS):
            put(self.log, sequenced(0, 1, producer_id, transactional=producer_id % 7 == 0))
            put(self.log, sequenced(1, 1, producer_id, transactional=producer_id % 7 == 0))

    def roll(self) -> Steps:
        assert lines_run(lambda: self.log.roll(T0)) < LINES_PER_STEP
        return self.work.pop()

    @property
    def snapshots(self) -> list[int]:
        return sorted(int(path.stem) for path in self.path.glob("*.snapshot"))


@pytest.fixture
def many(tmp_path: Path) -> ManyProducers:
    return ManyProducers(tmp_path / "t-0")


def by_id(states: Any) -> dict[int, bytes]:
    return {state.producer_id: encode_snapshot([state]) for state in states}


def change(log: Log, chance: random.Random) -> None:
    """Appends batches and markers of known and new producers."""
    for producer_id in chance.sample(range(1_000, PRODUCERS + 500), 5):
        state = log.producers.get(producer_id)
        epoch = 0 if state is None else state.epoch + 1
        is_open = state is not None and state.transaction_start >= 0
        put(log, sequenced(0, 1, producer_id, epoch, transactional=is_open or chance.random() < 0.5))
        if chance.random() < 0.5:
            end = EndTransactionMarker(producer_id, epoch + 1, 0, commit=False, transaction_version=2)
            log.append_marker(end, now_ms=T0, leader_epoch=0)


def test_a_snapshot_is_written_in_steps_while_its_producers_change(many: ManyProducers) -> None:
    before, offset = by_id(many.log.producers), many.log.log_end_offset
    steps = many.roll()
    assert many.snapshots == []
    chance, count, longest, done = random.Random(1), 0, 0, object()
    taken: list[object] = []
    expiry = many.log.expire_producers(T0 + 1000)
    next(expiry)
    expiry.close()
    while not taken or taken[-1] is not done:
        longest = max(longest, lines_run(lambda: taken.append(next(steps, done))))
        count += 1
        if count % 3 == 0:
            change(many.log, chance)
    assert count > PRODUCERS / 100
    assert longest < LINES_PER_STEP
    assert many.snapshots == [offset]
    assert by_id(decode_snapshot((many.path / f"{offset:020d}.snapshot").read_bytes())) == before
    living = by_id(many.log.producers)
    assert sum(living.get(producer_id) != data for producer_id, data in before.items()) > 300
    many.log.abandon()
    again = by_id(open_log(many.path, retention_ms=-1, producer_id_expiration_ms=1000).producers)
    assert again | living == again, "a restart loads expired producers again; the next expiry removes them"


def test_a_roll_during_a_snapshot_begins_no_second_snapshot(many: ManyProducers) -> None:
    first, log = many.log.log_end_offset, many.log
    steps = many.roll()
    next(steps)
    put(log, batch(1))
    log.roll(T0)
    assert many.work == []
    for _ in steps:
        pass
    put(log, batch(1))
    for _ in many.roll():
        pass
    assert many.snapshots == [first, first + 2]


@pytest.mark.parametrize("steps_before", [3, PRODUCERS // 100 * 2 + 5])
@pytest.mark.parametrize("how", ["truncate", "close", "abandon"])
def test_a_snapshot_ends_with_a_truncation_or_a_close_of_its_log(
    many: ManyProducers, how: str, steps_before: int
) -> None:
    """The log is truncated or closed before the snapshot's file is created, or while it is written."""
    log, offset = many.log, many.log.log_end_offset
    steps = many.roll()
    for _ in range(steps_before):
        next(steps)
    assert bool(list(many.path.glob("*.tmp"))) is (steps_before > 3)
    put(log, batch(1))
    if how == "truncate":
        log.removals.truncate_to(10, T0)
    else:
        getattr(log, how)()
    for _ in steps:
        pass
    assert many.snapshots == ([offset + 1] if how == "close" else [])
    if how == "truncate":
        log.close()
    again = open_log(many.path, clean=how != "abandon", retention_ms=-1, producer_id_expiration_ms=1000)
    assert not list(many.path.glob("*.tmp"))
    assert by_id(again.producers) == by_id(log.producers)


def test_a_disk_error_in_a_snapshot_takes_the_log_offline(many: ManyProducers) -> None:
    many.files.fails = True
    for _ in many.roll():
        pass
    assert many.log.disk.offline is not None
    assert "snapshot of the producers" in many.log.disk.offline


def test_producers_expire_in_steps(many: ManyProducers) -> None:
    steps = many.log.expire_producers(T0 + 1000)
    longest = lines_run(lambda: next(steps))
    put(many.log, sequenced(2, 1, PRODUCERS - 1, at_ms=T0 + 500))
    left: list[int] = []

    def run() -> None:
        try:
            next(steps)
        except StopIteration as end:
            left.append(end.value)

    while not left:
        longest = max(longest, lines_run(run))
    assert longest < LINES_PER_STEP / 3
    open_ones = len(range(0, PRODUCERS, 7))
    assert left == [PRODUCERS - open_ones - 1]
    assert len(many.log.producers) == open_ones + 1


def test_verifications_expire_in_steps() -> None:
    known = Verifications()
    for producer_id in range(PRODUCERS):
        known.begin(producer_id, 0, 0, supports_epoch_bump=True)
    for now_ms in (1, 2000):
        steps = known.expire(now_ms, 1000)
        assert lines_run(lambda: next(steps)) < LINES_PER_STEP / 3  # noqa: B023
        for _ in steps:
            pass
    assert len(known) == 0


def aborted_index(path: Path, count: int) -> tuple[AbortedIndex, list[AbortedEntry]]:
    """Returns an index of aborted transactions, and its entries: ``count`` short transactions, a long transaction from
    offset 0 on that ends after them, and a short transaction at the end."""
    index = AbortedIndex(path / "0.txnindex", 0, OsFiles())
    index.begin()
    rows = [AbortedEntry(number, 10 + 2 * number, 11 + 2 * number, 0) for number in range(count)]
    last = rows[-1].last_offset + 1
    rows += [AbortedEntry(count, 0, last, last + 1), AbortedEntry(1, last + 1, last + 2, last + 3)]
    for row in rows:
        index.append(row)
    return index, rows


def wanted(rows: list[AbortedEntry], start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
    """Returns the aborted transactions of a fetch, and whether the search is complete, by Apache Kafka's rule.

    The transactions begin before ``end`` and have a marker at ``start`` or later. The search ends at the first entry
    whose last stable offset is at ``end`` or later.
    """
    found = []
    for row in rows:
        if row.last_offset < start:
            continue
        if row.first_offset < end:
            found.append(AbortedTransaction(row.producer_id, row.first_offset))
        if row.last_stable_offset >= end:
            return found, True
    return found, False


def test_the_search_for_aborted_transactions_skips_transactions_after_the_fetch(tmp_path: Path) -> None:
    count = 20_000
    index, rows = aborted_index(tmp_path, count)
    last = rows[-1].last_offset
    ranges = [(0, 40), (0, 10), (30_000, 30_100), (20, last), (last, last + 9), (last - 2, last - 1), (0, 1)]
    chance = random.Random(3)
    ranges += [(start, start + chance.randint(1, 3_000)) for start in chance.choices(range(last), k=50)]
    for start, end in ranges:
        found: list[AbortedTransaction] = []
        is_last = index.collect(start, end, found)
        assert (found, is_last) == wanted(rows, start, end)
    found = []
    assert lines_run(lambda: index.collect(0, 40, found)) < 3_000
    index.truncate_to(rows[300].last_offset)
    found = []
    assert not index.collect(0, last + 9, found)
    assert found == wanted(rows[:300], 0, last + 9)[0]
    rows[300:] = [row._replace(first_offset=3) for row in rows[300:]]
    for row in rows[300:]:
        index.append(row)
    found = []
    index.collect(0, 5, found)
    assert found == wanted(rows, 0, 5)[0], "the transactions of the new entries begin at offset 3"
    assert len(found) > 19_000


def test_a_state_is_encoded_again_in_the_next_snapshot() -> None:
    state = ProducerState(3)
    assert encode_snapshot([state]) == encode_snapshot([state])
