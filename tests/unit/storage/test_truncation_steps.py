"""A truncation of a log with producers: cut at once, and their states are rebuilt in steps that read little."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support.counted_files import CountedFiles
from support.logs import T0, batch, open_log, put, sequenced

from odradek.core.ids import EndTransactionMarker
from odradek.storage.disk.files import OsFiles
from odradek.storage.disk.memory_files import MemoryFiles
from odradek.storage.log import Log
from odradek.storage.producers.states import encode_snapshot

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
    steps = log.begin_truncation(BATCHES - 10, T0)
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
    log.truncate_to(BATCHES + 10, T0)
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
    steps = log.begin_truncation(BATCHES - 10, T0)
    next(steps)
    twin.truncate_to(BATCHES - 10, T0)
    for each in (log, twin):
        CHANGES[name](each)
    assert states(log) == states(twin)
    assert list(steps) == [], "nothing is left to do"


def test_a_second_truncation_begins_again(tmp_path: Path) -> None:
    log, twin = filled(tmp_path / "t-0"), filled(tmp_path / "u-0")
    first = log.begin_truncation(BATCHES - 10, T0)
    next(first)
    second = log.begin_truncation(BATCHES - 20, T0)
    assert len(list(first)) <= 1
    for _ in second:
        pass
    twin.truncate_to(BATCHES - 20, T0)
    assert states(log) == states(twin)
    assert log.producers.end_offset == BATCHES - 20


def test_an_abandoned_log_leaves_no_steps(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    steps = log.begin_truncation(BATCHES - 10, T0)
    next(steps)
    log.abandon()
    assert list(steps) == []


def aborted_then_open(path: Path, files: MemoryFiles) -> tuple[Log, Generator[object, object, None]]:
    log = open_log(path, files=files)
    put(log, sequenced(0, 2, 7, transactional=True))
    log.append_marker(EndTransactionMarker(7, 1, 0, True, 2), now_ms=T0, leader_epoch=0)
    for _ in range(600):
        put(log, batch(1))
    return log, log.begin_truncation(601, T0)


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
    log.truncate_to(600, T0)
    assert log.last_stable_offset == 0
    log.high_watermark = 3
    assert log.last_stable_offset == 3
