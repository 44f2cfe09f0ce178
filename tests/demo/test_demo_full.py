"""The demo with its default options: all 336,776 flights."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from demo_runs import Table, read_table, run_demo

from odradek.demo.flights import Feed, Flights

ROWS = 336_776


@pytest.mark.slow
def test_the_whole_data_set_is_processed_once(tmp_path: Path) -> None:
    flights = Flights.load()
    assert flights.rows == ROWS
    data_dir = tmp_path / "data"
    started = time.monotonic()
    done = run_demo(data_dir)
    print(f"the demo took {time.monotonic() - started:.0f} s (meant: below 120)")
    assert (done.code, done.err) == (0, ""), done
    distance = int(flights.distances.sum())
    assert read_table(data_dir) == Table(ROWS, ROWS, distance)
    assert "336,776 events sent to topic flights, each acknowledged" in done.out
    assert "336,776 events processed in 6 micro-batches." in done.out
    assert len(re.findall(rf"336,776 +{distance:,}\n", done.out)) == 3, "the file, pyarrow and Spark agree"
    assert "All counts agree, and no partition's offsets have a gap." in done.out
    for partition, sequence in enumerate(Feed(flights, ROWS).sequences):
        end = len(sequence)
        assert re.search(rf"^flight-lake +flights +{partition} +{end} +{end} +0 ", done.out, re.MULTILINE)
        assert f"[flight-lake,flights,{partition}]::OffsetAndMetadata(offset={end}, " in done.out
    assert "336,776 events processed in this run; every check holds; the group's lag is 0." in done.out
    again = run_demo(data_dir)
    assert (again.code, again.err) == (0, "")
    assert "Nothing new: 0 events processed." in again.out
    assert read_table(data_dir) == Table(ROWS, ROWS, distance)
