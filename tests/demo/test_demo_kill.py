"""kill -9 of the whole job, anywhere: a rerun ends with every event once in topic and table."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from demo_runs import log_bytes, read_table, run_demo, signal_demo_when, table_files

from odradek.pipelines.flights import Flights


def _assert_right(data_dir: Path, events: int) -> None:
    assert read_table(data_dir) == (events, events, int(Flights.load().distances_of(np.arange(events)).sum()))


def _number(pattern: str, text: str) -> int:
    (found,) = re.findall(rf"([\d,]+) {pattern}", text)
    return int(found.replace(",", ""))


def test_killed_while_publishing(tmp_path: Path) -> None:
    data_dir, events = tmp_path / "data", 60_000
    options = ["--events", str(events)]
    killed = signal_demo_when(data_dir, options, lambda: log_bytes(data_dir) > 3_000_000)
    assert killed.code == -signal.SIGKILL, killed
    again = run_demo(data_dir)
    assert again.code == 0, again
    found = _number("were there before", again.out)
    assert 0 < found < events
    assert _number("events sent", again.out) == events - found
    _assert_right(data_dir, events)


def test_interrupted_then_killed_while_reading(tmp_path: Path) -> None:
    data_dir, events = tmp_path / "data", 9_000
    options = ["--events", str(events), "--batch-events", "3000"]
    interrupted = signal_demo_when(data_dir, options, lambda: log_bytes(data_dir) > 0, signal.SIGINT)
    assert (interrupted.code, interrupted.err) == (130, "")
    # A batch leaves at most two files here, so with the third the second batch of three is at work or just done.
    killed = signal_demo_when(data_dir, options, lambda: len(table_files(data_dir)) > 2)
    assert killed.code == -signal.SIGKILL, killed
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    assert 0 < _number("events processed in this run", again.out) < events
    _assert_right(data_dir, events)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_anywhere_again_and_again(tmp_path: Path, seed: int) -> None:
    """Kills at random moments of a first run, of its reruns and of a ``--more``, then lets one finish."""
    chance = random.Random(seed)
    data_dir, target = tmp_path / "data", 30_000
    options = ["--events", str(target), "--batch-events", "4000"]
    for round_number in range(5):
        more = ["--more", "2000"] if round_number == 3 else []
        left = iter(range(chance.randrange(100, 9_000)))  # looks, about 2 ms apart
        signal_demo_when(data_dir, [*options, *more], lambda left=left: next(left, None) is None)
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    events = read_table(data_dir).distinct
    assert events in (target, target + 2_000)  # the kill may have come before --more was noted
    _assert_right(data_dir, events)
