"""A truncation of a log in steps: each cuts little off the file, and reads little to rebuild the producers' states."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support.counted_files import CountedFiles
from support.logs import T0, batch, open_log, put, sequenced
from support.memory_files import MemoryFiles

from odradek.core.ids import EndTransactionMarker
from odradek.storage.appends import AppendInfo
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log
from odradek.storage.producers.states import encode_snapshot
from odradek.storage.segments.segment_list import CUT_BYTES

BATCHES = 1_200
MOST_BYTES = 32 << 10
"""The most bytes that one step may read."""


def states(log: Log) -> dict[int, bytes]:
    return {state.producer_id: encode_snapshot([state]) for state in log.producers}


def filled(path: Path, files: OsFiles | None = None) -> Log:
    """A log with one-record batches of two producers and of none."""
    log = open_log(path, files=files)
    for number in range(BATCHES):
        if number % 3:
            put(log, sequenced(number // 3, 1, number % 3))
        else:
            put(log, batch(1))
    return log


def test_a_step_reads_few_bytes(tmp_path: Path) -> None:
    files = CountedFiles()
    log = filled(tmp_path / "t-0", files)
    files.reads.clear()
    steps = log.removals.begin_truncation(BATCHES - 10, T0)
    assert log.log_end_offset == BATCHES - 10, "the log is cut in the call"
    longest = total = files.read_bytes
    count = 0
    while True:
        files.reads.clear()
        if next(steps, log) is log:
            break
        longest, total, count = max(longest, files.read_bytes), total + files.read_bytes, count + 1
    assert longest <= MOST_BYTES
    assert total > log.size > 2 * MOST_BYTES
    assert count >= 3
    log.abandon()
    assert states(log) == states(open_log(tmp_path / "t-0")), "a start finds the same states"


def test_the_states_come_from_the_newest_snapshot_below_the_end(tmp_path: Path) -> None:
    files = CountedFiles()
    log = filled(tmp_path / "t-0", files)
    log.roll(T0)
    for number in range(20):
        put(log, sequenced(BATCHES // 3 + number, 1, 1))
    files.reads.clear()
    log.removals.truncate_to(BATCHES + 10, T0)
    assert files.read_bytes <= 3 * log.config.index_interval_bytes, "only the batches after the snapshot are read"
    state = log.producers.get(1)
    assert state is not None
    assert state.last_sequence == BATCHES // 3 + 9


Change = Callable[[Log], object]
CHANGES: dict[str, Change] = {
    "append": lambda log: put(log, sequenced(BATCHES // 3 - 4, 1, 1)),
    "marker": lambda log: log.append_marker(EndTransactionMarker(1, 5, 0, True, 2), now_ms=T0, leader_epoch=0),
    "roll": lambda log: log.roll(T0),
    "close": lambda log: log.close(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_needs_the_states_ends_the_steps_first(tmp_path: Path, name: str) -> None:
    log, twin = filled(tmp_path / "t-0"), filled(tmp_path / "u-0")
    steps = log.removals.begin_truncation(BATCHES - 10, T0)
    next(steps)
    twin.removals.truncate_to(BATCHES - 10, T0)
    for each in (log, twin):
        CHANGES[name](each)
    assert states(log) == states(twin)
    assert list(steps) == [], "nothing is left to do"


def test_a_batch_that_needs_the_states_waits_in_steps_that_read_little(tmp_path: Path) -> None:
    files = CountedFiles()
    log, twin = filled(tmp_path / "t-0", files), filled(tmp_path / "u-0")
    rest = log.removals.begin_truncation(BATCHES - 10, T0)
    data = sequenced(BATCHES // 3 - 3, 1, 1)
    files.reads.clear()
    steps = log.begin_append(data, now_ms=lambda: T0, leader_epoch=0)
    assert not isinstance(steps, AppendInfo)
    longest, count = 0, 0
    for _ in steps:
        longest, count = max(longest, files.read_bytes), count + 1
        files.reads.clear()
    assert (longest <= MOST_BYTES, count >= 3) == (True, True)
    assert log.log_end_offset == BATCHES - 9
    assert list(rest) == []
    twin.removals.truncate_to(BATCHES - 10, T0)
    put(twin, data)
    assert states(log) == states(twin)


def test_a_second_truncation_begins_again(tmp_path: Path) -> None:
    log, twin = filled(tmp_path / "t-0"), filled(tmp_path / "u-0")
    first = log.removals.begin_truncation(BATCHES - 10, T0)
    next(first)
    second = log.removals.begin_truncation(BATCHES - 20, T0)
    assert len(list(first)) <= 1
    for _ in second:
        pass
    twin.removals.truncate_to(BATCHES - 20, T0)
    assert states(log) == states(twin)
    assert log.producers.end_offset == BATCHES - 20


def test_an_abandoned_log_leaves_no_steps(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    steps = log.removals.begin_truncation(BATCHES - 10, T0)
    next(steps)
    log.abandon()
    assert list(steps) == []


def aborted_then_open(path: Path, files: MemoryFiles) -> tuple[Log, Generator[object, object, None]]:
    log = open_log(path, files=files)
    put(log, sequenced(0, 2, 7, transactional=True))
    log.append_marker(EndTransactionMarker(7, 1, 0, True, 2), now_ms=T0, leader_epoch=0)
    for _ in range(600):
        put(log, batch(1))
    return log, log.removals.begin_truncation(601, T0)


def test_records_with_unknown_states_are_not_stable() -> None:
    log, steps = aborted_then_open(Path("/t-0"), MemoryFiles())
    assert log.last_stable_offset < 601
    seen = [log.last_stable_offset for _ in steps]
    assert seen == sorted(seen)
    assert log.last_stable_offset == log.log_end_offset == 601


def test_a_marker_above_the_high_watermark_keeps_its_transaction_unstable() -> None:
    """Before, a truncation forgot which markers wait for their replicas: their records became stable too early."""
    log, steps = aborted_then_open(Path("/t-0"), MemoryFiles())
    for _ in steps:
        pass
    log.high_watermark = 2
    log.removals.truncate_to(600, T0)
    assert log.last_stable_offset == 0
    log.high_watermark = 3
    assert log.last_stable_offset == 3


# --- the cuts ---------------------------------------------------------------------------------------------------

LARGE = 64 << 10


def large_log(path: Path, files: OsFiles | None = None, **options: object) -> Log:
    """A log of 20 MiB in batches of one record, with the producers 0 and 1. Its high watermark is 5."""
    log = open_log(path, files=files, **options)
    log.high_watermark = 5
    for number in range((20 << 20) // LARGE):
        put(log, batch(1, number // 2, size=LARGE, producer_id=number % 2, producer_epoch=0, base_sequence=number // 2))
    return log


def contents(log: Log) -> list[tuple[str, bytes]]:
    return [(one.path(".log").name, one.path(".log").read_bytes()) for one in log.segments if one.size]


@pytest.mark.parametrize("segment_bytes", [1 << 30, 9 << 20])
@pytest.mark.parametrize("offset", [5, 33, 250, 319])
def test_a_step_cuts_few_bytes_off_a_file(tmp_path: Path, segment_bytes: int, offset: int) -> None:
    files = CountedFiles()
    log = large_log(tmp_path / "t-0", files, segment_bytes=segment_bytes)
    ends: list[int] = []
    removed = 0
    files.cuts.clear()
    for _ in log.removals.truncate_in_steps(offset, T0):
        ends.append(log.log_end_offset)
        assert len(files.cuts) <= 2, "the file, and the index of a former segment"
        removed += sum(files.cuts)
        assert max(files.cuts, default=0) <= CUT_BYTES
        files.cuts.clear()
    assert ends == sorted(ends, reverse=True)
    assert (ends[-1], log.log_end_offset, log.high_watermark) == (offset, offset, 5)
    assert removed > 0
    at_once = large_log(tmp_path / "u-0", segment_bytes=segment_bytes)
    at_once.removals.truncate_to(offset, T0)
    assert contents(log) == contents(at_once)
    assert states(log) == states(at_once)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_truncation_that_ends_early_leaves_a_whole_log(tmp_path: Path, steps: int) -> None:
    """Its process is killed, or the partition gets another leader before the last cut."""
    log = large_log(tmp_path / "t-0")
    left = log.removals.truncate_in_steps(10, T0)
    for _ in range(steps):
        next(left)
    end = log.log_end_offset
    assert 10 < end < 320
    if steps == 1:
        log.abandon()
        log = open_log(tmp_path / "t-0")
    else:
        left.close()
    assert log.log_end_offset == end
    put(log, batch(1, end // 2, producer_id=end % 2, producer_epoch=0, base_sequence=end // 2))
    at_once = large_log(tmp_path / "u-0")
    at_once.removals.truncate_to(end, T0)
    put(at_once, batch(1, end // 2, producer_id=end % 2, producer_epoch=0, base_sequence=end // 2))
    assert contents(log) == contents(at_once)
    assert states(log) == states(at_once)
