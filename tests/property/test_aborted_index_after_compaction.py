"""The index of aborted transactions and compaction: after any cleaning, restart or loss of an index, a reader with
read_committed gets each committed record that a cleaning keeps, and never an aborted one.

The model knows the fate of each record. A cleaning may remove a committed record only if the key has a newer committed
one, or if it is a tombstone. A restart changes nothing: neither records nor open transactions nor producers.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.cleaning import compact, marker, put
from support.damaged_directories import read_as_consumer
from support.memory_files import MemoryFiles

from odradek.batches.control import ABORT, COMMIT
from odradek.storage.cleaning.columns import ColumnEngine
from odradek.storage.cleaning.jobs import measure
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.config import MAX_LONG, LogConfig
from odradek.storage.log import Log
from odradek.storage.recovery.evidence import Witnesses

PATH = Path("/logs/money-0")
T0 = 1_700_000_000_000
RETENTION_MS = 1_000
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=RETENTION_MS,
    producer_id_expiration_ms=MAX_LONG,
)
Row = tuple[int, bytes | None, bytes | None]


class MoneyLog:
    """A compacted log under transactions. ``fates``: whether each transactional record was committed; None: open."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles(T0)
        self.now_ms = T0
        self.rows: dict[int, tuple[bytes, bytes | None]] = {}
        self.fates: dict[int, bool | None] = {}
        self.open: dict[int, list[int]] = {}
        self.epochs = dict.fromkeys(range(5), 0)
        self.sequences = dict.fromkeys(range(5), 0)
        self.older: dict[Path, bytes] = {}
        self.cleaned_to: int | None = None
        self.log = Log.open(PATH, CONFIG, T0, clean=False, files=self.files)

    def append(self) -> None:
        producer = self.chance.randrange(5)
        is_transactional = producer < 4
        records: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            value = None if self.chance.random() < 0.15 else b"%d" % self.chance.randrange(10**12)
            records.append((b"key-%d" % self.chance.randrange(8), value))
        base = put(
            self.log, *records, now_ms=self.now_ms, producer_id=producer, producer_epoch=self.epochs[producer],
            base_sequence=self.sequences[producer], transactional=is_transactional,
        )  # fmt: skip
        self.sequences[producer] += len(records)
        for offset, (key, value) in enumerate(records, base):
            assert key is not None
            self.rows[offset] = key, value
            self.fates[offset] = None if is_transactional else True
            if is_transactional:
                self.open.setdefault(producer, []).append(offset)

    def end(self) -> None:
        if not self.open:
            return
        producer = self.chance.choice(sorted(self.open))
        is_commit = self.chance.random() < 0.5
        if self.chance.random() < 0.5:  # transaction.version 2: each marker has the next epoch
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        marker(self.log, producer, COMMIT if is_commit else ABORT, self.epochs[producer], self.now_ms)
        for offset in self.open.pop(producer):
            self.fates[offset] = is_commit

    def clean(self) -> None:
        if not measure(self.log, self.now_ms).dirty_bytes:
            return
        self.older = {path: bytes(data) for path, data in self.files.data.items() if path.suffix == ".txnindex"}
        engine = self.chance.choice((RowEngine, ColumnEngine))()
        done = compact(self.log, self.now_ms, engine=engine, files=self.files)
        self.cleaned_to = done.end_offset

    def seen(self, *, committed: bool) -> set[Row]:
        found: set[Row] = set()
        refused = list(read_as_consumer(self.log, committed, found))
        assert not refused, refused
        return found

    def state(self) -> tuple[object, ...]:
        producers = {one.producer_id: (one.epoch, one.transaction_start) for one in self.log.producers}
        return (
            self.seen(committed=False), self.seen(committed=True), self.log.last_stable_offset,
            self.log.log_end_offset, producers,
        )  # fmt: skip

    def check(self) -> None:
        """Compares what readers get with the fates of the records."""
        stable = self.log.last_stable_offset
        first_open = min((offsets[0] for offsets in self.open.values()), default=self.log.log_end_offset)
        assert stable == first_open
        committed = self.seen(committed=True)
        for offset, key, value in committed:
            assert self.rows[offset] == (key, value)
            assert self.fates[offset] is True, f"the record at {offset} is aborted, and a reader gets it"
        newest = {
            key: offset for offset, (key, _) in self.rows.items() if offset < stable and self.fates[offset] is True
        }
        there = {offset for offset, _, _ in committed}
        for key, offset in newest.items():
            is_tombstone = self.rows[offset][1] is None
            assert offset in there or is_tombstone, f"the newest record of {key!r}, at {offset}, is gone"

    # restarts

    def close(self) -> Witnesses:
        self.log.close()
        return Witnesses(True, self.log.recovery_point, None, self.log.log_end_offset)

    def kill(self) -> Witnesses:
        if self.chance.random() < 0.5:
            self.log.flush()
        point = self.log.recovery_point
        self.log.abandon()
        self.files.crash()
        return Witnesses(False, self.chance.choice((0, point)))

    def damage_indexes(self) -> bool:
        """Removes or empties some indexes, or puts back those of before the last cleaning."""
        indexes = sorted(path for path in self.files.data if path.suffix == ".txnindex")
        how = self.chance.randrange(4)
        if how == 0:
            return False
        is_changed = False
        for path in [path for path in indexes if self.chance.random() < 0.6]:
            before = bytes(self.files.data[path])
            if how == 1:
                self.files.remove(path)
            elif how == 2:
                self.files.data[path] = bytearray()
            else:
                self.files.data[path] = bytearray(self.older.get(path, before))
            is_changed |= bytes(self.files.data.get(path, b"gone")) != before
        return is_changed

    def restart(self, known: Witnesses) -> None:
        self.log = Log.reopen(PATH, CONFIG, self.now_ms, known, leader_epoch=0, files=self.files)
        self.log.removals.cleaned_offset = self.cleaned_to


