"""kill -9 of the demo at any point: after another run, every event is in the topic and in the table once.

A rewind by 100 adds 100 records of each partition to the table once.
"""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from demo_runs import Run, Table, read_table, run_demo, run_until, signal_demo_when, table_files

from odradek.demo.flights import Flights

EVENTS = 4_000
SMALL = ["--events", str(EVENTS), "--batch-events", "1500"]
# A rewind by 100 records in each of six partitions.
AGAIN = 600

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc")


def _assert_table(data_dir: Path, events: int, again: int = 0) -> None:
    distance = int(Flights.load().distances_of(np.arange(events)).sum())
    assert read_table(data_dir) == Table(events + again, events, distance)


def _number(pattern: str, text: str) -> int:
    (found,) = re.findall(rf"([\d,]+) {pattern}", text)
    return int(found.replace(",", ""))


def _assert_killed(run: Run, *programs: str) -> None:
    assert run.code == -signal.SIGKILL, run
    for program in programs:
        assert program in run.err, run


def _first_batches_killed(data_dir: Path) -> None:
    """Kills three runs in the second of three micro-batches: before, while and after its files are moved."""
    _assert_killed(run_until("staged:2", data_dir, *SMALL), "serve", "java", "pyspark")
    assert list(data_dir.glob("table/*/batch-000001-*")) == []
    _assert_killed(run_until("moving-in:2", data_dir, *SMALL), "serve", "java", "pyspark")
    assert len(list(data_dir.glob("table/*/batch-000001-*"))) == 1, "half of its files are in the table"
    assert {path.name for path in (data_dir / "checkpoint" / "commits").glob("[0-9]*")} == {"0"}
    _assert_killed(run_until("table-written:1", data_dir, *SMALL), "serve", "java", "pyspark")
    assert len(list(data_dir.glob("table/*/batch-000001-*"))) == 2, "all of its files are in the table"
    assert {path.name for path in (data_dir / "checkpoint" / "commits").glob("[0-9]*")} == {"0"}


@pytest.mark.slow
def test_a_micro_batch_whose_files_were_half_moved_at_a_kill_is_completed(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    _assert_killed(run_until("moving-in:2", data_dir, *SMALL), "serve", "java", "pyspark")
    assert len(list(data_dir.glob("table/*/batch-000000-*"))) == 1, "half of its files are in the table"
    again = run_demo(data_dir, *SMALL)
    assert again.code == 0, again
    _assert_table(data_dir, EVENTS)


@pytest.mark.slow
def test_a_run_killed_at_several_steps_is_completed_by_the_next(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    interrupted = run_until("interrupted", data_dir, *SMALL)
    assert (interrupted.code, interrupted.err) == (130, "odradek: interrupted: the same command completes the work\n")
    _assert_killed(run_until("publishing", data_dir, *SMALL), "serve")
    _first_batches_killed(data_dir)
    again = run_demo(data_dir, *SMALL)
    assert again.code == 0, again
    _assert_table(data_dir, EVENTS)


@pytest.mark.slow
def test_more_events_are_published_after_a_kill_before_their_publication(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    _first_batches_killed(data_dir)
    # One kill, after the reset and after --more was stored, but before the new events are published.
    further = [*SMALL, "--rewind", "-100", "--more", "300"]
    killed = run_until("target-saved", data_dir, *further)
    _assert_killed(killed, "serve")
    assert f"{AGAIN} records to read again" in killed.out
    again = run_demo(data_dir, *further)
    assert again.code == 0, again
    assert "Completing the rewind -100 that an earlier run began." in again.out
    assert "Completing 300 events of an earlier run, then 300 more." in again.out
    assert _number("were there before", again.out) == EVENTS
    assert _number("events sent", again.out) == 600
    _assert_table(data_dir, EVENTS + 600, AGAIN)


@pytest.mark.slow
def test_a_rewind_killed_at_several_steps_is_completed_by_the_next_run(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    _first_batches_killed(data_dir)
    rewind = [*SMALL, "--rewind", "-100"]
    _assert_killed(run_until("rewind-noted", data_dir, *rewind))
    _assert_killed(run_until("rewound", data_dir, *rewind))
    _assert_killed(run_until("batch-planned:2", data_dir, *rewind))  # the first plan is that of the killed micro-batch
    again = run_demo(data_dir, *rewind)
    assert again.code == 0, again
    assert "Completing the rewind -100 that an earlier run began." in again.out
    _assert_table(data_dir, EVENTS, AGAIN)
    once_more = run_demo(data_dir, *rewind)
    assert once_more.code == 0, once_more
    assert "Completing" not in once_more.out
    _assert_table(data_dir, EVENTS, 2 * AGAIN)


@pytest.mark.slow
def test_the_next_run_waits_for_the_children_of_a_killed_one(tmp_path: Path) -> None:
    """The broker and Java notice that the first process was killed, and end. The next run waits for the end of these
    processes."""
    data_dir = tmp_path / "data"
    options = ["--events", "9000", "--batch-events", "3000"]
    killed = signal_demo_when(data_dir, options, lambda: len(table_files(data_dir)) > 2, whole=False)
    assert killed.code == -signal.SIGKILL, killed
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    assert 0 < _number("events processed in this run", again.out) < 9_000
    _assert_table(data_dir, 9_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_runs_killed_at_random_moments_lose_and_repeat_no_event(tmp_path: Path, seed: int) -> None:
    """Kills a first run, its reruns and a run with ``--more`` at random moments, then lets one run complete."""
    chance = random.Random(seed)
    data_dir, target = tmp_path / "data", 30_000
    options = ["--events", str(target), "--batch-events", "4000"]
    for round_number in range(5):
        more = ["--more", "2000"] if round_number == 3 else []
        left = iter(range(chance.randrange(100, 9_000)))  # checks, about 2 ms apart
        whole = chance.random() < 0.7
        signal_demo_when(data_dir, [*options, *more], lambda left=left: next(left, None) is None, whole=whole)
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    events = read_table(data_dir).distinct
    assert events in (target, target + 2_000)  # the kill may come before the request for more events is stored
    _assert_table(data_dir, events)
