"""For any sequence of appends, rolls, deletions, truncations, retention, crashes, reopenings and lost indexes, the log
equals a plain list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples
from support.logs import find_timestamp
from support.memory_files import Crash, MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.config import LogConfig
from odradek.storage.log import Log

PATH = Path("/logs/model-0")
T0 = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, segment_index_bytes=120, retention_ms=50_000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Entry:
    offset: int
    value: bytes
    timestamp: int
    batch: int
    """The base offset of its batch."""


class LogModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.now_ms = T0
        self.start = 0
        self.end = 0
        self.records: list[Entry] = []
        self.sequence = 0
        self.sent: list[tuple[bytes, int, int]] = []
        self.epoch = 0
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        """Opens the log with the checkpoints of log start and recovery point, which this test keeps up to date."""
        point = self.log.recovery_point if hasattr(self, "log") else 0
        return Log.open(
            PATH,
            CONFIG,
            self.now_ms,
            clean=clean,
            recovery_point=point,
            log_start_offset=self.start,
            files=self.files,
        )

    def batch(self, count: int, codec: str, skew: int, *, idempotent: bool) -> tuple[bytes, list[SimpleRecord]]:
        records = [
            SimpleRecord(b"k", b"%d-%d" % (self.end + n, n * 37 % 11), max(self.now_ms + skew + (n * 7) % 5, 0))
            for n in range(count)
        ]
        sequence = {"producer_id": 5, "producer_epoch": 0, "base_sequence": self.sequence} if idempotent else {}
        return encode_batch(records, now_ms=self.now_ms, compression=codec, **sequence), records

    @rule(
        count=st.integers(1, 12),
        codec=st.sampled_from(CODECS),
        skew=st.sampled_from([0, 0, 5, -300]),
        idempotent=st.booleans(),
        passed=st.integers(0, 3000),
    )
    def append(self, count: int, codec: str, skew: int, idempotent: bool, passed: int) -> None:
        self.now_ms += passed
        data, records = self.batch(count, codec, skew, idempotent=idempotent)
        info = self.log.append(data, now_ms=self.now_ms, leader_epoch=self.epoch)
        assert (info.base_offset, info.last_offset, info.duplicate) == (self.end, self.end + count - 1, False)
        self.records += [
            Entry(self.end + n, record.value or b"", record.timestamp_ms or 0, self.end)
            for n, record in enumerate(records)
        ]
        if idempotent:
            self.sequence += count
            self.sent.append((data, self.end, self.sequence))
        self.end += count

    @rule(times=st.integers(3, 9), passed=st.integers(0, 3000), idempotent=st.booleans())
    def append_often(self, times: int, passed: int, idempotent: bool) -> None:
        for number in range(times):
            self.append(5, CODECS[number % 5], 0, idempotent, passed)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(1, 5))
    def append_again(self, back: int) -> None:
        if back <= len(self.sent):
            data, offset, _ = self.sent[-back]
            info = self.log.append(data, now_ms=self.now_ms, leader_epoch=self.epoch)
            assert (info.base_offset, info.duplicate) == (offset, True)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        offset = self.start + round((self.end - self.start) * part**3)
        self.start = max(self.start, offset)
        assert self.log.removals.delete_before(offset) == self.start

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        offset = self.end - round((self.end - self.start) * part**3)
        inside = next((entry for entry in self.records if entry.offset == offset), None)
        if inside is not None:
            self.end = inside.batch
            self.records = [entry for entry in self.records if entry.offset < self.end]
            self.start = min(self.start, self.end)
        self.log.removals.truncate_to(offset, self.now_ms)
        # The producer's state ends with its last remaining batch.
        self.sent = [sent for sent in self.sent if sent[1] < self.end]
        self.sequence = self.sent[-1][2] if self.sent else 0

    @rule(passed=st.integers(0, 40_000))
    def retain(self, passed: int) -> None:
        self.now_ms += passed
        bases = [segment.base_offset for segment in self.log.segments] + [self.end]
        self.log.removals.retain(self.now_ms)
        start = self.log.log_start_offset
        if start != self.start:
            assert start in bases
            gone = [entry for entry in self.records if self.start <= entry.offset < start]
            assert all(entry.timestamp < self.now_ms - CONFIG.retention_ms for entry in gone)
        self.start = start

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule()
    def run_short_of_descriptors(self) -> None:
        self.files.release_all()

    @rule()
    def close_and_reopen(self) -> None:
        before = self.producers()
        self.log.close()
        self.log = self.open(clean=True)
        assert self.producers() == before

    @rule()
    def crash_and_reopen(self) -> None:
        before = self.producers()
        self.files.crash()
        self.log = self.open(clean=False)
        assert self.producers() == before

    def producers(self) -> dict[int, tuple[int, tuple[object, ...]]]:
        return {state.producer_id: (state.epoch, tuple(state.batches)) for state in self.log.producers}

    @rule(count=st.integers(1, 12), keep=st.integers(0, 400), codec=st.sampled_from(CODECS))
    def crash_inside_an_append(self, count: int, keep: int, codec: str) -> None:
        data, _ = self.batch(count, codec, 0, idempotent=False)
        self.epoch = max(self.epoch, self.log.epochs.latest)
        self.log.assign_epoch(self.epoch)
        self.log.roll(self.now_ms)
        self.files.tear_after(min(keep, len(data) - 1))
        with pytest.raises(Crash):
            self.log.append(data, now_ms=self.now_ms, leader_epoch=self.epoch)
        self.files.crash()
        self.log = self.open(clean=False)

    @precondition(lambda self: self.end > self.start)
    @rule(name=st.sampled_from([".index", ".timeindex"]), clean=st.booleans())
    def lose_an_index(self, name: str, clean: bool) -> None:
        if clean:
            self.log.close()
        for path in [path for path in self.files.data if path.suffix == name][:1]:
            self.files.remove(path)
        self.log = self.open(clean=clean)

    @invariant()
    def offsets_agree(self) -> None:
        assert self.log.log_start_offset == self.start
        assert self.log.log_end_offset == self.end
        assert self.log.high_watermark == self.end
        bases = [segment.base_offset for segment in self.log.segments]
        assert bases == sorted(set(bases))

    @invariant()
    def reading_agrees(self) -> None:
        seen: list[tuple[int, bytes, int]] = []
        offset = self.start
        while offset < self.end:
            rows = [row for row in iter_records(self.log.read(offset, 300).bytes()) if row.offset >= offset]
            assert rows
            seen += [(row.offset, row.value or b"", row.timestamp) for row in rows]
            offset = rows[-1].offset + 1
        assert seen == [(e.offset, e.value, e.timestamp) for e in self.records if e.offset >= self.start]
        with pytest.raises(KafkaError) as caught:
            self.log.read(self.end + 1, 1)
        assert caught.value.code is ErrorCode.offset_out_of_range

    @invariant()
    def looking_up_agrees(self) -> None:
        live = [entry for entry in self.records if entry.offset >= self.start]
        for entry in live[:: max(len(live) // 5, 1)]:
            for wanted in (entry.timestamp, entry.timestamp + 1):
                expected = next((e.offset for e in live if e.timestamp >= wanted), None)
                found = find_timestamp(self.log, wanted)
                assert (found.offset if found else None) == expected

    @invariant()
    def epochs_agree(self) -> None:
        epochs = self.log.epochs.entries
        assert list(epochs) == sorted(epochs)
        assert all(entry.start_offset <= self.end for entry in epochs)


LogModel.TestCase.settings = settings(max_examples=examples(12), stateful_step_count=40)
TestLogModel = LogModel.TestCase
