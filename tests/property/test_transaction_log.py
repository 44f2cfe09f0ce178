"""A log with any transactions, truncations, deletions, stops and crashes, compared with a list of batches.
The log may also crash while it writes the marker of an abort.

The last stable offset, the index of aborted transactions and the records of a read_committed reader equal those that
follow from the list."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples
from support.logs import aborted_in
from support.memory_files import Crash, MemoryFiles

from odradek.batches.aborted_transactions import rolled_back
from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.core.effects import SimpleRecord
from odradek.core.ids import EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.storage.producers import rebuild as producer_rebuild

PATH = Path("/logs/model-0")
T0 = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, retention_ms=50_000)
PLAIN = -1
PRODUCERS = (3, 4, 5)


@dataclass(frozen=True)
class Written:
    """A batch of the log. ``producer`` is PLAIN for records without a transaction. ``commit`` is the result of a
    marker."""

    base: int
    count: int
    producer: int
    epoch: int = -1
    commit: bool | None = None

    @property
    def last(self) -> int:
        return self.base + self.count - 1

    def values(self) -> list[tuple[int, bytes]]:
        return [(offset, b"%d-%d" % (self.producer, offset)) for offset in range(self.base, self.last + 1)]


@dataclass
class Expected:
    """The state that follows from the batches of a log."""

    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)

    def stable(self) -> int:
        return min(self.opened.values(), default=self.end)


def expect(written: list[Written]) -> Expected:
    found = Expected()
    inside: dict[int, list[int]] = {}
    for one in written:
        found.end = one.last + 1
        if one.producer == PLAIN:
            continue
        if one.commit is None:
            found.opened.setdefault(one.producer, one.base)
            found.epochs[one.producer] = one.epoch
            found.sequences[one.producer] = found.sequences.get(one.producer, 0) + one.count
            inside.setdefault(one.producer, []).extend(range(one.base, one.last + 1))
            continue
        found.epochs[one.producer], found.sequences[one.producer] = one.epoch, 0
        first = found.opened.pop(one.producer, None)
        lost = inside.pop(one.producer, [])
        if first is not None and not one.commit:
            found.aborted.append((one.producer, first, one.base, found.stable()))
            found.hidden.update(lost)
    return found


class TransactionLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.now_ms = T0
        self.start = 0
        self.written: list[Written] = []
        self.rebuild: Generator[object, object, None] | None = None
        self.batches_a_step = producer_rebuild.BATCHES_A_STEP
        producer_rebuild.BATCHES_A_STEP = 2
        self.log = self.open(0, clean=False)

    def teardown(self) -> None:
        producer_rebuild.BATCHES_A_STEP = self.batches_a_step

    def open(self, point: int, *, clean: bool) -> Log:
        return Log.open(
            PATH, CONFIG, self.now_ms, clean=clean, recovery_point=point, log_start_offset=self.start, files=self.files
        )

    def stable_within(self, stable: int) -> int:
        """The last stable offset of the log. If ``stable`` is below the log start, it is the base offset of the batch
        that contains the log start, or the log start if no batch contains it."""
        if stable >= self.start:
            return stable
        return next((one.base for one in self.written if one.base <= self.start <= one.last), self.start)

    @property
    def expected(self) -> Expected:
        return expect(self.written)

    def append(self, producer: int, count: int) -> Written:
        """Appends records, in a transaction unless ``producer`` is PLAIN."""
        state = self.expected
        epoch = state.epochs.get(producer, 0)
        one = Written(state.end, count, producer, -1 if producer == PLAIN else epoch)
        records = [SimpleRecord(b"k", value, self.now_ms) for _, value in one.values()]
        options: dict[str, object] = {}
        if producer != PLAIN:
            sequence = state.sequences.get(producer, 0)
            options = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        data = encode_batch(records, now_ms=self.now_ms, transactional=producer != PLAIN, **options)
        self.log.append(data, now_ms=self.now_ms, leader_epoch=0)
        return one

    def end(self, producer: int, commit: bool) -> Written:
        state = self.expected
        epoch = state.epochs.get(producer, 0) + 1
        self.log.append_marker(EndTransactionMarker(producer, epoch, 0, commit, 2), now_ms=self.now_ms, leader_epoch=0)
        return Written(state.end, 1, producer, epoch, commit)

    @rule(producer=st.sampled_from((PLAIN, *PRODUCERS)), count=st.integers(1, 5))
    def write(self, producer: int, count: int) -> None:
        self.written.append(self.append(producer, count))

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def write_marker(self, producer: int, commit: bool) -> None:
        self.written.append(self.end(producer, commit))

    @rule(producers=st.lists(st.sampled_from(PRODUCERS), min_size=3, max_size=8), commits=st.integers(0, 255))
    def write_many(self, producers: list[int], commits: int) -> None:
        for number, producer in enumerate(producers):
            self.write(producer, 1 + number % 3)
            if number % 2:
                self.write_marker(producers[number // 2], bool(commits >> number & 1))

    @precondition(lambda self: self.expected.opened)
    @rule(steps=st.integers(0, 4), keep=st.integers(0, 200), torn=st.booleans())
    def crash_at_an_abort(self, steps: int, keep: int, torn: bool) -> None:
        """The process dies before, during or after the write of the marker or of the index entry."""
        producer = next(iter(self.expected.opened))
        point = self.log.recovery_point
        one = Written(self.expected.end, 1, producer, self.expected.epochs[producer] + 1, commit=False)
        if torn:
            self.files.tear_after(keep)
        else:
            self.files.crash_after(steps)
        try:
            self.end(producer, commit=False)
        except Crash:
            pass
        self.files.crash()
        self.log = self.open(point, clean=False)
        assert self.log.log_end_offset in {one.base, one.base + 1}
        if self.log.log_end_offset > one.base:
            self.written.append(one)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        self.start = self.log.removals.delete_before(self.start + round((self.expected.end - self.start) * part**3))

    @rule(passed=st.integers(0, 30_000))
    def retain(self, passed: int) -> None:
        self.now_ms += passed
        self.log.removals.retain(self.now_ms)
        self.start = self.log.log_start_offset

    @rule(part=st.floats(0, 1), steps=st.integers(0, 3))
    def truncate(self, part: float, steps: int) -> None:
        """Cuts the log. Some steps of the rebuild of the producers are left for later rules, and any rule may come
        between two of them."""
        end = self.expected.end
        offset = end - round((end - self.start) * part**3)
        self.written = [one for one in self.written if one.last < offset]
        self.rebuild = self.log.removals.begin_truncation(offset, self.now_ms)
        for _ in range(steps):
            self.run_a_step()
        self.start = min(self.start, self.expected.end)

    @precondition(lambda self: self.rebuild is not None)
    @rule()
    def run_a_step(self) -> None:
        if self.rebuild is not None and next(self.rebuild, self) is self:
            self.rebuild = None

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.log = self.open(self.log.recovery_point, clean=True)

    @rule()
    def crash_and_reopen(self) -> None:
        point = self.log.recovery_point
        self.files.crash()
        self.log = self.open(point, clean=False)

    @rule()
    def run_short_of_descriptors(self) -> None:
        self.files.release_all()

    @invariant()
    def offsets_agree(self) -> None:
        state = self.expected
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, state.end)
        if self.log.producers.rebuild is not None:
            assert self.log.last_stable_offset <= max(self.stable_within(state.stable()), self.start)
            return
        assert self.log.last_stable_offset == self.stable_within(state.stable())
        assert list(self.log.producers.open_transactions.items()) == sorted(
            state.opened.items(), key=lambda item: item[1]
        )

    @invariant()
    def indexes_agree(self) -> None:
        first = self.log.segments[0].base_offset
        found = []
        for segment in self.log.segments:
            if segment.has_aborted:
                data = self.files.read(segment.path(".txnindex"))
                entry = segment.aborted_index.entry
                found += [entry.unpack_from(data, at)[1:] for at in range(0, len(data), entry.size)]
        assert found == [entry for entry in self.expected.aborted if entry[2] >= first]

    @invariant()
    def readers_agree(self) -> None:
        state, stable = self.expected, self.log.last_stable_offset
        seen: list[tuple[int, bytes | None]] = []
        offset = self.start
        while offset < stable:
            records = self.log.read(offset, 300, max_offset=stable)
            data = records.bytes()
            batches = list(scan(data))
            assert batches
            marks = [(header.last_offset, header.attributes, header.producer_id) for _, header in batches]
            hidden = rolled_back(marks, self.log.segment_list.aborted_for(offset, records))
            for (pos, header), is_hidden in zip(batches, hidden, strict=True):
                if not is_hidden and not header.is_control:
                    seen += [(row.offset, row.value) for row in batch_rows(data, pos, header) if row.offset >= offset]
            offset = batches[-1][1].last_offset + 1
        wanted = [value for one in self.written if one.commit is None for value in one.values()]
        assert seen == [row for row in wanted if self.start <= row[0] < stable and row[0] not in state.hidden]

    @invariant()
    def aborted_transactions_agree(self) -> None:
        state = self.expected
        first = self.log.segments[0].base_offset
        for start in range(self.start, state.end, max((state.end - self.start) // 4, 1)):
            end = min(start + 7, state.end)
            found = {tuple(one) for one in aborted_in(self.log, start, end)}
            assert found >= {
                (producer, begin)
                for producer, begin, last, _ in state.aborted
                if begin < end and start <= last >= first
            }


TransactionLog.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=40)
TestTransactionLog = TransactionLog.TestCase
