"""Any sequence of appends, tombstones, rolls, deletions, cleanings, crashes (also during a cleaning) and reopenings.

A log always keeps the newest record of each key at its offset, all records in the active segment, and the sequences of
producers. A cleaning may remove a tombstone after its delete horizon.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.cleaning import compact
from support.examples import examples
from support.logs import find_timestamp
from support.memory_files import Crash, MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.batches.header import read_header
from odradek.batches.rows import Row, iter_records
from odradek.core.effects import SimpleRecord
from odradek.storage.cleaning.columns import ColumnEngine
from odradek.storage.cleaning.jobs import measure
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.config import MAX_LONG, LogConfig
from odradek.storage.disk.files import Buffer
from odradek.storage.log import Log

PATH = Path("/logs/model-0")
T0 = 1_700_000_000_000
RETENTION_MS = 1_000
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=RETENTION_MS,
    producer_id_expiration_ms=MAX_LONG,
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class StoppingFiles(MemoryFiles):
    """Files of a machine that stops after ``changes_left`` changes of the disk."""

    def __init__(self) -> None:
        super().__init__(T0)
        self.changes_left: int | None = None

    def count_change(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise Crash

    def rename(self, source: Path, target: Path) -> None:
        self.count_change()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.count_change()
        super().remove(path)

    def charge(self, path: Path, data: bytearray, new: bytes) -> None:
        self.count_change()
        super().charge(path, data, new)


@dataclass
class Entry:
    """An appended record. A tombstone may be removed from ``may_go`` on, and must be removed from ``must_go`` on."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    may_go: int = MAX_LONG
    must_go: int = MAX_LONG
    may_be_gone: bool = False
    is_gone: bool = False


class CleanerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = StoppingFiles()
        self.now_ms = T0
        self.start = 0
        self.entries: list[Entry] = []
        self.sequences = dict.fromkeys(range(3), 0)
        self.cleaned_to: int | None = None
        self.log = self.open(0, clean=False)

    def open(self, recovery_point: int, *, clean: bool) -> Log:
        log = Log.open(
            PATH, CONFIG, self.now_ms, clean=clean, recovery_point=recovery_point, log_start_offset=self.start,
            files=self.files,
        )  # fmt: skip
        log.removals.cleaned_offset = self.cleaned_to
        return log

    @property
    def end(self) -> int:
        return len(self.entries)

    # actions

    @rule(
        keys=st.lists(st.integers(0, 9), min_size=1, max_size=6),
        tombstones=st.sets(st.integers(0, 5), max_size=3),
        producer=st.sampled_from([None, None, 0, 1, 2]),
        codec=st.sampled_from(CODECS),
        passed=st.integers(-50, 400),
    )
    def append(self, keys: list[int], tombstones: set[int], producer: int | None, codec: str, passed: int) -> None:
        self.now_ms += max(passed, 0)
        records = []
        for number, key in enumerate(keys):
            value = None if number in tombstones else b"%d" % (self.end + number)
            records.append(SimpleRecord(b"key-%d" % key, value, self.now_ms + min(passed, 0) + number))
        options: dict[str, object] = {"compression": codec}
        if producer is not None:
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences[producer]}
            self.sequences[producer] += len(records)
        data = encode_batch(records, now_ms=self.now_ms, **options)
        info = self.log.append(data, now_ms=self.now_ms, leader_epoch=0)
        assert info.base_offset == self.end
        for record in records:
            self.entries.append(Entry(self.end, record.key, record.value, record.timestamp_ms or 0))

    @rule(times=st.integers(3, 10), key=st.integers(0, 9), producer=st.sampled_from([None, 1]))
    def append_often(self, times: int, key: int, producer: int | None) -> None:
        for number in range(times):
            self.append([key, (key + number) % 10, 3], {number % 5}, producer, CODECS[number % 5], number)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(passed=st.integers(1, 3 * RETENTION_MS))
    def wait(self, passed: int) -> None:
        self.now_ms += passed

    @rule(part=st.floats(0, 0.4))
    def delete_before(self, part: float) -> None:
        self.start = max(self.start, self.start + round((self.end - self.start) * part**2))
        self.log.removals.delete_before(self.start)

    @rule()
    def retain(self) -> None:
        self.log.removals.retain(self.now_ms)

    @rule(columns=st.booleans())
    def clean(self, columns: bool) -> None:
        dirt = measure(self.log, self.now_ms)
        if not dirt.dirty_bytes:
            return
        done = compact(self.log, self.now_ms, engine=ColumnEngine() if columns else RowEngine(), files=self.files)
        assert done.end_offset == dirt.end_offset
        self.cleaned_to = done.end_offset
        self.note_cleaning(done.end_offset, whole=True)

    @rule(changes=st.integers(0, 60))
    def crash_while_cleaning(self, changes: int) -> None:
        dirt = measure(self.log, self.now_ms)
        self.files.changes_left = changes
        try:
            if dirt.dirty_bytes:
                compact(self.log, self.now_ms, files=self.files)
        except Crash:
            pass
        self.files.changes_left = None
        self.note_cleaning(dirt.end_offset, whole=False)
        self.crash()

    @rule()
    def crash(self) -> None:
        point = self.log.recovery_point
        self.files.crash()
        self.log = self.open(point, clean=False)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open(self.log.recovery_point, clean=True)

    # expected state

    def note_cleaning(self, end: int, *, whole: bool) -> None:
        """``whole``: the cleaning was complete; otherwise it may have cleaned any number of segments."""
        newest = {entry.key: entry for entry in self.entries[:end]}
        for entry in self.entries[:end]:
            if entry is not newest[entry.key]:
                entry.may_be_gone = True
                entry.is_gone = entry.is_gone or whole
            elif entry.value is None:
                if self.now_ms >= entry.may_go:
                    entry.may_be_gone = True
                if self.now_ms >= entry.must_go and whole:
                    entry.is_gone = True
                entry.may_go = min(entry.may_go, self.now_ms + RETENTION_MS)
                if whole:
                    entry.must_go = min(entry.must_go, self.now_ms + RETENTION_MS)

    def read_all(self) -> list[Row]:
        rows: list[Row] = []
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            data: Buffer = self.log.read(offset, 300).bytes()
            found = [row for row in iter_records(data) if row.offset >= offset]
            if not found:  # only a batch header, or a batch that is cut off at the end of the slice
                last = self.log.read(offset, 1)
                if not last.size:
                    break
                offset = read_header(last.bytes()).last_offset + 1
                continue
            rows += found
            offset = found[-1].offset + 1
        return rows

    @invariant()
    def the_log_has_all_required_records_and_no_others(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        rows = self.read_all()
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})
        for row in rows:
            entry = self.entries[row.offset]
            assert (row.key, row.value, row.timestamp) == (entry.key, entry.value, entry.timestamp)
            assert not entry.is_gone
        present = {row.offset for row in rows}
        for entry in self.entries[self.start :]:
            assert entry.offset in present or entry.may_be_gone

    @invariant()
    def times_are_found(self) -> None:
        rows = self.read_all()
        for timestamp in {row.timestamp for row in rows[:: max(len(rows) // 4, 1)]}:
            first = next(row for row in rows if row.timestamp >= timestamp)
            found = find_timestamp(self.log, timestamp)
            assert found is not None
            assert (found.offset, found.timestamp) == (first.offset, first.timestamp)

    @invariant()
    def producers_are_remembered(self) -> None:
        for producer, sequence in self.sequences.items():
            state = self.log.producers.get(producer)
            assert (state.last_sequence + 1 if state is not None else 0) == sequence

    @precondition(lambda self: self.entries)
    @invariant()
    def no_file_of_an_unfinished_step_remains(self) -> None:
        assert not [path for path in self.files.data if path.name.endswith((".swap", ".deleted"))]


TestCleanerModel = CleanerModel.TestCase
TestCleanerModel.settings = settings(max_examples=examples(20), stateful_step_count=25)


@pytest.mark.slow
class TestCleanerModelLong(CleanerModel.TestCase):
    settings = settings(max_examples=2000, stateful_step_count=50)


@pytest.mark.parametrize("changes", range(70))
def test_a_crash_at_any_step_of_a_cleaning_loses_no_record(changes: int) -> None:
    """One cleaning of several segments into one, stopped before each of its changes to the disk in turn."""
    model = CleanerModel()
    for number in range(12):
        model.append([number % 3, 5, 7], {number % 4}, number % 2, "none", 10)
        if number % 2:
            model.roll()
    model.crash_while_cleaning(changes)
    model.the_log_has_all_required_records_and_no_others()
    model.producers_are_remembered()
    model.no_file_of_an_unfinished_step_remains()
    model.append([1], set(), None, "none", 10)
    model.roll()
    model.clean(columns=False)
    model.the_log_has_all_required_records_and_no_others()
