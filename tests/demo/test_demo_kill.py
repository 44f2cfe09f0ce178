"""kill -9 of the whole job, anywhere: a rerun ends with every event once in topic and table."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from demo_runs import kill_demo_when, log_bytes, read_table, run_demo, table_files

from odradek.pipelines.flights import Flights


def _assert_right(data_dir: Path, events: int) -> None:
    assert read_table(data_dir) == (events, events, int(Flights.load().distances_of(range_of(events)).sum()))


def range_of(events: int):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.arange(events)


def test_killed_while_publishing(tmp_path: Path) -> None:
    data_dir, events = tmp_path / "data", 60_000
    options = ["--events", str(events)]
    assert kill_demo_when(data_dir, options, lambda: log_bytes(data_dir) > 3_000_000)
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    (found,) = re.findall(r"([\d,]+) were there before", again.out)
    (sent,) = re.findall(r"([\d,]+) events sent", again.out)
    assert 0 < int(found.replace(",", "")) < events
    assert int(found.replace(",", "")) + int(sent.replace(",", "")) == events
    _assert_right(data_dir, events)


def test_killed_while_reading(tmp_path: Path) -> None:
    data_dir, events = tmp_path / "data", 12_000
    options = ["--events", str(events), "--batch-events", "3000"]
    # Two batches have to do with a file each at least, so the kill falls into the second or later.
    assert kill_demo_when(data_dir, options, lambda: len(table_files(data_dir)) > 1)
    assert len(table_files(data_dir)) >= 1
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    assert "Nothing new" not in again.out
    _assert_right(data_dir, events)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_anywhere_again_and_again(tmp_path: Path, seed: int) -> None:
    """Kills at random moments of a first run, of its reruns and of a ``--more``, then lets one finish."""
    chance = random.Random(seed)
    data_dir, target = tmp_path / "data", 30_000
    options = ["--events", str(target), "--batch-events", "4000"]
    for round_number in range(5):
        more = 2_000 if round_number == 3 else 0
        deadline_polls = chance.randrange(100, 9_000)
        polls = iter(range(deadline_polls))
        kill_demo_when(
            data_dir, [*options, *(["--more", str(more)] if more else [])], lambda p=polls: next(p, None) is None
        )
    again = run_demo(data_dir, *options)
    assert again.code == 0, again
    events = read_table(data_dir).distinct
    assert events in (target, target + 2_000)  # the kill may have come before --more was noted
    _assert_right(data_dir, events)