def run(seed: int, steps: int) -> None:
    money = MoneyLog(seed)
    for step in range(steps):
        money.now_ms += money.chance.choice((0, 1, 50, RETENTION_MS))
        choice = money.chance.random()
        if choice < 0.55:
            money.append()
        elif choice < 0.85:
            money.end()
        elif choice < 0.92:
            money.log.roll(money.now_ms)
            money.clean()
        else:
            before = money.state()
            known = money.close() if money.chance.random() < 0.5 else money.kill()
            money.damage_indexes()
            money.restart(known)
            assert money.state() == before, f"the restart at step {step}"
        if step % 5 == 0 or choice >= 0.85:
            money.check()


@pytest.mark.parametrize("has_index", [False, True])
def test_a_start_without_snapshots_rebuilds_an_index_of_aborted_transactions_from_the_log(has_index: bool) -> None:
    files = MemoryFiles(T0)
    log = Log.open(PATH, CONFIG, T0, clean=False, files=files)
    for producer in range(2):
        put(log, (b"key", b"aborted"), producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, (b"key", b"committed"))
    for producer in range(2):
        marker(log, producer, ABORT)
    log.roll(T0)
    put(log, (b"key", b"newest"))
    log.abandon()
    log = Log.reopen(PATH, CONFIG, T0, Witnesses(False, 0), leader_epoch=0, files=files)
    log.flush()
    point = log.recovery_point
    log.abandon()
    assert not [path for path in files.data if path.suffix == ".snapshot"]
    index = PATH / f"{0:020d}.txnindex"
    if has_index:
        files.data[index] = bytearray()
    else:
        files.remove(index)
    log = Log.reopen(PATH, CONFIG, T0, Witnesses(False, point), leader_epoch=0, files=files)
    found: set[Row] = set()
    assert not list(read_as_consumer(log, True, found))
    assert {value for _, _, value in found} == {b"committed", b"newest"}


@pytest.mark.parametrize("seed", range(8))
def test_compaction_and_restarts_neither_show_aborted_nor_hide_committed_records(seed: int) -> None:
    run(seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_thousands_of_cleanings_and_restarts_neither_show_aborted_nor_hide_committed_records(seed: int) -> None:
    for number in range(25):
        run(seed * 100 + number, 300)
