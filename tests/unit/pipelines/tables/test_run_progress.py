"""Counts, rate, lag and the time to the end of a run, by a clock that the test moves."""

from __future__ import annotations

import pytest

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.state import Added
from odradek.pipelines.files.task_reports import PieceReport, TaskReport
from odradek.pipelines.tables.run_progress import PartitionTime, PartitionTimes, RunProgress, sum_of
from odradek.spark.offsets.offset_ranges import Range

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_run_counts_the_records_that_tasks_read_and_the_rows_in_the_table() -> None:
    clock = Clock()
    progress = RunProgress(1000, has_end=True, clock=clock)
    found = progress.snapshot()
    assert (found.micro_batches, found.records, found.rows_per_s, found.lag, found.eta_s) == (0, 0, None, 1000, None)
    clock.now += 2
    progress.on_read(400)
    found = progress.snapshot()
    assert (found.micro_batches, found.records, found.rows_per_s, found.lag, found.eta_s) == (0, 400, 200.0, 600, 3.0)
    assert (found.files, found.bytes, found.seconds) == (0, 0, 2.0)
    # A micro-batch of 500 offsets has 490 rows: transaction markers are not rows.
    clock.now += 2
    progress.on_micro_batch(Added(490, 3, 2, 9000), 500, None)
    found = progress.snapshot()
    assert (found.micro_batches, found.records, found.lag, found.files, found.bytes, found.unreadable) == (
        1,
        490,
        500,
        2,
        9000,
        3,
    )
    # The log ends are requested from time to time: there are newer records, which this run does not read.
    progress.on_micro_batch(Added(500, 0, 1, 1000), 500, 70)
    found = progress.snapshot()
    assert (found.micro_batches, found.records, found.lag, found.eta_s) == (2, 990, 70, 0.0)


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = RunProgress(100_000, has_end=False, clock=clock)
    for _ in range(20):  # 1000 a second
        clock.now += 1
        progress.on_read(1000)
    for _ in range(10):  # 10 a second
        clock.now += 1
        progress.on_read(10)
    found = progress.snapshot()
    assert found.rows_per_s == pytest.approx(10, rel=0.01)
    assert found.eta_s is None, "a run without an end offset has no estimated time"
    clock.now += 30
    progress.on_read(0)
    assert (progress.snapshot().rows_per_s or 0) < 3.4, "the rate falls when nothing is read"


def test_a_value_unknown_for_one_micro_batch_is_unknown_for_the_run() -> None:
    assert sum_of([]) == Added(0, 0, 0, 0)
    assert sum_of([Added(1, 0, 1, 10), Added(2, 1, 2, 20)]) == Added(3, 1, 3, 30)
    assert sum_of([Added(1, 0, 1, 10), Added(2, 1, 2, None)]) == Added(3, 1, None, None)


def test_the_slowest_partition_is_the_one_that_took_the_most_time() -> None:
    def report(*pieces: PieceReport) -> TaskReport:
        ranges = tuple(Range(piece.partition, 0, piece.rows) for piece in pieces)
        return TaskReport("h", 0, ranges, (), 0, None, 1.0, 0, pieces)

    times = PartitionTimes()
    assert times.slowest is None
    times.add([report(PieceReport(T0, 10, 1.0), PieceReport(T1, 500, 1.5)), report(PieceReport(T0, 30, 1.0))])
    assert times.slowest == PartitionTime("t", 0, 40, 2.0)
    assert times.slowest.rows_per_s == 20.0
