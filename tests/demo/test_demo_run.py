"""The demo end to end, with a few thousand events: two runs, more events, every kind of rewind, and a lost file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from demo_runs import read_table

from odradek.cli.main import run
from odradek.demo.flights import Feed, Flights

EVENTS = 6_000
MORE = 500


class Output(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def processed(self) -> int:
        (count,) = re.findall(r"([\d,]+) events processed in this run", self.out)
        return int(count.replace(",", ""))

    def lag_rows(self) -> list[list[str]]:
        """The rows of the lag table: GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG …"""
        return [line.split() for line in self.out.splitlines() if line.startswith("flight-lake ")]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "data"


@pytest.fixture
def demo(
    spark: Any, forked_commands: None, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Output]:
    """Runs the demo in this process, with the shared session. The broker is a fork."""

    def start(*options: str) -> Output:
        code = run(["demo", "--data-dir", str(data_dir), *options])
        return Output(code, *capsys.readouterr())

    return start


@pytest.fixture(scope="module")
def between() -> list[datetime]:
    """The time after the first run's events and before the further events."""
    return []


def test_the_first_run_processes_all_events(
    demo: Callable[..., Output], data_dir: Path, between: list[datetime]
) -> None:
    said = demo("--events", str(EVENTS))
    assert said.code == 0, said
    assert f"{EVENTS:,} events sent to topic flights, each acknowledged" in said.out
    assert said.processed == EVENTS
    distance = int(Flights.load().distances[:EVENTS].sum())
    assert read_table(data_dir) == (EVENTS, EVENTS, distance)
    assert len(re.findall(rf"{EVENTS:,} +{distance:,}\n", said.out)) == 3
    ends = [len(sequence) for sequence in Feed(Flights.load(), EVENTS).sequences]
    assert [row[1:6] for row in said.lag_rows()] == [
        ["flights", str(partition), str(end), str(end), "0"] for partition, end in enumerate(ends)
    ]
    for partition, end in enumerate(ends):
        assert f"[flight-lake,flights,{partition}]::OffsetAndMetadata(offset={end}, leaderEpoch=" in said.out
    assert "\x1b" not in said.out
    time.sleep(0.01)
    between.append(datetime.now(UTC))
    time.sleep(0.01)


def test_a_second_run_reads_no_new_records(demo: Callable[..., Output], data_dir: Path) -> None:
    said = demo("--json")
    assert said.code == 0, said
    assert "Nothing to publish" in said.out
    assert "Nothing new: 0 events processed" in said.out
    assert read_table(data_dir)[:2] == (EVENTS, EVENTS)
    entries = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    commits = {entry["key"]["data"]["partition"]: entry["value"]["data"]["offset"] for entry in entries}
    assert commits == {int(row[2]): int(row[3]) for row in said.lag_rows()}


def test_the_option_more_processes_exactly_the_new_events(demo: Callable[..., Output], data_dir: Path) -> None:
    said = demo("--more", str(MORE))
    assert said.code == 0, said
    assert said.processed == MORE
    assert read_table(data_dir)[:2] == (EVENTS + MORE, EVENTS + MORE)


@pytest.mark.claim(58, part=True)
def test_a_rewind_by_a_number_repeats_so_many_of_each_partition(demo: Callable[..., Output], data_dir: Path) -> None:
    said = demo("--rewind", "-100")
    assert said.code == 0, said
    assert said.processed == 600
    assert read_table(data_dir)[:2] == (EVENTS + MORE + 600, EVENTS + MORE)
    assert "Read again after a rewind, counted separately: 600 rows." in said.out
    assert all(row[5] == "0" for row in said.lag_rows())


@pytest.mark.slow
def test_a_rewind_to_a_time_reads_the_records_since_then_again(
    demo: Callable[..., Output], data_dir: Path, between: list[datetime]
) -> None:
    said = demo("--rewind", between[0].isoformat())
    assert said.code == 0, said
    assert said.processed == MORE
    assert read_table(data_dir)[:2] == (EVENTS + 2 * MORE + 600, EVENTS + MORE)


@pytest.mark.slow
def test_a_rewind_to_the_end_reads_nothing(demo: Callable[..., Output], data_dir: Path) -> None:
    said = demo("--rewind", "latest")
    assert said.code == 0, said
    assert said.processed == 0
    assert read_table(data_dir)[:2] == (EVENTS + 2 * MORE + 600, EVENTS + MORE)


@pytest.mark.slow
def test_a_rewind_to_the_start_reads_everything_again(demo: Callable[..., Output], data_dir: Path) -> None:
    said = demo("--rewind", "earliest")
    assert said.code == 0, said
    assert said.processed == EVENTS + MORE
    assert read_table(data_dir)[:2] == (2 * EVENTS + 3 * MORE + 600, EVENTS + MORE)


def test_a_rewind_before_the_log_start_is_limited(demo: Callable[..., Output]) -> None:
    said = demo("--rewind", "-1000000")
    assert said.code == 0, said
    assert said.processed == EVENTS + MORE
    assert said.out.count("(the log starts at 0)") == 6


def test_a_table_that_lost_its_newest_files_is_refused(
    demo: Callable[..., Output], data_dir: Path, tmp_path: Path
) -> None:
    from demo_runs import table_files

    moved = {path: path.rename(tmp_path / path.name) for path in table_files(data_dir)[1:]}
    said = demo()
    assert said.code == 2
    assert said.err.startswith("odradek: ")
    assert "Restore the file" in said.err
    for path, kept in moved.items():
        kept.rename(path)
    assert demo().code == 0


def test_a_table_that_lost_an_older_file_fails_the_check(demo: Callable[..., Output], data_dir: Path) -> None:
    from demo_runs import table_files

    older = table_files(data_dir)
    assert demo("--rewind", "-10").code == 0  # the files of a new, small micro-batch stay
    for path in older:
        path.unlink()
    said = demo()
    assert said.code == 1
    assert "WRONG: " in said.out
    assert said.err.startswith("odradek: ")
    assert demo("--rewind", "earliest").code == 0
